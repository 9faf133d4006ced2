"""Where engines get their weights from: what the executor's weight sync offers them.

Two ways into a running engine, `DiskUpdate` and `BroadcastUpdate`; both leave it serving one whole version.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from executor.engines.client import EngineClient
from libra.core.ids import ReplicaId, WeightVersion


@dataclass(frozen=True, slots=True)
class DiskUpdate:
    """Read them from a folder of HF safetensors that the engine's machine sees."""

    path: str


@dataclass(frozen=True, slots=True)
class BroadcastUpdate:
    """Take them from the trainer, rank 0 of a group that it shares with this replica's workers.

    join, send: the trainer's side of the rendezvous and of the broadcast; each runs while the engine does its own.
    join is called once in an engine's life. dtypes: names of torch types. Tensors go in this order.
    """

    master_address: str
    master_port: int
    world_size: int
    join: Callable[[], Awaitable[object]]
    send: Callable[[], Awaitable[object]]
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    rank_offset: int = 1


WeightUpdate: TypeAlias = DiskUpdate | BroadcastUpdate


class WeightSource(Protocol):
    """The published weights."""

    def launch_from(self) -> tuple[str, WeightVersion]:
        """Folder of a whole HF model that an engine can be launched from, and the version in it."""
        ...

    def published_version(self) -> WeightVersion:
        """The newest version that engines may load."""
        ...

    async def update(self, replica_id: ReplicaId, version: WeightVersion) -> WeightUpdate:
        """How this replica gets that version. Raises UserError where it cannot be had any more."""
        ...

    async def verify(self, replica_id: ReplicaId, version: WeightVersion, client: EngineClient) -> None:
        """Whether the engine serves that version indeed, if that is to be checked. Raises UserError if not."""
        ...
