"""Events into state: what each fact changes in what the controller knows.

`reduce(state, now, event)` first checks what the event claims (I3, I4, I6, I8), then writes. It decides nothing.
Cases are ordered by how often they occur.
"""

from typing import assert_never

from libra.core import events as ev
from libra.core.actions import (
    CLOSING_EVENTS,
    Action,
    DrainReplica,
    FetchPrompts,
    LoadWeights,
    PublishWeights,
    SetTimer,
    StartReplica,
    StartTrainStep,
    StartTrajectory,
    StopReplica,
)
from libra.core.entities import NO_VERSION, Group, Replica, Trajectory
from libra.core.ids import (
    NO_ACTION,
    ActionId,
    FailureKind,
    NextStep,
    Place,
    ReplicaStatus,
    TrajectoryId,
)
from libra.core.invariants import InvariantViolation
from libra.core.state import ClusterState
from libra.core.views import SampledMetrics


def reduce(state: ClusterState, now: float, event: ev.Event) -> None:  # noqa: C901 - one case a type
    """Bring the state up to date with an event handled at `now`."""
    if not now >= state.now:  # nan, too
        raise InvariantViolation(3, f"event at {now} s after one at {state.now} s")
    state.now = now
    state.closed = None
    match event:
        case ev.TurnFinished():
            _turn_finished(state, now, event)
        case ev.ToolReturned():
            _tool_returned(state, event)
        case ev.TrajectoryArrived():
            _trajectory_arrived(state, event)
        case ev.TrajectoryStarted():
            _trajectory_started(state, event)
        case ev.TrajectoryFinished():
            _trajectory_finished(state, event)
        case ev.PromptsFetched():
            _close(state, event.closes, ev.PromptsFetched)
            state.fetching = False
            state.source_exhausted = state.source_exhausted or event.exhausted
        case ev.SourceExhausted():
            state.source_exhausted = True
        case ev.TurnFailed():
            _turn_failed(state, event)
        case ev.MetricsSampled():
            _metrics_sampled(state, now, event)
        case ev.TrainStepFinished():
            _train_step_finished(state, event)
        case ev.WeightsPublished():
            _close(state, event.closes, ev.WeightsPublished)
            state.trainer.publishing = False
            state.trainer.published_version = event.version
        case ev.WeightsLoaded():
            _weights_loaded(state, event)
        case ev.ReplicaReady():
            _replica_ready(state, event)
        case ev.ReplicaDrained():
            _close(state, event.closes, ev.ReplicaDrained)
            state.set_status(state.replicas[event.replica_id], ReplicaStatus.DRAINED)
        case ev.ReplicaStopped():
            _close(state, event.closes, ev.ReplicaStopped)
            _replica_gone(state, state.replicas[event.replica_id], ReplicaStatus.STOPPED)
        case ev.ReplicaLost():
            _replica_gone(state, state.replicas[event.replica_id], ReplicaStatus.LOST)
        case ev.TimerFired():
            _close(state, event.closes, ev.TimerFired)
        case ev.ActionFailed():
            _action_failed(state, event)
        case ev.RunStarted():
            state.begin(event.supply, event.version)
        case ev.RunEnding():
            state.end_reason = event.end_reason
        case _:
            assert_never(event)


def _close(state: ClusterState, action_id: ActionId, by: type) -> Action:
    """Take an action off the pending list (I6)."""
    action = state.pending.pop(action_id, None)
    if action is None or by not in CLOSING_EVENTS[type(action)]:
        raise InvariantViolation(6, f"{by.__name__} closes action {action_id}, which is {action}")
    if type(action) is SetTimer:
        state.num_timers -= 1
    else:
        state.num_started_work -= 1
    state.closed = action
    return action


def _live(state: ClusterState, trajectory_id: TrajectoryId) -> Trajectory:
    trajectory = state.trajectories.get(trajectory_id)
    if trajectory is None:
        raise InvariantViolation(6, f"event about trajectory {trajectory_id}, which is not live")
    return trajectory


def _trajectory_arrived(state: ClusterState, event: ev.TrajectoryArrived) -> None:
    group = state.groups.get(event.group_id)
    if group is None:
        group = state.groups[event.group_id] = Group(event.group_id, event.prompt_id, event.group_size)
    trajectory = Trajectory(
        event.trajectory_id, group, event.prompt_id, event.sample_index, event.prompt_tokens
    )
    if event.trajectory_id in state.trajectories or len(group.live) >= group.size:
        raise InvariantViolation(1, f"trajectory {event.trajectory_id} arrives twice or to a full group")
    state.num_arrived += 1
    state.counts[Place.BACKLOG] += 1
    state.trajectories[event.trajectory_id] = trajectory
    state.backlog[event.trajectory_id] = trajectory
    group.live[event.trajectory_id] = trajectory


def _trajectory_started(state: ClusterState, event: ev.TrajectoryStarted) -> None:
    action = _close(state, event.closes, ev.TrajectoryStarted)
    assert isinstance(action, StartTrajectory)
    if event.trajectory_id != action.trajectory_id:
        raise InvariantViolation(6, f"{event} closes {action}")
    trajectory = state.trajectories.get(event.trajectory_id)
    if trajectory is not None:  # a start that was under way when its trajectory was dropped still ends
        state.move(trajectory, Place.READY)


def _turn_finished(state: ClusterState, now: float, event: ev.TurnFinished) -> None:
    _close(state, event.closes, ev.TurnFinished)
    if not event.submitted_s <= event.started_s <= event.first_token_s <= event.finished_s <= now:
        raise InvariantViolation(8, f"times of {event} are out of order")
    if event.version_first > event.version_last:
        raise InvariantViolation(4, f"weight versions of {event} fall")
    trajectory = _live(state, event.trajectory_id)
    trajectory.submit_id = NO_ACTION
    trajectory.num_failures = 0
    trajectory.output_tokens += event.output_tokens
    trajectory.prompt_tokens = event.prompt_tokens + event.output_tokens
    trajectory.settle_version(event.version_first if event.output_tokens else NO_VERSION)
    state.add_turns(state.replicas[event.replica_id], -1)
    state.move(trajectory, Place.IN_TOOL)
    state.num_started_work += 1  # the environment is at work now, whatever the next step is
    if event.next_step is NextStep.TOOL:
        trajectory.turn = event.turn + 1


def _turn_failed(state: ClusterState, event: ev.TurnFailed) -> None:
    _close(state, event.closes, ev.TurnFailed)
    if event.version_first > event.version_last:
        raise InvariantViolation(4, f"weight versions of {event} fall")
    trajectory = _live(state, event.trajectory_id)
    trajectory.submit_id = NO_ACTION
    if event.kind is not FailureKind.ABORTED:
        trajectory.num_failures += 1
    trajectory.output_tokens += event.output_tokens
    trajectory.prompt_tokens = event.prompt_tokens + event.output_tokens
    trajectory.settle_version(event.version_first if event.output_tokens else NO_VERSION)
    state.add_turns(state.replicas[event.replica_id], -1)
    _leave_if_gone(state, trajectory)
    state.move(trajectory, Place.READY)


def _leave_if_gone(state: ClusterState, trajectory: Trajectory) -> None:
    """A trajectory that comes to rest while its replica does not serve lives there no longer.

    Otherwise it would count against that replica's room once it is back, and wait for the room that it takes.
    """
    home = state.replicas.get(trajectory.replica_id)
    if home is not None and home.status is not ReplicaStatus.READY:
        state.change_residence(trajectory, None)


def _tool_returned(state: ClusterState, event: ev.ToolReturned) -> None:
    trajectory = _live(state, event.trajectory_id)
    trajectory.prompt_tokens = event.prompt_tokens
    state.num_started_work -= 1
    _leave_if_gone(state, trajectory)
    state.move(trajectory, Place.READY)


def _trajectory_finished(state: ClusterState, event: ev.TrajectoryFinished) -> None:
    trajectory = _live(state, event.trajectory_id)
    state.num_started_work -= 1
    state.move(trajectory, Place.FINISHED)
    state.change_residence(trajectory, None)
    group = trajectory.group
    group.num_finished += 1
    group.num_tokens += trajectory.prompt_tokens
    if state.training:
        state.settle_group(group)
        return
    state.leave(trajectory, Place.TRAINED)
    group.update_version()
    if group.is_complete:
        state.close_group(group)


def _metrics_sampled(state: ClusterState, now: float, event: ev.MetricsSampled) -> None:
    for i, replica_id in enumerate(event.replica_ids):
        replica = state.replicas.get(replica_id)
        if replica is not None:
            replica.sampled = SampledMetrics(
                now, event.num_running[i], event.num_waiting[i], event.kv_used_fraction[i]
            )


def _train_step_finished(state: ClusterState, event: ev.TrainStepFinished) -> None:
    action = _close(state, event.closes, ev.TrainStepFinished)
    trainer = state.trainer
    trainer.stepping = False
    if event.version != trainer.version + 1:
        raise InvariantViolation(4, f"trainer went from version {trainer.version} to {event.version}")
    trainer.version = event.version
    assert isinstance(action, StartTrainStep)
    for group_id in action.group_ids:
        group = state.groups[group_id]
        for trajectory in list(group.live.values()):
            state.leave(trajectory, Place.TRAINED)
        state.close_group(group)


def _weights_loaded(state: ClusterState, event: ev.WeightsLoaded) -> None:
    _close(state, event.closes, ev.WeightsLoaded)
    replica = state.replicas[event.replica_id]
    replica.loading = False
    if event.version < replica.weight_version:
        raise InvariantViolation(
            4, f"replica {event.replica_id} went from {replica.weight_version} to {event.version}"
        )
    replica.weight_version = event.version


def _replica_ready(state: ClusterState, event: ev.ReplicaReady) -> None:
    if event.closes != NO_ACTION:
        _close(state, event.closes, ev.ReplicaReady)
    replica = state.replicas.get(event.replica_id)
    if replica is None:
        replica = Replica(event.replica_id, event.tp, event.node_id, ReplicaStatus.STARTING)
        state.replicas[event.replica_id] = replica
    if event.weight_version > state.trainer.published_version:
        raise InvariantViolation(4, f"replica {event.replica_id} starts with unpublished weights")
    replica.weight_version = event.weight_version
    replica.kv_capacity_tokens = event.kv_capacity_tokens
    replica.max_num_seqs = event.max_num_seqs
    replica.max_model_len = event.max_model_len
    state.set_status(replica, ReplicaStatus.READY)


def _replica_gone(state: ClusterState, replica: Replica, status: ReplicaStatus) -> None:
    """Its turns end by their own `TurnFailed`; the prefix caches on it are lost."""
    state.set_status(replica, status)
    replica.sampled = None


def _action_failed(state: ClusterState, event: ev.ActionFailed) -> None:
    action = _close(state, event.closes, ev.ActionFailed)
    match action:
        case FetchPrompts():
            state.fetching = False
        case StartTrainStep():
            state.trainer.stepping = False
            for group_id in action.group_ids:
                group = state.groups[group_id]
                for trajectory in group.live.values():
                    state.move(trajectory, Place.FINISHED)
                state.complete_groups[group.group_id] = group
        case PublishWeights():
            state.trainer.publishing = False
        case LoadWeights():
            state.replicas[action.replica_id].loading = False
        case StartReplica():
            state.set_status(state.replicas[action.replica_id], ReplicaStatus.STOPPED)
        case DrainReplica() | StopReplica():
            replica = state.replicas[action.replica_id]
            if replica.status in (ReplicaStatus.DRAINING, ReplicaStatus.STOPPING):
                state.set_status(replica, ReplicaStatus.READY)
        case StartTrajectory() | SetTimer():
            pass  # the admission policy decides what becomes of the trajectory
        case _:
            raise InvariantViolation(6, f"{type(action).__name__} cannot end by ActionFailed")
