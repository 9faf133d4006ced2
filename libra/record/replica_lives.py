"""What is remembered of replicas while a run is recorded: their lives, and how busy they were."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

from libra.core.events import ReplicaLost, ReplicaReady, ReplicaStopped


@dataclass(frozen=True, slots=True)
class ReplicaUsage:
    """A replica's own account of its time, in seconds, where the engine keeps one.

    up_s: how long it was up. Events tell of a loss when it is noticed, so they count too much; nan: they have to do.
    """

    busy_s: float
    paused_s: float
    num_steps: int = 0
    up_s: float = nan


class ReplicaLife:
    """One replica, from its first ready to its last end.

    A replica that was lost and did not come back ends with the run: its GPUs are held all the time. One that was
    stopped ends with the stop, which frees them. What lies between two lives, or after a loss, is `down_s`.
    """

    __slots__ = (
        "busy_s",
        "busy_since_s",
        "down_s",
        "end_s",
        "lost",
        "num_loads",
        "num_preemptions",
        "num_running",
        "num_turns",
        "output_tokens",
        "paused_s",
        "ready",
        "ready_s",
        "recomputed_tokens",
    )

    def __init__(self, ready: ReplicaReady, now_s: float) -> None:
        self.ready = ready
        self.ready_s = now_s
        self.end_s = nan
        self.busy_s = 0.0
        self.busy_since_s = nan
        self.paused_s = 0.0
        self.down_s = 0.0
        self.lost = False
        self.num_running = 0
        self.num_turns = 0
        self.output_tokens = 0
        self.num_preemptions = 0
        self.recomputed_tokens = 0
        self.num_loads = 0

    def again(self, ready: ReplicaReady, now_s: float) -> None:
        """It is there, for the first time or back; its counters go on."""
        if self.end_s == self.end_s:
            self.down_s += now_s - self.end_s
        self.ready = ready
        self.end_s = nan
        self.lost = False

    def submitted(self, now_s: float) -> None:
        """A turn was sent to it."""
        if self.num_running == 0:
            self.busy_since_s = now_s
        self.num_running += 1

    def turn_ended(self, now_s: float) -> None:
        """A turn on it ended."""
        self.num_running -= 1
        if self.num_running == 0:
            self.busy_s += now_s - self.busy_since_s

    def loaded(self, started_s: float, finished_s: float) -> None:
        """It stood still for a weight load; that time is paused, not busy."""
        self.num_loads += 1
        self.paused_s += finished_s - started_s
        if self.num_running:
            self.busy_s -= max(0.0, finished_s - max(started_s, self.busy_since_s))

    def end(self, now_s: float, *, lost: bool = False) -> None:
        """It is gone, or the run is over."""
        if self.num_running:
            self.busy_s += now_s - self.busy_since_s
            self.num_running = 0
        self.end_s = now_s
        self.lost = lost

    def run_over(self, now_s: float) -> None:
        """The run is over: what is up ends, and what was lost has been down until now."""
        if self.end_s != self.end_s:
            self.end(now_s)
        elif self.lost:
            self.down_s += now_s - self.end_s
            self.end_s = now_s


class ReplicaLives(dict[int, ReplicaLife]):
    """All replicas of a run by id, in order of appearance."""

    def ready(self, event: ReplicaReady, now_s: float) -> None:
        """A replica is there, for the first time or again."""
        self.setdefault(event.replica_id, ReplicaLife(event, now_s)).again(event, now_s)

    def gone(self, event: ReplicaStopped | ReplicaLost, now_s: float) -> None:
        """A replica has stopped or was lost; one that never was there is nobody's business."""
        if event.replica_id in self:
            self[event.replica_id].end(now_s, lost=isinstance(event, ReplicaLost))

    def run_over(
        self, now_s: float, usage: Mapping[int, ReplicaUsage]
    ) -> list[tuple[ReplicaLife, ReplicaUsage | None]]:
        """End all lives. Returns replicas in order of appearance, with the engine's own account if any."""
        for replica in self.values():
            replica.run_over(now_s)
        return [(replica, usage.get(replica_id)) for replica_id, replica in self.items()]
