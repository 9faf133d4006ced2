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
from typing import Any, TypeAlias

from libra.core.actions import Action
from libra.core.apply import apply
from libra.core.controller_config import ControllerConfig as ControllerConfig
from libra.core.events import Event
from libra.core.ids import ActionId, EndReason, EventSeq, Supply
from libra.core.invariants import InvariantViolation
from libra.core.reduce import reduce
from libra.core.state import ClusterState
from libra.core.step import Step
from libra.core.views import ClusterView
from libra.policies.base import Policy
from libra.policies.failure import NOTHING_YET, asking, ignored_by, raise_policy_error
from libra.policies.guard import Guard

_NONE: tuple[Action, ...] = ()

OnEvent: TypeAlias = Callable[[float, Event, ClusterView], Iterable[Action]]


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

        Raises InvariantViolation when the event, or a policy's answer to it, breaks a numbered invariant, and
        PolicyError when a policy raises anything else or answers with something that is no action.
        """
        state = self._state
        reduce(state, now, event)
        first = action_id = self._next_action_id
        taken: list[Action] | None = None
        asked = self._asked.get(type(event))
        if asked is None:
            asked = self._asked[type(event)] = self._who_answers(type(event))
        for on_event in asked:
            action: Any = NOTHING_YET
            try:
                actions = on_event(now, event, state)
                if actions == ():
                    continue
                if taken is None:
                    taken = []
                for action in actions:
                    apply(state, ActionId(action_id), action)
                    action_id += 1
                    taken.append(action)
            except KeyboardInterrupt:
                raise
            except InvariantViolation as error:
                error.add_note(asking(_policy_of(on_event), self._next_seq, now, event))
                raise
            except BaseException as error:  # SystemExit too: a policy does not end the program
                raise_policy_error(error, action, _policy_of(on_event), self._next_seq, now, event)
        seq = self._next_seq
        self._next_seq = seq + 1
        self._next_action_id = action_id
        if self._config.debug:
            state.recount()
        return Step(EventSeq(seq), now, event, ActionId(first), _NONE if taken is None else taken)

    def _who_answers(self, event_type: type) -> list[OnEvent]:
        asked = [p for p in self._policies if event_type not in ignored_by(p)]
        if self._config.debug:
            return [Guard(policy, self._state) for policy in asked]
        return [policy.on_event for policy in asked]

    @property
    def at_rest(self) -> bool:
        """Nothing is under way, or the last step is done: worth asking `end_reason` and `is_stalled`. Cheap."""
        state = self._state
        return not state.num_started_work or state.trainer.version >= self._config.total_steps

    def end_reason(self) -> EndReason | None:
        """Why the run is over, if it is: its last step is done, or nothing is left to do."""
        state = self._state
        if self._config.training and state.trainer.version >= self._config.total_steps:
            return EndReason.STEPS_DONE
        if state.source_exhausted and not state.groups and not state.num_started_work:
            return EndReason.COMPLETED
        return None

    def is_stalled(self) -> bool:
        """The run is not over, and nothing is under way that could move it on: a policy's defect.

        Ask when every event at hand has been handled. A driver that polls asks after a poll, since a policy may
        act on one.
        """
        state = self._state
        if state.num_started_work or state.num_timers:
            return False
        if state.supply is Supply.PUSH and not state.source_exhausted:
            return False  # the next arrival may be what is waited for
        return bool(state.groups) or not state.source_exhausted


def _policy_of(on_event: OnEvent) -> object:
    """The policy that a bound method belongs to; a plain function stands for itself."""
    return getattr(on_event, "__self__", on_event)
