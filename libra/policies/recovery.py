"""`give_up_or_restart`: what failed is tried again, or let go.

Trajectories. A turn that failed comes back to the router by itself; one that was refused for its length, or
failed `max_turn_failures` times in a row, ends its trajectory, and so does an environment that does not start.
Replicas. One that died, or did not come up, is started again where it was, at most `max_restarts` times.
Batches. `libra.policies.collection`: a trainer that waits too long for one.

This policy is asked first, so that the trainer and the admission gate see at once what has been let go.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from libra.core import events as ev
from libra.core.actions import Action, DropTrajectory, SetTimer, StartReplica, StartTrajectory
from libra.core.ids import DropReason, FailureKind, ReplicaId, ReplicaStatus
from libra.core.views import ClusterView
from libra.policies.collection import CollectionWatch

_KEY = "restart-replica:"


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """Config of `give_up_or_restart`.

    max_turn_failures: consecutive failed turns after which a trajectory is dropped (aborts not counted).
    restart_delay_s: pause before each restart of a replica. max_restarts: of each replica over the run.
    batch_collection_timeout_s: how long the trainer waits for a batch before turns in flight are tried again, 0 for
    ever. batch_collection_max_retries: how often, before what is under way is given up.
    """

    kind: Literal["give_up_or_restart"] = "give_up_or_restart"
    max_turn_failures: int = 3
    restart_delay_s: float = 5.0
    max_restarts: int = 3
    batch_collection_timeout_s: float = 0.0
    batch_collection_max_retries: int = 2
    training: bool = True

    def __post_init__(self) -> None:
        if self.max_turn_failures < 1:
            raise ValueError("max_turn_failures must be at least 1")
        if self.restart_delay_s < 0:
            raise ValueError("restart_delay_s must not be negative")
        if self.max_restarts < 0:
            raise ValueError("max_restarts must not be negative")
        if self.batch_collection_timeout_s < 0 or self.batch_collection_max_retries < 0:
            raise ValueError("batch_collection_timeout_s and _max_retries must not be negative")


class Recovery:
    """See the module."""

    ignores = frozenset({ev.TurnFinished, ev.ToolReturned, ev.TrajectoryStarted, ev.TrajectoryFinished})

    def __init__(self, config: RecoveryConfig, rng: np.random.Generator) -> None:
        self._config = config
        self._restarts: dict[ReplicaId, int] = {}
        self._watch: CollectionWatch | None = None
        if config.training and config.batch_collection_timeout_s > 0:
            self._watch = CollectionWatch(
                config.batch_collection_timeout_s, config.batch_collection_max_retries
            )

    def on_event(self, now: float, event: ev.Event, view: ClusterView) -> Iterable[Action]:
        """Drop trajectories that cannot go on; restart replicas after `restart_delay_s`."""
        if self._watch is not None:
            answer = self._watch.on_event(now, event, view)
            if answer:
                return answer
        match event:
            case ev.TurnFailed():
                return self._after_turn(event, view)
            case ev.ReplicaLost():
                return self._schedule(now, event.replica_id)
            case ev.ActionFailed():
                match view.closed:
                    case StartReplica(replica_id=replica_id):
                        return self._schedule(now, replica_id)
                    case StartTrajectory(trajectory_id=trajectory_id) if trajectory_id in view.trajectories:
                        return (DropTrajectory(trajectory_id, DropReason.START_FAILED, event.message),)
                    case _:
                        return ()
            case ev.TimerFired() if event.key.startswith(_KEY):
                replica = view.replicas[ReplicaId(int(event.key.removeprefix(_KEY)))]
                if replica.status not in (ReplicaStatus.LOST, ReplicaStatus.STOPPED):
                    return ()
                return (StartReplica(replica.replica_id, replica.tp, replica.node_id, "restart"),)
            case _:
                return ()

    def _after_turn(self, event: ev.TurnFailed, view: ClusterView) -> Iterable[Action]:
        if event.kind is FailureKind.PROMPT_TOO_LONG:
            reason = DropReason.PROMPT_TOO_LONG
        elif (
            event.kind is not FailureKind.ABORTED
            and view.trajectories[event.trajectory_id].num_failures >= self._config.max_turn_failures
        ):
            reason = DropReason.TOO_MANY_FAILURES
        else:
            return ()
        return (DropTrajectory(event.trajectory_id, reason, f"turn {event.turn}: {event.kind}"),)

    def _schedule(self, now: float, replica_id: ReplicaId) -> Iterable[Action]:
        tried = self._restarts.get(replica_id, 0)
        if tried >= self._config.max_restarts:
            return ()
        self._restarts[replica_id] = tried + 1
        return (SetTimer(f"{_KEY}{replica_id}", now + self._config.restart_delay_s, f"restart {tried + 1}"),)
