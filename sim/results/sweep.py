"""A sweep: every cell as a row, arms against the baseline, plots over cells.

Guarantees that no cell goes missing unseen: a cell that failed, was cut off or has not run yet is a row with its
status, and every comparison says how many seeds it lacks. A cell that was cut off (`time_limit`) is in no mean and
no plot over cells: it did less work than the cells that it would be compared with.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from libra.errors import UserError
from libra.record.frames import Frame
from libra.record.metrics import METRICS
from sim import plots
from sim.endings import FINISHED
from sim.results.labels import label
from sim.results.reading import CellKey, FailedCell, SweepFile, finished_cells, read_failed, read_sweep_file
from sim.results.run import RunResult
from sim.results.table import sweep_footnotes, sweep_rows
from sim.results.text import fit_columns, markup
from sim.stats import PairedDifference, paired_difference


class SweepResult:
    """A sweep directory, finished or not. Opening raises UserError for a directory that is no sweep."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self.file: SweepFile = read_sweep_file(self.directory)
        self._cells = finished_cells(self.directory, self.file)
        self.failed: list[FailedCell] = [
            cell for cell in read_failed(self.directory, self.file) if cell.key not in self._cells
        ]

    @property
    def name(self) -> str:
        """Name of the experiment, else of the directory."""
        return self.file.name or self.directory.name

    @property
    def axes(self) -> list[str]:
        """Names of the axes."""
        return list(self.file.axes)

    @property
    def axis(self) -> str:
        """The compared axis: the first with a baseline, else the first; empty for a sweep of seeds alone."""
        return next(iter([*self.file.baseline, *self.file.axes]), "")

    @property
    def other_axes(self) -> list[str]:
        """The axes beside the compared one."""
        return [axis for axis in self.axes if axis != self.axis]

    @cached_property
    def frame(self) -> Frame:
        """One row per cell of the grid: the axes, seed, status (finished, failed, missing, or how it was cut off:
        `time_limit`), error, and a column per metric in the metric's own unit (nan unless finished)."""
        errors = {cell.key: cell.error for cell in self.failed}
        rows: list[dict[str, Any]] = []
        for point in self.file.points():
            for seed in self.file.seeds:
                key = (*point.values(), seed)
                run = self._cells.get(key)
                status = _status(run) if run else "failed" if key in errors else "missing"
                row = {**point, "seed": seed, "status": status, "error": errors.get(key, "")}
                rows.append(row | (run.record.summary if run and status == "finished" else {}))
        head = [*self.axes, "seed", "status", "error"]
        found = {name for row in rows for name in row}
        metrics = [name for name in METRICS if name in found]
        metrics += sorted(found - set(head) - set(metrics))
        if self.file.metric not in metrics:
            metrics.append(self.file.metric)
        frame = pd.DataFrame(rows, columns=[*head, *metrics])
        return frame.astype(dict.fromkeys(metrics, "float64"))

    @property
    def metrics(self) -> list[str]:
        """Metrics that at least one cell knows."""
        known = self.frame.columns[len(self.axes) + 3 :]
        return [name for name in known if self.frame[name].notna().any()]

    def differences(self, metric: str | None = None) -> list[PairedDifference]:
        """Arms against the baseline, one axis of the baseline after the other. Raises UserError."""
        chosen = self._metric(metric)
        rows: list[PairedDifference] = []
        for axis, point in self.file.baseline.items():
            others = [other for other in self.axes if other != axis]
            rows += paired_difference(self.frame, chosen, axis, point, others, self.file.seeds)
        return rows

    def comparison(self, metric: str | None = None) -> Frame:
        """The paired comparison (`sim.stats.paired_difference`) of one metric, by default the sweep's own.

        A row per arm: the axes, `against`, means over the pairs with the unit in the column's name, the
        difference and its 95 % interval in %, verdict, pairs and seeds left out, and how the interval was made.
        """
        chosen = self._metric(metric)
        shown = label(chosen)
        unit = f" [{shown.unit}]" if shown.unit else ""
        rows = [
            {
                **{axis: row.point if axis == row.axis else row.others[axis] for axis in self.axes},
                "against": row.baseline_point,
                shown.text: row.mean * shown.scale,
                f"baseline{unit}": row.baseline_mean * shown.scale,
                f"difference{unit if shown.unit != '%' else ' [% points]'}": row.difference * shown.scale,
                "difference [%]": row.relative_percent,
                "low [%]": row.low_percent,
                "high [%]": row.high_percent,
                "verdict": row.verdict,
                "pairs": row.num_pairs,
                "left out": row.num_missing,
                "interval": row.method,
            }
            for row in self.differences(chosen)
        ]
        return pd.DataFrame(rows)

    def run(self, point: Mapping[str, str] | None = None, seed: int | None = None) -> RunResult:
        """One cell. Axes that `point` leaves out stand at the baseline, else at their first point; `seed` at the
        first. Raises UserError for an unknown point, and for a cell that is not finished."""
        full = {axis: self.file.baseline.get(axis, points[0]) for axis, points in self.file.axes.items()}
        for axis, name in (point or {}).items():
            if name not in self.file.axes.get(axis, ()):
                known = {axis: list(points) for axis, points in self.file.axes.items()}
                raise UserError(f"{self.directory}: no point {axis}={name}; the sweep has {known}")
            full[axis] = name
        key = (*full.values(), self.file.seeds[0] if seed is None else seed)
        if key not in self._cells:
            raise UserError(
                f"{self.directory}: cell {self.cell_name(key)} is not finished; run the sweep again to fill it"
            )
        return self._cells[key]

    def cell_name(self, key: Sequence[Any]) -> str:
        """`axis=point, ..., seed=n` for a person."""
        return ", ".join(f"{name}={value}" for name, value in zip([*self.axes, "seed"], key, strict=True))

    def runs(self, point: Mapping[str, str]) -> list[RunResult]:
        """Recorded cells at the points that `point` names, in grid order, those that were cut off included."""
        at = {self.axes.index(axis): name for axis, name in point.items()}
        return [run for key, run in self._cells.items() if all(key[i] == name for i, name in at.items())]

    def places(self) -> list[dict[str, str]]:
        """Every combination of the points of the axes beside the compared one; one empty one without any."""
        names = (self.file.axes[axis] for axis in self.other_axes)
        return [dict(zip(self.other_axes, place, strict=True)) for place in product(*names)]

    def representative(self) -> RunResult | None:
        """The baseline's cell of the first seed, or the cell with tables that comes closest to it; finished ones
        come before those that were cut off."""
        baseline = [self.file.baseline.get(axis, points[0]) for axis, points in self.file.axes.items()]
        full = [(key, run) for key, run in self._cells.items() if run.is_full]
        # max keeps the first of equals, which is the one with the earliest seed.

        def closeness(item: tuple[CellKey, RunResult]) -> tuple[bool, int]:
            return _status(item[1]) == "finished", sum(map(str.__eq__, item[0][:-1], baseline))

        best = max(full, key=closeness, default=None)
        return None if best is None else best[1]

    def table(self) -> str:
        """The comparison as text of at most 110 columns: the sweep's metric, then others beside it.

        A `*` marks a mean whose paired difference from the baseline has an interval without 0.
        """
        shown = label(self.file.metric)
        count = len(self.file.seeds)
        head = f"{self.name}: {shown.text}, mean over {count} seed{'s' if count > 1 else ''}"
        rows = self.rows()
        if not rows:
            return "\n".join([head, "no cell has finished", *self.footnotes()])
        lines = fit_columns(rows, left=len(self.axes), keep=len(self.axes) + 5)
        return "\n".join([head, *lines, *self.footnotes()])

    def rows(self) -> list[list[str]]:
        """Cells of `table`, the head first; no rows at all where no cell has finished. n: seeds in the means."""
        return sweep_rows(self)

    def footnotes(self) -> list[str]:
        """What a reader of `table` has to know, line by line."""
        return sweep_footnotes(self)

    def at(self, point: Mapping[str, str]) -> Frame:
        """Rows of `frame` at the points that `point` names."""
        chosen = self.frame
        for axis, name in point.items():
            chosen = chosen[chosen[axis] == name]
        return chosen

    def _metric(self, metric: str | None) -> str:
        chosen = metric or self.file.metric
        if chosen not in self.frame.columns[len(self.axes) + 3 :]:
            raise UserError(f"{self.directory}: no metric {chosen}; the sweep has {', '.join(self.metrics)}")
        return chosen

    def plot_throughput(self, metric: str | None = None) -> Figure:
        """Bars of a metric, by default the sweep's own, with intervals over seeds (`sim.plots.plot_bars`)."""
        chosen = self._metric(metric)
        shown = label(chosen)
        frame = self.frame if self.axis else self.frame.assign(sweep=self.name)
        return plots.plot_bars(
            frame,
            chosen,
            shown.text,
            self.axis or "sweep",
            self.other_axes,
            scale=shown.scale,
            baseline_point=self.file.baseline.get(self.axis, ""),
        )

    def plot_latency_cdf(self, **others: str) -> Figure:
        """Turn latency of each point of the compared axis, all seeds together, at one point of the other axes.

        `others`: axis=point; axes left out stand at the baseline, else at their first point. Cells recorded as
        summaries have no turns, and cells that were cut off do not count; a point with none but those is left out.
        """
        at = {
            axis: others.get(axis, self.file.baseline.get(axis, self.file.axes[axis][0]))
            for axis in self.other_axes
        }
        parts: dict[str, Any] = {}
        for name in self.file.axes.get(self.axis, [self.name]):
            runs = self.runs(at | ({self.axis: name} if self.axis else {}))
            found = [plots.turn_latencies(r.turns) for r in runs if r.is_full and _status(r) == "finished"]
            if found:
                parts[name] = np.concatenate(found)
        place = ", ".join(f"{axis}: {name}" for axis, name in at.items())
        return plots.plot_latency_cdf(parts, title=f"Turn latency, {place}" if place else "")

    def __repr__(self) -> str:
        return f"SweepResult({str(self.directory)!r})"

    def _repr_html_(self) -> str:
        rows = self.rows()
        if not rows:
            return markup(["status"], [["no cell has finished"]], caption=self.name)
        return markup(
            rows[0], rows[1:], caption=f"{self.name}: {label(self.file.metric).text}", left=len(self.axes)
        )


def _status(run: RunResult) -> str:
    """`finished`, or how a run that did not come to its end was ended."""
    reason = str(run.manifest["exit_reason"])
    return "finished" if reason in FINISHED else reason
