"""From steps to what happened: turns, trajectories, train steps and replicas.

Guarantees that the derived tables follow from events and actions alone, so the simulator and a cluster get
theirs by the same code, and that memory grows with what is in flight, not with the run. `Deriver` takes steps
in order, a chunk at a time; finished rows wait in its lists until the writer takes them.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping
from math import nan
from typing import Any, cast

from libra.core import actions as ac
from libra.core import events as ev
from libra.core.ids import Place, Supply
from libra.core.step import Step
from libra.record.lives import NO_VERSION, DoneTurns, FailedRow, Life, OpenTurn, StepLife
from libra.record.replica_lives import ReplicaLife, ReplicaLives, ReplicaUsage

# Reading a member off its enumeration costs as much as the rest of a handler's assignment.
_STARTING, _READY, _GENERATING, _IN_TOOL = Place.STARTING, Place.READY, Place.GENERATING, Place.IN_TOOL
_FINISHED, _TRAINING, _DROPPED = Place.FINISHED, Place.TRAINING, Place.DROPPED


class Deriver:
    """See the module.

    training: finished trajectories stay in memory until a step or a drop takes them. keep_turns: make rows of
    finished turns (`take_turns`); failed attempts are always kept (`failed`).
    """

    def __init__(self, training: bool, *, keep_turns: bool = True) -> None:
        self.training, self._keep_turns = training, keep_turns
        self.turns = DoneTurns()
        self.num_kept_turns = 0
        self.failed: list[FailedRow] = []
        self.trajectories: list[Life] = []
        self.steps: dict[int, StepLife] = {}
        self.replicas = ReplicaLives()
        self._ready_s = array("d")
        self._push = False
        self.now_s = 0.0
        self._seq = 0
        self._lives: dict[int, Life] = {}
        self._groups: dict[int, list[Life]] = {}
        self._asked: dict[int, tuple[ac.StartTrainStep, float]] = {}
        self._last_step_end_s = 0.0
        self._on_event: dict[type, Callable[[Any], None]] = {
            ev.TurnFinished: self._turn_finished,
            ev.ToolReturned: self._tool_returned,
            ev.TrajectoryArrived: self._arrived,
            ev.TrajectoryStarted: self._started,
            ev.TrajectoryFinished: self._finished,
            ev.TurnFailed: self._turn_failed,
            ev.TrainStepFinished: self._step_finished,
            ev.WeightsPublished: self._published,
            ev.WeightsLoaded: self._loaded,
            ev.ReplicaReady: lambda event: self.replicas.ready(event, self.now_s),
            ev.ReplicaStopped: lambda event: self.replicas.gone(event, self.now_s),
            ev.ReplicaLost: lambda event: self.replicas.gone(event, self.now_s),
            ev.ActionFailed: self._action_failed,
            ev.RunStarted: self._run_started,
        }
        self._on_action: dict[type, Callable[[int, Any], None]] = {
            ac.SubmitTurn: self._submit,
            ac.StartTrajectory: self._start,
            ac.DropTrajectory: self._drop,
            ac.StartTrainStep: self._start_step,
        }

    def feed(self, steps: Iterable[Step]) -> None:
        """Take in steps in order."""
        on_event, on_action = self._on_event, self._on_action
        for step in steps:
            self.now_s = step.now_s
            self._seq = step.seq
            event = step.event
            handler = on_event.get(type(event))
            if handler is not None:
                handler(event)
            if step.actions:
                action_id = step.first_action_id
                for action in step.actions:
                    act = on_action.get(type(action))
                    if act is not None:
                        act(action_id, action)
                    action_id += 1

    def end(self, usage: Mapping[int, ReplicaUsage]) -> list[tuple[ReplicaLife, ReplicaUsage | None]]:
        """The run is over: all that is still open becomes rows. Returns replicas in order of appearance."""
        for life in self._lives.values():
            self._close_turn(life, nan)
            self.trajectories.append(life)
        self._lives.clear()
        self._groups.clear()
        return self.replicas.run_over(self.now_s, usage)

    def _run_started(self, event: ev.RunStarted) -> None:
        self._push = event.supply is Supply.PUSH

    # Turns and tools.

    def _submit(self, action_id: int, action: ac.SubmitTurn) -> None:
        replica = self.replicas[action.replica_id]
        replica.submitted(self.now_s)
        life = self._lives[action.trajectory_id]
        life.on_replica = action.replica_id
        life.place = _GENERATING

    def _turn_finished(self, event: ev.TurnFinished) -> None:
        replica = self.replicas[event.replica_id]
        output = event.output_tokens
        replica.num_turns += 1
        replica.output_tokens += output
        replica.num_running -= 1
        if replica.num_running == 0:
            replica.busy_s += self.now_s - replica.busy_since_s
        life = self._lives[event.trajectory_id]
        life.generated(event.version_first, event.version_last, event.version_token_sum, output)
        life.num_turns += 1
        if event.num_preemptions or event.recomputed_tokens:
            self._preempted(replica, life, event)
        if self._keep_turns:
            life.hold(self.num_kept_turns, self._seq, replica.ready.tp, event)
            self.num_kept_turns += 1
        self._ready_s.append(life.ready_s)
        life.attempt = 0
        life.context_tokens = event.prompt_tokens + output
        life.on_replica = NO_VERSION
        if life.drop_reason is None:
            life.place = _IN_TOOL
        else:
            self._leave(life)

    def _preempted(self, replica: ReplicaLife, life: Life, event: ev.TurnFinished | ev.TurnFailed) -> None:
        for where in (replica, life):
            where.num_preemptions += event.num_preemptions
            where.recomputed_tokens += event.recomputed_tokens

    def _turn_failed(self, event: ev.TurnFailed) -> None:
        replica = self.replicas[event.replica_id]
        replica.output_tokens += event.output_tokens
        # A lost replica has ended already, with all that ran on it.
        if replica.num_running:
            replica.turn_ended(self.now_s)
        life = self._lives[event.trajectory_id]
        tokens = event.output_tokens
        life.generated(event.version_first, event.version_last, event.version_token_sum, tokens)
        life.num_failed_turns += 1
        self._preempted(replica, life, event)
        self.failed.append(
            (event, self._seq, life.attempt, replica.ready.tp, life.prefix_tokens, life.ready_s)
        )
        life.attempt += 1
        life.on_replica = NO_VERSION
        if life.drop_reason is None:
            life.place = _READY
        else:
            self._leave(life)

    def _tool_returned(self, event: ev.ToolReturned) -> None:
        life = self._lives.get(event.trajectory_id)
        if life is None:
            return  # dropped meanwhile
        turn = life.open_turn
        if turn is not None:
            self.turns.add(turn, event.status._value_, event.payload_tokens, event.latency_s)
            life.open_turn = None
        appended = event.prompt_tokens == life.context_tokens + event.payload_tokens
        life.prefix_tokens = life.context_tokens if appended else NO_VERSION
        life.ready_s = self.now_s
        life.place = _READY

    def _close_turn(self, life: Life, latency_s: float) -> None:
        """The turn's row is complete although no tool answered."""
        if life.open_turn is not None:
            self.turns.add(life.open_turn, None, -1, latency_s)
            life.open_turn = None

    def take_ready_s(self) -> "array[float]":
        """When the turns that have finished since the last call could first be submitted, in order, in s."""
        taken, self._ready_s = self._ready_s, array("d")
        return taken

    def take_turns(self) -> tuple[DoneTurns, list[int]]:
        """Turns with complete rows, and the numbers of the turns that stay open.

        Those are numbered anew: the i-th of the last list is turn i from now on.
        """
        done, self.turns = self.turns, DoneTurns()
        staying: list[int] = []
        for life in self._lives.values():
            if life.open_turn is not None:
                number, *rest = life.open_turn
                life.open_turn = cast(OpenTurn, (len(staying), *rest))
                staying.append(number)
        self.num_kept_turns = len(staying)
        return done, staying

    # Trajectories.

    def _arrived(self, event: ev.TrajectoryArrived) -> None:
        life = self._lives[event.trajectory_id] = Life(event, self.now_s)
        # Whoever pushes a request waits from then on; a prompt that was fetched waits for nobody until it starts.
        life.ready_s = self.now_s if self._push else nan
        self._groups.setdefault(event.group_id, []).append(life)

    def _start(self, action_id: int, action: ac.StartTrajectory) -> None:
        life = self._lives[action.trajectory_id]
        life.requested_s = self.now_s
        life.place = _STARTING

    def _started(self, event: ev.TrajectoryStarted) -> None:
        life = self._lives.get(event.trajectory_id)
        if life is not None:
            life.started_s = self.now_s
            if not self._push:
                life.ready_s = self.now_s
            life.place = _READY

    def _finished(self, event: ev.TrajectoryFinished) -> None:
        life = self._lives.get(event.trajectory_id)
        if life is None:
            return  # dropped meanwhile
        if life.open_turn is not None:
            self._close_turn(life, self.now_s - life.open_turn[6])
        life.finished_s = self.now_s
        life.reward = event.reward
        life.place = _FINISHED
        if not self.training:
            self._leave(life)

    def _drop(self, action_id: int, action: ac.DropTrajectory) -> None:
        life = self._lives[action.trajectory_id]
        self._close_turn(life, nan)
        life.place = _DROPPED
        life.drop_reason = action.drop_reason.value
        # A turn under way still ends by its own event, and belongs to this trajectory.
        if life.on_replica == NO_VERSION:
            self._leave(life)

    def _leave(self, life: Life) -> None:
        """Write the row and forget it."""
        self._close_turn(life, nan)
        self.trajectories.append(life)
        del self._lives[life.arrived.trajectory_id]
        group = self._groups.get(life.arrived.group_id)
        if group is not None:
            group.remove(life)
            if not group:
                del self._groups[life.arrived.group_id]

    # Training and weights.

    def _members(self, action: ac.StartTrainStep) -> list[Life]:
        lives = [life for group_id in action.group_ids for life in self._groups.get(group_id, ())]
        return [life for life in lives if life.drop_reason is None]

    def _start_step(self, action_id: int, action: ac.StartTrainStep) -> None:
        self._asked[action_id] = (action, self.now_s)
        for life in self._members(action):
            life.place = _TRAINING

    def _action_failed(self, event: ev.ActionFailed) -> None:
        asked = self._asked.pop(event.closes, None)
        if asked is not None:
            for life in self._members(asked[0]):
                life.place = _FINISHED

    def _step_finished(self, event: ev.TrainStepFinished) -> None:
        action, requested_s = self._asked.pop(event.closes)
        consumed = self._members(action)
        for life in consumed:
            life.set_trained(event.version)
        step = self.steps[event.version] = StepLife(
            version=event.version,
            num_groups=len(action.group_ids),
            num_trajectories=event.num_trajectories,
            num_tokens=event.num_tokens,
            requested_s=requested_s,
            started_s=event.started_s,
            finished_s=event.finished_s,
            rollout_wait_s=event.started_s - self._last_step_end_s,
        )
        self._last_step_end_s = event.finished_s
        step.consume(consumed)
        for life in consumed:
            self._leave(life)

    def _published(self, event: ev.WeightsPublished) -> None:
        step = self.steps.get(event.version)
        if step is not None:
            step.publish_started_s = event.started_s
            step.publish_finished_s = event.finished_s

    def _loaded(self, event: ev.WeightsLoaded) -> None:
        self.replicas[event.replica_id].loaded(event.started_s, event.finished_s)
        step = self.steps.get(event.version)
        if step is not None:
            step.loaded(event.started_s, event.finished_s)
