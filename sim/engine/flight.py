"""The segment in flight of the skipping engine: when it ends, what may cut it, and how far it has got.

Nothing here changes the batch; `sim.engine.skip` does, at the boundary where a segment ends.
"""

from typing import Any

from simpy.events import Event

from sim.clock import STEP, Clock
from sim.engine.admission import Admission
from sim.engine.base import CostTable, EngineSpec, OnEnd
from sim.engine.holds import BUSY
from sim.engine.segment import steps_within


class Flight(Admission):
    """The part of `SkipEngine` that keeps a segment's time."""

    def __init__(
        self, clock: Clock, index: int, spec: EngineSpec, cost: CostTable, on_end: OnEnd, weight_version: int
    ) -> None:
        super().__init__(clock, index, spec, cost, on_end, weight_version)
        self._wake_version = 0
        # The segment in flight: `_since` + ... is its time; iteration `_iteration` is scheduled.
        self._steps = 0
        self._alpha = 0
        self._beta = 0
        self._step_version = self.weight_version  # weights of the step in flight
        self._ended_version = self.weight_version  # weights of the latest step that has ended
        self._version_sum = 0  # of the weight versions of all iterations

    def _arrived(self, seq: Any) -> None:
        """Cut the segment if the next boundary could admit `seq`: what blocks the head goes on blocking it."""
        if self._steps > 1 and self._waiting[0] is seq and self._num_decoding < self._most_decoding:
            self._need_boundary()

    def _arrived_unseen(self, seq: Any) -> None:
        """Cut the segment at the boundary that may admit `seq`, unless others come first."""
        if self._steps > 1 and self._arriving[0] is seq and self._arrival_matters():
            self._cut(max(self._steps_until_seen(self._since), self._ended_steps() + 1))

    def _steps_until_seen(self, begin_t: int) -> int:
        """Steps of the segment that began at `begin_t` up to the boundary at which the first arrival is visible."""
        span = self._arriving[0].visible_t - begin_t
        steps = steps_within(self._alpha, self._beta, span - 1) + 1 if span > 0 else 0
        return steps + 1 if self._cost.lag or not steps else steps

    def _need_boundary(self) -> None:
        """End the segment at the next boundary."""
        if self._steps > 1:
            self._cut(self._ended_steps() + 1)

    def _cut(self, steps: int) -> None:
        """End the segment after so many of its steps."""
        if steps < self._steps:
            self._steps = steps
            end = self._since + self._alpha * steps + self._beta * (steps * (steps - 1) // 2)
            self._wake_in(end - self._env._now)

    def _wake_in(self, delay: int) -> None:
        self._wake_version = version = self._wake_version + 1
        self._clock.wake(self._on_wake, STEP + self._index, delay, version)

    def _on_wake(self, event: Event) -> None:
        if event._value == self._wake_version and self._state == BUSY:
            self._boundary()

    # Time inside a segment.

    def _ended_steps(self) -> int:
        """Steps of the segment in flight whose end has passed."""
        span: int = self._env._now - self._since
        steps = steps_within(self._alpha, self._beta, span)
        if (
            steps
            and self._alpha * steps + self._beta * (steps * (steps - 1) // 2) == span
            and not self._clock.boundary_passed(self._index)
        ):
            steps -= 1
        return steps

    def _advance(self, steps: int) -> None:
        """Count `steps` steps of the segment in flight as ended."""
        batch = self._num_decoding
        span = self._alpha * steps + self._beta * (steps * (steps - 1) // 2)
        counters = self.counters
        counters.num_steps += steps
        counters.busy_t += span
        counters.output_tokens += batch * steps
        self._since += span
        self._context += batch * steps
        self._version_sum += self._step_version * steps
        self._ended_version = self._step_version
        self._iteration += steps
        self._steps -= steps
        self._alpha += self._beta * steps

    def _catch_up(self) -> None:
        """Count what has ended of a segment in flight; its end and its wake stay."""
        if self._state == BUSY and self._steps > 1 and not self._in_boundary:
            steps = self._ended_steps()
            if steps:
                growth = self._growth_after(steps)
                self._advance(steps)
                self._pool.take(growth)
