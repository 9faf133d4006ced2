"""Published weights: which version engines may load, from where, and whether what they serve is it.

Guarantees that an engine is never told to load what was not published whole, and that a folder is kept as long as
it is the newest or one of `keep_versions`.
"""

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

    tp_of: TP degree of a replica. backend: of direct transfers, gloo or nccl. num_probes: 0 for no verification.
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
        host: str = "127.0.0.1",
        backend: str = "gloo",
    ) -> None:
        self._trainer = trainer
        self._mode = mode
        self._folder = folder
        self._path = start_path
        self._path_version = start_version
        self._published = start_version
        self._keep = keep_versions
        self._tp_of = tp_of
        self._host = host
        self._backend = backend
        self._tolerance = tolerance
        self._info: list[tuple[str, str, list[int]]] = []
        self._probe_samples = _probe_samples(num_probes, vocab_size)
        self._probe: Probe | None = None

    # -- trainer's side -----------------------------------------------------------------------------------

    async def publish(self, version: int) -> None:
        """Make the trainer's weights, which are `version`, loadable. Raises UserError."""
        if self._mode != "none":
            await self._trainer.publish(version, self._mode, self._folder if self._mode == "disk" else None)
        if self._mode == "direct" and not self._info:
            self._info = await self._trainer.weight_info()
        if self._probe_samples and self._mode != "none":
            expected = await self._trainer.logprobs(self._probe_samples)
            self._probe = Probe(version, self._probe_samples, tuple(expected))
        self._published = version
        if self._mode == "disk":
            self._path, self._path_version = weights_folder(self._folder, version), version
            self._prune()

    def _prune(self) -> None:
        folders = sorted(path for path in self._folder.glob("v*") if path.is_dir())
        for old in folders[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)

    # -- engines' side ------------------------------------------------------------------------------------

    def launch_from(self) -> tuple[str, WeightVersion]:
        """See `WeightSource`."""
        return str(self._path), WeightVersion(self._path_version)

    def published_version(self) -> WeightVersion:
        """See `WeightSource`."""
        return WeightVersion(self._published)

    async def update(self, replica_id: ReplicaId, version: WeightVersion) -> WeightUpdate:
        """See `WeightSource`."""
        if self._mode == "disk":
            path = weights_folder(self._folder, int(version))
            if not path.is_dir():
                raise UserError(f"weights version {version}: {path} is gone; raise weight_sync.keep_versions")
            return DiskUpdate(str(path))
        world_size = 1 + self._tp_of(replica_id)
        port = _free_port(self._host)
        names, dtypes, shapes = zip(*self._info, strict=True)
        return BroadcastUpdate(
            self._host,
            port,
            world_size,
            join=lambda: self._trainer.init_direct(
                int(replica_id), self._host, port, world_size, self._backend
            ),
            send=lambda: self._trainer.push(int(replica_id), int(version)),
            names=tuple(names),
            dtypes=tuple(dtypes),
            shapes=tuple(tuple(shape) for shape in shapes),
        )

    async def verify(self, replica_id: ReplicaId, version: WeightVersion, client: EngineClient) -> None:
        """Compare the engine's log-probs with the trainer's, if that was asked for. Raises UserError."""
        probe = self._probe
        if probe is None or probe.version != version:
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
