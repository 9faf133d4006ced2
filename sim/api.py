"""The simulator from Python, for notebooks and scripts.

    result = sim.run("experiments/quickstart.yaml", policy=MyRouter)
    result.summary, result.turns, result.plot_gantt()

    sweep = sim.sweep("experiments/quickstart.yaml", policies={"mine": MyRouter, "least": LEAST}, seeds=5)
    sweep.comparison(), sweep.plot_throughput()

A policy is a class (also one defined in a notebook cell), the text `package.module:Class`, or a mapping: what would
stand under `heterogeneous_rollout.scheduling` in an experiment file. A class goes by its name from here on, so that
a sweep's processes and a replay find it again; one that its name no longer leads to is refused, for a comparison of
a class with itself would look like a tie. Results without `out` live in a temporary folder until the last of their
objects is gone. Mistakes raise `libra.errors.UserError` with one line.
"""

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from libra.config.resolve import resolve
from libra.core.ids import EndReason
from libra.errors import UserError
from libra.host import HostClock
from libra.record.metrics import METRICS
from libra.record.writer import Level
from sim.config import SimConfig
from sim.documents import (
    SCHEDULING,
    Experiment,
    Policy,
    check_level,
    check_processes,
    document_of,
    put_sweep,
    scheduling_of,
)
from sim.endings import cells_cut_off, cut_off_message
from sim.provenance import provenance
from sim.results import RunResult, SweepResult
from sim.simulation import simulate
from sim.sweeps.execute import CELLS, CellResult, prepare, run_grid
from sim.sweeps.grid import expand, hash_files, hash_with_policies


def run(
    experiment: Experiment,
    policy: Policy | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    set: Mapping[str, Any] | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    record: Level = "full",
) -> RunResult:
    """Simulate one experiment and return its tables, figures and plots.

    experiment: path of a YAML file, name of one in `experiments/`, or the experiment itself as a mapping.
    policy: the router, in place of the experiment's; config: the policy's own fields. set: key path -> value, as
    `--set` on the command line. out: run directory to make. record: `summary` keeps the figures only.

    Raises UserError for what a person can mend, a run that stalls or drops everything included; PolicyError,
    with what was raised as its cause, for a policy that fails. A run that was cut off at `sim.max_sim_s` is
    returned with a warning.
    """
    check_level(record)
    document = document_of(experiment, set, seed)
    document.tree.pop("sweep", None)
    if policy is not None:
        document.replace(SCHEDULING, scheduling_of(policy, config), "policy=")
    elif config:
        raise UserError("config= needs policy=: it holds the fields of that policy")
    resolved = resolve(document, {"sim": SimConfig})
    clock = HostClock()
    folder, temporary = _folder(out)
    directory = folder / "run" if temporary else folder
    problems: list[str] = []
    try:
        reason, _ = simulate(
            resolved,
            directory,
            level=record,
            provenance=provenance(),
            host=clock.info,
            on_problem=problems.append,
        )
        result = RunResult(directory)
    except BaseException:
        _discard(temporary)
        raise
    if problems and reason is not EndReason.TIME_LIMIT:
        _discard(temporary)
        raise UserError(problems[0] if temporary else f"{problems[0]}; what happened is in {directory}")
    if problems:
        warnings.warn(problems[0], stacklevel=2)
    _keep_while(temporary, [result.record])
    return result


def sweep(
    experiment: Experiment,
    policies: Mapping[str, Policy] | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    baseline: str | None = None,
    metric: str | None = None,
    set: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    record: Level = "full",
    jobs: int = 1,
) -> SweepResult:
    """Simulate a grid and return its comparison.

    policies: replaces the experiment's axis `policy`; the first is what the others are compared with unless
    `baseline` names another. The experiment's other axes stay. seeds: a number or a list. jobs: processes; 1 is
    needed for a class that lives in a notebook. An `out` that holds this sweep is completed, not repeated; one
    that was made by other code (that of the policies included), from other workload files or with another `record`
    is refused.

    Cells that fail are listed in `SweepResult.failed`, with a warning. There is one for cells that were cut off at
    `sim.max_sim_s`, whose status is `time_limit`. UserError if every cell fails.
    """
    check_level(record)
    if jobs < 1:
        raise UserError(f"jobs={jobs}: must be at least 1")
    document = document_of(experiment, set, None)
    put_sweep(document, policies, baseline, seeds, metric)
    grid = expand(document)
    resolved = [cell.resolve() for cell in grid.cells]
    if jobs > 1:
        check_processes(resolved)
    known = provenance()
    folder, temporary = _folder(out)
    directory = folder / "sweep" if temporary else folder
    failed: list[CellResult] = []

    def on_result(result: CellResult) -> None:
        if result.error:
            failed.append(result)

    try:
        prepare(
            directory,
            grid,
            document,
            hash_with_policies(known.code_hash, resolved),
            trace_hash=hash_files(resolved),
            level=record,
        )
        outcome = run_grid(
            directory, grid, level=record, jobs=jobs, shard=(0, 1), provenance=known, on_result=on_result
        )
        if failed and outcome.num_failed == outcome.num_cells:
            raise UserError(f"every cell failed; the first: {failed[0].error}")
        result = SweepResult(directory)
    except BaseException:
        _discard(temporary)
        raise
    cut_off = cells_cut_off(directory / CELLS / cell.name for cell in grid.cells)
    if cut_off:
        warnings.warn(cut_off_message(cut_off, outcome.num_cells), stacklevel=2)
    _keep_while(temporary, [result, *(cell.record for cell in result.runs({}))])
    if failed:
        warnings.warn(
            f"{len(failed)} of {outcome.num_cells} cells failed; the first: {failed[0].name}: {failed[0].error}",
            stacklevel=2,
        )
    return result


def compare(
    first: Mapping[str, RunResult] | RunResult, *others: RunResult, baseline: str | None = None
) -> pd.DataFrame:
    """Figures of several runs side by side: a row a metric, a column a run, and its difference in percent.

    Give `{name: run}`, or the runs one after another, which are then called a, b, c, ... The first run is the
    baseline unless another is named. Differences from a baseline of 0 are nan. Runs of one seed each say nothing
    about how sure a difference is; `sim.sweep` over several seeds does.
    """
    if isinstance(first, RunResult):
        results = {chr(ord("a") + i): result for i, result in enumerate((first, *others))}
    elif others:
        raise UserError("compare: give one mapping {name: result}, or runs one after another, not both")
    else:
        results = dict(first)
    if not results:
        raise UserError("compare: give at least one run, as {name: result}")
    base = baseline if baseline is not None else next(iter(results))
    if base not in results:
        raise UserError(f"compare: there is no run {base!r}; there are {', '.join(results)}")
    order = dict.fromkeys(metric for result in results.values() for metric in result.summary.index)
    frame = pd.DataFrame({name: result.summary.reindex(list(order)) for name, result in results.items()})
    reference = frame[base].where(frame[base] != 0)
    for name in results:
        if name != base:
            frame[f"{name} against {base} [%]"] = 100 * (frame[name] - frame[base]) / reference.abs()
    frame.insert(0, "unit", [METRICS[m].unit if m in METRICS else "" for m in frame.index])
    return frame


def _folder(out: str | Path | None) -> tuple[Path, Path | None]:
    """Where to write, and the same once more if it is temporary."""
    if out is not None:
        return Path(out), None
    temporary = Path(tempfile.mkdtemp(prefix="libra-"))
    return temporary, temporary


def _discard(temporary: Path | None) -> None:
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)


def _keep_while(temporary: Path | None, holders: Sequence[object]) -> None:
    """Remove the folder with the last of the objects that read from it, or at the end of the process."""
    if temporary is None:
        return
    alive = set(range(len(holders)))

    def release(number: int) -> None:
        alive.discard(number)
        if not alive:
            _discard(temporary)

    for number, holder in enumerate(holders):
        weakref.finalize(holder, release, number)
