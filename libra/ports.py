"""Ports: what a world must offer so that the controller's actions can be carried out in it.

Each port is implemented twice, by the simulator and by the executor. All methods return at once; what they
started ends as an event handed to the driver's `emit`, so a simulated process and a network request fit the
same signature. `dispatch` is the only place that knows which action goes to which port, in both worlds.

A port may emit before the method returns (a source that has its prompts at hand): the driver queues events
and handles them one after another, so no handler runs inside another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, assert_never

from libra.core.actions import (
    AbortTurn,
    Action,
    DrainReplica,
    DropTrajectory,
    FetchPrompts,
    LoadWeights,
    PublishWeights,
    SetTimer,
    StartReplica,
    StartTrainStep,
    StartTrajectory,
    StopReplica,
    SubmitTurn,
)
from libra.core.events import Event, TurnFailed
from libra.core.ids import ActionId, FailureKind, WeightVersion

Emit: TypeAlias = Callable[[Event], None]
"""How a port reports what happened. Never blocks."""


class PromptSource(Protocol):
    """Where trajectories come from."""

    def fetch(self, action_id: ActionId, action: FetchPrompts) -> None:
        """Ends as `TrajectoryArrived` events and one `PromptsFetched`, or `ActionFailed`."""
        ...


class EnvironmentPort(Protocol):
    """Runs the episodes: start, tool calls after each turn, reward at the end.

    After a `TurnFinished` the driver lets the environment go on by itself; it ends as `ToolReturned` or
    `TrajectoryFinished`. Each tool call has a timeout, which is a result (`ToolStatus.TIMEOUT`).
    """

    def start(self, action_id: ActionId, action: StartTrajectory) -> None:
        """Ends as `TrajectoryStarted` or `ActionFailed`, also where the trajectory is dropped meanwhile."""
        ...

    def drop(self, action: DropTrajectory) -> None:
        """Tear the episode down. No event follows, also not from a tool call under way.

        Only a start under way still ends, in the way that comes first: bringing up cannot always be called off.
        """
        ...


class RolloutEngines(Protocol):
    """All serving engines, addressed by the replica id in the action."""

    def submit(self, action_id: ActionId, action: SubmitTurn) -> None:
        """Ends as `TurnFinished` or `TurnFailed`."""
        ...

    def abort(self, action: AbortTurn) -> None:
        """Hastens the end of a turn: its own closing event, `TurnFailed(aborted)` unless it finished."""
        ...

    def load_weights(self, action_id: ActionId, action: LoadWeights) -> None:
        """Ends as `WeightsLoaded` or `ActionFailed`. Turns in flight pause and go on."""
        ...

    def start(self, action_id: ActionId, action: StartReplica) -> None:
        """Ends as `ReplicaReady` or `ActionFailed`."""
        ...

    def drain(self, action_id: ActionId, action: DrainReplica) -> None:
        """Ends as `ReplicaDrained` once no turn is left, or `ActionFailed`."""
        ...

    def stop(self, action_id: ActionId, action: StopReplica) -> None:
        """Ends as `ReplicaStopped` or `ActionFailed`; turns on it end as `TurnFailed(aborted)` before."""
        ...


class TrainerPort(Protocol):
    """The trainer."""

    def start_step(self, action_id: ActionId, action: StartTrainStep) -> None:
        """Ends as `TrainStepFinished` or `ActionFailed`."""
        ...

    def publish(self, action_id: ActionId, action: PublishWeights) -> None:
        """Ends as `WeightsPublished` or `ActionFailed`."""
        ...


class ClockPort(Protocol):
    """The driver's clock, for timers."""

    def set_timer(self, action_id: ActionId, action: SetTimer) -> None:
        """Ends as `TimerFired`, or `ActionFailed` where the time lies in the past."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """One world."""

    source: PromptSource
    environment: EnvironmentPort
    engines: RolloutEngines
    trainer: TrainerPort
    clock: ClockPort


def dispatch(ports: Ports, action_id: ActionId, action: Action) -> None:
    """Hand an action to its port. The order of cases follows how often they occur."""
    match action:
        case SubmitTurn():
            ports.engines.submit(action_id, action)
        case StartTrajectory():
            ports.environment.start(action_id, action)
        case FetchPrompts():
            ports.source.fetch(action_id, action)
        case AbortTurn():
            ports.engines.abort(action)
        case DropTrajectory():
            ports.environment.drop(action)
        case StartTrainStep():
            ports.trainer.start_step(action_id, action)
        case PublishWeights():
            ports.trainer.publish(action_id, action)
        case LoadWeights():
            ports.engines.load_weights(action_id, action)
        case StartReplica():
            ports.engines.start(action_id, action)
        case DrainReplica():
            ports.engines.drain(action_id, action)
        case StopReplica():
            ports.engines.stop(action_id, action)
        case SetTimer():
            ports.clock.set_timer(action_id, action)
        case _:
            assert_never(action)


def turn_unserved(
    action_id: ActionId, action: SubmitTurn, kind: FailureKind, submitted_s: float, failed_s: float
) -> TurnFailed:
    """How a turn ends that no engine has seen: without a token."""
    nothing = WeightVersion(-1)
    return TurnFailed(
        action_id,
        action.trajectory_id,
        action.turn,
        action.replica_id,
        kind,
        action.prompt_tokens,
        output_tokens=0,
        cached_tokens=0,
        recomputed_tokens=0,
        num_preemptions=0,
        version_first=nothing,
        version_last=nothing,
        version_token_sum=0,
        submitted_s=submitted_s,
        failed_s=failed_s,
    )
