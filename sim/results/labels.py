"""Words and numbers for people: metric names with units, verdicts as sentences.

Guarantees that a table, a figure and a sentence name and scale a metric alike: shares are shown in %.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

from libra.record.metrics import METRICS
from sim.stats import PairedDifference, direction

HEADLINE: Final = {
    "makespan_s": "makespan s",
    "turn_latency_p95_s": "lat. p95 s",
    "wasted_share": "waste %",
    "tail_share": "tail %",
    "staleness_mean": "staleness",
    "step_s": "step s",
}
"""Metrics that a table shows beside its own, where the runs have them, with a head short enough for a terminal."""

_NAMES: Final[dict[str, str]] = {
    "trained_tokens_per_s": "trained output rate",
    "output_tokens_per_s": "output rate",
    "trajectories_per_h": "trajectory rate",
    "train_tokens_per_s": "trained context rate",
    "step_s": "step time",
    "num_train_steps": "train steps",
    "step_rollout_wait_s": "rollout wait per step",
    "step_publish_s": "publication per step",
    "step_train_s": "training per step",
    "sync_s": "sync time",
    "queue_mean_s": "queueing mean",
    "queue_p95_s": "queueing p95",
    "ttft_mean_s": "TTFT mean",
    "ttft_p95_s": "TTFT p95",
}
_COUNTED: Final = {
    "trained_tokens_per_s": "trained output tokens/s",
    "output_tokens_per_s": "output tokens/s",
    "trajectories_per_h": "trajectories/h",
    "train_tokens_per_s": "trained context tokens/s",
}
"""Rates, as what an arm makes more or fewer of."""


@dataclass(frozen=True, slots=True)
class Label:
    """name and unit as shown; a value times `scale` is in that unit. An empty unit is a count."""

    name: str
    unit: str
    scale: float = 1.0

    @property
    def text(self) -> str:
        """Name and unit, for an axis or a column."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


def label(metric: str) -> Label:
    """How a metric is shown. A metric that the registry does not know keeps its own name."""
    known = METRICS.get(metric)
    if known is None:
        return Label(metric, "")
    name = _NAMES.get(metric, metric.removesuffix("_s").removeprefix("num_").replace("_", " "))
    if known.unit != "1":
        return Label(name, {"1/h": "trajectories/h"}.get(known.unit, known.unit))
    if metric.startswith("num_"):
        return Label(name, "")
    return Label(name, "%", 100.0)


def number(value: float) -> str:
    """A figure to about four digits; a dash for one that is not known."""
    if not isfinite(value):
        return "-"
    size = abs(value)
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def difference(row: PairedDifference) -> str:
    """The mean difference: in %, or in the metric's unit against a baseline of 0."""
    if row.num_pairs == 0:
        return "-"
    if isfinite(row.relative_percent):
        return f"{row.relative_percent:+.1f} %"
    shown = label(row.metric)
    return f"{row.difference * shown.scale:+.3g} {shown.unit}".rstrip()


def interval(row: PairedDifference) -> str:
    """The bounds in the unit of `difference`, `low .. high`."""
    if row.method == "none":
        return "-"
    if isfinite(row.relative_percent):
        return f"{row.low_percent:+.1f} .. {row.high_percent:+.1f}"
    scale = label(row.metric).scale
    return f"{row.low * scale:+.3g} .. {row.high * scale:+.3g}"


def sentence(row: PairedDifference) -> str:
    """The comparison in plain words, with its interval and number of pairs."""
    where = _where(row.others)
    against = f"{row.baseline_point}{where}"
    seeds = _seeds(row)
    if row.num_pairs == 0:
        return f"{row.point} cannot be compared with {against}: no seed finished for both."
    if row.verdict == "equal":
        return f"{row.point} and {against} have the same {label(row.metric).name} ({seeds})."
    bounds = f"95 % interval {interval(row)}{_unit(row)}, {seeds}"
    if row.method == "none":
        bounds = "one seed, so no interval and no verdict"
        if row.num_missing:
            bounds += f"; {row.num_missing} left out"
    text = f"{row.point} {_change(row)} {against} ({bounds})"
    if row.verdict == "undecided":
        return f"{text}: undecided." if row.method != "none" else f"{text}."
    return f"{text}." if direction(row.metric) == "neutral" else f"{text}: {row.verdict}."


def _change(row: PairedDifference) -> str:
    amount = difference(row).lstrip("+-")
    more = row.difference > 0
    if row.metric in _COUNTED:
        return f"makes {amount} {'more' if more else 'fewer'} {_COUNTED[row.metric]} than"
    return f"has {amount} {'higher' if more else 'lower'} {label(row.metric).name} than"


def _unit(row: PairedDifference) -> str:
    unit = "%" if isfinite(row.relative_percent) else label(row.metric).unit
    return f" {unit}" if unit else ""


def _where(others: Mapping[str, str]) -> str:
    return f" on {', '.join(f'{axis} {point}' for axis, point in others.items())}" if others else ""


def _seeds(row: PairedDifference) -> str:
    text = f"{row.num_pairs} seed{'s' if row.num_pairs > 1 else ''}"
    return f"{text}, {row.num_missing} left out" if row.num_missing else text
