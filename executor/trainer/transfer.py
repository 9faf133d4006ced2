"""Weights straight from the trainer's rank 0 into engines, while training goes on.

Guarantees: what is sent is one version, taken at `hold`, whatever is trained meanwhile; the version before the newest
is held too, for engines that are at it still; each engine has a group of its own, so a late one holds up nobody else.
It joins with vLLM's `stateless_init_torch_distributed_process_group` (gloo) or its NCCL counterpart; the rendezvous
listens on the address it was given, not on all of them.
"""

import socket
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor

from libra.errors import UserError

_DISTRIBUTED: Any = torch.distributed
"""Untyped: most of what is used of it here, its stubs do not export."""


class Channel(Protocol):
    """A group of the trainer (rank 0) and one engine's workers."""

    def send(self, tensor: Tensor) -> None:
        """Broadcast from rank 0."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All weights of one version, on the CPU under their Hugging Face names."""

    version: int
    weights: dict[str, Tensor]

    def info(self) -> list[tuple[str, str, list[int]]]:
        """Name, dtype (`float32`) and shape of every tensor, in the order of sending."""
        return [(n, str(t.dtype).removeprefix("torch."), list(t.shape)) for n, t in self.weights.items()]


class DirectTransfer:
    """What rank 0 holds for its engines. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._held: dict[int, Snapshot] = {}  # by version, oldest first
        self._channels: dict[int, tuple[Channel, threading.Lock]] = {}

    def hold(self, version: int, weights: dict[str, Tensor]) -> None:
        """Keep these weights for engines to fetch, and those held before; what was held earlier goes."""
        newest = list(self._held.values())[-1:]
        self._held = {s.version: s for s in (*newest, Snapshot(version, weights))}

    def weight_info(self) -> Snapshot:
        """The newest that is held. Raises UserError where nothing was published yet."""
        if not self._held:
            raise UserError("trainer: no weights are held yet; publish with mode direct first")
        return list(self._held.values())[-1]

    def init(
        self, replica_id: int, host: str, port: int, world_size: int, backend: str, timeout_s: float
    ) -> None:
        """Open the group of one engine; blocks until its workers have joined. One of the same replica is left.

        timeout_s: for joining, and later for one tensor. Raises UserError where that passes.
        """
        make = {"gloo": GlooChannel, "nccl": NcclChannel}.get(backend)
        if make is None:
            raise UserError(f"trainer: no weight transfer over {backend!r}; take gloo or nccl")
        try:
            channel = make(host, port, world_size, timeout_s)
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"trainer: replica {replica_id} did not join on {host}:{port} ({error})"
            ) from error
        self._channels[replica_id] = (channel, threading.Lock())

    def push(self, replica_id: int, version: int) -> int:
        """Send the weights of `version` to one engine, tensor by tensor; blocks until it has them. Bytes sent."""
        newest = self.weight_info()
        snapshot = self._held.get(version)
        if snapshot is None:
            raise UserError(f"trainer: version {version} is not held, but {newest.version}")
        if replica_id not in self._channels:
            raise UserError(f"trainer: replica {replica_id} has no transfer group; call init_direct first")
        channel, lock = self._channels[replica_id]
        try:
            with lock:
                for tensor in snapshot.weights.values():
                    channel.send(tensor)
        except RuntimeError as error:
            del self._channels[replica_id]  # half a broadcast is past mending
            raise UserError(
                f"trainer: sending version {version} to replica {replica_id} failed ({error})"
            ) from error
        return sum(tensor.nbytes for tensor in snapshot.weights.values())


class GlooChannel:
    """Over the CPU."""

    def __init__(self, host: str, port: int, world_size: int, timeout_s: float) -> None:
        store = rendezvous_store(host, port, world_size, timeout_s)
        prefix = _DISTRIBUTED.PrefixStore(f"tcp://{host}:{port}", store)  # as vLLM names it
        timeout = timedelta(seconds=timeout_s)
        backend = _DISTRIBUTED.ProcessGroupGloo(prefix, 0, world_size, timeout)
        backend._set_sequence_number_for_group()
        self._group, self._store = backend, store
        self._options = _DISTRIBUTED.BroadcastOptions()
        self._options.rootRank, self._options.rootTensor = 0, 0

    def send(self, tensor: Tensor) -> None:
        """See `Channel`."""
        self._group.broadcast([tensor], self._options).wait()


class NcclChannel:
    """Over NCCL, with vLLM's own communicator, so it must be installed here too."""

    def __init__(self, host: str, port: int, world_size: int, timeout_s: float) -> None:
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.utils import StatelessProcessGroup

        group = StatelessProcessGroup.create(host=host, port=port, rank=0, world_size=world_size)
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._communicator: Any = PyNcclCommunicator(group, device=self._device)
        self._stream = torch.cuda.Stream(self._device)  # beside the one that trains

    def send(self, tensor: Tensor) -> None:
        """See `Channel`."""
        with torch.cuda.stream(self._stream):
            on_gpu = tensor.to(self._device)
            self._communicator.broadcast(on_gpu, src=0, stream=self._stream)
            self._stream.synchronize()


def rendezvous_store(host: str, port: int, world_size: int, timeout_s: float, *, listen: bool = True) -> Any:
    """A rendezvous, as its server or as one who joins. The server listens on `host` alone, where torch left to
    itself would on all addresses. Raises OSError where the port is taken."""
    server: dict[str, Any] = {}
    if listen:
        listener = socket.create_server((host, port), backlog=64)
        server = {"multi_tenant": True, "master_listen_fd": listener.detach()}
    timeout = timedelta(seconds=timeout_s)
    return _DISTRIBUTED.TCPStore(
        host, port, world_size, is_master=listen, timeout=timeout, wait_for_workers=False, **server
    )
