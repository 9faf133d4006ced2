"""Policies with a defect, made of sound ones: answers that get lost, and drops that nobody expects."""

from collections.abc import Iterable, Iterator

import numpy as np

from libra.core.actions import Action, DropTrajectory
from libra.core.events import Event
from libra.core.ids import DropReason, Place, TrajectoryId
from libra.core.views import ClusterView
from libra.policies.base import Policy


class Forgetful:
    """A policy that loses some of its actions of certain types."""

    def __init__(self, policy: Policy, lost: frozenset[type], share: float, seed: int) -> None:
        self.policy = policy
        self.lost = lost
        self.share = share
        self.rng = np.random.default_rng(seed)
        self.ignores = getattr(policy, "ignores", frozenset())

    def on_event(self, now: float, event: Event, view: ClusterView) -> Iterable[Action]:
        """The other policy's answer, thinned."""
        for action in self.policy.on_event(now, event, view):
            if type(action) not in self.lost or self.rng.random() >= self.share:
                yield action


class Dropper:
    """Drops what it is told to, in answer to the next event."""

    def __init__(self) -> None:
        self.told: list[TrajectoryId] = []

    def on_event(self, now: float, event: Event, view: ClusterView) -> Iterator[Action]:
        """The drops, where the trajectory is in a place that it can be dropped from."""
        while self.told:
            trajectory = view.trajectories.get(self.told.pop())
            if trajectory is not None and trajectory.place not in (Place.GENERATING, Place.TRAINING):
                yield DropTrajectory(trajectory.trajectory_id, DropReason.SURPLUS, "told to")
