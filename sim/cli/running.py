"""The verbs that simulate: `run` and `sweep`."""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any, cast

from tqdm import tqdm

from libra import compiled
from libra.config.document import Document, apply_sets, load_document
from libra.config.resolve import Resolved, hash_tree, resolve, to_plain
from libra.errors import UserError
from libra.host import HostClock, cpu_count
from libra.locks import is_in_use
from libra.record.metrics import METRICS
from sim.config import SimConfig
from sim.endings import cells_cut_off, cut_off_message
from sim.provenance import provenance
from sim.simulation import build_world, priced_by, simulate
from sim.sweeps.execute import CELLS, SWEEP_FILE, CellResult, prepare, run_grid
from sim.sweeps.grid import expand, hash_files, hash_with_policies


def load(args: argparse.Namespace) -> Document:
    """The experiment with the command line's overrides."""
    if compiled.notice() and sys.stderr.isatty():  # a person waits
        print(f"note: {compiled.notice()}", file=sys.stderr)
    document = load_document(args.experiment)
    mixed = ["cost.rollout.allow_mixed=true"] if args.allow_mixed else []
    apply_sets(document, [*args.sets, *mixed])
    return document


def run(args: argparse.Namespace) -> int:
    """Simulate one experiment. A `sweep:` block is left alone."""
    document = load(args)
    document.tree.pop("sweep", None)
    resolved = resolve(document, {"sim": SimConfig})
    if args.show_config:
        return show_config(resolved)
    if args.allow_mixed:
        print(f"note: step times by source: {priced_by(resolved)}", file=sys.stderr)
    directory = args.out or Path("runs") / f"{resolved.experiment.name}-run"
    if args.fresh:
        _remove(directory, "manifest.json")
    clock = HostClock()
    problems: list[str] = []
    with tqdm(unit=" sim-s", disable=not sys.stderr.isatty(), leave=False, bar_format=_RUN_BAR) as bar:

        def on_progress(now_s: float) -> None:
            bar.update(now_s - bar.n)

        reason, figures = simulate(
            resolved,
            directory,
            level=args.record,
            provenance=provenance(),
            host=clock.info,
            on_progress=on_progress,
            on_problem=problems.append,
        )
    for name, value in figures.items():
        metric = METRICS.get(name)
        print(f"{name:32s} {value:16,.4g} {metric.unit if metric else ''}")
    wall_s = clock.elapsed_s()
    speed = figures.get("makespan_s", 0.0) / wall_s if wall_s else 0.0
    print(f"{reason} in {wall_s:.1f} s, {speed:,.0f} x real time; {directory}", file=sys.stderr)
    for problem in problems:
        print(f"unfinished: {problem}", file=sys.stderr)
    return 1 if problems else 0


def sweep(args: argparse.Namespace) -> int:
    """Run what is missing of a sweep, then report on it."""
    document = load(args)
    grid = expand(document)
    resolved = [cell.resolve() for cell in grid.cells]  # every mistake shows before the first cell runs
    if args.show_config:
        return show_config(resolved[0])
    shard, jobs = _shard(args.shard), args.jobs or cpu_count()
    if jobs < 1:
        raise UserError(f"--jobs {args.jobs}: must be at least 1, or 0 for one per core")
    _check_worlds(resolved)
    directory = args.out or Path("runs") / resolved[0].experiment.name
    if args.fresh:
        _remove(directory, SWEEP_FILE)
    known = provenance()
    prepare(
        directory,
        grid,
        document,
        hash_with_policies(known.code_hash, resolved),
        trace_hash=hash_files(resolved),
        level=args.record,
    )
    errors: list[CellResult] = []
    with tqdm(
        total=len(grid.cells[shard[0] :: shard[1]]), unit="cell", smoothing=0.1, file=sys.stderr
    ) as bar:

        def on_result(result: CellResult) -> None:
            if result.error:
                errors.append(result)
                bar.write(f"failed: {result.name}: {result.error}", file=sys.stderr)
                bar.set_postfix(failed=len(errors))
            bar.update()

        todo = [c for c in grid.cells[shard[0] :: shard[1]] if (directory / "cells" / c.name).exists()]
        bar.update(len(todo))
        outcome = run_grid(
            directory,
            grid,
            level=args.record,
            jobs=jobs,
            shard=shard,
            provenance=known,
            on_result=on_result,
        )
    print(
        f"{outcome.num_done} cells done, {outcome.num_skipped} were finished before, "
        f"{outcome.num_failed} failed; {directory}",
        file=sys.stderr,
    )
    if outcome.num_failed == outcome.num_cells:
        raise UserError(f"every cell failed; the first: {errors[0].error}")
    if not args.no_report:
        from sim.cli.inspect import write_and_print_report

        write_and_print_report(directory, None)
    mine = [directory / CELLS / cell.name for cell in grid.cells[shard[0] :: shard[1]]]
    cut_off = cells_cut_off(mine)
    if cut_off:
        print(f"unfinished: {cut_off_message(cut_off, len(mine))}", file=sys.stderr)
    return 1 if outcome.num_failed or cut_off else 0


def _check_worlds(cells: list[Resolved]) -> None:
    """Build each world of the grid once (seeds and policies aside), so that a missing trace shows now."""
    seen: set[str] = set()
    for cell in cells:
        tree = to_plain(cell.experiment)
        for key in ("seed", "policies"):
            del tree[key]
        del tree["heterogeneous_rollout"]["scheduling"]
        key = hash_tree([tree, str(cell.workload_folder)])
        if key not in seen:
            seen.add(key)
            build_world(cell)


def show_config(resolved: Resolved) -> int:
    """Print every value and where it came from."""
    print(resolved.shown())
    return 0


_RUN_BAR = "{desc}{n:,.0f} sim-s [{elapsed}, {rate_fmt}]"


def _shard(text: str) -> tuple[int, int]:
    first, slash, count = text.partition("/")
    if slash and first.isdecimal() and count.isdecimal() and int(first) < int(count):
        return int(first), int(count)
    raise UserError(f"--shard {text}: write it as i/n with 0 <= i < n, for example 0/4")


def _remove(directory: Path, marker: str) -> None:
    """Make room for `--fresh`. Raises UserError for a directory whose marker this program has not written."""
    if not directory.exists():
        return
    path = directory / marker
    if not path.exists():
        raise UserError(f"{directory}: holds no {marker}, so --fresh does not remove it; give another --out")
    if not _is_ours(path):
        raise UserError(f"{path}: is not of this program, so --fresh does not remove it; give another --out")
    if is_in_use(path):
        raise UserError(f"{directory}: a sweep is running in it; wait for its end or give another --out")
    shutil.rmtree(directory)


def _is_ours(path: Path) -> bool:
    """Whether a `manifest.json` or `sweep.json` has the fields that this program writes into it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(found, dict):
        return False
    fields = cast(dict[str, Any], found)
    if not isinstance(fields.get("schema_version"), int):
        return False
    if path.name == SWEEP_FILE:
        return isinstance(fields.get("experiment_hash"), str)
    return fields.get("world") in ("sim", "executor") and isinstance(fields.get("config_sha256"), str)
