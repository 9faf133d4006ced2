"""The driver's side of the trainer: one method a command, over HTTP on this machine.

Guarantees: a refusal arrives as UserError in one line; so does a trainer that died, with its last words where the
caller watches its processes (`TrainerProcesses.died`). No method retries: a step must not run twice.
"""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import aiohttp
import numpy as np
from numpy.typing import NDArray

from executor.trainer.batch import Sample, TrainBatch, unpack_arrays
from executor.trainer.results import StepResult
from libra.errors import UserError

__all__ = ["StepResult", "TrainerClient"]

_POLL_S = 0.25
_DEATH_WAIT_S = 5.0
_T = TypeVar("_T")


class TrainerClient:
    """Speaks to rank 0 at `base_url`; use it as an async context manager, or call `close`.

    died: `TrainerProcesses.died`; with it, waiting ends when the trainer does.
    """

    def __init__(self, base_url: str, died: Callable[[], Awaitable[str]] | None = None) -> None:
        self._url = base_url
        self._died = died
        self._session: aiohttp.ClientSession | None = None
        self.notes: tuple[str, ...] = ()
        """What runs otherwise than configured, one line each, for the manifest; known once ready."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of connections; the trainer goes on."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def wait_ready(self, timeout_s: float = 300.0) -> int:
        """Wait until the weights are loaded; their version. Raises UserError when it dies or takes longer."""

        async def ready() -> int:
            while True:
                try:
                    health = json.loads(await self._send("health", {}))
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(_POLL_S)
                    continue
                self.notes = tuple(health["notes"])
                return int(health["version"])

        try:
            return await asyncio.wait_for(self._unless_dead(ready()), timeout_s)
        except TimeoutError:
            raise UserError(
                f"trainer: not ready after {timeout_s:g} s; see its logs, or allow it more"
            ) from None

    async def watch(self) -> None:
        """Never returns; raises UserError when the trainer dies, also while nobody waits for an answer of it."""
        if self._died is None:
            await asyncio.Event().wait()
        else:
            raise UserError(await self._died())

    async def step(self, batch: TrainBatch, version: int) -> StepResult:
        """Train on `batch`, which makes `version` (the one before plus 1)."""
        return StepResult(**json.loads(await self._call("step", {"version": version}, batch.to_bytes())))

    async def publish(
        self, version: int, mode: Literal["disk", "direct"], folder: str | Path | None = None
    ) -> None:
        """Make the current weights, which must be `version`, loadable.

        disk: as a Hugging Face folder `weights_folder(folder, version)`. direct: held on rank 0 for `push`.
        """
        path = str(weights_folder(folder, version)) if folder is not None else ""
        if mode == "disk" and not path:
            raise ValueError("mode disk needs a folder")
        await self._call("publish", {"version": version, "mode": mode, "folder": path})

    async def init_direct(
        self,
        replica_id: int,
        host: str,
        port: int,
        world_size: int,
        backend: str = "gloo",
        timeout_s: float = 120.0,
    ) -> None:
        """Open a transfer group with one engine as its rank 0, on `host`:`port`; returns when the engine has joined.

        world_size: 1 + the engine's workers, whose ranks start at 1. backend: gloo or nccl. timeout_s: for joining,
        and later for one tensor. Raises UserError where that passes, or where the port is taken.
        """
        arguments = {"replica_id": int(replica_id), "host": host, "port": port, "world_size": world_size}
        await self._call("init_direct", {**arguments, "backend": backend, "timeout_s": timeout_s})

    async def push(self, replica_id: int, version: int) -> int:
        """Broadcast the held weights to one engine, in the order of `weight_info`; bytes sent. Training goes on."""
        sent = json.loads(await self._call("push", {"replica_id": int(replica_id), "version": int(version)}))
        return int(sent["bytes"])

    async def weight_info(self) -> list[tuple[str, str, list[int]]]:
        """Name, dtype (`float32`) and shape of each tensor that `push` sends."""
        return [tuple(row) for row in json.loads(await self._call("weight_info", {}))["weights"]]

    async def save(self, folder: str | Path) -> None:
        """Write a checkpoint (weights and optimizer) into `folder`, whole or not at all."""
        await self._call("save", {"folder": str(Path(folder).resolve())})

    async def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Log-prob of each token of each sample under the current weights; 0 for the first of each."""
        return unpack_arrays(await self._call("logprobs", {}, TrainBatch(tuple(samples)).to_bytes()))

    async def stop(self) -> None:
        """Let all ranks end; returns when they have been told."""
        await self._call("stop", {})

    async def _call(self, name: str, arguments: dict[str, Any], body: bytes = b"") -> bytes:
        try:
            return await self._unless_dead(self._send(name, arguments, body))
        except aiohttp.ClientError as error:
            raise UserError(
                f"trainer: {name}: no connection to {self._url} ({error}); see its logs"
            ) from error

    async def _send(self, name: str, arguments: dict[str, Any], body: bytes = b"") -> bytes:
        if self._session is None:
            # A step takes as long as it takes; that a rank hangs is found out by the ranks.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0)
            )
        headers = {"X-Arguments": json.dumps(arguments)}
        async with self._session.post(
            f"{self._url}/{name}", data=io.BytesIO(body), headers=headers
        ) as response:
            data = await response.read()
        if response.status != 200:
            message = json.loads(data)["error"]
            raise UserError(
                message if response.status == 400 else f"trainer: {name} failed: {message}; see its logs"
            )
        return data

    async def _unless_dead(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of `work`, or UserError when the trainer dies first."""
        if self._died is None:
            return await work
        task, death = asyncio.ensure_future(work), asyncio.ensure_future(self._died())
        try:
            await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
            if _broke(task):  # a connection breaks a moment before its process is seen to have ended
                await asyncio.wait({death}, timeout=_DEATH_WAIT_S)
            if death.done() and (_broke(task) or not task.done()):
                raise UserError(death.result())
            return task.result()
        finally:
            for each in (task, death):
                each.cancel()
            await asyncio.gather(task, death, return_exceptions=True)


def weights_folder(folder: str | Path, version: int) -> Path:
    """Where `publish` with mode disk writes `version`."""
    return Path(folder).resolve() / f"v{version:06d}"


def _broke(task: asyncio.Future[Any]) -> bool:
    """Whether the request ended because the connection did."""
    return task.done() and isinstance(task.exception(), aiohttp.ClientError)
