"""A run that only gives up: prompts without end would be fetched, refused and dropped for ever.

A dataset is gone through again and again, so such a run never runs dry. What it meets (a prompt that no engine takes,
an environment that never starts) is a mistake that a person has to mend.
"""

from collections import Counter

from libra.core import events as ev
from libra.core.actions import DropTrajectory
from libra.core.step import Step


class GivingUp:
    """limit: trajectories given up in a row, without one that finished, that are borne."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reasons: Counter[str] = Counter()

    def on_step(self, step: Step) -> str:
        """Why the run should end, empty while it need not."""
        if isinstance(step.event, ev.TrajectoryFinished):
            self._reasons.clear()
        for action in step.actions:
            if isinstance(action, DropTrajectory):
                self._reasons[f"{action.drop_reason.value} ({action.reason})"] += 1
        count = self._reasons.total()
        if count < self._limit:
            return ""
        reason, times = self._reasons.most_common(1)[0]
        return (
            f"{count} trajectories in a row were given up and none finished, {times} of them for {reason}; "
            "mend that, then the same command goes on"
        )
