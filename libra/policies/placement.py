"""What every router needs: which trajectories want a replica now, and a queue for those that found none.

A router differs from another in one function, `choose(trajectory, view) -> replica or None`. When a turn is
ready the function is asked at once; trajectories that found no room wait in order and are asked again when
room may have appeared. The first that still finds none ends the pass: asking the rest would cost time that
grows with the queue, and would let later arrivals overtake it for ever.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from libra.core import events as ev
from libra.core.actions import Action, SubmitTurn
from libra.core.ids import Place, ReplicaId, ReplicaStatus, TrajectoryId
from libra.core.views import ClusterView, TrajectoryView

Choose: TypeAlias = Callable[[TrajectoryView, ClusterView], tuple[ReplicaId, str] | None]
"""A ready replica for the trajectory's next turn and the reason, or `None` when it has to wait."""


class Placement:
    """Turns events into `SubmitTurn` actions by a router's `choose`."""

    __slots__ = ("_choose", "_waiting")

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._waiting: deque[TrajectoryId] = deque()

    def on_event(self, event: ev.Event, view: ClusterView) -> Iterable[Action]:
        """Submit the turn that has become ready, then those that waited if room may have appeared."""
        match event:
            case ev.TurnFinished() if not self._waiting:
                return ()
            case ev.ToolReturned() | ev.TrajectoryStarted() | ev.TurnFailed():
                trajectory = view.trajectories.get(event.trajectory_id)
                if trajectory is None or trajectory.place is not Place.READY:
                    return self._drain(view) if self._waiting else ()  # a policy before this one dropped it
                # One that is under way goes before those that have not begun: its prefix is in memory.
                if not self._waiting or _is_home_ready(trajectory, view):
                    chosen = self._choose(trajectory, view)
                    if chosen is not None:
                        return (_submit(trajectory, *chosen),)
                self._waiting.append(trajectory.trajectory_id)
                return ()
            case (
                ev.TurnFinished()
                | ev.TrajectoryFinished()
                | ev.ReplicaReady()
                | ev.WeightsLoaded()
                | ev.TrainStepFinished()  # stale ones may have been dropped
                | ev.ActionFailed()  # a replica that was to drain or stop serves on
                | ev.MetricsSampled()  # now and then, whoever made room
                | ev.TimerFired()  # the same: policies act on timers
            ):
                return self._drain(view) if self._waiting else ()
            case _:
                return ()

    def _drain(self, view: ClusterView) -> Iterator[Action]:
        waiting = self._waiting
        while waiting:
            trajectory = view.trajectories.get(waiting[0])
            if trajectory is None or trajectory.place is not Place.READY:
                waiting.popleft()
                continue
            chosen = self._choose(trajectory, view)
            if chosen is None:
                return
            waiting.popleft()
            yield _submit(trajectory, *chosen)


def _is_home_ready(trajectory: TrajectoryView, view: ClusterView) -> bool:
    home = view.replicas.get(trajectory.replica_id)
    return home is not None and home.status is ReplicaStatus.READY


def _submit(trajectory: TrajectoryView, replica_id: ReplicaId, reason: str) -> SubmitTurn:
    return SubmitTurn(
        trajectory.trajectory_id, trajectory.turn, replica_id, trajectory.prompt_tokens, 0, reason
    )
