"""Bars of one metric: a bar per arm, its interval over seeds, and every seed as a dot."""

from collections.abc import Sequence
from math import isfinite

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter

from libra.record.frames import Frame
from sim.plots.style import MUTED, PALETTE, empty, note, place, styled
from sim.stats import mean_interval

_BAR = 0.36
"""Height of one bar in inches."""


@styled
def plot_bars(
    frame: Frame,
    metric: str,
    label: str,
    axis: str,
    other_axes: Sequence[str],
    *,
    scale: float = 1.0,
    baseline_point: str = "",
    ax: Axes | None = None,
) -> Figure:
    """Mean of `metric` (times `scale`, named and with its unit in `label`) of each point of `axis`.

    `frame`: one row per cell (`sim.results.SweepResult.frame`). Bars are grouped by the combination of the
    other axes; a lighter edge line is the 95 % interval over seeds (`sim.stats.mean_interval`).
    """
    values = frame[[*other_axes, axis, metric]].copy()
    values = values[np.isfinite(values[metric])]
    groups = list(values.groupby(list(other_axes), sort=False)) if other_axes else [((), values)]
    points = list(dict.fromkeys(frame[axis].astype(str)))
    colours = {point: PALETTE[i % len(PALETTE)] for i, point in enumerate(points)}
    num_bars = sum(part[axis].nunique() for _, part in groups)
    figure, ax = place(ax, 8.0, 1.2 + _BAR * (num_bars + 0.8 * len(groups)))
    if not num_bars:
        empty(ax, f"no finished cell has {label}")
        return figure
    at, ticks, names, num_seeds = 0.0, [], [], 0
    for key, part in groups:
        if other_axes:
            title = ", ".join(f"{name}: {point}" for name, point in zip(other_axes, key, strict=True))
            ax.text(
                0.006,
                at - 0.62,
                title,
                fontsize=8.5,
                color=MUTED,
                va="bottom",
                transform=ax.get_yaxis_transform(),
            )
            at += 0.15
        for point, arm in part.groupby(axis, sort=False):
            seeds = arm[metric].to_numpy(dtype=np.float64) * scale
            num_seeds = max(num_seeds, len(seeds))
            _bar(ax, at, seeds, colours[str(point)])
            ticks.append(at)
            names.append(f"{point} (baseline)" if str(point) == baseline_point else str(point))
            at += 1.0
        at += 0.8
    ax.set_yticks(ticks, names)
    ax.set_ylim(at - 1.1, -0.95 if other_axes else -0.7)
    ax.set_xlim(left=min(0.0, float(values[metric].min()) * scale * 1.05))
    ax.xaxis.set_major_formatter(_plain_numbers(float(values[metric].abs().max()) * scale))
    ax.set_xlabel(label)
    ax.grid(axis="x")
    ax.tick_params(axis="y", length=0)
    several = num_seeds > 1
    ax.set_title(label.partition(" [")[0].capitalize())
    note(ax, "bar: mean, line: 95 % interval, dot: one seed" if several else "one seed, so no interval")
    return figure


def _bar(ax: Axes, at: float, seeds: np.ndarray, colour: str) -> None:
    found = mean_interval(seeds)
    ax.barh(at, found.mean, height=0.72, color=colour, alpha=0.75)
    if isfinite(found.low):
        ax.plot([found.low, found.high], [at, at], color="black", linewidth=1.6, solid_capstyle="butt")
        ax.plot([found.low, found.high], [at, at], "|", color="black", markersize=8)
    if len(seeds) > 1:
        spread = at + np.linspace(-0.2, 0.2, len(seeds))
        ax.plot(seeds, spread, "o", color="white", markeredgecolor="black", markersize=3, markeredgewidth=0.6)


def _plain_numbers(largest: float) -> EngFormatter | FuncFormatter:
    if largest >= 1e6:
        return EngFormatter(sep="")
    return FuncFormatter(lambda value, _: f"{value:,.0f}" if largest >= 20 else f"{value:g}")
