"""Admission: which trajectories start, and when.

Two gates. *Concurrency*: at most `max_concurrent_rollouts` trajectories are started and unfinished.
*Staleness*: at serving version v, counted from the one with which the run began, at most
(v + 1 + max_head_offpolicyness) batches of groups have been started, discarded groups given back; so by the time
a group is consumed the trainer has moved on by no more than the bound, if groups are consumed oldest first. The
rule is AReaL's (arXiv 2505.24298), counted in whole groups: a group that has begun is always completed, or a
trainer that waits for it would wait for ever.

Prompts are pulled when the backlog runs low.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from libra.core import events as ev
from libra.core.actions import Action, FetchPrompts, StartTrajectory
from libra.core.ids import GroupId, Place, Supply
from libra.core.views import ClusterView


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Config of `concurrency_and_staleness`.

    prefetch_trajectories: the backlog is refilled when it falls below this.
    """

    kind: Literal["concurrency_and_staleness"] = "concurrency_and_staleness"
    prefetch_trajectories: int = 64
    training: bool = True
    batch_size: int = 32
    n_samples: int = 4
    max_concurrent_rollouts: int = 64
    max_head_offpolicyness: int = 4
    partial_rollout: bool = True

    def __post_init__(self) -> None:
        for name in ("prefetch_trajectories", "max_concurrent_rollouts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


class Admission:
    """See the module."""

    ignores = frozenset({ev.TurnFinished, ev.TrajectoryStarted})
    """Nothing in these opens a gate, nor do policies answer them by a drop, which may."""

    def __init__(self, config: AdmissionConfig, rng: np.random.Generator) -> None:
        self._config = config
        self._groups_per_step = max(1, config.batch_size // config.n_samples)

    def on_event(self, now: float, event: ev.Event, view: ClusterView) -> Sequence[Action]:
        """Start what the gates let through; fetch when the backlog is low."""
        match event:
            case ev.TrajectoryArrived() if view.supply is Supply.PULL:
                return ()  # `PromptsFetched` follows
            case ev.ToolReturned() if event.trajectory_id in view.trajectories:
                return ()  # one that was dropped is not there any more
            case _:
                pass
        return self._starts(view)

    def _starts(self, view: ClusterView) -> Sequence[Action]:
        config = self._config
        actions: list[Action] = []
        room = config.max_concurrent_rollouts - view.num_active
        num_backlog = len(view.backlog)
        if room > 0 and num_backlog and not self._must_wait_for_weights(view):
            new_groups = self._groups_allowed(view)
            begun: GroupId | None = None
            for trajectory in view.backlog.values():
                if room == 0:
                    break
                if trajectory.group_id != begun and view.groups[trajectory.group_id].num_started == 0:
                    if new_groups == 0:
                        break
                    new_groups -= 1
                begun = trajectory.group_id
                actions.append(StartTrajectory(trajectory.trajectory_id, "gates open"))
                room -= 1
            num_backlog -= len(actions)
        if (
            num_backlog < config.prefetch_trajectories
            and view.supply is Supply.PULL
            and not view.source_exhausted
            and not view.fetching
        ):
            wanted = max(config.prefetch_trajectories, room)
            actions.append(FetchPrompts(wanted, f"backlog {num_backlog}"))
        return actions

    def _must_wait_for_weights(self, view: ClusterView) -> bool:
        """Without partial rollout nothing starts between a publication and the last load."""
        return not self._config.partial_rollout and view.serving_version < view.trainer.published_version

    def _groups_allowed(self, view: ClusterView) -> int:
        if not self._config.training:
            return view.count(Place.BACKLOG)
        horizon = view.serving_version - view.first_version + 1 + self._config.max_head_offpolicyness
        held = view.num_groups_started - view.num_groups_discarded
        return max(0, horizon * self._groups_per_step - held)
