"""An in-place weight refresh of one engine, stage by stage.

Guarantees: what the engine lacks for it is found before it is paused; `stage` names what was under way when it
went wrong; no half of a broadcast is left running.
"""

import asyncio
import contextlib
from collections.abc import Awaitable
from pathlib import Path

from executor.engines.client import EngineClient
from executor.engines.weights import DiskUpdate, WeightUpdate
from libra.core.ids import WeightVersion


class Refresh:
    """`pause`, `replace`, `finish`, in this order. joined: the engine has met the trainer's group before."""

    def __init__(
        self,
        client: EngineClient,
        update: WeightUpdate,
        version: WeightVersion,
        keep_prefix_cache: bool,
        joined: bool,
    ) -> None:
        self._client = client
        self._update = update
        self._version = version
        self._keep_prefix_cache = keep_prefix_cache
        self.joined = joined
        self.stage = "check"

    async def pause(self) -> None:
        """See that it can be done, and make the engine stand still."""
        features = await self._client.features()
        features.need(self._client.base_url, "pause")
        if not self._keep_prefix_cache:
            features.need(self._client.base_url, "reset_cache")
        if isinstance(self._update, DiskUpdate):
            features.need(self._client.base_url, "reload")
            if not any(Path(self._update.path).glob("*.safetensors")):
                raise FileNotFoundError(f"no *.safetensors in {self._update.path}")
        else:
            features.need(self._client.base_url, "transfer")
        self.stage = "pause"
        await self._client.pause("keep")

    async def replace(self) -> None:
        """Put the new weights in the place of the old ones."""
        client, update = self._client, self._update
        if isinstance(update, DiskUpdate):
            self.stage = "reload"
            await client.reload_from_disk(update.path)
            return
        if not self.joined:
            self.stage = "join"
            await _together(
                update.join(),
                client.init_weight_transfer(
                    update.master_address, update.master_port, update.rank_offset, update.world_size
                ),
            )
            self.joined = True
        self.stage = "receive"
        await _together(
            update.send(),
            client.receive_weights(update.names, update.dtypes, update.shapes, self._version),
        )

    async def finish(self) -> None:
        """Stamp, forget what old weights have computed, go on."""
        if (await self._client.features()).weight_versions:
            self.stage = "stamp"
            await self._client.set_version(self._version)
        if not self._keep_prefix_cache:
            self.stage = "reset of the prefix cache"
            await self._client.reset_prefix_cache()
        self.stage = "resume"
        await self._client.resume()


async def _together(*awaitables: Awaitable[object]) -> None:
    """All of them; the first failure ends the others and is raised."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def first_line(error: BaseException) -> str:
    """What an exception says, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
