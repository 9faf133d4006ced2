"""The files of a sweep directory, checked: what is wrong with one of them is a UserError with its name."""

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from libra.errors import UserError
from sim.results.run import RunResult

SWEEP_SCHEMA_VERSION: Final = 1

CellKey: TypeAlias = tuple[Any, ...]
"""Points in the order of the axes, then the seed."""


@dataclass(frozen=True, slots=True)
class SweepFile:
    """`sweep.json`. axes: name to points. baseline: axis to the point that the others are compared with."""

    name: str
    axes: Mapping[str, list[str]]
    seeds: list[int]
    baseline: Mapping[str, str]
    metric: str
    experiment_hash: str
    code_hash: str

    def points(self) -> Iterator[dict[str, str]]:
        """Every point of the grid, the first axis slowest; one empty point where there is no axis."""
        for names in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, names, strict=True))

    def key(self, point: Mapping[str, Any], seed: Any, path: Path) -> CellKey:
        """Key of a cell, checked against the grid."""
        key = (*(str(point.get(axis)) for axis in self.axes), seed)
        if any(name not in points for name, points in zip(key, self.axes.values(), strict=False)):
            raise UserError(f"{path}: is of point {dict(point)}, which is not in sweep.json; remove it")
        return key


@dataclass(frozen=True, slots=True)
class FailedCell:
    """A cell that ended with an error, in one line."""

    key: CellKey
    point: Mapping[str, str]
    seed: int
    error: str


def is_sweep(directory: Path) -> bool:
    """Whether the directory holds a sweep."""
    return (directory / "sweep.json").is_file()


def read_sweep_file(directory: Path) -> SweepFile:
    """Read and check `sweep.json`."""
    path = directory / "sweep.json"
    content = _read_object(path)
    version = content.get("schema_version")
    if version != SWEEP_SCHEMA_VERSION:
        raise UserError(
            f"{path}: schema_version {version}, this program reads {SWEEP_SCHEMA_VERSION}; run it again"
        )
    try:
        axes = {str(axis): [str(name) for name in points] for axis, points in content["axes"].items()}
        baseline = {str(axis): str(name) for axis, name in content["baseline"].items()}
        seeds = [int(seed) for seed in content["seeds"]]
        metric = str(content["metric"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: damaged ({type(error).__name__}: {error}); run the sweep again") from error
    for axis, name in baseline.items():
        if name not in axes.get(axis, ()):
            raise UserError(f"{path}: baseline {axis}={name} is no point of the sweep; run the sweep again")
    if not seeds or not all(axes.values()):
        raise UserError(f"{path}: has no seed or an axis without points; run the sweep again")
    hashes = (str(content.get(name, "")) for name in ("experiment_hash", "code_hash"))
    return SweepFile(str(content.get("name", "")), axes, seeds, baseline, metric, *hashes)


def finished_cells(directory: Path, file: SweepFile) -> dict[CellKey, RunResult]:
    """The finished runs by key, in the order of the grid."""
    found: dict[CellKey, RunResult] = {}
    for path in sorted((directory / "cells").glob("[!.]*")):
        run = RunResult(path)
        cell = run.manifest.get("cell")
        if not isinstance(cell, dict):
            raise UserError(f"{path / 'manifest.json'}: names no cell of a sweep; remove {path}")
        cell = cast(dict[str, Any], cell)
        found[file.key(cell.get("point", {}), cell.get("seed"), path)] = run
    grid = ((*point.values(), seed) for point in file.points() for seed in file.seeds)
    return {key: found[key] for key in grid if key in found}


def read_failed(directory: Path, file: SweepFile) -> list[FailedCell]:
    """The failed cells, by file name."""
    cells: list[FailedCell] = []
    for path in sorted((directory / "failed").glob("[!.]*.json")):
        content = _read_object(path)
        point, seed = content.get("point"), content.get("seed")
        if not isinstance(point, dict) or not isinstance(seed, int):
            raise UserError(f"{path}: names no cell; remove it and run the sweep again")
        point = {str(axis): str(name) for axis, name in cast(dict[Any, Any], point).items()}
        cells.append(FailedCell(file.key(point, seed, path), point, seed, str(content.get("error", ""))))
    return cells


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: missing; give the directory of a sweep or of a run") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged ({error}); run the sweep again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds no object; run the sweep again")
    return cast(dict[str, Any], content)
