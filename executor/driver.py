"""The real driver: one asyncio loop, one inbox, the wall clock.

    event -> controller.handle -> record -> dispatch -> ports -> (later) event

Ports run as tasks of the same loop and report through `emit`; events are handled one after another, in the order of
emission, each to the end. What the simulator's driver does with a heap of future events is here left to the world.
However a run ends, what was decided is recorded, and the record replays: a controller that broke is asked no more.
There is no branch on which world it is: `libra.ports.dispatch` carries out the actions in both.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from executor.clock import WallClock
from libra.controller import Controller
from libra.core import events as ev
from libra.core.ids import ActionId, EndReason, Supply, WeightVersion
from libra.core.step import Step
from libra.ports import Ports, dispatch

STALL_CHECK_S: Final = 5.0
"""How often a run without events is looked at: it may be stuck, or past its time limit."""


class ExecutorDriver:
    """One run. `record` is called with every step, `on_step` after its actions were carried out."""

    def __init__(
        self,
        controller: Controller,
        clock: WallClock,
        record: Callable[[Step], None],
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self._controller = controller
        self._clock = clock
        self._record = record
        self._on_step = on_step
        self._inbox: deque[ev.Event] = deque()
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._end_reason: EndReason | None = None
        self._error: BaseException | None = None
        self._deciding = False  # left true where the controller raised
        self._over = False

    @property
    def controller(self) -> Controller:
        """What decides, for status lines."""
        return self._controller

    def emit(self, event: ev.Event) -> None:
        """Queue an event. Only from the loop's own thread; never blocks."""
        self._inbox.append(event)
        self._wake.set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a port's task. An exception that it lets out ends the run: a port that broke has told nobody."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        if (
            self._over
        ):  # an engine that is still being stopped has ended a turn: nobody waits for what follows
            task.cancel()
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.fail(task.exception())

    def fail(self, error: BaseException | None) -> None:
        """End the run for an error that no event stands for; `run` raises the first one."""
        if self._error is None:
            self._error = error
        self.stop(EndReason.FAILED)

    def stop(self, reason: EndReason) -> None:
        """End the run at the next chance."""
        if self._end_reason is None:
            self._end_reason = reason
        self._wake.set()

    async def run(
        self, ports: Ports, supply: Supply, version: WeightVersion, *, max_run_s: float = float("inf")
    ) -> EndReason:
        """Run to the end and return why it ended. Raises what made it fail.

        version: of the weights that trainer and engines hold at the start (0, or that of the checkpoint resumed).
        """
        self._inbox.appendleft(ev.RunStarted(supply, version))
        asked_again = (
            False  # a poll, or a while without events, has led to nothing: policies may wait for either
        )
        try:
            while self._end_reason is None:
                try:
                    asked_again = self._handle_burst(ports) or asked_again
                except Exception as error:  # of a policy or a port: the record ends here, in order
                    self.fail(error)
                self._check_end(max_run_s, asked_again)
                if self._end_reason is None and not self._inbox:
                    asked_again = not await self._wait(max_run_s)
                else:
                    asked_again = False
                    await asyncio.sleep(0)  # ports and signals get their turn, also where events beget events
            self._finish(self._end_reason)
        finally:
            self._over = True
            await self._cancel_tasks()
        if self._error is not None:
            raise self._error
        return self._end_reason

    async def _wait(self, max_run_s: float) -> bool:
        """Whether something came, and not only time passed."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            left_s = max(0.0, max_run_s - self._clock.now_s())
            await asyncio.wait_for(self._wake.wait(), min(STALL_CHECK_S, left_s))
        return self._wake.is_set()

    def _handle_burst(self, ports: Ports) -> bool:
        """Handle what is there now; whether a poll was the last of it."""
        event: ev.Event | None = None
        for _ in range(len(self._inbox)):
            if self._end_reason is not None:
                break
            event = self._inbox.popleft()
            step = self._handle(event)
            for action_id, action in enumerate(step.actions, step.first_action_id):
                dispatch(ports, ActionId(action_id), action)
            self._on_step(step)
        return isinstance(event, ev.MetricsSampled)

    def _handle(self, event: ev.Event) -> Step:
        self._deciding = True
        step = self._controller.handle(self._clock.now_s(), event)
        self._deciding = False
        self._record(step)
        return step

    def _check_end(self, max_run_s: float, asked_again: bool) -> None:
        if self._end_reason is not None:
            return
        reason = None
        if not self._inbox:
            reason = self._controller.end_reason()
            if reason is None and asked_again and self._controller.is_stalled():
                reason = EndReason.STALLED
        if reason is None and self._clock.now_s() >= max_run_s:
            reason = EndReason.TIME_LIMIT
        self._end_reason = reason

    def _finish(self, reason: EndReason) -> None:
        """Record the end; a controller that broke has none, its state is that of half an event."""
        if not self._deciding:
            self._on_step(self._handle(ev.RunEnding(reason)))

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
