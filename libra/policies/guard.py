"""Whether a policy has changed what it may only look at (invariant I10), checked under `debug`.

Views are read-only for the type checker; at run time they are the state's own objects, uncopied. The guard compares
what a view shows before and after each stretch of a policy's code: up to its answer, and from one action of the
answer to the next. That is linear in what is live, so it is for tests and for a policy under suspicion.
"""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from inspect import isdatadescriptor
from operator import attrgetter
from typing import Any, Final, TypeAlias, cast

from libra.core.actions import Action
from libra.core.entities import Group, Replica, Trainer, Trajectory
from libra.core.events import Event
from libra.core.invariants import InvariantViolation
from libra.core.state import ClusterState
from libra.core.views import ClusterView
from libra.policies.failure import name_of

OnEvent: TypeAlias = Callable[[float, Event, ClusterView], Iterable[Action]]
Shown: TypeAlias = dict[str, Any]
"""What a view shows, by the name under which a policy reads it."""

_OWN: Final = (
    "supply",
    "source_exhausted",
    "fetching",
    "num_groups_started",
    "num_groups_discarded",
    "num_pending",
    "closed",
    "num_timers",
    "num_started_work",
)


def _fields(cls: type) -> tuple[str, ...]:
    """What its instances hold: slots, which a compiled class has under another name."""
    return tuple(
        sorted(name for name, member in vars(cls).items() if isdatadescriptor(member) and name[0] != "_")
    )


_GROUP: Final = tuple(name for name in _fields(Group) if name != "live")
_FIELDS: Final = {"trajectories": _fields(Trajectory), "groups": _GROUP, "replicas": _fields(Replica)}
_TRAINER: Final = _fields(Trainer)
_END: Final = object()
_own = attrgetter(*_OWN)
_trainer = attrgetter(*_TRAINER)
_trajectory = attrgetter(*_FIELDS["trajectories"])
_group = attrgetter(*_GROUP)
_replica = attrgetter(*_FIELDS["replicas"])


class Guard:
    """`policy.on_event`, and an InvariantViolation where it changes the view or the event."""

    __slots__ = ("__self__", "_state")

    def __init__(self, policy: Any, state: ClusterState) -> None:
        self.__self__ = policy  # as of a bound method: whoever reports a failure names the policy by it
        self._state = state

    def __call__(self, now: float, event: Event, view: ClusterView) -> Iterable[Action]:
        """The policy's answer; an iterable that checks as it goes, unless it is no iterable at all."""
        told, before = copy(event), shown(self._state)
        answer: Any = self.__self__.on_event(now, event, view)
        self._check(before, told, event)
        return self._watched(answer, event) if answer and hasattr(answer, "__iter__") else answer

    def _watched(self, answer: Iterable[Action], event: Event) -> Iterator[Action]:
        actions = iter(answer)
        while True:
            told, before = copy(event), shown(self._state)
            action: Any = next(actions, _END)
            self._check(before, told, event)
            if action is _END:
                return
            yield action

    def _check(self, before: Shown, told: Event, event: Event) -> None:
        changes = _changes("view", before, shown(self._state))
        change = next(changes, None)
        if change is None and told != event:
            change = f"the event from {told} to {event}"
        if change is not None:
            raise InvariantViolation(
                10, f"policy {name_of(self.__self__.__class__)} changed {change}; it may only look"
            )


def shown(state: ClusterState) -> Shown:
    """A copy of what a view shows, flat enough to be compared at once."""
    return {
        **dict(zip(_OWN, _own(state), strict=True)),
        "counts": tuple(state.counts.values()),
        "trainer": dict(zip(_TRAINER, _trainer(state.trainer), strict=True)),
        "trajectories": {key: _trajectory(item) for key, item in state.trajectories.items()},
        "groups": {key: _group(item) for key, item in state.groups.items()},
        "members": {key: tuple(item.live) for key, item in state.groups.items()},
        "replicas": {key: _replica(item) for key, item in state.replicas.items()},
        "backlog": tuple(state.backlog),
        "complete_groups": tuple(state.complete_groups),
        "pending": tuple(state.pending),
    }


def _changes(place: str, before: Any, after: Any, fields: tuple[str, ...] = ()) -> Iterator[str]:
    """Each difference as `place from one value to another`."""
    if before == after:
        return
    if isinstance(before, dict):
        old_items, new_items = cast(dict[Any, Any], before), cast(dict[Any, Any], after)
        for key in [*old_items, *(key for key in new_items if key not in old_items)]:
            inside = f"{place}.{key}" if isinstance(key, str) else f"{place}[{key}]"
            if key not in new_items or key not in old_items:
                yield f"{inside}, which it {'took out' if key in old_items else 'put in'}"
                continue
            yield from _changes(inside, old_items[key], new_items[key], _FIELDS.get(key, fields))
    elif fields:
        for name, old, new in zip(fields, before, after, strict=True):
            if old != new:
                yield f"{place}.{name} from {old} to {new}"
    else:
        yield f"{place} from {before} to {after}"
