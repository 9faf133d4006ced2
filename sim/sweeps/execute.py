"""Running a grid: processes, progress, resume, shards, failures.

A cell is finished when its run directory has its final name, which it gets in one rename, so a sweep may be
killed at any moment and started again: finished cells are skipped, half-written ones were never there. A
cell that fails leaves one line in `failed/` and the others go on; it is tried again at the next start. Several
processes may work in one folder, on shards or on the same cells: each cell is made by one of them, and who finds
nothing left to do waits for the others' cells.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from libra.config.document import Document
from libra.config.resolve import hash_tree
from libra.core.invariants import InvariantViolation
from libra.errors import PolicyError, UserError
from libra.locks import in_use
from libra.policies.failure import breach
from libra.record.writer import Level
from sim.locks import BusyError, wait_for_writer
from sim.provenance import Provenance
from sim.simulation import simulate
from sim.sweeps.grid import Cell, Grid
from sim.sweeps.workers import worker_pool

SWEEP_FILE = "sweep.json"
CELLS, FAILED = "cells", "failed"


@dataclass(frozen=True, slots=True)
class CellResult:
    """How a cell ended: `error` is empty for success. by_others: another process made it; is_busy: makes it now."""

    name: str
    error: str = ""
    by_others: bool = False
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """Counts of a sweep's run: cells in this shard, skipped because finished (some by others meanwhile), done now,
    failed."""

    num_cells: int
    num_skipped: int
    num_done: int
    num_failed: int


def prepare(
    directory: Path,
    grid: Grid,
    document: Document,
    code_hash: str,
    *,
    trace_hash: str = "",
    level: Level = "full",
) -> None:
    """Make the sweep's directory, or check that an existing one belongs to this sweep. Raises UserError.

    code_hash, trace_hash: of what the cells are made from, see `sim.sweeps.grid`. level: of their record.
    """
    described: dict[str, Any] = {
        "schema_version": 1,
        "name": document.tree.get("name", ""),
        "axes": dict(grid.axes),
        "seeds": grid.seeds,
        "baseline": dict(grid.baseline),
        "metric": grid.config.metric,
        "experiment_hash": hash_tree(document.tree),
        "code_hash": code_hash,
        "trace_hash": trace_hash,
        "level": level,
    }
    file = directory / SWEEP_FILE
    if file.exists():
        _check_same(file, described)
        return
    if directory.exists() and (not directory.is_dir() or any(map(_is_foreign, directory.iterdir()))):
        raise UserError(f"{directory}: is not empty and holds no sweep; give another --out")
    try:
        (directory / CELLS).mkdir(parents=True, exist_ok=True)
        part = directory / f".{SWEEP_FILE}.{os.getpid()}.part"
        part.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        _publish(part, file)
    except OSError as error:
        raise UserError(f"{directory}: cannot be written ({error.strerror}); give another --out") from error
    _check_same(file, described)  # of two that begin in one folder at a time, the second joins or is refused


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
    mine = {cell.name: cell for cell in grid.cells[shard[0] :: shard[1]]}
    todo = [cell for cell in mine.values() if not (directory / CELLS / cell.name).exists()]
    failed = done = 0
    with in_use(directory / SWEEP_FILE):
        while todo:
            busy: list[Cell] = []
            for result in _results(directory, todo, level, jobs, provenance):
                if result.is_busy:
                    busy.append(mine[result.name])
                    continue
                if result.error:
                    failed += 1
                    _note_failure(directory, result, mine[result.name])
                elif not result.by_others:
                    done += 1
                on_result(result)
            for cell in busy:
                wait_for_writer(directory / CELLS / cell.name)
            todo = busy
    _forget_failures(directory, mine.values())
    return SweepOutcome(len(mine), len(mine) - done - failed, done, failed)


def run_cell(directory: Path, cell: Cell, level: Level, provenance: Provenance) -> CellResult:
    """One cell, in this process. A mistake in its experiment or a defect of its policy is its result."""
    known = replace(provenance, cell={"point": dict(cell.point), "seed": cell.seed})
    final = directory / CELLS / cell.name
    try:
        simulate(
            cell.resolve(),
            final,
            level=level,
            provenance=known,
            keep_stalled=False,
        )
    except BusyError:
        return CellResult(cell.name, is_busy=True)
    except UserError as error:
        if final.exists():  # finished by another process since this one looked
            return CellResult(cell.name, by_others=True)
        return CellResult(cell.name, str(error))
    except PolicyError as error:
        return CellResult(cell.name, str(error))
    except InvariantViolation as error:
        return CellResult(cell.name, breach(error))
    except OSError as error:
        return CellResult(cell.name, f"cannot write the run ({error.strerror}: {error.filename})")
    except Exception as error:  # the other cells go on
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


def _note_failure(directory: Path, result: CellResult, cell: Cell) -> None:
    folder = directory / FAILED
    row = {"point": dict(cell.point), "seed": cell.seed, "error": result.error}
    part = folder / f".{result.name}.{os.getpid()}.part"
    with suppress(OSError):  # on a full disk the note is lost, which `on_result` tells; the other cells go on
        folder.mkdir(exist_ok=True)
        part.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
        os.replace(part, folder / f"{result.name}.json")


def _forget_failures(directory: Path, cells: Iterable[Cell]) -> None:
    """Remove the notes of cells that have finished since, also of those that a killed or another process finished."""
    for cell in cells:
        if (directory / CELLS / cell.name).exists():
            (directory / FAILED / f"{cell.name}.json").unlink(missing_ok=True)


def _is_foreign(path: Path) -> bool:
    """Whether a file is none of those that a sweep puts into its folder before `sweep.json`."""
    return path.name != CELLS and not path.name.startswith(f".{SWEEP_FILE}.")


def _publish(part: Path, file: Path) -> None:
    """Give a file its final name unless there is one of that name: the first of two wins."""
    try:
        os.link(part, file)
    except FileExistsError:
        pass
    except OSError:  # no hard links here: the last wins
        part.rename(file)
        return
    part.unlink()


def _check_same(file: Path, described: dict[str, Any]) -> None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as JSON; remove the folder or give another --out") from error
    for key, what in (
        ("experiment_hash", "another experiment"),
        ("trace_hash", "another content of the workload's files"),
        ("code_hash", "another version of the code"),
        ("level", f"another level of recording (--record {found.get('level')})"),
    ):
        if found.get(key) != described[key]:
            raise UserError(
                f"{file.parent}: holds the sweep of {what}; give another --out, or --fresh to replace it"
            )
