"""One turn on an engine, and the events that tell how it ended."""

from operator import truediv

from libra.core import events as ev
from libra.core.ids import ActionId, FailureKind, NextStep, ReplicaId, WeightVersion
from sim.clock import TICKS_PER_S, to_seconds
from sim.engine.base import Request
from sim.world.episodes import Episode


class TurnRequest(Request):
    """A request that knows which turn it is. Set after construction: an own constructor costs a call a turn."""

    __slots__ = ("action_id", "episode", "replica_id", "turn")

    action_id: ActionId
    episode: Episode
    replica_id: ReplicaId
    turn: int


def finished_event(request: TurnRequest) -> ev.TurnFinished:
    """The turn has all its tokens."""
    episode, turn = request.episode, request.turn
    episode.num_generated = 0
    columns = episode.columns
    return ev.TurnFinished(
        request.action_id,
        episode.trajectory_id,
        turn,
        request.replica_id,
        request.prompt_tokens,
        request.output_tokens,
        request.cached_tokens,
        request.recomputed_tokens,
        request.num_preemptions,
        WeightVersion(request.version_first),
        WeightVersion(request.version_last),
        request.version_token_sum,
        truediv(request.submitted_t, TICKS_PER_S),  # `to_seconds`, at half its cost
        truediv(request.started_t, TICKS_PER_S),
        truediv(request.first_token_t, TICKS_PER_S),
        truediv(request.end_t, TICKS_PER_S),
        NextStep.END if turn + 1 == episode.num_turns else NextStep.TOOL,
        columns.tool_names[columns.tool[episode.row + turn]],
    )


def failed_event(request: TurnRequest, kind: FailureKind) -> ev.TurnFailed:
    """The turn ended early; what it has generated stays in the episode's context."""
    request.episode.num_generated += request.num_emitted
    return ev.TurnFailed(
        request.action_id,
        request.episode.trajectory_id,
        request.turn,
        request.replica_id,
        kind,
        request.prompt_tokens,
        request.num_emitted,
        max(0, request.cached_tokens),
        request.recomputed_tokens,
        request.num_preemptions,
        WeightVersion(request.version_first),
        WeightVersion(request.version_last),
        request.version_token_sum,
        to_seconds(request.submitted_t),
        to_seconds(request.end_t),
    )
