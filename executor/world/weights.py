"""Published weights: which version engines may load, from where, and whether what they serve is it.

Guarantees that an engine is never told to load what was not published whole, and that what it was told to load
stays until it has: a folder is kept while it is one of the `keep_versions` newest or an engine's latest, and weights
that are broadcast are not replaced under way. Engines are launched from the first weights, which nobody removes, and
then brought up to date in place: a launch takes longer than a published folder may live.
"""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from executor.engines.client import EngineClient
from executor.engines.weights import BroadcastUpdate, DiskUpdate, WeightUpdate
from executor.trainer.batch import Sample
from executor.trainer.client import weights_folder
from libra.core.ids import ReplicaId, WeightVersion
from libra.errors import UserError

_PROBES_KEPT: Final = 8
MAX_PROBE_ERROR: Final = {"float32": 1e-3, "bfloat16": 0.25}
"""Largest difference of a probed token's log-prob, trainer and engine, that is taken for rounding."""


class PublishingTrainer(Protocol):
    """What this needs of the trainer's client."""

    async def publish(self, version: int, mode: Any, folder: str | Path | None = None) -> None: ...
    async def init_direct(
        self, replica_id: int, host: str, port: int, world_size: int, backend: str = "gloo"
    ) -> None: ...
    async def push(self, replica_id: int, version: int) -> int: ...
    async def weight_info(self) -> list[tuple[str, str, list[int]]]: ...
    async def logprobs(self, samples: Sequence[Sample]) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class Probe:
    """Token ids whose log-probs are compared after a load, and what the trainer found for them at `version`."""

    version: int
    samples: tuple[Sample, ...]
    expected: tuple[Any, ...]


class PublishedWeights:
    """The `WeightSource` of the engines, and where the trainer publishes.

    mode: `none` is `disk` here; all that is published under it is what a resumed run begins with. start_path: model
    folder that holds `start_version`. tp_of: TP degree of a replica. backend: of direct transfers, gloo or nccl.
    num_probes: 0 for no verification. deadline_s: of one load; a broadcast takes no longer.
    """

    def __init__(
        self,
        trainer: PublishingTrainer,
        *,
        mode: str,
        folder: Path,
        start_path: Path,
        start_version: int,
        keep_versions: int,
        tp_of: Callable[[ReplicaId], int],
        vocab_size: int,
        num_probes: int,
        tolerance: float,
        deadline_s: float = 300.0,
        host: str = "127.0.0.1",
        backend: str = "gloo",
    ) -> None:
        self._trainer = trainer
        self._mode = "disk" if mode == "none" else mode
        self._folder = folder
        self._start_path = start_path
        self._start_version = start_version
        self._published = start_version
        self._keep = keep_versions
        self._tp_of = tp_of
        self._host = host
        self._backend = backend
        self._tolerance = tolerance
        self._deadline_s = deadline_s
        self._told: dict[ReplicaId, int] = {}  # version of a replica's latest load
        self._transfers: dict[ReplicaId, tuple[int, asyncio.Event]] = {}  # version, and whether it is over
        self._info: list[tuple[str, str, list[int]]] = []
        self._probe_samples = _probe_samples(num_probes, vocab_size)
        self._probes: dict[int, Probe] = {}

    # -- trainer's side -----------------------------------------------------------------------------------

    async def publish(self, version: int) -> None:
        """Make the trainer's weights, which are `version`, loadable. Raises UserError."""
        if self._mode == "direct":
            await self._transfers_over()
        await self._trainer.publish(version, self._mode, self._folder if self._mode == "disk" else None)
        if self._mode == "direct" and not self._info:
            self._info = await self._trainer.weight_info()
        if self._probe_samples:
            expected = await self._trainer.logprobs(self._probe_samples)
            self._probes[version] = Probe(version, self._probe_samples, tuple(expected))
            for old in sorted(self._probes)[:-_PROBES_KEPT]:
                del self._probes[old]
        self._published = version
        if self._mode == "disk":
            self._prune()

    def _prune(self) -> None:
        """Newer folders are of an attempt that was interrupted after its last checkpoint."""
        folders = {path.name: path for path in self._folder.glob("v*") if path.is_dir()}
        newest = weights_folder(self._folder, self._published).name
        kept = set(sorted(name for name in folders if name <= newest)[-self._keep :])
        kept |= {weights_folder(self._folder, version).name for version in self._told.values()}
        for name in folders.keys() - kept:
            shutil.rmtree(folders[name], ignore_errors=True)

    async def _transfers_over(self) -> None:
        """Wait for broadcasts of versions before the one published last, which the trainer is about to let go."""
        for version, over in list(self._transfers.values()):
            if version < self._published:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), self._deadline_s)

    # -- engines' side ------------------------------------------------------------------------------------

    def launch_from(self) -> tuple[str, WeightVersion]:
        """See `WeightSource`."""
        return str(self._start_path), WeightVersion(self._start_version)

    def published_version(self) -> WeightVersion:
        """See `WeightSource`."""
        return WeightVersion(self._published)

    async def update(self, replica_id: ReplicaId, version: WeightVersion) -> WeightUpdate:
        """See `WeightSource`."""
        self._told[replica_id] = int(version)
        if self._mode == "disk":
            path = weights_folder(self._folder, int(version))
            if not path.is_dir():
                raise UserError(f"weights version {version}: {path} is gone; raise weight_sync.keep_versions")
            return DiskUpdate(str(path))
        world_size = 1 + self._tp_of(replica_id)
        port = _free_port(self._host)
        names, dtypes, shapes = zip(*self._info, strict=True)
        over = asyncio.Event()
        self._transfers[replica_id] = (int(version), over)

        async def join() -> None:
            try:
                await self._trainer.init_direct(int(replica_id), self._host, port, world_size, self._backend)
            except BaseException:
                over.set()
                raise

        async def send() -> None:
            try:
                await self._trainer.push(int(replica_id), int(version))
            finally:
                over.set()

        return BroadcastUpdate(
            self._host,
            port,
            world_size,
            join=join,
            send=send,
            names=tuple(names),
            dtypes=tuple(dtypes),
            shapes=tuple(tuple(shape) for shape in shapes),
        )

    async def verify(self, replica_id: ReplicaId, version: WeightVersion, client: EngineClient) -> None:
        """Compare the engine's log-probs with the trainer's, if that was asked for. Raises UserError."""
        probe = self._probes.get(int(version))
        if probe is None:
            return
        for sample, expected in zip(probe.samples, probe.expected, strict=True):
            scores = np.asarray(await client.score([int(token) for token in sample.tokens]), np.float64)
            worst = float(np.max(np.abs(scores - np.asarray(expected, np.float64)[1:])))
            if not worst <= self._tolerance:
                raise UserError(
                    f"replica {replica_id}: serves other weights than version {version}: log-probs of a probe "
                    f"differ by up to {worst:.3g} (at most {self._tolerance:g} is rounding)"
                )


def _probe_samples(count: int, vocab_size: int, length: int = 24) -> tuple[Sample, ...]:
    rng = np.random.default_rng(0)
    return tuple(
        Sample(
            trajectory_id=-1 - i,
            group_id=-1 - i,
            tokens=rng.integers(0, vocab_size, length).astype(np.int32),
            loss_mask=np.array([False] + [True] * (length - 1)),
            rollout_logprobs=np.zeros(length, np.float32),
            reward=0.0,
        )
        for i in range(count)
    )


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])
