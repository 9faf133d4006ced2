"""The comparison of a sweep as rows of text, and what a reader of them has to know."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from libra.record.frames import Frame
from libra.record.metrics import METRICS
from sim.results.labels import HEADLINE, difference, interval, label, number
from sim.results.reading import SweepFile
from sim.stats import PairedDifference, mean_interval


class Sweep(Protocol):
    """What a table needs of `sim.results.sweep.SweepResult`, which says what each is."""

    @property
    def file(self) -> SweepFile: ...
    @property
    def axis(self) -> str: ...
    @property
    def axes(self) -> list[str]: ...
    @property
    def other_axes(self) -> list[str]: ...
    @property
    def metrics(self) -> list[str]: ...
    @property
    def frame(self) -> Frame: ...
    def differences(self, metric: str | None = None) -> list[PairedDifference]: ...
    def at(self, point: Mapping[str, str]) -> Frame: ...


def sweep_rows(sweep: Sweep) -> list[list[str]]:
    """Cells of the table, the head first; no rows at all where no cell has finished. n: seeds in the means."""
    extra = [name for name in HEADLINE if name in sweep.metrics and name != sweep.file.metric]
    shown = label(sweep.file.metric)
    compared = {(row.axis, _key(sweep, row)): row for row in sweep.differences()}
    marks = {
        (metric, row.axis, _key(sweep, row))
        for metric in extra
        for row in sweep.differences(metric)
        if row.verdict in ("better", "worse", "higher", "lower")
    }
    columns = [*sweep.other_axes, sweep.axis] if sweep.axis else []
    head = [*columns, shown.unit or shown.name, "difference", "95 % interval", "verdict", "n"]
    rows = [head + [HEADLINE[metric] for metric in extra]]
    for point in _ordered_points(sweep):
        cells = sweep.at(point)
        values = cells[sweep.file.metric].dropna().to_numpy(dtype=np.float64)
        row = compared.get((sweep.axis, tuple(point.values())))
        own = [number(mean_interval(values).mean * shown.scale)]
        if row is not None:
            own += [difference(row), interval(row), row.verdict if row.method != "none" else "-"]
        else:
            own += ["baseline" if sweep.file.baseline else "-", "", ""]
        own.append(str(len(values)))
        for metric in extra:
            mark = "*" if (metric, sweep.axis, tuple(point.values())) in marks else " "
            own.append(number(float(cells[metric].mean()) * label(metric).scale) + mark)
        rows.append([*(point[axis] for axis in columns), *own])
    return rows if sweep.frame["status"].eq("finished").any() else []


def sweep_footnotes(sweep: Sweep) -> list[str]:
    """What a reader of the table has to know, line by line."""
    notes: list[str] = []
    rows = sweep.differences()
    if rows:
        against = ", ".join(f"{axis}={point}" for axis, point in sweep.file.baseline.items())
        known = METRICS.get(sweep.file.metric)
        better = f"; {known.better} is better" if known and known.better != "neutral" else ""
        notes.append(f"difference: mean of paired differences over seeds, against {against}{better}")
        methods = {row.method for row in rows}
        if "student t" in methods:
            notes.append("interval: Student t, because a bootstrap needs 5 pairs")
        if "none" in methods:
            notes.append("one pair of seeds gives no interval: run more seeds for a verdict")
        if any(name in sweep.metrics for name in HEADLINE):
            notes.append("*: the paired difference from the baseline has an interval without 0")
    status = sweep.frame["status"].value_counts()
    for word in ("failed", "missing"):
        if word in status:
            notes.append(f"{status[word]} of {len(sweep.frame)} cells {word}")
    for word in sorted(set(status.index) - {"finished", "failed", "missing"}):
        limit = " at sim.max_sim_s" if word == "time_limit" else ""
        notes.append(f"{status[word]} of {len(sweep.frame)} cells cut off{limit} ({word}), in no mean")
    return notes


def _key(sweep: Sweep, row: PairedDifference) -> tuple[str, ...]:
    return tuple(row.point if axis == row.axis else row.others[axis] for axis in sweep.axes)


def _ordered_points(sweep: Sweep) -> list[dict[str, str]]:
    """Points by the other axes first, the baseline first among those compared with it."""
    first = sweep.file.baseline.get(sweep.axis)
    order = {axis: {name: i for i, name in enumerate(points)} for axis, points in sweep.file.axes.items()}

    def place(point: dict[str, str]) -> tuple[Any, ...]:
        others = [order[axis][point[axis]] for axis in sweep.other_axes]
        own = [point[sweep.axis] != first, order[sweep.axis][point[sweep.axis]]] if sweep.axis else []
        return (*others, *own)

    return sorted(sweep.file.points(), key=place)
