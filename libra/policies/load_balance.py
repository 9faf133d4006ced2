"""`load_balance`: routing by load alone.

`least_connections` takes the replica with the fewest trajectories (or turns, when not sticky); `round_robin`
takes the next in turn; `weighted` takes the one with the least load for its weight, by default its TP degree.
With `sticky` a trajectory stays with the replica that served it, where its prefix is cached.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from libra.core.actions import Action
from libra.core.events import Event
from libra.core.ids import ReplicaId, ReplicaStatus
from libra.core.views import ClusterView, TrajectoryView
from libra.policies.placement import Placement


@dataclass(frozen=True, slots=True)
class LoadBalanceConfig:
    """Config of `load_balance`.

    max_queue_length: a replica with this many trajectories (turns, when not sticky) takes no further one.
    weights: relative capacity by TP degree, for `weighted`; degrees not named weigh their TP.
    """

    scheduler_type: Literal["load_balance"] = "load_balance"
    load_balance_strategy: Literal["least_connections", "round_robin", "weighted"] = "least_connections"
    sticky: bool = True
    max_queue_length: int = 100
    weights: dict[int, float] = field(default_factory=dict[int, float])

    def __post_init__(self) -> None:
        if self.max_queue_length < 1:
            raise ValueError("max_queue_length must be at least 1")
        if any(weight <= 0 for weight in self.weights.values()):
            raise ValueError("weights must be positive")


class LoadBalance:
    """See the module."""

    def __init__(self, config: LoadBalanceConfig, rng: np.random.Generator) -> None:
        self._config = config
        self._placement = Placement(self._choose)
        self._last = ReplicaId(-1)
        self._ids: list[ReplicaId] = []  # of all replicas, rising
        self._pick = {
            "least_connections": self._least,
            "round_robin": self._next_in_turn,
            "weighted": self._least_for_weight,
        }[config.load_balance_strategy]

    def on_event(self, now: float, event: Event, view: ClusterView) -> Iterable[Action]:
        """Place turns that have become ready."""
        return self._placement.on_event(event, view)

    def _choose(self, trajectory: TrajectoryView, view: ClusterView) -> tuple[ReplicaId, str] | None:
        if self._config.sticky and trajectory.replica_id >= 0:
            home = view.replicas[trajectory.replica_id]
            if home.status is ReplicaStatus.READY:
                return trajectory.replica_id, "sticky"
        least = self._least_of(view, None)
        if least is None or least[1] >= self._config.max_queue_length:
            return None
        return self._pick(view)

    def _least_of(self, view: ClusterView, tp: int | None) -> tuple[ReplicaId, int] | None:
        return view.least_resident(tp) if self._config.sticky else view.least_turns(tp)

    def _least(self, view: ClusterView) -> tuple[ReplicaId, str] | None:
        least = self._least_of(view, None)
        return None if least is None else (least[0], "least loaded")

    def _least_for_weight(self, view: ClusterView) -> tuple[ReplicaId, str] | None:
        best: tuple[float, ReplicaId] | None = None
        for tp in view.tp_degrees():
            least = self._least_of(view, tp)
            if least is None or least[1] >= self._config.max_queue_length:
                continue
            load = (least[1] + 1) / self._config.weights.get(tp, tp)
            if best is None or load < best[0]:
                best = (load, least[0])
        return None if best is None else (best[1], "least load for its weight")

    def _next_in_turn(self, view: ClusterView) -> tuple[ReplicaId, str] | None:
        if len(self._ids) != len(view.replicas):  # replicas are added, never taken off the list
            self._ids = sorted(view.replicas)
        ids = self._ids
        first = bisect_right(ids, self._last)
        for offset in range(len(ids)):
            replica_id = ids[(first + offset) % len(ids)]
            replica = view.replicas[replica_id]
            load = replica.num_resident if self._config.sticky else replica.num_turns
            if replica.status is ReplicaStatus.READY and load < self._config.max_queue_length:
                self._last = replica_id
                return replica_id, "next in turn"
        return None
