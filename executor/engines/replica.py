"""One engine's life: launched, healthy, serving, refreshed in place, stopped.

Guarantees: an engine that does not come up leaves nothing behind, and its error holds the last lines of its log; a
weight refresh either leaves the engine serving one whole version, old or new, or says that it is torn; every wait
has a deadline, and what is late is named by stage and engine.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import aiohttp

from executor.engines.client import EngineClient, ModelInfo, is_up
from executor.engines.config import EnginesConfig
from executor.engines.errors import EngineError, EngineStartError, EngineTimeout, LoadFailed
from executor.engines.launch import EngineLauncher, ReplicaPlan, RunningEngine
from executor.engines.refresh import Refresh, first_line
from executor.engines.weights import WeightUpdate
from libra.core.ids import WeightVersion

_LOG_LINES: Final = 20
_POLL_S: Final = 1.0
_SUSPECT_PAUSE_S: Final = 0.2
_RESUME_TIMEOUT_S: Final = 10.0
_HARMLESS: Final = ("check", "pause")
"""Stages of a refresh after which the old weights are still whole."""


class RealReplica:
    """Start it once; a restart is a new object. `now`: seconds on the run's clock."""

    def __init__(
        self,
        plan: ReplicaPlan,
        launcher: EngineLauncher,
        session: aiohttp.ClientSession,
        config: EnginesConfig,
        now: Callable[[], float],
    ) -> None:
        self.plan = plan
        self._launcher = launcher
        self._session = session
        self._config = config
        self._now = now
        self._engine: RunningEngine | None = None
        self._client: EngineClient | None = None
        self._died: asyncio.Task[int] | None = None
        self._suspected = asyncio.Event()
        self._acquitted: list[asyncio.Future[None]] = []
        self._joined = False
        self.version = WeightVersion(-1)

    @property
    def name(self) -> str:
        """For messages."""
        where = f" at {self._client.base_url}" if self._client is not None else ""
        return f"replica {self.plan.replica_id} (tp {self.plan.tp}){where}"

    @property
    def client(self) -> EngineClient:
        """Valid once it is up."""
        if self._client is None:
            raise RuntimeError(f"{self.name} has not been started")
        return self._client

    # -- coming up ----------------------------------------------------------------------------------------

    async def start(self, model_path: str, version: WeightVersion) -> ModelInfo:
        """Launch it from a model folder that holds `version`; returns when it is healthy and stamped.

        Raises EngineStartError (a UserError), after which nothing of it is left.
        """
        try:
            engine = self._engine = await self._launcher.launch(self.plan, model_path)
            client = self._client = EngineClient(engine.base_url, self._session, self._now)
            self._died = asyncio.create_task(engine.wait())
            await self._until_healthy(client, self._died)
            model = await client.prepare()
            if (await client.features()).weight_versions:
                await client.set_version(version)
        except EngineError as error:
            await self.stop(0.0)
            raise EngineStartError(self._story(f"came up but failed: {error}")) from None
        except BaseException:
            await self.stop(0.0)
            raise
        self.version = version
        return model

    async def _until_healthy(self, client: EngineClient, died: "asyncio.Task[int]") -> None:
        deadline = self._now() + self._config.startup_timeout_s
        while not await is_up(client):
            if died.done():
                raise EngineStartError(
                    self._story(f"its engine ended with status {died.result()} before it was healthy")
                )
            if self._now() >= deadline:
                raise EngineStartError(
                    self._story(f"its engine was not healthy after {self._config.startup_timeout_s:g} s")
                )
            await asyncio.wait({died}, timeout=min(_POLL_S, self._config.health_period_s))

    def _story(self, what: str) -> str:
        tail = self._engine.log_tail(_LOG_LINES) if self._engine is not None else ""
        return f"{self.name}: {what}" + (f"; {tail}" if tail else "")

    # -- being there --------------------------------------------------------------------------------------

    async def watch(self) -> str:
        """Returns when the replica is lost, with the reason. One caller, from `start` to the end."""
        assert self._died is not None
        failures = 0
        while True:
            suspected = asyncio.ensure_future(self._suspected.wait())
            pause_s = self._config.health_period_s
            if failures:
                pause_s = min(_SUSPECT_PAUSE_S, pause_s)
            try:
                await asyncio.wait(
                    {self._died, suspected}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                suspected.cancel()
            if not self._died.done():
                self._suspected.clear()
                if await is_up(self.client):
                    failures = 0
                    self._acquit()
                    continue
                failures += 1
            if self._died.done():
                return self._story(f"its engine ended with status {self._died.result()}")
            if failures >= self._config.lost_after_failures:
                return self._story(f"{failures} health checks in a row failed")

    async def suspect(self) -> None:
        """A request could not reach it: returns if it proves healthy, and never if it is lost."""
        acquitted = asyncio.get_running_loop().create_future()
        self._acquitted.append(acquitted)
        self._suspected.set()
        await acquitted

    def _acquit(self) -> None:
        waiting, self._acquitted = self._acquitted, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def stop(self, grace_s: float | None = None) -> None:
        """End it; returns when nothing of it is left. Harmless where nothing is."""
        engine, self._engine = self._engine, None
        try:
            if engine is not None:
                await engine.stop(self._config.stop_grace_s if grace_s is None else grace_s)
        finally:
            if self._died is not None:
                self._died.cancel()

    # -- new weights --------------------------------------------------------------------------------------

    async def load_weights(
        self,
        version: WeightVersion,
        update: WeightUpdate,
        *,
        deadline_s: float,
        keep_prefix_cache: bool = False,
        on_paused: Callable[[], None] = lambda: None,
    ) -> float:
        """Refresh in place: pause, new weights, stamp, prefix cache, resume. Returns when it stopped stepping.

        deadline_s: of all stages together. on_paused: called once it stands still. Turns under way go on
        afterwards; unless `keep_prefix_cache`, their KV is computed again under the new weights.
        Raises LoadFailed.
        """
        refresh = Refresh(self.client, update, version, keep_prefix_cache, self._joined)
        paused_s = self._now()
        try:
            async with asyncio.timeout(deadline_s):
                await refresh.pause()
                paused_s = self._now()
                on_paused()
                await refresh.replace()
                await refresh.finish()
        except Exception as error:
            raise await self._after_failure(refresh, version, deadline_s, error) from error
        self._joined = refresh.joined
        self.version = version
        return paused_s

    async def _after_failure(
        self, refresh: Refresh, version: WeightVersion, deadline_s: float, error: Exception
    ) -> LoadFailed:
        late = isinstance(error, TimeoutError | EngineTimeout)
        too_long = isinstance(error, TimeoutError)
        what = f"took more than {deadline_s:g} s" if too_long else f"failed: {first_line(error)}"
        torn = refresh.stage not in _HARMLESS
        if refresh.stage == "pause":
            try:
                async with asyncio.timeout(_RESUME_TIMEOUT_S):
                    await self.client.resume()
            except (EngineError, TimeoutError):
                torn = True
        message = f"{self.name}: load of weights version {version}: stage {refresh.stage} {what}"
        return LoadFailed(message, refresh.stage, torn, late)
