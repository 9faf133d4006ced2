"""The one policy interface.

A policy hears every event, reads the view, and returns the actions it wants. It is a plain object: no base
class, no clock, no I/O, no randomness but the generator that it was given. The same object runs in the
simulator and on a cluster, and a recorded run can be fed to a fresh one to get the same actions.

The constructor takes `(config, rng)`: the policy's own frozen dataclass and a numpy Generator of its own
stream. Fields of the dataclass that share a name with a run-wide setting (`SHARED_SETTINGS`) are filled from
there; the others come from the policy's section of the experiment.

Order within an event: recovery, training, admission, routing. Each action is noted in the view as soon as the
controller takes it from the iterable, so a policy sees what those before it have just asked for, and a policy
written as a generator sees its own earlier actions too. (One that returns a list has looked at the view once.)
A policy that drops trajectories belongs before admission, which fills the room at once; room that is made later in
the order, or on an event that admission does not hear, is filled at the next event that it hears (polls are).
"""

from collections.abc import Iterable
from typing import Final, Protocol

from libra.core.actions import Action
from libra.core.events import Event
from libra.core.views import ClusterView

SHARED_SETTINGS: Final = frozenset(
    {
        "batch_size",
        "max_concurrent_rollouts",
        "max_head_offpolicyness",
        "n_samples",
        "partial_rollout",
        "rollout_weight_reload_strategy",
        "sync_interval",
        "total_steps",
        "training",
    }
)
"""Run-wide settings that a policy's config may declare as fields."""


class Policy(Protocol):
    """Admission gate, trainer loop, router, recovery: all of them.

    A policy may have an attribute `ignores`, a frozenset of event types that it never answers; the controller then
    does not ask it. That is a saving and nothing else: without it the policy hears everything.
    """

    def on_event(self, now: float, event: Event, view: ClusterView) -> Iterable[Action]:
        """Actions in answer to `event`, handled at `now` (seconds since the start of the run)."""
        ...
