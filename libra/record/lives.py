"""What is remembered of trajectories and train steps while a run is recorded.

Plain slotted objects: `libra.record.derive` fills them from events and turns them into rows. A trajectory's
life is forgotten when its row is written, so memory holds those in flight only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import nan
from struct import Struct
from typing import Final

from libra.core.events import TrajectoryArrived, TurnFailed, TurnFinished
from libra.core.ids import Place

NO_VERSION = -1

OpenTurn = tuple[int, int, int, int, int, str, float]
"""A finished turn: number among those kept, seq, attempt, tp, prefix tokens (-1 unknown), tool name, finished_s."""

FailedRow = tuple[TurnFailed, int, int, int, int, float]
"""A failed attempt: event, seq, attempt, tp, prefix tokens (-1 unknown), ready_s."""


class DoneTurns:
    """Turns whose rows are complete: bytes and texts only, which the garbage collector need not visit."""

    __slots__ = ("numbers", "tool_names", "tool_statuses")

    FIELDS: Final = ("number", "seq", "attempt", "tp", "prefix_tokens", "payload_tokens", "tool_latency_s")
    PACK: Final = Struct("<6qd").pack

    def __init__(self) -> None:
        self.numbers: list[bytes] = []
        self.tool_names: list[str] = []
        self.tool_statuses: list[str | None] = []

    def add(self, turn: OpenTurn, status: str | None, payload_tokens: int, latency_s: float) -> None:
        """Status of the tool's answer, its payload (-1 unknown) and latency in s (nan unknown)."""
        number, seq, attempt, tp, prefix, name, _ = turn
        self.numbers.append(self.PACK(number, seq, attempt, tp, prefix, payload_tokens, latency_s))
        self.tool_names.append(name)
        self.tool_statuses.append(status)

    def __len__(self) -> int:
        return len(self.numbers)


class Life:
    """One trajectory. Times in seconds since the start of the run, nan until known."""

    __slots__ = (
        "arrival_s",
        "arrived",
        "attempt",
        "context_tokens",
        "drop_reason",
        "finished_s",
        "num_failed_turns",
        "num_preemptions",
        "num_turns",
        "on_replica",
        "open_turn",
        "output_tokens",
        "place",
        "prefix_tokens",
        "ready_s",
        "recomputed_tokens",
        "requested_s",
        "reward",
        "staleness",
        "started_s",
        "train_step",
        "version_first",
        "version_last",
        "version_max",
        "version_min",
        "version_token_sum",
    )

    def __init__(self, arrived: TrajectoryArrived, arrival_s: float) -> None:
        self.arrived = arrived
        self.arrival_s = arrival_s
        self.requested_s = nan
        self.started_s = nan
        self.finished_s = nan
        self.reward = nan
        self.num_turns = 0
        self.output_tokens = 0
        self.num_failed_turns = 0
        self.num_preemptions = 0
        self.recomputed_tokens = 0
        self.version_first = NO_VERSION
        self.version_last = NO_VERSION
        self.version_min = 0
        self.version_max = NO_VERSION
        self.version_token_sum = 0
        self.place = Place.BACKLOG
        self.drop_reason: str | None = None
        self.train_step = NO_VERSION
        self.staleness = (nan, nan, nan)
        self.on_replica = NO_VERSION
        self.attempt = 0
        self.prefix_tokens = NO_VERSION
        self.context_tokens = 0
        self.open_turn: OpenTurn | None = None

    def hold(self, number: int, seq: int, tp: int, event: TurnFinished) -> None:
        """A turn is finished, its tool has not answered."""
        known = self.prefix_tokens
        self.open_turn = (number, seq, self.attempt, tp, known, event.tool_name, event.finished_s)

    def generated(self, first: int, last: int, token_sum: int, output_tokens: int) -> None:
        """Count a turn's tokens and the weight versions that made them."""
        if output_tokens == 0:
            return
        if self.output_tokens == 0:
            self.version_first = self.version_min = first
        elif first < self.version_min:
            self.version_min = first
        self.output_tokens += output_tokens
        self.version_last = last
        if last > self.version_max:
            self.version_max = last
        self.version_token_sum += token_sum

    @property
    def version_token_mean(self) -> float:
        """Token-weighted mean weight version; nan without tokens."""
        return self.version_token_sum / self.output_tokens if self.output_tokens else nan

    def set_trained(self, version: int) -> None:
        """The step that made `version` consumed it; the trainer was at `version - 1` then."""
        self.place = Place.TRAINED
        self.train_step = version
        base = version - 1
        if self.output_tokens:
            self.staleness = (
                float(base - self.version_max),
                base - self.version_token_mean,
                float(base - self.version_min),
            )


@dataclass(slots=True)
class StepLife:
    """One train step, and the publication and loads of the version that it made."""

    version: int
    num_groups: int
    num_trajectories: int
    num_tokens: int
    requested_s: float
    started_s: float
    finished_s: float
    rollout_wait_s: float
    staleness_min: float = nan
    staleness_mean: float = nan
    staleness_max: float = nan
    publish_started_s: float = nan
    publish_finished_s: float = nan
    load_first_s: float = nan
    load_last_s: float = nan
    num_loads: int = 0

    def consume(self, lives: Iterable[Life]) -> None:
        """Take over the staleness of the trajectories that the step trained on."""
        dated = [(life.staleness, life.output_tokens) for life in lives if life.output_tokens]
        if dated:
            tokens = sum(count for _, count in dated)
            self.staleness_min = min(low for (low, _, _), _ in dated)
            self.staleness_mean = sum(mean * count for (_, mean, _), count in dated) / tokens
            self.staleness_max = max(high for (_, _, high), _ in dated)

    def loaded(self, started_s: float, finished_s: float) -> None:
        """One replica serves this version."""
        if self.num_loads == 0:
            self.load_first_s, self.load_last_s = started_s, finished_s
        else:
            self.load_first_s = min(self.load_first_s, started_s)
            self.load_last_s = max(self.load_last_s, finished_s)
        self.num_loads += 1
