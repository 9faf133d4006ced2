"""The wall clock of a run, and the timers of the controller. Nothing else under `executor` reads a clock."""

import asyncio
import time

from libra.core import events as ev
from libra.core.actions import SetTimer
from libra.core.ids import ActionId, FailureKind
from libra.ports import Emit


class WallClock:
    """Seconds since the run began, never going back."""

    def __init__(self) -> None:
        self._zero = time.monotonic()

    def restart(self) -> None:
        """The run begins now; what came before was its start-up."""
        self._zero = time.monotonic()

    def now_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._zero


class WallClockPort:
    """The `ClockPort` of a real run."""

    def __init__(self, clock: WallClock, emit: Emit) -> None:
        self._clock = clock
        self._emit = emit

    def set_timer(self, action_id: ActionId, action: SetTimer) -> None:
        """See `ClockPort`. A time that passed while the action was on its way fires at once."""
        delay_s = action.at_s - self._clock.now_s()
        if delay_s < -60.0:
            self._emit(ev.ActionFailed(action_id, FailureKind.REFUSED, "that time has passed"))
            return
        loop = asyncio.get_running_loop()
        loop.call_later(max(0.0, delay_s), self._emit, ev.TimerFired(action_id, action.key))
