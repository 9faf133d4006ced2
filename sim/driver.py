"""The simulator's driver: owns the clock, hands events to the controller and actions to the simulated world.

    event -> controller.handle -> record -> dispatch -> ports -> (later) event

Ports emit into a queue; events are handled one after another, each to the end, in the order of emission. That
and the fixed order of simultaneous things (`sim.clock`) make a run a function of its configuration and seed.
"""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from libra.controller import Controller
from libra.core import events as ev
from libra.core.actions import SetTimer
from libra.core.ids import ActionId, EndReason, FailureKind
from libra.core.step import Step
from libra.errors import PolicyError
from libra.ports import Ports, dispatch
from libra.workloads.table import WorkloadSource
from sim.clock import TICKS_PER_S, Clock, to_seconds, to_ticks
from sim.config import SimConfig
from sim.world.engines import ReplicaPlan, SimEngines
from sim.world.environment import SimEnvironment
from sim.world.episodes import Episode
from sim.world.faults import ReplicaFaults, ToolFaults
from sim.world.source import SimSource
from sim.world.trainer import SimTrainer

MAX_EVENTS_AT_ONCE = 1_000_000
"""Events handled without time passing, beyond which policies go in circles (arrivals at once are far fewer)."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the cycle collector run a hundred times less often.

    A run keeps many live objects and makes few cycles; at the default threshold the collector walks them all
    every few hundred events, which costs up to a tenth of the run.
    """
    before = gc.get_threshold()
    gc.set_threshold(70_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@dataclass(frozen=True, slots=True)
class World:
    """What the simulated cluster is made of."""

    replicas: list[ReplicaPlan]
    train_step_s: Callable[[int, int], float]
    publish_s: float
    workload: WorkloadSource
    seed: int


class SimClockPort:
    """Timers."""

    def __init__(self, clock: Clock, emit: Callable[[ev.Event], None]) -> None:
        self._clock = clock
        self._emit = emit

    def set_timer(self, action_id: ActionId, action: SetTimer) -> None:
        """See `ClockPort`."""
        delay_t = to_ticks(action.at_s) - self._clock.now
        if delay_t < 0 and to_seconds(self._clock.now) > action.at_s:
            self._emit(ev.ActionFailed(action_id, FailureKind.REFUSED, "that time has passed"))
            return
        self._clock.call_later(max(0, delay_t), lambda: self._emit(ev.TimerFired(action_id, action.key)))


class SimDriver:
    """One run. `record` is called with every step; `on_progress` now and then with the simulated time."""

    def __init__(
        self,
        controller: Controller,
        world: World,
        config: SimConfig,
        record: Callable[[Step], None],
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self._controller = controller
        self._config = config
        self._record = record
        self._on_progress = on_progress
        self._inbox: deque[ev.Event] = deque()
        self._handling = False
        self._end_reason: EndReason | None = None
        self._now_s = -1.0
        self._num_at_once = 0  # events handled at that time
        self.clock = clock = Clock()
        episodes: dict[int, Episode] = {}
        self._environment = SimEnvironment(clock, episodes, config.tool_timeout_s, self.emit)
        self._trainer = SimTrainer(clock, world.train_step_s, world.publish_s, self.emit)
        self.engines = SimEngines(
            clock,
            config.engine,
            world.replicas,
            episodes,
            self.emit,
            self._environment.after_turn,
            lambda: self._trainer.published_version,
        )
        block_size = world.replicas[0].spec.block_size
        tool_faults = ToolFaults(config.faults.slow_tool, world.seed)
        self._source = SimSource(clock, world.workload, episodes, block_size, tool_faults, self.emit)
        self._faults = ReplicaFaults(clock, config.faults, world.seed, self.engines)
        self._ports = Ports(
            self._source, self._environment, self.engines, self._trainer, SimClockPort(clock, self.emit)
        )

    def run(self) -> EndReason:
        """Simulate to the end of the run and return why it ended."""
        # Replicas are there when the run begins: their events come before what the first one leads to.
        self._inbox.append(ev.RunStarted(self._source.supply))
        self._handling = True
        self.engines.boot()
        self._handling = False
        self._handle_inbox()
        self._faults.schedule()
        self._source.start_pushing()
        if self._config.metrics_period_s > 0:
            self._clock_sample()
        self.clock.call_later(to_ticks(self._config.max_sim_s), lambda: self._end(EndReason.TIME_LIMIT))
        advance = self.clock.advance
        with rare_collections():
            while self._end_reason is None:  # the time limit is armed: there is a next event
                advance()
        self.engines.close()
        assert self._end_reason is not None
        return self._end_reason

    def emit(self, event: ev.Event) -> None:
        """Queue an event, and handle the queue unless that is going on already."""
        self._inbox.append(event)
        if not self._handling:
            self._handle_inbox()

    def _handle_inbox(self) -> None:
        if self._end_reason is not None:
            return
        self._handling = True
        inbox = self._inbox
        handle, record, ports = self._controller.handle, self._record, self._ports
        now = self.clock.env._now / TICKS_PER_S
        if now != self._now_s:
            self._now_s = now
            self._num_at_once = 0
        else:
            self._count_at_once(now)
        while True:
            event = inbox.popleft()
            taken = handle(now, event)
            record(taken)
            if taken.actions:
                for action_id, action in enumerate(taken.actions, taken.first_action_id):
                    dispatch(ports, cast(ActionId, action_id), action)
            if not inbox:
                break
            self._count_at_once(now)
        self._handling = False
        if self._controller.at_rest:
            self._check_end(isinstance(event, ev.MetricsSampled))

    def _count_at_once(self, now: float) -> None:
        self._num_at_once += 1
        if self._num_at_once > MAX_EVENTS_AT_ONCE:
            raise PolicyError(
                f"{MAX_EVENTS_AT_ONCE:,} events at t={now:.6g}s without time passing, the next {self._inbox[0]}: a "
                "policy asks again for what fails at once, or sets timers for now; drop it or set a later timer"
            )

    def _check_end(self, polled: bool) -> None:
        reason = self._controller.end_reason()
        # Where replicas are polled, a policy may wait for the next poll: only one that leads to nothing is a stall.
        if reason is None and (polled or not self._config.metrics_period_s) and self._controller.is_stalled():
            reason = EndReason.STALLED
        if reason is not None:
            self._end(reason)

    def _end(self, reason: EndReason) -> None:
        if self._end_reason is None:
            self._end_reason = reason
            self._record(self._controller.handle(to_seconds(self.clock.now), ev.RunEnding(reason)))

    def _clock_sample(self) -> None:
        self.emit(self.engines.sample())
        if self._on_progress is not None:
            self._on_progress(to_seconds(self.clock.now))
        self.clock.call_later(to_ticks(self._config.metrics_period_s), self._clock_sample)
