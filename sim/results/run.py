"""One run: its tables as frames, its figures as a series, its plots."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from libra.record.frames import Frame
from libra.record.metrics import METRICS
from libra.record.reader import Run
from sim import plots
from sim.attempts import last_attempt
from sim.plots.gantt import Colour
from sim.results.labels import label, number
from sim.results.text import columns_of_text, markup


class RunResult:
    """A finished run directory. Tables are read when first asked for.

    `turns`, `trajectories`, `train_steps` and `replicas` are the frames of `libra.record.schema`; they and the
    plots raise UserError for a run that was recorded as a summary only. Opening raises UserError for a
    directory that is no run.
    """

    def __init__(self, run_dir: Path | str) -> None:
        self.record = Run.open(run_dir)

    @property
    def directory(self) -> Path:
        """Where the run lies."""
        return self.record.directory

    @property
    def manifest(self) -> dict[str, Any]:
        """Configuration, seed, commit, package versions: `libra.record.manifest`."""
        return self.record.manifest

    @property
    def is_full(self) -> bool:
        """Whether the run has its tables."""
        return self.manifest.get("level") == "full"

    @property
    def name(self) -> str:
        """Name of the experiment, else of the directory."""
        return str(self.manifest.get("config", {}).get("name") or self.directory.name)

    @property
    def cell(self) -> str:
        """`axis=point, ..., seed=n` of a sweep's cell, `seed=n` of a run by itself."""
        point: Mapping[str, str] = (self.manifest.get("cell") or {}).get("point", {})
        return ", ".join(
            f"{axis}={name}" for axis, name in {**point, "seed": self.manifest.get("seed")}.items()
        )

    @property
    def turns(self) -> Frame:
        """One row per turn and attempt."""
        return self.record.turns

    @property
    def trajectories(self) -> Frame:
        """One row per trajectory."""
        return self.record.trajectories

    @property
    def train_steps(self) -> Frame:
        """One row per optimizer step."""
        return self.record.train_steps

    @property
    def replicas(self) -> Frame:
        """One row per replica."""
        return self.record.replicas

    @cached_property
    def loads(self) -> Frame:
        """Weight loads: replica_id, started_s, finished_s."""
        return plots.weight_loads(self.record.events)

    @cached_property
    def outages(self) -> Frame:
        """When replicas were down: replica_id, started_s, finished_s."""
        return plots.outages(self.record.events)

    @property
    def summary(self) -> pd.Series:
        """The figures of the run by metric name (`libra.record.metrics.METRICS`), in their units."""
        return pd.Series(self.record.summary, name=self.name, dtype="float64")

    def plot_gantt(self, *, colour: Colour = "age", window_s: tuple[float, float] | None = None) -> Figure:
        """Turns by replica over time (`sim.plots.plot_gantt`)."""
        return plots.plot_gantt(
            self.turns,
            self.trajectories,
            self.replicas,
            self.train_steps,
            self.loads,
            colour=colour,
            window_s=window_s,
        )

    def plot_utilisation(self) -> Figure:
        """Use of the GPUs of each TP degree over time (`sim.plots.plot_utilisation`)."""
        return plots.plot_utilisation(self.turns, self.replicas, self.loads, self.outages)

    def plot_latency_cdf(self) -> Figure:
        """Distribution of turn latency, by TP degree and of all turns."""
        parts = {"all turns": plots.turn_latencies(self.turns)}
        degrees = self.turns.groupby("tp", sort=True)
        if degrees.ngroups > 1:
            parts |= {f"TP {tp}": plots.turn_latencies(part) for tp, part in degrees}
        return plots.plot_latency_cdf(parts)

    def figures(self) -> Frame:
        """Summary for people: columns metric, value (text with unit) and meaning; unknown figures left out."""
        rows = []
        for metric, value in self.record.summary.items():
            if value == value:
                shown = label(metric)
                text = f"{number(value * shown.scale)} {shown.unit}".rstrip()
                rows.append((shown.name, text, METRICS[metric].doc if metric in METRICS else ""))
        return pd.DataFrame(rows, columns=["metric", "value", "meaning"])

    def table(self) -> str:
        """The summary as text, for a terminal."""
        rows = [[str(row.metric), str(row.value)] for row in self.figures().itertuples(index=False)]
        head = f"{self.name}, seed {self.manifest.get('seed')}: ended {self.manifest.get('exit_reason')}"
        return "\n".join([head, *columns_of_text([["metric", "value"], *rows], left=1)])

    def __repr__(self) -> str:
        return f"RunResult({str(self.directory)!r})"

    def _repr_html_(self) -> str:
        rows = [list(row) for row in self.figures().itertuples(index=False)]
        return markup(["metric", "value", "meaning"], rows, caption=self.name)


def compare_runs(a: RunResult | Path | str, b: RunResult | Path | str) -> Frame:
    """Figures of two runs side by side: columns metric (with unit), a, b, difference [%].

    A real run's folder stands for its last attempt. Figures that neither run knows are left out; the difference is
    nan where one is unknown or `a` is 0.
    """
    first, second = (
        run if isinstance(run, RunResult) else RunResult(last_attempt(Path(run))) for run in (a, b)
    )
    rows = []
    for metric in dict.fromkeys([*first.record.summary, *second.record.summary]):
        left, right = (run.record.summary.get(metric, float("nan")) for run in (first, second))
        if left != left and right != right:
            continue
        shown = label(metric)
        percent = 100.0 * (right - left) / abs(left) if left else (0.0 if left == right else float("nan"))
        rows.append((shown.text, left * shown.scale, right * shown.scale, percent))
    return pd.DataFrame(rows, columns=["metric", "a", "b", "difference [%]"])
