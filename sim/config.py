"""The `sim:` block of an experiment: what only the simulated world needs to know."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class ReplicaLossConfig:
    """Replicas die at random. mean_time_between_losses_s: per replica, exponential; 0 = never.

    detection_delay_s: from a death until a health check finds it. Meanwhile nobody knows: turns that the replica had,
    and those sent to it since, hang and then fail together (0 = known at once; the default is a poll every few
    seconds, as serving stacks do it).
    """

    mean_time_between_losses_s: float = 0.0
    detection_delay_s: float = 5.0

    def __post_init__(self) -> None:
        _not_negative(self, "mean_time_between_losses_s", "detection_delay_s")


@dataclass(frozen=True, slots=True)
class StragglerConfig:
    """Some replicas are slow for a while.

    fraction: share of replicas (drawn once a run; it must come to at least one). slowdown: factor on their step
    times. start_s, end_s: when (end 0 = to the end of the run).
    """

    fraction: float = 0.0
    slowdown: float = 2.0
    start_s: float = 0.0
    end_s: float = 0.0

    def __post_init__(self) -> None:
        _fraction(self, "fraction")
        _not_negative(self, "start_s", "end_s")
        if 0 < self.end_s <= self.start_s:
            raise ValueError(
                f"end_s ({self.end_s:g}) must be later than start_s ({self.start_s:g}), or 0: to the end of the run"
            )
        if self.slowdown < 1:
            raise ValueError("slowdown must be at least 1")

    def num_slow(self, num_replicas: int) -> int:
        """How many of so many replicas are slow; half a replica is one."""
        return int(self.fraction * num_replicas + 0.5)


@dataclass(frozen=True, slots=True)
class SlowToolConfig:
    """Some tool calls take longer. fraction: of all calls. slowdown: factor on their latency.

    hang_fraction: of all calls, never return: they end by the tool timeout.
    """

    fraction: float = 0.0
    slowdown: float = 10.0
    hang_fraction: float = 0.0

    def __post_init__(self) -> None:
        _fraction(self, "fraction", "hang_fraction")
        if self.slowdown < 1:
            raise ValueError("slowdown must be at least 1")


@dataclass(frozen=True, slots=True)
class FaultConfig:
    """Seeded faults; all off by default. Each kind draws from a stream of its own."""

    replica_loss: ReplicaLossConfig = field(default_factory=ReplicaLossConfig)
    straggler: StragglerConfig = field(default_factory=StragglerConfig)
    slow_tool: SlowToolConfig = field(default_factory=SlowToolConfig)


@dataclass(frozen=True, slots=True)
class SimConfig:
    """See the module.

    engine: `skip` jumps between membership changes, `reference` makes every step; same results to the bit.
    metrics_period_s: how often replicas are polled (0 = never). tool_timeout_s: a call that lasts longer ends as
    a timeout. max_sim_s: the run ends at this simulated time at the latest. debug: recount all totals after
    every step, and name a policy that writes to its view (slow).
    """

    engine: Literal["skip", "reference"] = "skip"
    metrics_period_s: float = 5.0
    tool_timeout_s: float = 600.0
    max_sim_s: float = 1_000_000.0
    debug: bool = False
    faults: FaultConfig = field(default_factory=FaultConfig)

    def __post_init__(self) -> None:
        _not_negative(self, "metrics_period_s")
        if self.tool_timeout_s <= 0:
            raise ValueError("tool_timeout_s must be positive")
        if self.max_sim_s <= 0:
            raise ValueError("max_sim_s must be positive")


def _fraction(config: object, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(config, name) <= 1:
            raise ValueError(f"{name} must lie between 0 and 1")


def _not_negative(config: object, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must not be negative")
