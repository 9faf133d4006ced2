"""One version of the weights brought into one engine: fetched, loaded, verified."""

from collections.abc import Callable
from dataclasses import dataclass

from executor.engines.errors import EngineError, LoadFailed
from executor.engines.replica import RealReplica
from executor.engines.weights import DiskUpdate, WeightSource
from libra.core.ids import WeightVersion
from libra.errors import UserError


@dataclass(frozen=True, slots=True)
class VersionBringer:
    """deadline_s: of one load, all stages together."""

    weights: WeightSource
    deadline_s: float
    keep_prefix_cache: bool

    async def __call__(
        self, replica: RealReplica, version: WeightVersion, on_paused: Callable[[], None] = lambda: None
    ) -> float:
        """Returns when the engine stopped stepping. on_paused: called once it stands still. Raises LoadFailed."""
        replica_id = replica.plan.replica_id
        try:
            update = await self.weights.update(replica_id, version)
        except UserError as error:
            raise LoadFailed(f"{replica.name}: {error}", "check", torn=False, late=False) from error
        paused_s = await replica.load_weights(
            version,
            update,
            deadline_s=self.deadline_s,
            keep_prefix_cache=self.keep_prefix_cache,
            on_paused=on_paused,
        )
        await self._verify(replica, version)
        return paused_s

    async def from_folder(self, replica: RealReplica, path: str, version: WeightVersion) -> None:
        """The same for an engine of somebody else, which may hold anything. Raises LoadFailed."""
        await replica.load_weights(version, DiskUpdate(path), deadline_s=self.deadline_s)
        await self._verify(replica, version)

    async def _verify(self, replica: RealReplica, version: WeightVersion) -> None:
        try:
            await self.weights.verify(replica.plan.replica_id, version, replica.client)
        except (UserError, EngineError) as error:
            raise LoadFailed(f"{replica.name}: {error}", "verify", torn=True, late=False) from error
