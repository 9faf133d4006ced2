"""A router that sets priorities, which no built-in one does."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from libra.core.actions import Action
from libra.core.events import Event
from libra.core.views import ClusterView
from libra.policies.load_balance import LoadBalance, LoadBalanceConfig


@dataclass(frozen=True)
class YoungestFirstConfig:
    """Config of `YoungestFirst`. num_classes: of priority."""

    num_classes: int = 3


class YoungestFirst:
    """The least loaded replica; trajectories that have arrived later are served first, in a few classes."""

    def __init__(self, config: YoungestFirstConfig, rng: np.random.Generator) -> None:
        self.num_classes = config.num_classes
        self.router = LoadBalance(LoadBalanceConfig(), rng)

    def on_event(self, now: float, event: Event, view: ClusterView) -> Iterator[Action]:
        """The router's answer with a priority."""
        for action in self.router.on_event(now, event, view):
            yield dataclasses.replace(action, priority=-(action.trajectory_id % self.num_classes))  # type: ignore[union-attr]
