"""A router that works, and breaks at the fifth turn that ends."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from libra.core.actions import Action
from libra.core.events import Event, TurnFinished
from libra.core.views import ClusterView
from libra.policies.load_balance import LoadBalance, LoadBalanceConfig


@dataclass(frozen=True)
class BreakingConfig:
    """Nothing to set."""


class Breaking:
    """See the module."""

    def __init__(self, config: BreakingConfig, rng: np.random.Generator) -> None:
        self.router = LoadBalance(LoadBalanceConfig(max_queue_length=64), rng)
        self.num_ended = 0

    def on_event(self, now: float, event: Event, view: ClusterView) -> Iterable[Action]:
        self.num_ended += isinstance(event, TurnFinished)
        if self.num_ended == 5:
            raise RuntimeError("at the fifth")
        return self.router.on_event(now, event, view)
