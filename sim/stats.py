"""Differences between the arms of a sweep, with intervals over seeds.

Guarantees that arms are compared seed by seed (two arms under one seed meet the same world, so the difference
of a pair is the policy's doing), that a seed without both values is counted and not filled in, and that the
same frame gives the same interval to the last bit: the resamples come from their own named stream.

The interval is a 95 % expanded percentile bootstrap over pairs: a plain percentile interval of n values is too
narrow by about sqrt((n - 1) / n) and by the normal instead of the t quantile, so the tail probabilities are
taken from Phi(-sqrt(n / (n - 1)) * t) (T. Hesterberg, "What Teachers Should Know About the Bootstrap", The
American Statistician 69(4), 2015, section 5.3). A bootstrap of n values cannot leave their range, and the range
of n values misses a median with probability 2^(1 - n); below `MIN_BOOTSTRAP_PAIRS` that is over 5 % by so much
that a Student t interval is given instead, and one pair gives none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, nan, sqrt
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats as distributions

from libra.core.streams import stream
from libra.record.frames import Frame
from libra.record.metrics import METRICS

Floats: TypeAlias = npt.NDArray[np.float64]
Better: TypeAlias = Literal["higher", "lower", "neutral"]
Method: TypeAlias = Literal["bootstrap", "student t", "none"]
Verdict: TypeAlias = Literal["better", "worse", "higher", "lower", "equal", "undecided"]

CONFIDENCE: Final = 0.95
NUM_RESAMPLES: Final = 10_000
MIN_BOOTSTRAP_PAIRS: Final = 5


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean of some values and its interval, in their unit; the bounds are nan where `method` is none."""

    mean: float
    low: float
    high: float
    method: Method


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """One arm against the baseline on one metric.

    others: the points of the other axes, the same for both. difference: mean of (arm - baseline) over pairs in
    the metric's unit, with low and high. relative_percent: the same over the baseline's mean, in %; nan for a
    baseline of 0. num_missing: seeds without both values. verdict: by the metric's better direction where the
    interval excludes 0; `higher` and `lower` for metrics without one; `equal` where every pair is.
    """

    metric: str
    axis: str
    point: str
    baseline_point: str
    others: Mapping[str, str]
    baseline_mean: float
    mean: float
    difference: float
    low: float
    high: float
    relative_percent: float
    low_percent: float
    high_percent: float
    num_pairs: int
    num_missing: int
    method: Method
    verdict: Verdict


def direction(metric: str) -> Better:
    """Which direction of a metric is better; neutral for one that the registry does not know."""
    known = METRICS.get(metric)
    return "neutral" if known is None else known.better


def mean_interval(values: Floats) -> Interval:
    """Mean of a sample and its 95 % interval (see the module). Not finite values must be gone already."""
    count = len(values)
    if count == 0:
        return Interval(nan, nan, nan, "none")
    mean = float(values.mean())
    if count == 1:
        return Interval(mean, nan, nan, "none")
    if count < MIN_BOOTSTRAP_PAIRS:
        low, high = _student_bounds(values)
        return Interval(mean, low, high, "student t")
    low, high = _percentiles(values[_resamples(count)].mean(axis=1), count)
    return Interval(mean, low, high, "bootstrap")


def difference_of_pairs(baseline: Floats, arm: Floats, better: Better) -> dict[str, Any]:
    """The numeric fields of `PairedDifference` for two samples of one length, pair by pair."""
    if len(baseline) != len(arm):
        raise ValueError(f"{len(baseline)} baseline values and {len(arm)} of the arm do not make pairs")
    change = arm - baseline
    absolute = mean_interval(change)
    base_mean = float(baseline.mean()) if len(baseline) else nan
    scale = 100.0 / abs(base_mean) if base_mean else nan
    low_percent, high_percent = absolute.low * scale, absolute.high * scale
    if absolute.method == "bootstrap" and base_mean:
        rows = _resamples(len(change))
        base = np.abs(baseline[rows].mean(axis=1))
        # A baseline whose resampled mean is 0 has no relative difference there; the scaled bounds stand.
        if base.all():
            ratios = 100.0 * change[rows].mean(axis=1) / base
            low_percent, high_percent = _percentiles(ratios, len(change))
    return {
        "baseline_mean": base_mean,
        "mean": float(arm.mean()) if len(arm) else nan,
        "difference": absolute.mean,
        "low": absolute.low,
        "high": absolute.high,
        "relative_percent": absolute.mean * scale,
        "low_percent": low_percent,
        "high_percent": high_percent,
        "num_pairs": len(change),
        "method": absolute.method,
        "verdict": _verdict(change, absolute, better),
    }


def paired_difference(
    frame: Frame,
    metric: str,
    axis: str,
    baseline_point: str,
    other_axes: Sequence[str],
    seeds: Sequence[int],
) -> list[PairedDifference]:
    """Every other point of `axis` against `baseline_point`, within each combination of the other axes.

    `frame`: one row per cell with the axis columns, `seed` and the metric (nan for a failed cell), as
    `sim.results.SweepResult.frame`. Rows come in the frame's order of first appearance.
    """
    rows: list[PairedDifference] = []
    for others, group in _groups(frame, other_axes):
        arms = {
            str(point): part.set_index("seed")[metric].reindex(list(seeds)).to_numpy(dtype=np.float64)
            for point, part in group.groupby(axis, sort=False)
        }
        base = arms.pop(baseline_point, np.full(len(seeds), nan))
        for point, values in arms.items():
            both = np.isfinite(base) & np.isfinite(values)
            fields = difference_of_pairs(base[both], values[both], direction(metric))
            rows.append(
                PairedDifference(
                    metric=metric,
                    axis=axis,
                    point=point,
                    baseline_point=baseline_point,
                    others=others,
                    num_missing=len(seeds) - int(both.sum()),
                    **fields,
                )
            )
    return rows


def _groups(frame: Frame, axes: Sequence[str]) -> list[tuple[dict[str, str], Frame]]:
    if not axes:
        return [({}, frame)]
    grouped = frame.groupby(list(axes), sort=False)
    return [(dict(zip(axes, map(str, key), strict=True)), part) for key, part in grouped]


def _verdict(change: Floats, interval: Interval, better: Better) -> Verdict:
    if len(change) and not change.any():
        return "equal"
    if not isfinite(interval.low) or interval.low <= 0.0 <= interval.high:
        return "undecided"
    side: Literal["higher", "lower"] = "higher" if interval.low > 0.0 else "lower"
    if better == "neutral":
        return side
    return "better" if side == better else "worse"


def _student_bounds(values: Floats) -> tuple[float, float]:
    mean, count = float(values.mean()), len(values)
    half = (
        float(distributions.t.ppf(0.5 + CONFIDENCE / 2, count - 1)) * float(values.std(ddof=1)) / sqrt(count)
    )
    return mean - half, mean + half


@lru_cache(maxsize=16)
def _resamples(count: int) -> npt.NDArray[np.int64]:
    """Row numbers of the resamples, (NUM_RESAMPLES, count); one set per sample size, shared by all metrics."""
    return stream(0, "bootstrap", count).integers(0, count, size=(NUM_RESAMPLES, count))


def _percentiles(resampled: Floats, count: int) -> tuple[float, float]:
    quantile = float(distributions.t.ppf(0.5 + CONFIDENCE / 2, count - 1))
    tail = float(distributions.norm.cdf(-sqrt(count / (count - 1)) * quantile))
    low, high = np.quantile(resampled, [tail, 1.0 - tail])
    return float(low), float(high)
