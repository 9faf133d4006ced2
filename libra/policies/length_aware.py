"""`length_aware`: longer prompts go to larger tensor-parallel groups.

A trajectory's category follows from the length of its next prompt by three thresholds. Each category has TP
degrees that it prefers, others to fall back on, and takes any replica in the end; among the replicas of a set
the least loaded wins. Thresholds and sets are those of the public Libra artifact's `length_aware` scheduler.

`reroute` says when a trajectory that has been served before may move: `on_category_change` (its prefix cache is
given up once per change) or `never`.
"""

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
class RoutingRule:
    """TP degrees of a category."""

    preferred_tp: tuple[int, ...]
    fallback_tp: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LengthThresholds:
    """Longest prompt of a category in tokens; longer than `long` is extra long."""

    short: int = 5000
    medium: int = 10000
    long: int = 15000

    def __post_init__(self) -> None:
        if not 0 < self.short < self.medium < self.long:
            raise ValueError("length_thresholds must rise: 0 < short < medium < long")


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """A rule per category."""

    short: RoutingRule = RoutingRule((1, 2), (4, 8))
    medium: RoutingRule = RoutingRule((2, 4), (1, 8))
    long: RoutingRule = RoutingRule((4, 8), (2, 1))
    extra_long: RoutingRule = RoutingRule((8, 4), (2, 1))


@dataclass(frozen=True, slots=True)
class LengthAwareConfig:
    """Config of `length_aware`. max_queue_length: trajectories on a replica beyond which it takes no more."""

    scheduler_type: Literal["length_aware"] = "length_aware"
    length_thresholds: LengthThresholds = field(default_factory=LengthThresholds)
    routing_rules: RoutingRules = field(default_factory=RoutingRules)
    reroute: Literal["on_category_change", "never"] = "on_category_change"
    enable_fallback: bool = True
    max_queue_length: int = 100

    def __post_init__(self) -> None:
        if self.max_queue_length < 1:
            raise ValueError("max_queue_length must be at least 1")


class LengthAware:
    """See the module."""

    def __init__(self, config: LengthAwareConfig, rng: np.random.Generator) -> None:
        self._config = config
        self._placement = Placement(self._choose)

    def on_event(self, now: float, event: Event, view: ClusterView) -> Iterable[Action]:
        """Place turns that have become ready."""
        return self._placement.on_event(event, view)

    def _choose(self, trajectory: TrajectoryView, view: ClusterView) -> tuple[ReplicaId, str] | None:
        category, rule = self._category(trajectory.prompt_tokens)
        home = view.replicas.get(trajectory.replica_id)
        if home is not None and home.status is ReplicaStatus.READY:
            if self._config.reroute == "never" or home.tp in rule.preferred_tp:
                return home.replica_id, category
            moved = self._least(view, rule.preferred_tp)
            return (moved, category) if moved is not None else (home.replica_id, f"{category}, no room")
        for degrees in (rule.preferred_tp, rule.fallback_tp, view.tp_degrees()):
            chosen = self._least(view, degrees)
            if chosen is not None:
                return chosen, category
            if not self._config.enable_fallback and any(tp in view.tp_degrees() for tp in degrees):
                return None
        return None

    def _category(self, prompt_tokens: int) -> tuple[str, RoutingRule]:
        limits, rules = self._config.length_thresholds, self._config.routing_rules
        if prompt_tokens <= limits.short:
            return "short", rules.short
        if prompt_tokens <= limits.medium:
            return "medium", rules.medium
        if prompt_tokens <= limits.long:
            return "long", rules.long
        return "extra_long", rules.extra_long

    def _least(self, view: ClusterView, degrees: tuple[int, ...]) -> ReplicaId | None:
        best: tuple[ReplicaId, int] | None = None
        for tp in degrees:
            least = view.least_resident(tp)
            if least is not None and least[1] < self._config.max_queue_length:
                best = least if best is None or least[1] < best[1] else best
        return None if best is None else best[0]
