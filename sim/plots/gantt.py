"""Who runs where and when: turns on the lanes of their replica, tool waits as the gaps between them.

A trajectory keeps its lane on a replica from its first turn there to its last, so a gap inside a lane is a tool
call, and white at the end of a replica is a replica out of work. What is too much to draw is left out by a rule
that the figure states: every n-th trajectory, some replicas of each TP degree, a window of time.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from libra.record.frames import Frame
from sim.plots.style import PALETTE, PAUSED, WAITING, empty, legend_below, note, place, styled

Colour: TypeAlias = Literal["age", "group"]

MAX_BARS: Final = 300
"""Bars of a replica."""
MAX_LANES: Final = 16
MAX_REPLICAS: Final = 12
BARS_ACROSS: Final = 250
"""Median turns that fit into the window: less and the bars are thinner than a dot."""
_LANE_IN: Final = 0.062
_GAP: Final = 1.6


@dataclass(frozen=True, slots=True)
class GanttSample:
    """What is drawn. turns: with column lane; window_s: (begin, end); remark: what was left out, in words."""

    turns: Frame
    replicas: Frame
    window_s: tuple[float, float]
    remark: str


def sample_turns(turns: Frame, replicas: Frame, window_s: tuple[float, float] | None = None) -> GanttSample:
    """Choose what fits and give every trajectory a lane on each of its replicas."""
    shown = _some_replicas(replicas)
    end_s = float(replicas["end_s"].max()) if len(replicas) else 0.0
    begin = turns["started_s"].fillna(turns["submitted_s"])
    known = turns.assign(begin_s=begin, queued_s=begin - turns["submitted_s"])
    known = known[known["replica_id"].isin(shown["replica_id"])]
    first, last = window_s or _window(known, end_s)
    known = known[(known["finished_s"] >= first) & (known["submitted_s"] <= last)]
    # Trajectories in the order in which they first appear, so that every n-th is spread over the window.
    ids = known.sort_values("submitted_s", kind="stable")["trajectory_id"].unique()
    stride, kept = 1, known.assign(lane=0)
    while len(ids):
        kept = known[known["trajectory_id"].isin(ids[::stride])]
        kept = kept.assign(lane=_lanes(kept))
        bars = int(kept.groupby("replica_id").size().max())
        lanes = int(kept["lane"].max()) + 1
        if (bars <= MAX_BARS and lanes <= MAX_LANES) or stride >= len(ids):
            break
        stride = max(stride + 1, int(stride * max(bars / MAX_BARS, lanes / MAX_LANES)))
    parts = [f"every {_ordinal(stride)} trajectory"] if stride > 1 else []
    if len(shown) < len(replicas):
        parts.append(f"{len(shown)} of {len(replicas)} replicas")
    if first > 0.0 or last < end_s:
        parts.append(f"{first:,.0f} to {last:,.0f} s of {end_s:,.0f} s")
    return GanttSample(kept, shown, (first, last), "; ".join(parts))


def _some_replicas(replicas: Frame) -> Frame:
    ordered = replicas.sort_values(["tp", "replica_id"], ascending=[False, True], kind="stable")
    if len(ordered) <= MAX_REPLICAS:
        return ordered
    # Evenly over the order by TP degree, and the first of each degree in any case.
    picked = set(np.linspace(0, len(ordered) - 1, MAX_REPLICAS).astype(int).tolist())
    firsts = ~ordered.duplicated("tp").to_numpy()
    return ordered[[i in picked or bool(firsts[i]) for i in range(len(ordered))]]


def _window(turns: Frame, end_s: float) -> tuple[float, float]:
    """The whole run, or as much of its middle as lets single turns be seen."""
    length = BARS_ACROSS * float((turns["finished_s"] - turns["begin_s"]).median()) if len(turns) else end_s
    if not 0.0 < length < 0.8 * end_s:
        return 0.0, end_s
    middle = end_s / 2
    return middle - length / 2, middle + length / 2


def _lanes(turns: Frame) -> npt.NDArray[np.int64]:
    """Lane of each turn: the lowest that is free from the trajectory's first turn on the replica to its last."""
    spans = turns.groupby(["replica_id", "trajectory_id"], sort=False).agg(
        begin=("submitted_s", "min"), end=("finished_s", "max")
    )
    lane_of: dict[tuple[int, int], int] = {}
    for replica_id, own in spans.groupby(level=0, sort=False):
        ends: list[tuple[float, int]] = []
        for (_, trajectory_id), begin, end in sorted(
            zip(own.index, own["begin"], own["end"], strict=True), key=lambda row: (row[1], row[0])
        ):
            free = [entry for entry in ends if entry[0] <= begin]
            if free:
                lane = min(lane for _, lane in free)
                ends = [(end, lane) if entry[1] == lane else entry for entry in ends]
            else:
                lane = len(ends)
                ends.append((end, lane))
            lane_of[int(replica_id), int(trajectory_id)] = lane
    keys = zip(turns["replica_id"], turns["trajectory_id"], strict=True)
    return np.array([lane_of[int(replica), int(trajectory)] for replica, trajectory in keys], dtype=np.int64)


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


@styled
def plot_gantt(
    turns: Frame,
    trajectories: Frame,
    replicas: Frame,
    train_steps: Frame | None = None,
    loads: Frame | None = None,
    *,
    colour: Colour = "age",
    window_s: tuple[float, float] | None = None,
    title: str = "",
    ax: Axes | None = None,
) -> Figure:
    """Turns by replica (largest TP degree first), with the trainer on top where there is one.

    `colour`: `age`, seconds since the trajectory started, or `group`, its prompt group. `window_s`: (begin,
    end) to draw; by default as much of the run as lets single turns be seen. `loads`: weight loads
    (`sim.plots.utilisation.weight_loads`).
    """
    sample = sample_turns(turns, replicas, window_s)
    bases, height = _bases(sample)
    trains = train_steps is not None and len(train_steps) > 0
    width = 9.5
    figure, ax = place(ax, width, 1.5 + _LANE_IN * (height + (4 if trains else 0)))
    if not len(sample.turns):
        empty(ax, "no turn in this window")
        return figure
    handles, labels = _draw_turns(figure, ax, sample, trajectories, bases, colour)
    if loads is not None and len(loads):
        _draw_loads(ax, sample, loads, bases)
        handles.append(_swatch(PAUSED))
        labels.append("weight load")
    if trains:
        _draw_trainer(ax, train_steps)
        handles += [_swatch(PALETTE[2]), _swatch(PALETTE[5])]
        labels += ["train step", "publish weights"]
    _decorate(ax, sample, bases, height, trains)
    ax.set_title(title or "Turns by replica")
    said = "a colour per prompt group (they repeat); " if colour == "group" else ""
    note(ax, said + (sample.remark or "all turns"))
    legend_below(figure, handles, labels, width)
    return figure


def _bases(sample: GanttSample) -> tuple[dict[int, tuple[float, int]], float]:
    """First lane's y and number of lanes of each replica, and the height of all, in lanes."""
    most = sample.turns.groupby("replica_id")["lane"].max() if len(sample.turns) else {}
    at, bases = 0.0, {}
    for replica_id in sample.replicas["replica_id"]:
        lanes = max(2, int(most.get(replica_id, 0)) + 1)
        bases[int(replica_id)] = (at, lanes)
        at += lanes + _GAP
    return bases, at


def _boxes(
    start: npt.NDArray[np.float64], end: npt.NDArray[np.float64], low: npt.NDArray[np.float64], height: float
) -> Any:
    """Corners of rectangles, (n, 4, 2)."""
    high = low + height
    return np.stack(
        [np.stack(corner, axis=-1) for corner in ((start, low), (end, low), (end, high), (start, high))],
        axis=1,
    )


def _draw_turns(
    figure: Figure,
    ax: Axes,
    sample: GanttSample,
    trajectories: Frame,
    bases: dict[int, tuple[float, int]],
    colour: Colour,
) -> tuple[list[Artist], list[str]]:
    turns = sample.turns
    facts = trajectories.set_index("trajectory_id")
    low = turns["lane"].to_numpy(np.float64) + [bases[int(replica)][0] for replica in turns["replica_id"]]
    submitted, begin, end = (
        turns[name].to_numpy(np.float64) for name in ("submitted_s", "begin_s", "finished_s")
    )
    waits = begin > submitted
    queued = PolyCollection(
        _boxes(submitted, begin, low + 0.25, 0.5)[waits], facecolors=WAITING, linewidths=0
    )
    bars = PolyCollection(_boxes(begin, end, low + 0.08, 0.84), linewidths=0)
    handles: list[Artist] = [_swatch(WAITING)]
    labels = ["waiting for a first step"]
    if colour == "age":
        started = facts["started_s"].reindex(turns["trajectory_id"]).to_numpy(np.float64)
        age = np.clip(np.nan_to_num(submitted - started), 0.0, None)
        norm = Normalize(0.0, float(np.percentile(age, 98)) or 1.0)
        bars.set_array(age)
        bars.set_norm(norm)
        bars.set_cmap("viridis_r")
        bar = figure.colorbar(
            ScalarMappable(norm, "viridis_r"), ax=ax, pad=0.01, fraction=0.025, extend="max"
        )
        bar.set_label("age of the trajectory when the turn was submitted [s]", fontsize=8.5)
        bar.outline.set_visible(False)
    else:
        groups = facts["group_id"].reindex(turns["trajectory_id"]).to_numpy(np.int64)
        colours = [own for own in PALETTE if own not in (WAITING, PAUSED)]
        bars.set_facecolor([colours[int(group) % len(colours)] for group in groups])
    ax.add_collection(queued)
    ax.add_collection(bars)
    return handles, labels


def _draw_loads(ax: Axes, sample: GanttSample, loads: Frame, bases: dict[int, tuple[float, int]]) -> None:
    own = loads[loads["replica_id"].isin(sample.replicas["replica_id"])]
    for load in own.itertuples(index=False):
        low, lanes = bases[int(load.replica_id)]
        ax.add_patch(_box(load.started_s, load.finished_s, low - 0.3, lanes + 0.6, PAUSED, 0.9))


def _draw_trainer(ax: Axes, steps: Frame) -> None:
    for step in steps.itertuples(index=False):
        ax.add_patch(_box(step.started_s, step.finished_s, -4.0, 1.8, PALETTE[2], 1.0))
        if step.publish_finished_s == step.publish_finished_s:
            ax.add_patch(_box(step.publish_started_s, step.publish_finished_s, -4.0, 1.8, PALETTE[5], 1.0))


def _decorate(
    ax: Axes, sample: GanttSample, bases: dict[int, tuple[float, int]], height: float, trains: bool
) -> None:
    ticks, names = ([-3.1], ["trainer"]) if trains else ([], [])
    degrees = dict(zip(sample.replicas["replica_id"], sample.replicas["tp"], strict=True))
    for number, (replica_id, (low, lanes)) in enumerate(bases.items()):
        ticks.append(low + lanes / 2)
        names.append(f"replica {replica_id}, TP {degrees[replica_id]}")
        if number % 2 == 0:
            ax.axhspan(low - _GAP / 2, low + lanes + _GAP / 2, color="#F4F4F4", zorder=0, linewidth=0)
    ax.set_yticks(ticks, names)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(height - _GAP / 2, -5.0 if trains else -_GAP / 2)
    ax.set_xlim(*sample.window_s)
    ax.set_xlabel("time [s]")


def _swatch(colour: str) -> Patch:
    return Patch(color=colour)


def _box(start_s: float, end_s: float, low: float, height: float, colour: str, alpha: float) -> Rectangle:
    return Rectangle((start_s, low), end_s - start_s, height, facecolor=colour, alpha=alpha, linewidth=0)
