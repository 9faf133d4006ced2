"""What the replicas of each TP degree do over time: share of their GPUs in use, and turns on them.

Exact, not sampled: a turn counts as running from its first engine step to its last token and as waiting from
its submission to that step; each drawn value is the mean over its interval of time. A failed attempt's first
step is not recorded, so it counts as running from its submission. GPUs of a replica that is down are not there.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from libra.record.frames import Frame
from sim.plots.style import (
    IDLE,
    PAUSED,
    RUNNING,
    WAITING,
    empty,
    legend_below,
    new_chart,
    note,
    styled,
)

Floats = npt.NDArray[np.float64]
NUM_BINS = 400
NO_LOADS = pd.DataFrame({"replica_id": [], "started_s": [], "finished_s": []}, dtype=np.float64)
NO_OUTAGES = NO_LOADS


def weight_loads(events: Frame) -> Frame:
    """Weight loads of the replicas, from the wide event table: replica_id, started_s, finished_s."""
    loads = events[events["type"] == "WeightsLoaded"]
    return loads[["replica_id", "started_s", "finished_s"]].astype(np.float64).reset_index(drop=True)


def outages(events: Frame) -> Frame:
    """When replicas were down, from the wide event table: replica_id, started_s, finished_s.

    From a loss or stop to the next time that the replica is ready, else to the end of the run.
    """
    known = events[events["type"].isin(["ReplicaReady", "ReplicaLost", "ReplicaStopped"])]
    rows: list[tuple[float, float, float]] = []
    for replica_id, own in known.groupby("replica_id", sort=True):
        ends = [*own["t_s"].iloc[1:], float(events["t_s"].iloc[-1])]
        for kind, start_s, end_s in zip(own["type"], own["t_s"], ends, strict=True):
            if kind != "ReplicaReady":
                rows.append((float(replica_id), float(start_s), float(end_s)))
    return pd.DataFrame(rows, columns=NO_OUTAGES.columns, dtype=np.float64)


def time_mean(starts: Floats, ends: Floats, edges: Floats, cap: float = np.inf) -> Floats:
    """Mean number of intervals [start, end) that are open, at most `cap` of them, between successive edges.

    Arrays in s; the result has one value less than `edges`. With cap 1 it is the covered share of time.
    """
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    times = times[order]
    change = np.concatenate([np.ones(len(starts)), -np.ones(len(ends))])[order]
    level = np.minimum(np.cumsum(change), cap)
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))]) if len(times) else np.zeros(0)
    if not len(times):
        return np.zeros(len(edges) - 1)
    return np.diff(np.interp(edges, times, area)) / np.diff(edges)


def utilisation(
    turns: Frame,
    replicas: Frame,
    loads: Frame = NO_LOADS,
    down: Frame = NO_OUTAGES,
    num_bins: int = NUM_BINS,
) -> Frame:
    """Use of the replicas of each TP degree over time.

    Rows: tp, t_s (middle of the interval); running_share, paused_share, idle_share of the GPUs there at that
    time (1 in all, nan when none is there); num_running, num_waiting: mean turns on all replicas of that TP
    degree. paused (a weight load) needs `loads` (`weight_loads`), else that time counts as what it would be; so
    do times without a replica between its lives and `down` (`outages`).
    """
    end_s = float(replicas["end_s"].max()) if len(replicas) else 0.0
    if not end_s > 0.0:
        return pd.DataFrame()
    edges = np.linspace(0.0, end_s, num_bins + 1)
    known = turns.assign(begin_s=turns["started_s"].fillna(turns["submitted_s"]))
    parts = [
        _one_class(int(tp), members, known, loads, down, edges)
        for tp, members in replicas.groupby("tp", sort=True)
    ]
    return pd.concat(parts, ignore_index=True)


def _one_class(tp: int, members: Frame, turns: Frame, loads: Frame, down: Frame, edges: Floats) -> Frame:
    zero = np.zeros(len(edges) - 1)
    there, busy, paused, running, waiting = zero.copy(), zero.copy(), zero.copy(), zero.copy(), zero.copy()
    for replica in members.itertuples(index=False):
        own = turns[turns["replica_id"] == replica.replica_id]
        submitted, begin, end = (
            own[name].to_numpy(np.float64) for name in ("submitted_s", "begin_s", "finished_s")
        )
        load = loads[loads["replica_id"] == replica.replica_id]
        load_start, load_end = (load[name].to_numpy(np.float64) for name in ("started_s", "finished_s"))
        away = down[(down["replica_id"] == replica.replica_id) & (down["started_s"] < replica.end_s)]
        there += time_mean(np.array([replica.ready_s]), np.array([replica.end_s]), edges)
        there -= time_mean(away["started_s"].to_numpy(), away["finished_s"].to_numpy(), edges)
        stopped = time_mean(load_start, load_end, edges, cap=1.0)
        covered = time_mean(
            np.concatenate([begin, load_start]), np.concatenate([end, load_end]), edges, cap=1.0
        )
        paused += stopped
        busy += covered - stopped
        running += time_mean(begin, end, edges)
        waiting += time_mean(submitted, begin, edges)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = [np.where(there > 1e-9, part / there, np.nan) for part in (busy, paused)]
    return pd.DataFrame(
        {
            "tp": tp,
            "t_s": (edges[1:] + edges[:-1]) / 2,
            "running_share": shares[0],
            "paused_share": shares[1],
            "idle_share": np.clip(1.0 - shares[0] - shares[1], 0.0, None),
            "num_running": running,
            "num_waiting": waiting,
        }
    )


@styled
def plot_utilisation(
    turns: Frame,
    replicas: Frame,
    loads: Frame = NO_LOADS,
    down: Frame = NO_OUTAGES,
    *,
    title: str = "",
) -> Figure:
    """A row per TP degree: left the use of its GPUs over time, right the turns running and waiting there."""
    frame = utilisation(turns, replicas, loads, down)
    degrees = sorted(frame["tp"].unique()) if len(frame) else []
    width = 9.5
    figure = new_chart(width, 0.9 + 1.75 * max(1, len(degrees)))
    if not degrees:
        empty(figure.add_subplot(), "no replica was there")
        return figure
    axes = figure.subplots(len(degrees), 2, sharex=True, squeeze=False)
    counts = replicas.groupby("tp").size()
    handles: list[Artist] = []
    for (left, right), tp in zip(axes, degrees, strict=True):
        part = frame[frame["tp"] == tp]
        handles = list(_panels(left, right, part))
        number = int(counts[tp])
        left.set_title(f"TP {tp}: {number} replica{'s' if number > 1 else ''}, {number * tp} GPUs")
        mean = float(np.nanmean(part["running_share"]))
        note(left, f"running {100 * mean:.0f} % of the time")
        note(right, "turns on all of them")
    for ax in axes[-1]:
        ax.set_xlabel("time [s]")
    if title:
        figure.suptitle(title, fontsize=10, fontweight="bold", x=0.01, ha="left")
    legend_below(figure, handles, ["running", "waiting for a first step", "weight load", "idle"], width)
    return figure


def _panels(left: Axes, right: Axes, part: Frame) -> Iterator[Artist]:
    at = part["t_s"].to_numpy()
    running, paused, idle = left.stackplot(
        at,
        *(part[f"{name}_share"].fillna(0.0) for name in ("running", "paused", "idle")),
        colors=[RUNNING, PAUSED, IDLE],
        linewidth=0,
    )
    left.set_ylim(0.0, 1.0)
    left.set_xlim(0.0, at[-1] + at[0])
    left.set_ylabel("GPUs")
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
    _, waiting = right.stackplot(
        at, part["num_running"], part["num_waiting"], colors=[RUNNING, WAITING], linewidth=0
    )
    right.set_ylim(bottom=0.0)
    right.set_ylabel("turns")
    right.grid(axis="y")
    return iter([running, waiting, paused, idle])
