"""A world in a few lines, for tests of the controller: pending actions that the test ends as it likes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from libra.controller import Controller, ControllerConfig
from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import (
    NO_ACTION,
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
from libra.core.step import Step
from libra.policies.admission import Admission, AdmissionConfig
from libra.policies.base import Policy
from libra.policies.load_balance import LoadBalance, LoadBalanceConfig
from libra.policies.recovery import Recovery, RecoveryConfig
from libra.policies.train_loop import TrainLoop, TrainLoopConfig


def rng() -> np.random.Generator:
    """A generator for policies that draw nothing."""
    return np.random.default_rng(0)


def policies(
    router: Policy | None = None,
    admission: AdmissionConfig | None = None,
    training: TrainLoopConfig | None = None,
    recovery: RecoveryConfig | None = None,
) -> list[Policy]:
    """The usual four, in the controller's order."""
    return [
        Recovery(recovery or RecoveryConfig(), rng()),
        TrainLoop(training or TrainLoopConfig(), rng()),
        Admission(admission or AdmissionConfig(), rng()),
        router or LoadBalance(LoadBalanceConfig(), rng()),
    ]


@dataclass
class FakeWorld:
    """Feeds a controller and keeps what it asked for. `turns` decides how long an episode is.

    early_tokens: the first token of a turn is made when it is submitted, by the weights of then; otherwise all are
    made when it ends. made_by: oldest version of a trajectory's tokens. lags: by how many versions the oldest token
    of each train step lagged when it began, by this world's own account.
    """

    controller: Controller
    num_groups: int = 4
    group_size: int = 2
    turns: int = 2
    now: float = 0.0
    version: int = 0
    published: int = 0
    pending: dict[ActionId, act.Action] = field(default_factory=dict)
    in_tool: dict[TrajectoryId, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    next_group: int = 0
    down: set[int] = field(default_factory=set)
    weights: dict[ReplicaId, int] = field(default_factory=dict)
    dropped: list[TrajectoryId] = field(default_factory=list)
    early_tokens: bool = False
    submitted_to: dict[ActionId, WeightVersion] = field(default_factory=dict)
    made_by: dict[TrajectoryId, int] = field(default_factory=dict)
    lags: list[int] = field(default_factory=list)

    def send(self, event: ev.Event) -> Sequence[act.Action]:
        """Hand over an event; what it closes is no longer pending, what it asks for is."""
        self.pending.pop(getattr(event, "closes", NO_ACTION), None)
        step = self.controller.handle(self.now, event)
        self.steps.append(step)
        for action_id, action in enumerate(step.actions, step.first_action_id):
            if isinstance(action, act.DropTrajectory):
                self.in_tool.pop(action.trajectory_id, None)
                self.dropped.append(action.trajectory_id)
            elif not isinstance(action, act.AbortTurn):
                self.pending[ActionId(action_id)] = action
                if isinstance(
                    action, act.StartReplica
                ):  # it reads its weights now, and may be ready much later
                    self.weights[action.replica_id] = self.published
                elif isinstance(action, act.SubmitTurn):
                    self.submitted_to[ActionId(action_id)] = self._weights_of(action)
                elif isinstance(action, act.StartTrainStep):
                    self.lags.append(self.version - self._oldest_of(action))
        return step.actions

    def _weights_of(self, action: act.SubmitTurn) -> WeightVersion:
        return self.controller.view.replicas[action.replica_id].weight_version

    def _oldest_of(self, action: act.StartTrainStep) -> int:
        groups = self.controller.view.groups
        members = [m.trajectory_id for group_id in action.group_ids for m in groups[group_id].members()]
        return min(self.made_by[member] for member in members)

    def _versions(
        self, action_id: ActionId, action: act.SubmitTurn, output_tokens: int
    ) -> tuple[WeightVersion, WeightVersion]:
        """Of the first and the last token of a turn that ends now."""
        last = self._weights_of(action)
        first = self.submitted_to.pop(action_id) if self.early_tokens else last
        if output_tokens:
            trajectory = action.trajectory_id
            self.made_by[trajectory] = min(first, self.made_by.get(trajectory, first))
        return first, last

    def start(self, tps: Sequence[int] = (1, 2), supply: Supply = Supply.PULL) -> None:
        """RunStarted and the replicas."""
        self.send(ev.RunStarted(supply))
        for i, tp in enumerate(tps):
            self.send(ready(i, tp))

    def of(self, kind: type) -> list[tuple[ActionId, act.Action]]:
        """Pending actions of a type, oldest first."""
        return [(i, a) for i, a in self.pending.items() if type(a) is kind]

    def end(self, action_id: ActionId) -> None:
        """End a pending action with success."""
        action = self.pending[action_id]
        match action:
            case act.FetchPrompts():
                self._fetch(action_id, action)
            case act.StartTrajectory():
                self.send(ev.TrajectoryStarted(action_id, action.trajectory_id))
            case act.SubmitTurn():
                self.finish_turn(action_id, action)
            case act.StartTrainStep():
                self.version += 1
                self.send(
                    ev.TrainStepFinished(
                        action_id,
                        WeightVersion(self.version),
                        action.num_trajectories,
                        action.num_tokens,
                        self.now,
                        self.now,
                    )
                )
            case act.PublishWeights():
                self.published = action.version
                self.send(ev.WeightsPublished(action_id, action.version, self.now, self.now))
            case act.LoadWeights():
                self.send(ev.WeightsLoaded(action_id, action.replica_id, action.version, self.now, self.now))
            case act.StartReplica():
                self.down.discard(action.replica_id)
                version = self.weights[action.replica_id]
                self.send(ready(action.replica_id, action.tp, action_id, version))
            case act.DrainReplica():
                self.send(ev.ReplicaDrained(action_id, action.replica_id))
            case act.StopReplica():
                self.send(ev.ReplicaStopped(action_id, action.replica_id))
            case act.SetTimer():
                self.now = max(self.now, action.at_s)
                self.send(ev.TimerFired(action_id, action.key))
            case _:
                raise AssertionError(action)

    def finish_turn(self, action_id: ActionId, action: act.SubmitTurn, output_tokens: int = 10) -> None:
        """The turn ends well; the episode goes on or into its last call."""
        first, last = self._versions(action_id, action, output_tokens)
        self.send(
            ev.TurnFinished(
                action_id,
                action.trajectory_id,
                action.turn,
                action.replica_id,
                action.prompt_tokens,
                output_tokens,
                0,
                0,
                0,
                first,
                last,
                last * output_tokens,
                self.now,
                self.now,
                self.now,
                self.now,
                NextStep.END if action.turn + 1 == self.turns else NextStep.TOOL,
                "shell",
            )
        )
        self.in_tool[action.trajectory_id] = action.turn

    def fail_turn(self, action_id: ActionId, kind: FailureKind, output_tokens: int = 0) -> None:
        """The turn ends badly."""
        action = self.pending[action_id]
        assert isinstance(action, act.SubmitTurn)
        first, last = self._versions(action_id, action, output_tokens)
        self.send(
            ev.TurnFailed(
                action_id,
                action.trajectory_id,
                action.turn,
                action.replica_id,
                kind,
                action.prompt_tokens,
                output_tokens,
                0,
                0,
                0,
                first,
                last,
                0,
                self.now,
                self.now,
            )
        )

    def return_tool(self, trajectory_id: TrajectoryId, status: ToolStatus = ToolStatus.SUCCESS) -> None:
        """The environment answers, or ends the episode after its last turn."""
        turn = self.in_tool.pop(trajectory_id)
        if turn + 1 == self.turns:
            self.send(ev.TrajectoryFinished(trajectory_id, self.turns, 1.0))
            return
        prompt = self.controller.view.trajectories[trajectory_id].prompt_tokens + 5
        self.send(ev.ToolReturned(trajectory_id, turn, "shell", status, 5, 0.0, prompt))

    def lose(self, replica_id: int) -> None:
        """A replica dies with everything on it."""
        self.down.add(replica_id)
        self.send(ev.ReplicaLost(ReplicaId(replica_id)))
        for action_id, action in list(self.pending.items()):
            if getattr(action, "replica_id", None) != replica_id:
                continue
            if isinstance(action, act.SubmitTurn):
                self.fail_turn(action_id, FailureKind.REPLICA_LOST)
            elif isinstance(action, act.LoadWeights | act.DrainReplica | act.StopReplica):
                self.send(ev.ActionFailed(action_id, FailureKind.REPLICA_LOST, "lost"))

    def run_to_end(self, limit: int = 5000) -> EndReason | None:
        """End whatever is pending, oldest first, until the controller says that it is over or nothing is left."""
        for _ in range(limit):
            reason = self.controller.end_reason()
            if reason is not None:
                return reason
            if self.pending:
                self.end(next(iter(self.pending)))
            elif self.in_tool:
                self.return_tool(next(iter(self.in_tool)))
            else:
                return None
        raise AssertionError("no end in sight")

    def _fetch(self, action_id: ActionId, action: act.FetchPrompts) -> None:
        count = 0
        while count < action.num_trajectories and self.next_group < self.num_groups:
            group = self.next_group
            self.next_group += 1
            for sample in range(self.group_size):
                self.send(arrival(group * self.group_size + sample, group, self.group_size, sample))
                count += 1
        self.send(ev.PromptsFetched(action_id, count, self.next_group == self.num_groups))


def arrival(
    trajectory: int, group: int, size: int, sample: int = 0, tokens: int = 100
) -> ev.TrajectoryArrived:
    """A trajectory of a group; the prompt has the group's number."""
    return ev.TrajectoryArrived(
        TrajectoryId(trajectory), GroupId(group), PromptId(group), sample, size, tokens
    )


def ready(replica: int, tp: int, closes: ActionId = NO_ACTION, version: int = 0) -> ev.ReplicaReady:
    """A replica on node 0."""
    return ev.ReplicaReady(
        closes, ReplicaId(replica), tp, NodeId(0), WeightVersion(version), 10_000, 8, 1_000
    )


def controller(*parts: Policy, training: bool = True, total_steps: int = 100, bound: int = 4) -> Controller:
    """A controller with full recounts on."""
    config = ControllerConfig(
        training=training, total_steps=total_steps, max_head_offpolicyness=bound, debug=True
    )
    return Controller(config, parts or policies())
