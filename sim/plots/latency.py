"""Turn latency: distribution functions, with the far tail on its own logarithmic scale."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from libra.record.frames import Frame
from sim.plots.style import MUTED, empty, legend_below, line_styles, new_chart, note, place, styled

MAX_POINTS = 1_500
"""Points of a drawn curve; more cannot be told apart."""


def turn_latencies(turns: Frame) -> npt.NDArray[np.float64]:
    """Seconds from ready (its tool has returned, its trajectory has started or arrived) to a finished turn's end."""
    done = turns["status"] == "finished"
    latency = (turns.loc[done, "finished_s"] - turns.loc[done, "ready_s"]).to_numpy(dtype=np.float64)
    return latency[np.isfinite(latency)]


@styled
def plot_latency_cdf(
    latencies: Mapping[str, npt.NDArray[np.float64]], *, title: str = "", ax: Axes | None = None
) -> Figure:
    """Cumulative share of turns by latency in s, one curve per label.

    Without `ax`, two panels: the distribution function, and the share of turns that took longer, on a
    logarithmic scale (down to one turn), where arms that look alike at the median come apart.
    """
    width = 9.0
    if ax is None:
        figure = new_chart(width, 3.6 + 0.16 * len(latencies))
        panels: list[Axes] = list(figure.subplots(1, 2))
    else:
        figure, panels = place(ax, width, 3.4)[0], [ax]
    body, tail = panels[0], panels[1] if len(panels) > 1 else None
    known = {label: np.sort(values) for label, values in latencies.items() if len(values)}
    if not known:
        empty(body, "no finished turn")
        return figure
    handles = []
    for number, ((label, values), (colour, dash)) in enumerate(
        zip(known.items(), line_styles(), strict=False)
    ):
        rank = _ranks(len(values))
        share = (rank + 1) / len(values)
        # Later curves are thinner, so that one which coincides with an earlier one does not hide it.
        style: dict[str, Any] = {
            "color": colour,
            "linestyle": dash,
            "linewidth": 1.3 + 0.45 * (len(known) - 1 - number),
        }
        handles += body.plot(values[rank], share, label=label, **style)
        if tail is not None:
            # The longest turn is exceeded by none; it is drawn at the share that it is itself.
            tail.plot(values[rank], np.maximum(1.0 - share, 1.0 / len(values)), **style)
    least = min(float(values[values > 0][0]) for values in known.values() if (values > 0).any())
    _axis(body, least)
    body.set_ylim(0.0, 1.02)
    body.set_ylabel("share of turns done within it")
    body.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
    for percent in (50, 95):
        body.axhline(percent / 100, color=MUTED, linewidth=0.6, linestyle=(0, (4, 4)))
        body.text(
            0.01,
            percent / 100,
            f"p{percent}",
            transform=body.get_yaxis_transform(),
            fontsize=7.5,
            color=MUTED,
            va="bottom",
        )
    body.set_title(title or "Turn latency")
    if tail is not None:
        _axis(tail, least)
        tail.set_yscale("log")
        tail.set_ylabel("share of turns that took longer")
        tail.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        tail.set_title("Tail")
        note(tail, f"{min(map(len, known.values())):,} turns or more a curve")
        legend_below(figure, handles, list(known), width)
    elif len(known) > 1:
        body.legend()
    return figure


def _ranks(count: int) -> npt.NDArray[np.int64]:
    """Ranks to draw: all of the last ones, evenly spaced before, so that the tail keeps every turn."""
    if count <= MAX_POINTS:
        return np.arange(count)
    last = np.arange(count - MAX_POINTS // 2, count)
    return np.unique(np.concatenate([np.linspace(0, last[0], MAX_POINTS // 2).astype(np.int64), last]))


def _axis(ax: Axes, least: float) -> None:
    ax.set_xscale("log")
    ax.set_xlim(left=least * 0.8)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("turn latency, ready to last token [s]")
    ax.grid(which="major")
