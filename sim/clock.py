"""Simulated time: integer ticks of one picosecond.

Python integers are exact at any size, so sums of durations do not depend on their order, and an engine that
jumps over a thousand steps lands on the same tick as one that makes them singly. Seconds exist only at the
edge, towards the controller and the record.

Ties. Two things may happen at the same tick, and their order must not depend on which engine implementation
is in use. SimPy orders by (time, priority, creation), so priorities are fixed here:

    ARRIVAL   everything that is not an engine step: tool returns, timers, end of a weight load, trainer, faults
    STEP + i  the step boundary of engine i
    KICK + i  an engine i at rest starts stepping

`Clock` remembers how far the current tick has got in that order; an event-skipping engine needs it to know
whether a boundary that it never woke for has already passed at this tick. That works because a step lasts at
least one tick: every boundary of a tick is known before the tick begins, so once engine j has processed its
boundary, all engines i <= j with a boundary at this tick have passed theirs, and what engine j's callbacks
schedule at this tick (ARRIVAL) runs before the boundary of the next engine. Kicks call nobody back, so nothing
happens at a tick after them.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from operator import truediv
from typing import Any, Final

import simpy
from simpy.events import Event

TICKS_PER_S: Final = 10**12

ARRIVAL: Final = 1
STEP: Final = 2
KICK: Final = 1 << 40

_new_event: Any = Event.__new__


def to_ticks(seconds: float) -> int:
    """Nearest tick."""
    return round(seconds * TICKS_PER_S)


def to_seconds(ticks: int) -> float:
    """Seconds as the controller sees them; never decreasing in `ticks`.

    The nearest float to the quotient. (`truediv`: in compiled code `/` would round both integers first.)
    """
    return truediv(ticks, TICKS_PER_S)


class Clock:
    """A SimPy environment, and how far the current tick has got among the engines' boundaries."""

    __slots__ = ("_event_ids", "_queue", "_rank", "_tick", "env")

    def __init__(self) -> None:
        self.env: Any = simpy.Environment(initial_time=0)  # to SimPy's types a time may be a float
        self._queue: list[tuple[Any, ...]] = self.env._queue  # heap: (time, priority, number, event)
        self._event_ids: Any = self.env._eid
        self._tick = -1
        self._rank = -1

    @property
    def now(self) -> int:
        """Current tick."""
        return self.env._now  # the property costs a call

    def wake(self, callback: Callable[[Event], None], priority: int, delay: int, value: Any = 0) -> None:
        """Call `callback(event)` after `delay` ticks, in the place of its tick that `priority` gives.

        `event.value` is `value`: a caller that may change its mind passes its version and ignores old ones,
        which is much cheaper than a process and its interrupts.
        """
        env = self.env
        # Three events a turn are made here, so without the calls of `Event(env)` and `env.schedule`.
        event: Any = _new_event(Event)
        event.env = env
        event.callbacks = [callback]
        event._ok = True  # as `simpy.Timeout` does: triggered from the start, processed later
        event._value = value
        heappush(self._queue, (env._now + delay, priority, next(self._event_ids), event))

    def advance(self) -> None:
        """Move on to the next event and call back; IndexError if there is none.

        `env.step`, without what is for events that fail: those of `wake` cannot.
        """
        entry = heappop(self._queue)
        self.env._now = entry[0]
        event = entry[3]
        callbacks: list[Callable[[Event], None]] = event.callbacks
        event.callbacks = None
        for callback in callbacks:
            callback(event)

    def call_later(self, delay: int, callback: Callable[[], None]) -> None:
        """Call `callback()` after `delay` ticks, among the arrivals of that tick."""
        self.wake(lambda _: callback(), ARRIVAL, delay)

    def enter_step(self, engine_index: int) -> None:
        """Engine `engine_index` processes its boundary of the current tick now."""
        self._tick = self.env._now
        self._rank = engine_index

    def boundary_passed(self, engine_index: int) -> bool:
        """Whether a boundary of that engine at exactly this tick lies in the past already."""
        return self._tick == self.env._now and engine_index <= self._rank
