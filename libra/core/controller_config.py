"""What the controller itself has to know of a run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """What the controller itself has to know.

    training: trajectories are consumed by a trainer. total_steps: the run ends after this train step.
    max_head_offpolicyness: the bound of invariant I5. debug: recount all totals after every step, and watch that no
    policy writes to its view (I10).
    """

    training: bool
    total_steps: int
    max_head_offpolicyness: int
    debug: bool = False
