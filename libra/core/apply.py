"""Actions into state: what the controller remembers of what it has asked for.

`apply(state, action_id, action)` refuses an action that breaks an invariant and notes the rest as pending, so
that the policies after this one, in the same step, already see it.
"""

from typing import assert_never

from libra.core import actions as act
from libra.core.entities import Replica, Trajectory
from libra.core.ids import ActionId, Place, ReplicaId, ReplicaStatus, TrajectoryId
from libra.core.invariants import InvariantViolation
from libra.core.state import ClusterState


def apply(state: ClusterState, action_id: ActionId, action: act.Action) -> None:  # noqa: C901 - one case a type
    """Check and note an action. Cases are ordered by how often they occur."""
    match action:
        case act.SubmitTurn():
            _submit_turn(state, action_id, action)
        case act.StartTrajectory():
            _start_trajectory(state, action)
        case act.FetchPrompts():
            _require(not state.fetching and action.num_trajectories > 0, action)
            state.fetching = True
        case act.AbortTurn():
            trajectory = _live(state, action.trajectory_id, action)
            _require(
                trajectory.submit_id == action.submit_id and trajectory.place is Place.GENERATING, action
            )
            return
        case act.DropTrajectory():
            _drop_trajectory(state, action)
            return
        case act.StartTrainStep():
            _start_train_step(state, action)
        case act.PublishWeights():
            trainer = state.trainer
            _require(not trainer.publishing, action)
            if not trainer.published_version < action.version <= trainer.version:
                raise InvariantViolation(4, f"{action}: trained up to {trainer.version}")
            trainer.publishing = True
        case act.LoadWeights():
            replica = _replica(state, action.replica_id, action)
            _require(replica.status is ReplicaStatus.READY and not replica.loading, action)
            if not replica.weight_version < action.version <= state.trainer.published_version:
                raise InvariantViolation(4, f"{action}: published up to {state.trainer.published_version}")
            replica.loading = True
        case act.StartReplica():
            _start_replica(state, action)
        case act.DrainReplica():
            replica = _replica(state, action.replica_id, action)
            _require(replica.status is ReplicaStatus.READY, action)
            state.set_status(replica, ReplicaStatus.DRAINING)
        case act.StopReplica():
            replica = _replica(state, action.replica_id, action)
            _require(
                replica.status in (ReplicaStatus.READY, ReplicaStatus.DRAINED, ReplicaStatus.DRAINING), action
            )
            state.set_status(replica, ReplicaStatus.STOPPING)
        case act.SetTimer():
            if action.at_s < state.now:
                raise InvariantViolation(3, f"{action}: it is {state.now} s already")
            state.pending[action_id] = action
            state.num_timers += 1
            return
        case _:
            assert_never(action)
    state.pending[action_id] = action
    state.num_started_work += 1


def _require(holds: bool, action: act.Action) -> None:
    if not holds:
        raise InvariantViolation(6, f"{action} does not fit the state")


def _live(state: ClusterState, trajectory_id: TrajectoryId, action: act.Action) -> Trajectory:
    trajectory = state.trajectories.get(trajectory_id)
    if trajectory is None:
        raise InvariantViolation(6, f"{action} names a trajectory that is not live")
    return trajectory


def _replica(state: ClusterState, replica_id: ReplicaId, action: act.Action) -> Replica:
    replica = state.replicas.get(replica_id)
    if replica is None:
        raise InvariantViolation(6, f"{action} names an unknown replica")
    return replica


def _submit_turn(state: ClusterState, action_id: ActionId, action: act.SubmitTurn) -> None:
    trajectory = _live(state, action.trajectory_id, action)
    replica = _replica(state, action.replica_id, action)
    if replica.status is not ReplicaStatus.READY:
        raise InvariantViolation(7, f"{action} goes to a replica that is {replica.status}")
    if action.turn != trajectory.turn or action.prompt_tokens != trajectory.prompt_tokens:
        raise InvariantViolation(7, f"{action} is not the trajectory's next turn")
    state.move(trajectory, Place.GENERATING)
    trajectory.submit_id = action_id
    if trajectory.replica_id != action.replica_id:
        state.change_residence(trajectory, replica)
    version = replica.weight_version
    if version < trajectory.version_min or trajectory.version_min < 0:
        trajectory.version_min = version
        group = trajectory.group
        if version < group.version_min or group.version_min < 0:
            group.version_min = version
    state.add_turns(replica, 1)


def _start_trajectory(state: ClusterState, action: act.StartTrajectory) -> None:
    trajectory = _live(state, action.trajectory_id, action)
    state.move(trajectory, Place.STARTING)
    del state.backlog[trajectory.trajectory_id]
    group = trajectory.group
    if group.num_started == 0:
        state.num_groups_started += 1
    group.num_started += 1


def _drop_trajectory(state: ClusterState, action: act.DropTrajectory) -> None:
    trajectory = _live(state, action.trajectory_id, action)
    group = trajectory.group
    place = trajectory.place
    if place is Place.IN_TOOL:
        state.num_started_work -= 1  # its environment is torn down
    if place is Place.BACKLOG:
        del state.backlog[trajectory.trajectory_id]
    state.leave(trajectory, Place.DROPPED)
    if place is Place.FINISHED:
        group.num_finished -= 1
        group.num_tokens -= trajectory.prompt_tokens
    group.num_dropped += 1
    group.update_version()
    state.complete_groups.pop(group.group_id, None)
    if state.training:
        state.settle_group(group)
    elif group.is_complete:
        state.close_group(group)


def _start_train_step(state: ClusterState, action: act.StartTrainStep) -> None:
    trainer = state.trainer
    _require(state.training and not trainer.stepping and len(action.group_ids) > 0, action)
    num_trajectories = num_tokens = 0
    for group_id in action.group_ids:
        group = state.complete_groups.pop(group_id, None)
        if group is None:
            raise InvariantViolation(6, f"{action}: group {group_id} is not complete")
        if 0 <= group.version_min < trainer.version - state.max_head_offpolicyness:
            raise InvariantViolation(
                5, f"group {group_id} has a token of version {group.version_min} at version {trainer.version}"
            )
        for trajectory in group.live.values():
            state.move(trajectory, Place.TRAINING)
        num_trajectories += group.num_finished
        num_tokens += group.num_tokens
    _require((num_trajectories, num_tokens) == (action.num_trajectories, action.num_tokens), action)
    trainer.stepping = True


def _start_replica(state: ClusterState, action: act.StartReplica) -> None:
    replica = state.replicas.get(action.replica_id)
    if replica is None:
        replica = Replica(action.replica_id, action.tp, action.node_id, ReplicaStatus.STARTING)
        state.replicas[ReplicaId(action.replica_id)] = replica
    _require(replica.status in (ReplicaStatus.STARTING, ReplicaStatus.STOPPED, ReplicaStatus.LOST), action)
    _require(replica.num_turns == 0, action)
    state.set_status(replica, ReplicaStatus.STARTING)
