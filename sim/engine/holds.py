"""Pauses and weight loads of an engine, and the account of its time.

States: IDLE (at rest), BUSY (a step is in flight), HELD (paused or loading), STOPPED. `_in_boundary` marks the
time between the end of a step and the scheduling of the next one, when callbacks may call any method: a hold
that is asked for then begins at the end of that boundary (rule E3), one asked for at rest begins at once, and
one asked for during a step begins after it.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from simpy.events import Event

from sim.clock import ARRIVAL, KICK, Clock
from sim.engine.base import EngineCounters, EngineSpec

IDLE: Final = 0
BUSY: Final = 1
HELD: Final = 2
STOPPED: Final = 3


class Holds(ABC):
    """State of an engine, and what holds it."""

    def __init__(self, clock: Clock, index: int, spec: EngineSpec, weight_version: int) -> None:
        self.counters = EngineCounters()
        self.weight_version = weight_version
        self._clock = clock
        self._env = clock.env
        self._index = index
        self._spec = spec
        self._waiting: Any = ()  # the queue's items
        self._arriving: deque[Any] = (
            deque()
        )  # submitted, not yet seen by the scheduler (rule E5), in that order
        self._state = IDLE
        self._since: int = clock.now  # begin of the state, or of the step in flight
        self._in_boundary = False
        self._head_start = 0  # ticks that the host has had for the next step when it starts (rule E6)
        self._kick_t = -1  # tick of the pending kick; -1: none
        self._num_pauses = 0
        self._loads: deque[tuple[int, int, Callable[[int], None]]] = deque()
        self._loading = False

    @property
    @abstractmethod
    def num_running(self) -> int:
        """Requests admitted and not preempted."""

    @abstractmethod
    def _schedule(self) -> bool:
        """Rules E4-E6 now; whether a step has started."""

    @abstractmethod
    def _need_boundary(self) -> None:
        """The engine must look at its state at the next step boundary."""

    @abstractmethod
    def _push(self, seq: Any) -> None:
        """Put an arrival into the queue."""

    @abstractmethod
    def _forget_cache(self) -> None:
        """No block of now can be hit any more."""

    # The account of time.

    def _enter(self, state: int) -> None:
        """Account for the state that ends now. A step's own time is counted when it ends."""
        now = self._clock.now
        if self._state == IDLE:
            self.counters.idle_t += now - self._since
        elif self._state == HELD:
            self.counters.paused_t += now - self._since
        if state != BUSY:
            self._head_start = 0
        self._state = state
        self._since = now

    def _settle_rest(self) -> None:
        if self._state in (IDLE, HELD):
            self._enter(self._state)

    # Rest and start.

    def _kick(self, delay: int = 0) -> None:
        """Look for work after `delay` ticks, unless a kick is due by then; one that is due later is void."""
        at = self._clock.now + delay
        if self._kick_t < 0 or at < self._kick_t:
            self._kick_t = at
            self._clock.wake(self._on_kick, KICK + self._index, delay, at)

    def _on_kick(self, event: Event) -> None:
        if event._value != self._kick_t:
            return
        self._kick_t = -1
        if self._state != IDLE:
            return
        self.counters.num_wakes += 1
        if self._arriving:
            self._see(self._clock.now)
        if self._schedule():
            self._enter(BUSY)
        elif self._arriving:
            self._await_arrival()

    def _see(self, until: int) -> None:
        """Queue what has become visible up to the tick `until`."""
        arriving = self._arriving
        while arriving and arriving[0].visible_t <= until:
            seq = arriving.popleft()
            seq.visible_t = -1
            self._push(seq)

    def _await_arrival(self) -> None:
        """At rest, with arrivals: look again when the first of them becomes visible."""
        self._kick(max(0, self._arriving[0].visible_t - self._clock.now))

    def _held(self) -> bool:
        """Rule E3: whether the engine holds now instead of scheduling."""
        if self._loads:
            self._begin_load()
            return True
        if self._num_pauses:
            self._enter(HELD)
            return True
        return False

    def _leave_hold(self) -> None:
        self._enter(IDLE)
        if self.num_running or self._waiting or self._arriving:
            self._kick()

    # Pauses and loads.

    def pause(self) -> None:
        """Hold after the step in flight until `resume`. Pauses nest."""
        self._num_pauses += 1
        if self._in_boundary:
            return
        if self._state == IDLE:
            self._enter(HELD)
        elif self._state == BUSY:
            self._need_boundary()

    def resume(self) -> None:
        """End one pause."""
        if not self._num_pauses:
            raise ValueError("resume without a pause")
        self._num_pauses -= 1
        if self._state == HELD and not self._num_pauses and not self._loading and not self._in_boundary:
            self._leave_hold()

    def load_weights(self, version: int, duration_t: int, on_loaded: Callable[[int], None]) -> None:
        """Pause at the next boundary for `duration_t`, then serve `version`; `on_loaded(start tick)`."""
        if duration_t < 0:
            raise ValueError(f"a weight load of {duration_t} ticks")
        self._loads.append((version, duration_t, on_loaded))
        if self._in_boundary or self._loading:
            return
        if self._state == BUSY:
            self._need_boundary()
        elif self._state != STOPPED:
            self._begin_load()

    def _begin_load(self) -> None:
        version, duration_t, on_loaded = self._loads.popleft()
        start_t = self._clock.now
        self._loading = True
        if self._state != HELD:
            self._enter(HELD)

        def loaded(event: Event) -> None:
            if self._state == STOPPED:
                return
            self.weight_version = version
            if not self._spec.keep_cache_on_load:
                self._forget_cache()
            on_loaded(start_t)
            if self._state == STOPPED:
                return
            self._loading = False
            if self._loads:
                self._begin_load()
            elif not self._num_pauses:
                self._leave_hold()

        self._clock.wake(loaded, ARRIVAL, duration_t)
