"""Actions: what the controller asks a driver to do.

Rules.

1. An action is an intention. Issuing it has no effect on the world; its completion comes back as an event.
2. The controller numbers actions (`ActionId`); the number travels beside the action and comes back in the
   `closes` field of the event that ends it.
3. Every action that starts work has closing events for success and for failure: the table
   `CLOSING_EVENTS` lists them, and invariant I6 holds the drivers to it. `ReplicaLost` closes nothing by
   itself: the driver ends each action pending on the replica with its own failure event.
4. `reason` is a few words for the person who reads the record; no decision depends on it.
"""

from typing import Final, TypeAlias

from libra.core.events import (
    ActionFailed,
    PromptsFetched,
    ReplicaDrained,
    ReplicaReady,
    ReplicaStopped,
    TimerFired,
    TrainStepFinished,
    TrajectoryStarted,
    TurnFailed,
    TurnFinished,
    WeightsLoaded,
    WeightsPublished,
)
from libra.core.ids import ActionId, DropReason, GroupId, NodeId, ReplicaId, TrajectoryId, WeightVersion
from libra.core.value import value


@value
class FetchPrompts:
    """Ask the prompt source for whole groups, at least `num_trajectories` trajectories if it has them."""

    num_trajectories: int
    reason: str


@value
class StartTrajectory:
    """Bring up the trajectory's environment."""

    trajectory_id: TrajectoryId
    reason: str


@value
class SubmitTurn:
    """Generate one turn on a replica. Lower `priority` is served first where the engine orders by it."""

    trajectory_id: TrajectoryId
    turn: int
    replica_id: ReplicaId
    prompt_tokens: int
    priority: int
    reason: str


@value
class AbortTurn:
    """Stop the turn of `submit_id`. It ends by that turn's own closing event, whichever comes first."""

    trajectory_id: TrajectoryId
    submit_id: ActionId
    reason: str


@value
class DropTrajectory:
    """Give the trajectory up; its environment is torn down. Takes effect at once.

    A `StartTrajectory` of it that is under way stays pending until it has ended.
    """

    trajectory_id: TrajectoryId
    drop_reason: DropReason
    reason: str


@value
class StartTrainStep:
    """Train on complete groups. Sizes are those of the finished trajectories in them."""

    group_ids: tuple[GroupId, ...]
    num_trajectories: int
    num_tokens: int
    reason: str


@value
class PublishWeights:
    """Make the weights of `version` available to replicas."""

    version: WeightVersion
    reason: str


@value
class LoadWeights:
    """Refresh a replica's weights in place to `version`; turns in flight go on under the new weights."""

    replica_id: ReplicaId
    version: WeightVersion
    reason: str


@value
class StartReplica:
    """Start a serving engine of `tp` GPUs on a node."""

    replica_id: ReplicaId
    tp: int
    node_id: NodeId
    reason: str


@value
class DrainReplica:
    """Let the replica finish its turns and give it no more."""

    replica_id: ReplicaId
    reason: str


@value
class StopReplica:
    """Stop a replica; turns still on it fail with `aborted`."""

    replica_id: ReplicaId
    reason: str


@value
class SetTimer:
    """Wake the policies at `at_s` seconds since the start of the run."""

    key: str
    at_s: float
    reason: str


Action: TypeAlias = (
    SubmitTurn
    | StartTrajectory
    | FetchPrompts
    | AbortTurn
    | DropTrajectory
    | StartTrainStep
    | PublishWeights
    | LoadWeights
    | StartReplica
    | DrainReplica
    | StopReplica
    | SetTimer
)

CLOSING_EVENTS: Final[dict[type[Action], tuple[type, ...]]] = {
    FetchPrompts: (PromptsFetched, ActionFailed),
    StartTrajectory: (TrajectoryStarted, ActionFailed),
    SubmitTurn: (TurnFinished, TurnFailed),
    AbortTurn: (),  # closed with the SubmitTurn that it names
    DropTrajectory: (),  # at once
    StartTrainStep: (TrainStepFinished, ActionFailed),
    PublishWeights: (WeightsPublished, ActionFailed),
    LoadWeights: (WeightsLoaded, ActionFailed),
    StartReplica: (ReplicaReady, ActionFailed),
    DrainReplica: (ReplicaDrained, ActionFailed),
    StopReplica: (ReplicaStopped, ActionFailed),
    SetTimer: (TimerFired, ActionFailed),
}
"""Closing events of each action: success first, then failure; timeouts are failures of kind `timeout`."""
