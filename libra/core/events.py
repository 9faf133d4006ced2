"""Events: facts that a driver reports to the controller.

Rules.

1. An event says what happened, in the past tense; it never asks for anything.
2. `closes` names the action that this event ends (`NO_ACTION` where none asked for it). Every action that
   starts work lists its closing events in `libra.core.actions.CLOSING_EVENTS`.
3. Fields are flat (numbers, strings, booleans, tuples of numbers), so that an event is one row of a table and
   can be rebuilt from it exactly; `tests/unit/record` checks the round trip for every type.
4. Times are seconds since the start of the run on the clock of the *source* (`*_s`); the time at which the
   controller handles the event is passed beside it, so that delay in between is measured and not hidden.
5. Nothing in an event tells the future: no remaining length, no latency of a tool that still runs.
"""

from typing import TypeAlias

from libra.core.ids import (
    ActionId,
    EndReason,
    FailureKind,
    GroupId,
    NextStep,
    NodeId,
    PromptId,
    ReplicaId,
    Supply,
    ToolStatus,
    TrajectoryId,
    WeightVersion,
)
from libra.core.value import value


@value
class RunStarted:
    """The first event of a run. `supply` says whether prompts are pulled or pushed.

    version: of the weights that trainer and replicas begin with; not 0 where a run goes on from a checkpoint.
    """

    supply: Supply
    version: WeightVersion = WeightVersion(0)


@value
class TrajectoryArrived:
    """A trajectory may be started from now on. `prompt_tokens` is the length of its first prompt."""

    trajectory_id: TrajectoryId
    group_id: GroupId
    prompt_id: PromptId
    sample_index: int
    group_size: int
    prompt_tokens: int


@value
class PromptsFetched:
    """Answer to `FetchPrompts`, after the arrivals. `exhausted`: the source has no more."""

    closes: ActionId
    num_trajectories: int
    exhausted: bool


@value
class SourceExhausted:
    """A pushed source has delivered its last arrival."""


@value
class TrajectoryStarted:
    """The trajectory's environment is up and its first prompt can be served.

    It may come after the trajectory was dropped, and then says only that the start has ended.
    """

    closes: ActionId
    trajectory_id: TrajectoryId


@value
class TurnFinished:
    """A replica has generated a whole turn.

    `cached_tokens`: prompt tokens found in the prefix cache when the turn was first scheduled.
    `recomputed_tokens`: tokens prefilled again because the turn was preempted. `version_first`, `version_last`:
    weight versions that generated the first and the last token, the oldest and the newest of all (I4); -1 without a
    token. `version_token_sum`: sum over the generated tokens (mean version = sum / output_tokens).
    `output_tokens` counts the tokens of this request only (a resumed turn has earlier ones in its prompt).
    """

    closes: ActionId
    trajectory_id: TrajectoryId
    turn: int
    replica_id: ReplicaId
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    recomputed_tokens: int
    num_preemptions: int
    version_first: WeightVersion
    version_last: WeightVersion
    version_token_sum: int
    submitted_s: float
    started_s: float
    first_token_s: float
    finished_s: float
    next_step: NextStep
    tool_name: str


@value
class TurnFailed:
    """A turn ended without success. The `output_tokens` that it had generated are kept in the context."""

    closes: ActionId
    trajectory_id: TrajectoryId
    turn: int
    replica_id: ReplicaId
    kind: FailureKind
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    recomputed_tokens: int
    num_preemptions: int
    version_first: WeightVersion
    version_last: WeightVersion
    version_token_sum: int
    submitted_s: float
    failed_s: float


@value
class ToolReturned:
    """The environment has answered the turn; `prompt_tokens` is the length of the next turn's prompt."""

    trajectory_id: TrajectoryId
    turn: int
    tool_name: str
    status: ToolStatus
    payload_tokens: int
    latency_s: float
    prompt_tokens: int


@value
class TrajectoryFinished:
    """The episode is over and its reward is known (`nan` where the workload has none)."""

    trajectory_id: TrajectoryId
    num_turns: int
    reward: float


@value
class TrainStepFinished:
    """The trainer has made optimizer step `version` out of the step's groups."""

    closes: ActionId
    version: WeightVersion
    num_trajectories: int
    num_tokens: int
    started_s: float
    finished_s: float


@value
class WeightsPublished:
    """The weights of `version` can be loaded by replicas."""

    closes: ActionId
    version: WeightVersion
    started_s: float
    finished_s: float


@value
class WeightsLoaded:
    """A replica serves `version` from now on. `started_s`: when it stopped stepping for the load."""

    closes: ActionId
    replica_id: ReplicaId
    version: WeightVersion
    started_s: float
    finished_s: float


@value
class ReplicaReady:
    """A replica accepts turns. Sent for those present at the start and as the answer to `StartReplica`."""

    closes: ActionId
    replica_id: ReplicaId
    tp: int
    node_id: NodeId
    weight_version: WeightVersion
    kv_capacity_tokens: int
    max_num_seqs: int
    max_model_len: int


@value
class ReplicaDrained:
    """A draining replica has no turn left."""

    closes: ActionId
    replica_id: ReplicaId


@value
class ReplicaStopped:
    """A replica is gone by request and its GPUs are free."""

    closes: ActionId
    replica_id: ReplicaId


@value
class ReplicaLost:
    """A replica was found dead. A `TurnFailed` follows for each turn that it had, also those sent since it died."""

    replica_id: ReplicaId


@value
class MetricsSampled:
    """A poll of the replicas' own counters; position i of each tuple belongs to `replica_ids[i]`."""

    replica_ids: tuple[ReplicaId, ...]
    num_running: tuple[int, ...]
    num_waiting: tuple[int, ...]
    kv_used_fraction: tuple[float, ...]


@value
class TimerFired:
    """A timer set by `SetTimer` has come due."""

    closes: ActionId
    key: str


@value
class ActionFailed:
    """An action could not be carried out; nothing of it took effect."""

    closes: ActionId
    kind: FailureKind
    message: str


@value
class RunEnding:
    """The last event of a run."""

    end_reason: EndReason


Event: TypeAlias = (
    TurnFinished
    | ToolReturned
    | TrajectoryArrived
    | TrajectoryStarted
    | TrajectoryFinished
    | PromptsFetched
    | SourceExhausted
    | TurnFailed
    | MetricsSampled
    | TrainStepFinished
    | WeightsPublished
    | WeightsLoaded
    | ReplicaReady
    | ReplicaDrained
    | ReplicaStopped
    | ReplicaLost
    | TimerFired
    | ActionFailed
    | RunStarted
    | RunEnding
)
