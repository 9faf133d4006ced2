"""The controller: timestamped events in, actions out.

    step = controller.handle(now, event)
    record(step)
    for action_id, action in enumerate(step.actions, step.first_action_id):
        dispatch(ports, action_id, action)

That is the whole driver loop, in the simulator and on a cluster. The controller owns the state, asks the
policies in a fixed order and holds everybody to the numbered invariants (`libra.core.invariants`). It waits for
nothing, reads no clock and performs nothing, so the same events always give the same actions.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from libra.core.actions import Action
from libra.core.apply import apply
from libra.core.events import Event
from libra.core.ids import ActionId, EndReason, EventSeq, Supply
from libra.core.reduce import reduce
from libra.core.state import ClusterState
from libra.core.step import Step
from libra.core.views import ClusterView
from libra.policies.base import Policy

_NONE: tuple[Action, ...] = ()

OnEvent: TypeAlias = Callable[[float, Event, ClusterView], Iterable[Action]]


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """What the controller itself has to know.

    training: trajectories are consumed by a trainer. total_steps: the run ends after this train step.
    max_head_offpolicyness: the bound of invariant I5. debug: recount all totals after every step.
    """

    training: bool
    total_steps: int
    max_head_offpolicyness: int
    debug: bool = False


class Controller:
    """See the module."""

    def __init__(self, config: ControllerConfig, policies: Sequence[Policy]) -> None:
        self._config = config
        self._policies = list(policies)
        self._asked: dict[type, list[OnEvent]] = {}  # by event type, filled as types occur
        self._state = ClusterState(
            training=config.training, max_head_offpolicyness=config.max_head_offpolicyness
        )
        self._next_seq = 0
        self._next_action_id = 0

    @property
    def view(self) -> ClusterView:
        """Read-only view of the state, for drivers' status lines and tests."""
        return self._state

    def handle(self, now: float, event: Event) -> Step:
        """Take in one event at `now` seconds since the start of the run.

        Raises InvariantViolation when the event, or a policy's answer to it, breaks a numbered invariant.
        """
        state = self._state
        reduce(state, now, event)
        first = action_id = self._next_action_id
        taken: list[Action] | None = None
        asked = self._asked.get(type(event))
        if asked is None:
            asked = self._asked[type(event)] = self._who_answers(type(event))
        for on_event in asked:
            actions = on_event(now, event, state)
            if actions == ():
                continue
            if taken is None:
                taken = []
            for action in actions:
                apply(state, ActionId(action_id), action)
                action_id += 1
                taken.append(action)
        seq = self._next_seq
        self._next_seq = seq + 1
        self._next_action_id = action_id
        if self._config.debug:
            state.recount()
        return Step(EventSeq(seq), now, event, ActionId(first), _NONE if taken is None else taken)

    def _who_answers(self, event_type: type) -> list[OnEvent]:
        nothing: frozenset[type] = frozenset()
        return [p.on_event for p in self._policies if event_type not in getattr(p, "ignores", nothing)]

    def end_reason(self) -> EndReason | None:
        """Why the run is over, if it is: its last step is done, or nothing is left to do."""
        state = self._state
        if self._config.training and state.trainer.version >= self._config.total_steps:
            return EndReason.STEPS_DONE
        if state.source_exhausted and not state.groups and not state.num_started_work:
            return EndReason.COMPLETED
        return None

    def is_stalled(self) -> bool:
        """Trajectories are left, but nothing is under way that could move them: a policy's defect."""
        state = self._state
        if state.supply is Supply.PUSH and not state.source_exhausted:
            return False  # the next arrival may be what is waited for
        return bool(state.groups) and not state.num_started_work and state.num_timers == 0
