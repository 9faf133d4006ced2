"""The simulator from Python, for notebooks and scripts.

    result = sim.run("experiments/quickstart.yaml", policy=MyRouter)
    result.summary, result.turns, result.plot_gantt()

    sweep = sim.sweep("experiments/quickstart.yaml", policies={"mine": MyRouter, "least": LEAST}, seeds=5)
    sweep.comparison(), sweep.plot_throughput()

A policy is a class (also one defined in a notebook cell), the text `package.module:Class`, or a mapping: what would
stand under `heterogeneous_rollout.scheduling` in an experiment file. Results without `out` live in a temporary
folder for as long as the result object does. Mistakes raise `libra.errors.UserError` with one line.
"""

import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import pandas as pd

from libra.config.document import Document, apply_overrides, load_document
from libra.config.resolve import resolve
from libra.core.ids import EndReason
from libra.errors import UserError
from libra.record.metrics import METRICS
from libra.record.writer import Level
from sim.config import SimConfig
from sim.results import RunResult, SweepResult
from sim.simulation import Provenance, simulate
from sim.sweeps.execute import prepare, run_grid
from sim.sweeps.grid import expand

Experiment: TypeAlias = str | Path | Mapping[str, Any]
Policy: TypeAlias = type[Any] | str | Mapping[str, Any]
SCHEDULING = "heterogeneous_rollout.scheduling"

R = TypeVar("R", RunResult, SweepResult)


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

    experiment: path of a YAML file, or the experiment itself as a mapping. policy: the router, in place of the
    experiment's; config: the policy's own fields. set: key path -> value, as `--set` on the command line.
    """
    document = _document(experiment, set, seed)
    document.tree.pop("sweep", None)
    if policy is not None:
        document.replace(SCHEDULING, _scheduling(policy, config), "policy=")
    elif config:
        raise UserError("config= needs policy=: it holds the fields of that policy")
    resolved = resolve(document, {"sim": SimConfig})
    folder, temporary = _folder(out)
    reason, _ = simulate(resolved, folder / "run" if temporary else folder, level=record)
    result = _keep(RunResult(folder / "run" if temporary else folder), temporary)
    if reason is EndReason.STALLED:
        raise UserError(
            "the run stalled: trajectories are left that no policy moves on; does yours place them all?"
        )
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
    needed for a class that lives in a notebook. An `out` that holds this sweep is completed, not repeated.
    """
    document = _document(experiment, set, None)
    block = document.tree.setdefault("sweep", {})
    if policies is not None:
        axes = {name: points for name, points in block.get("axes", {}).items() if name != "policy"}
        points = {name: {SCHEDULING: _scheduling(policy, None)} for name, policy in policies.items()}
        document.replace("sweep.axes", {"policy": points, **axes}, "policies=")
        document.replace("sweep.baseline", {"policy": baseline or next(iter(policies), "")}, "policies=")
    if seeds is not None:
        document.replace("sweep.seeds", seeds if isinstance(seeds, int) else list(seeds), "seeds=")
    if metric is not None:
        document.replace("sweep.metric", metric, "metric=")
    grid = expand(document)
    for cell in grid.cells:
        cell.resolve()
    folder, temporary = _folder(out)
    directory = folder / "sweep" if temporary else folder
    prepare(directory, grid, document, "")
    run_grid(
        directory,
        grid,
        level=record,
        jobs=jobs,
        shard=(0, 1),
        provenance=Provenance(),
        on_result=lambda result: None,
    )
    return _keep(SweepResult(directory), temporary)


def compare(results: Mapping[str, RunResult], baseline: str | None = None) -> pd.DataFrame:
    """Figures of several runs side by side: a row a metric, a column a run, and its difference in percent.

    The first run is the baseline unless another is named. Runs of one seed each say nothing about how sure a
    difference is; `sim.sweep` over several seeds does.
    """
    if not results:
        raise UserError("compare: give at least one run, as {name: result}")
    base = baseline if baseline is not None else next(iter(results))
    if base not in results:
        raise UserError(f"compare: there is no run {base!r}; there are {', '.join(results)}")
    frame = pd.DataFrame({name: result.summary for name, result in results.items()})
    for name in results:
        if name != base:
            frame[f"{name} against {base} [%]"] = 100 * (frame[name] / frame[base] - 1)
    frame.insert(0, "unit", [METRICS[m].unit if m in METRICS else "" for m in frame.index])
    return frame


def _document(experiment: Experiment, overrides: Mapping[str, Any] | None, seed: int | None) -> Document:
    if isinstance(experiment, Mapping):
        document = Document(dict(experiment)).copy()
    else:
        document = load_document(Path(experiment))
    apply_overrides(document, overrides or {}, "set=")
    if seed is not None:
        document.replace("seed", seed, "seed=")
    return document


def _scheduling(policy: Policy, config: Mapping[str, Any] | None) -> dict[str, Any]:
    if isinstance(policy, Mapping):
        return {**policy, **(config or {})}
    if isinstance(policy, type):
        if "<locals>" in policy.__qualname__:
            raise UserError(
                f"{policy.__qualname__}: define the class at the top of a module or notebook cell"
            )
        policy = f"{policy.__module__}:{policy.__qualname__}"
    return {"scheduler_type": policy, **(config or {})}


def _folder(out: str | Path | None) -> tuple[Path, "tempfile.TemporaryDirectory[str] | Literal[False]"]:
    if out is not None:
        return Path(out), False
    temporary = tempfile.TemporaryDirectory(prefix="libra-")
    return Path(temporary.name), temporary


def _keep(result: R, temporary: "tempfile.TemporaryDirectory[str] | Literal[False]") -> R:
    if temporary:
        weakref.finalize(result, temporary.cleanup)
    return result
