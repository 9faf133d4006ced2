"""A limit on how long the trainer waits for its batch, used by the recovery policy.

When no train step has begun for `timeout_s`, what is under way is tried again: turns in flight are aborted, keep
their tokens and are placed anew. After `max_retries` of that in a row the trajectories under way are given up. What
has finished stays in any case, and with it the groups that are complete: only who is late loses.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from libra.core import events as ev
from libra.core.actions import AbortTurn, Action, DropTrajectory, SetTimer
from libra.core.ids import LIVE_PLACES, ActionId, DropReason, Place, TrajectoryId
from libra.core.views import ClusterView

_KEY: Final = "batch-collection:"
_ACTIVE: Final = frozenset(LIVE_PLACES) - {Place.BACKLOG, Place.FINISHED, Place.TRAINING}


class CollectionWatch:
    """timeout_s: 0 for no limit. It counts from the end of a train step, or from the start of the run."""

    def __init__(self, timeout_s: float, max_retries: int) -> None:
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._window = 0
        self._retries = 0
        self._given_up: set[tuple[TrajectoryId, ActionId]] = set()  # by the turn that was aborted for it

    def on_event(self, now: float, event: ev.Event, view: ClusterView) -> Iterable[Action]:
        """Arm the timer, and do what is due when it fires."""
        if self._timeout_s <= 0:
            return ()
        match event:
            case ev.RunStarted() | ev.TrainStepFinished():
                self._retries = 0
                return (self._armed(now),)
            case ev.TimerFired() if event.key == f"{_KEY}{self._window}":
                return self._late(now, view)
            case ev.TurnFailed() if (event.trajectory_id, event.closes) in self._given_up:
                self._given_up.discard((event.trajectory_id, event.closes))
                return (_drop(event.trajectory_id),)
            case _:
                return ()

    def _armed(self, now: float) -> Action:
        self._window += 1
        return SetTimer(f"{_KEY}{self._window}", now + self._timeout_s, "a batch is due by then")

    def _late(self, now: float, view: ClusterView) -> Iterator[Action]:
        if not view.num_pending and not view.count(Place.IN_TOOL):
            return  # nothing is late: nothing moves at all, which another timer would only hide
        yield self._armed(now)
        if view.trainer.stepping or view.trainer.publishing:
            return
        gives_up = self._retries >= self._max_retries
        self._retries = 0 if gives_up else self._retries + 1
        why = f"no batch for {self._timeout_s:g} s"
        for trajectory in list(view.trajectories.values()):
            if trajectory.place is Place.GENERATING:
                if gives_up:
                    self._given_up.add((trajectory.trajectory_id, trajectory.submit_id))
                yield AbortTurn(trajectory.trajectory_id, trajectory.submit_id, why)
            elif gives_up and trajectory.place in _ACTIVE:
                yield _drop(trajectory.trajectory_id)


def _drop(trajectory_id: TrajectoryId) -> DropTrajectory:
    return DropTrajectory(trajectory_id, DropReason.COLLECTION_TIMEOUT, "late for its batch, again and again")
