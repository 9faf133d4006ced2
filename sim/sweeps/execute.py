"""Running a grid: processes, progress, resume, shards, failures.

A cell is finished when its run directory has its final name, which it gets in one rename, so a sweep may be
killed at any moment and started again: finished cells are skipped, half-written ones were never there. A
cell that fails leaves one line in `failed/` and the others go on; it is tried again at the next start.
"""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from libra.config.document import Document
from libra.config.resolve import hash_tree
from libra.core.invariants import InvariantViolation
from libra.errors import UserError
from libra.record.writer import Level
from sim.simulation import Provenance, simulate
from sim.sweeps.grid import Cell, Grid
from sim.sweeps.workers import worker_pool

SWEEP_FILE = "sweep.json"
CELLS, FAILED = "cells", "failed"


@dataclass(frozen=True, slots=True)
class CellResult:
    """How a cell ended: `error` is empty for success."""

    name: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """Counts of a sweep's run: cells in this shard, skipped because finished, done now, failed."""

    num_cells: int
    num_skipped: int
    num_done: int
    num_failed: int


def prepare(directory: Path, grid: Grid, document: Document, code_hash: str) -> None:
    """Make the sweep's directory, or check that an existing one belongs to this sweep. Raises UserError."""
    described: dict[str, Any] = {
        "schema_version": 1,
        "name": document.tree.get("name", ""),
        "axes": dict(grid.axes),
        "seeds": grid.seeds,
        "baseline": dict(grid.baseline),
        "metric": grid.config.metric,
        "experiment_hash": hash_tree(document.tree),
        "code_hash": code_hash,
    }
    file = directory / SWEEP_FILE
    if file.exists():
        _check_same(file, described)
        return
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory}: is not empty and holds no sweep; give another --out")
    try:
        (directory / CELLS).mkdir(parents=True, exist_ok=True)
        part = directory / f".{SWEEP_FILE}.part"
        part.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        part.rename(file)
    except OSError as error:
        raise UserError(f"{directory}: cannot be written ({error.strerror}); give another --out") from error


def run_grid(
    directory: Path,
    grid: Grid,
    *,
    level: Level,
    jobs: int,
    shard: tuple[int, int],
    provenance: Provenance,
    on_result: Callable[[CellResult], None],
) -> SweepOutcome:
    """Run the cells of this shard that are not finished; `on_result` hears of each as it ends.

    KeyboardInterrupt passes through after the workers have stopped; finished cells stay.
    """
    mine = grid.cells[shard[0] :: shard[1]]
    todo = [cell for cell in mine if not (directory / CELLS / cell.name).exists()]
    failed = done = 0
    for result in _results(directory, todo, level, jobs, provenance):
        if result.error:
            failed += 1
            _note_failure(directory, result, todo)
        else:
            done += 1
            (directory / FAILED / f"{result.name}.json").unlink(missing_ok=True)
        on_result(result)
    return SweepOutcome(len(mine), len(mine) - len(todo), done, failed)


def run_cell(directory: Path, cell: Cell, level: Level, provenance: Provenance) -> CellResult:
    """One cell, in this process. A mistake in its experiment or a defect of its policy is its result."""
    known = replace(provenance, cell={"point": dict(cell.point), "seed": cell.seed})
    try:
        simulate(
            cell.resolve(),
            directory / CELLS / cell.name,
            level=level,
            provenance=known,
            keep_stalled=False,
        )
    except UserError as error:
        return CellResult(cell.name, str(error))
    except InvariantViolation as error:
        return CellResult(cell.name, f"invariant {error}")
    except OSError as error:
        return CellResult(cell.name, f"cannot write the run ({error.strerror}: {error.filename})")
    except Exception as error:  # a user's policy may raise anything; the other cells go on
        return CellResult(cell.name, f"{type(error).__name__}: {error}")
    return CellResult(cell.name)


def _results(
    directory: Path, todo: list[Cell], level: Level, jobs: int, provenance: Provenance
) -> Iterator[CellResult]:
    if jobs == 1 or len(todo) < 2:
        for cell in todo:
            yield run_cell(directory, cell, level, provenance)
        return
    with worker_pool(min(jobs, len(todo)), preload="sim.sweeps.execute") as pool:
        futures: dict[Future[CellResult], Cell] = {
            pool.submit(run_cell, directory, cell, level, provenance): cell for cell in todo
        }
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool as error:
                raise UserError(
                    "a worker process died (out of memory, or killed); finished cells are kept, start again"
                ) from error


def _note_failure(directory: Path, result: CellResult, cells: list[Cell]) -> None:
    cell = next(cell for cell in cells if cell.name == result.name)
    folder = directory / FAILED
    row = {"point": dict(cell.point), "seed": cell.seed, "error": result.error}
    part = folder / f".{result.name}.part"
    with suppress(OSError):  # on a full disk the note is lost, which `on_result` tells; the other cells go on
        folder.mkdir(exist_ok=True)
        part.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
        os.replace(part, folder / f"{result.name}.json")


def _check_same(file: Path, described: dict[str, Any]) -> None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as JSON; remove the folder or give another --out") from error
    for key, what in (
        ("experiment_hash", "another experiment"),
        ("code_hash", "another version of the code"),
    ):
        if found.get(key) != described[key]:
            raise UserError(
                f"{file.parent}: holds the sweep of {what}; give another --out, or --fresh to replace it"
            )
