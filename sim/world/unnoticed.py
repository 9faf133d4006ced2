"""A replica that is dead while nobody knows: what is asked of it hangs until a health check finds out.

Nothing that was asked is lost (I6): every turn and action ends, late, by its own failure event.
"""

from libra.core import events as ev
from libra.core.actions import SubmitTurn
from libra.core.ids import ActionId, FailureKind, ReplicaId
from libra.ports import Emit, turn_unserved
from sim.clock import to_seconds
from sim.world.turn_request import TurnRequest, failed_event


class Unnoticed:
    """What such a replica owes an answer, each kind in the order in which it was asked.

    turns: those that it was generating. never_begun: those sent since, and when (s). actions: loads, drains, stops.
    """

    __slots__ = ("actions", "never_begun", "turns")

    def __init__(self) -> None:
        self.turns: list[TurnRequest] = []
        self.never_begun: list[tuple[ActionId, SubmitTurn, float]] = []
        self.actions: list[ActionId] = []

    def notice(self, replica_id: ReplicaId, now_t: int, emit: Emit) -> None:
        """The death is known now, and with it the end of everything."""
        emit(ev.ReplicaLost(replica_id))
        for request in self.turns:
            request.end_t = now_t
            emit(failed_event(request, FailureKind.REPLICA_LOST))
        for action_id, action, submitted_s in self.never_begun:
            emit(turn_unserved(action_id, action, FailureKind.REPLICA_LOST, submitted_s, to_seconds(now_t)))
        for action_id in self.actions:
            emit(went_down(action_id, FailureKind.REPLICA_LOST))


def went_down(action_id: ActionId, kind: FailureKind) -> ev.ActionFailed:
    """What else was pending on a replica ends with it."""
    return ev.ActionFailed(action_id, kind, "the replica went down")
