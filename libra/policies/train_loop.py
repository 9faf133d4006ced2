"""`async_grpo`: when the trainer steps, publishes, and replicas refresh their weights.

A step takes `batch_size // n_samples` complete groups, those with the oldest tokens first. Before it starts the
policy makes sure that nothing still under way would thereby exceed `max_head_offpolicyness`:

    wait   the step waits until those have finished for whom the steps to come would be too late (nothing is
           lost; with a bound of 0 this is synchronous training);
    drop   the step starts; groups that are then too old are given up, in flight or not.

A group is as old as its oldest token. Those under way may yet go on at the replica whose weights lag most, when they
lose theirs or a router moves them, so `wait` reckons with that. Where replicas come up with weights older than those
that admission counted on, it has nobody left to wait for in the end and gives up what no step can take.

A group in which fewer than `min_group_size` trajectories finished has no advantage to learn from and is given
up. When the source is exhausted and nothing is under way, what is left makes a last, shorter step.

After every `sync_interval`-th step the weights are published and loaded by the replicas: all at once
(`parallel`) or one after another (`serial`). With `partial_rollout` turns in flight go on under the new
weights; without it loading waits until no trajectory is under way, so that none mixes versions. A publication or load
that fails is tried again after `sync_retry_s`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from libra.core import events as ev
from libra.core.actions import (
    AbortTurn,
    Action,
    DropTrajectory,
    LoadWeights,
    PublishWeights,
    SetTimer,
    StartTrainStep,
)
from libra.core.ids import DropReason, FailureKind, GroupId, Place, ReplicaId, ReplicaStatus, TrajectoryId
from libra.core.views import ClusterView, GroupView

_RETRY_SYNC = "retry-sync"
_TOO_OLD = "too old to train on"


@dataclass(frozen=True, slots=True)
class TrainLoopConfig:
    """Config of `async_grpo`."""

    kind: Literal["async_grpo"] = "async_grpo"
    on_stale: Literal["wait", "drop"] = "wait"
    min_group_size: int = 2
    sync_retry_s: float = 5.0
    training: bool = True
    batch_size: int = 32
    n_samples: int = 4
    total_steps: int = 100
    sync_interval: int = 1
    max_head_offpolicyness: int = 4
    partial_rollout: bool = True
    rollout_weight_reload_strategy: Literal["parallel", "serial"] = "parallel"

    def __post_init__(self) -> None:
        if self.min_group_size < 1:
            raise ValueError("min_group_size must be at least 1")
        if self.sync_retry_s <= 0:
            raise ValueError("sync_retry_s must be positive")


class TrainLoop:
    """See the module."""

    ignores = frozenset({ev.TurnFinished, ev.TrajectoryArrived, ev.TrajectoryStarted})

    def __init__(self, config: TrainLoopConfig, rng: np.random.Generator) -> None:
        self._config = config
        self._groups_per_step = max(1, config.batch_size // config.n_samples)
        self._min_group_size = min(config.min_group_size, config.n_samples)
        self._doomed: set[TrajectoryId] = set()
        self._failed_loads: set[ReplicaId] = set()  # not tried again before the timer
        self._failed_publication = False

    def on_event(self, now: float, event: ev.Event, view: ClusterView) -> Iterable[Action]:
        """Drive steps, publications and loads; drop what has become too old."""
        if not self._config.training:
            return ()
        match event:
            case ev.ToolReturned() | ev.TurnFailed():
                if self._doomed or isinstance(event, ev.TurnFailed):
                    return self._after_turn(event.trajectory_id, view)
                return ()
            case ev.TrajectoryFinished():
                return self._after_finish(event, view)
            case ev.TrainStepFinished():
                return self._after_step(view)
            case ev.ActionFailed() if event.kind is not FailureKind.REPLICA_LOST:
                return self._after_failure(now, view)
            case ev.TimerFired() if event.key == _RETRY_SYNC:
                self._failed_loads.clear()
                self._failed_publication = False
                return self._advance(view)
            case _:
                return self._advance(view)

    def _after_turn(self, trajectory_id: TrajectoryId, view: ClusterView) -> Iterator[Action]:
        """A doomed trajectory can be dropped now; one that was dropped may have completed its group."""
        if trajectory_id in self._doomed:
            self._doomed.discard(trajectory_id)
            trajectory = view.trajectories.get(trajectory_id)
            if trajectory is not None and trajectory.place is not Place.GENERATING:
                yield DropTrajectory(trajectory_id, DropReason.STALE, _TOO_OLD)
        yield from self._advance(view)

    def _after_finish(self, event: ev.TrajectoryFinished, view: ClusterView) -> Iterator[Action]:
        if event.trajectory_id in self._doomed:
            self._doomed.discard(event.trajectory_id)
            yield DropTrajectory(event.trajectory_id, DropReason.STALE, _TOO_OLD)
        trajectory = view.trajectories.get(event.trajectory_id)
        if trajectory is None or trajectory.group_id in view.complete_groups or self._awaits_silence(view):
            yield from self._advance(view)

    def _awaits_silence(self, view: ClusterView) -> bool:
        waits = not self._config.partial_rollout and view.serving_version < view.trainer.published_version
        return waits and view.num_active == 0

    def _after_step(self, view: ClusterView) -> Iterator[Action]:
        if self._config.on_stale == "drop":
            yield from self._drop_stale(view)
        yield from self._advance(view)

    def _after_failure(self, now: float, view: ClusterView) -> Iterator[Action]:
        """A sync that failed would most likely fail again at once; a replica that was lost comes back up to date."""
        match view.closed:
            case LoadWeights(replica_id=replica_id):
                waits = bool(self._failed_loads) or self._failed_publication
                self._failed_loads.add(replica_id)
            case PublishWeights():
                waits = bool(self._failed_loads) or self._failed_publication
                self._failed_publication = True
            case _:
                waits = True
        if not waits:
            yield SetTimer(_RETRY_SYNC, now + self._config.sync_retry_s, "a sync failed")
        yield from self._advance(view)

    def _advance(self, view: ClusterView) -> Iterator[Action]:
        yield from self._publication(view)
        yield from self._loads(view)
        yield from self._drop_useless(view)
        trainer = view.trainer
        busy = trainer.stepping or trainer.publishing or self._failed_publication
        if busy or trainer.version >= self._config.total_steps:
            return
        batch = self._batch(view)
        if batch:
            yield StartTrainStep(
                tuple(group.group_id for group in batch),
                sum(group.num_finished for group in batch),
                sum(group.num_tokens for group in batch),
                f"step {trainer.version + 1}",
            )

    def _publication(self, view: ClusterView) -> Iterator[Action]:
        """Due after every `sync_interval`-th step but the last. One that fails stays due: no step comes before it."""
        trainer = view.trainer
        if trainer.stepping or trainer.publishing or trainer.version % self._config.sync_interval:
            return
        if self._failed_publication:
            return
        if trainer.published_version < trainer.version < self._config.total_steps:
            yield PublishWeights(trainer.version, f"after step {trainer.version}")

    def _batch(self, view: ClusterView) -> list[GroupView]:
        """The groups of the next step, or none if it has to wait."""
        complete = view.complete_groups
        if len(complete) < self._groups_per_step:
            over = view.source_exhausted and not view.backlog and not view.num_active and not view.fetching
            return list(complete.values()) if over else []
        waits = self._config.on_stale == "wait"
        if waits and self._awaits_old(view):
            return []
        oldest_first = sorted(complete.values(), key=lambda group: group.version_min)
        batch = oldest_first[: self._groups_per_step]
        if waits and not self._rest_stays_fresh(batch, view):
            return []
        return batch

    def _awaits_old(self, view: ClusterView) -> bool:
        """Whether a group under way would be too old after the next step: the usual reason to wait, found at once."""
        limit = self._oldest_allowed(view) + 1
        complete = view.complete_groups
        return any(
            0 <= group.version_min < limit and group_id not in complete
            for group_id, group in view.groups.items()  # oldest first
        )

    def _rest_stays_fresh(self, batch: list[GroupView], view: ClusterView) -> bool:
        """Whether all groups that have begun could still be consumed in time, oldest first, after a step on `batch`.

        Looking at the next step only is not enough: younger groups may overtake until more old ones are left than
        the steps before their limit can take, and then no step is allowed any more. True also if nobody is under
        way: waiting helps nobody then.
        """
        taken = {group.group_id for group in batch}
        complete, serving = view.complete_groups, view.serving_version
        versions: list[int] = []
        under_way = False
        for group_id, group in view.groups.items():
            if group_id in complete:
                if group_id not in taken:
                    versions.append(group.version_min)
            elif group.num_started:
                under_way = True
                versions.append(min(group.version_min, serving) if group.version_min >= 0 else serving)
        if not under_way:
            return True
        versions.sort()
        first = view.trainer.version + 1 - self._config.max_head_offpolicyness
        return all(first + k // self._groups_per_step <= oldest for k, oldest in enumerate(versions))

    def _loads(self, view: ClusterView) -> Iterator[Action]:
        target = view.trainer.published_version
        if not self._config.partial_rollout and view.num_active:
            return
        serial = self._config.rollout_weight_reload_strategy == "serial"
        if serial and any(replica.loading for replica in view.replicas.values()):
            return
        for replica in view.replicas.values():
            ready = replica.status is ReplicaStatus.READY
            if replica.replica_id in self._failed_loads:
                continue
            if ready and not replica.loading and replica.weight_version < target:
                yield LoadWeights(replica.replica_id, target, f"version {target}")
                if serial:
                    return

    def _drop_useless(self, view: ClusterView) -> Iterator[Action]:
        """Give up complete groups that no step may use: too short ones, and stale ones whatever `on_stale` says."""
        limit = self._oldest_allowed(view)
        useless = [
            group
            for group in view.complete_groups.values()
            if group.num_finished < self._min_group_size or 0 <= group.version_min < limit
        ]
        for group in useless:
            reason, why = DropReason.SHORT_GROUP, "too few siblings finished"
            if group.num_finished >= self._min_group_size:
                reason, why = DropReason.STALE, _TOO_OLD
            for member in list(group.members()):
                yield DropTrajectory(member.trajectory_id, reason, why)

    def _oldest_allowed(self, view: ClusterView) -> int:
        """Version of the oldest token that the next step may take (I5)."""
        return view.trainer.version - self._config.max_head_offpolicyness

    def _drop_stale(self, view: ClusterView) -> Iterator[Action]:
        """Give up groups that no coming step may use."""
        limit = self._oldest_allowed(view)
        stale: list[GroupId] = [
            group_id for group_id, group in view.groups.items() if 0 <= group.version_min < limit
        ]
        for group_id in stale:
            for member in list(view.groups[group_id].members()):
                if member.place is Place.GENERATING:
                    self._doomed.add(member.trajectory_id)
                    yield AbortTurn(member.trajectory_id, member.submit_id, _TOO_OLD)
                else:
                    yield DropTrajectory(member.trajectory_id, DropReason.STALE, _TOO_OLD)
