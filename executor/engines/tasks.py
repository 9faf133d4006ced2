"""Tasks that nobody awaits: kept, ended together, and their defects passed on instead of swallowed."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any


class Tasks:
    """fail: called with the exception of a task that raised one."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run it beside the others."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel(self, but: Collection["asyncio.Task[Any]"] = ()) -> None:
        """Cancel all others than the caller's own and those named."""
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current and task not in but:
                task.cancel()

    async def all_ended(self) -> None:
        """Wait for all but the caller's own."""
        current = asyncio.current_task()
        await asyncio.gather(*(task for task in self._tasks if task is not current), return_exceptions=True)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
