"""From a document with a `sweep:` block to cells: one resolved experiment per point of the grid and seed.

All cells of a seed draw the same workload and faults (common random numbers), because streams depend on the
seed and their own names only. Every cell is validated before the first one runs.
"""

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from libra.config.document import Document, apply_overrides
from libra.config.resolve import Resolved, resolve
from libra.config.validate import nearest_hint, validate
from libra.errors import UserError
from libra.record.figures import METRICS, headline
from libra.record.manifest import file_sha256
from libra.workloads.opening import workload_files
from sim.config import SimConfig
from sim.sweeps.config import SweepConfig

_NOT_AN_AXIS = frozenset({"seed", "sweep"})
"""The grid sets the seed itself, and a cell has no grid of its own."""

_LONGEST_NAME = 240
"""File systems allow 255 bytes; a cell that is being written has `.` and `.partial` round its name."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the sweep. `name` is its folder: `policy=a,layout=b,seed=0`, percent-encoded."""

    name: str
    point: Mapping[str, str]
    seed: int
    document: Document

    def resolve(self) -> Resolved:
        """Validate the cell's own experiment. Raises UserError."""
        return resolve(self.document, {"sim": SimConfig})


@dataclass(frozen=True, slots=True)
class Grid:
    """All cells, in grid order, and what describes the grid."""

    config: SweepConfig
    axes: Mapping[str, list[str]]
    seeds: list[int]
    baseline: Mapping[str, str]
    cells: list[Cell]


def expand(document: Document) -> Grid:
    """The grid of a document. Raises UserError for an empty axis, an unknown point, a bad key."""
    block = document.tree.get("sweep")
    config = validate(SweepConfig, {} if block is None else block, document, ("sweep",))
    if config.metric and config.metric not in METRICS:
        raise UserError(
            f"{document.origin(('sweep', 'metric'))}: sweep.metric: "
            f"{config.metric} is no metric{nearest_hint(config.metric, list(METRICS))}"
        )
    base = document.copy()
    base.tree.pop("sweep", None)
    points = {axis: _points(axis, given, document) for axis, given in config.axes.items()}
    seeds = _seeds(config, document)
    cells: list[Cell] = []
    for combination in itertools.product(*(named.items() for named in points.values())):
        point = {axis: name for axis, (name, _) in zip(points, combination, strict=True)}
        for seed in seeds:
            own = base.copy()
            for axis, (name, overrides) in zip(points, combination, strict=True):
                apply_overrides(
                    own, overrides, f"{document.origin(('sweep', 'axes', axis, name))}: {axis}={name}"
                )
            own.replace("seed", seed, f"seed {seed} of the sweep")
            cells.append(Cell(_cell_name(point, seed, document), point, seed, own))
    names = {axis: list(named) for axis, named in points.items()}
    if not config.metric:
        # Not validated yet: what is no number of GPUs is refused when its cell is resolved.
        config = replace(config, metric=headline(all(c.document.tree.get("train_gpus") for c in cells)))
    return Grid(config, names, seeds, _baseline(config, names, document), cells)


def hash_with_policies(code_hash: str, resolved: Iterable[Resolved]) -> str:
    """The code's hash with that of every policy of the sweep: an edited policy is other code."""
    sources = sorted({digest for one in resolved for digest in one.policy_hashes().values()})
    return hashlib.sha256("".join([code_hash, *sources]).encode()).hexdigest()


def hash_files(resolved: Iterable[Resolved]) -> str:
    """Hash of the files that the sweep's workloads and calibrations are read from, empty if there are none.

    Raises UserError for a file that cannot be read.
    """
    paths: set[Path] = set()
    for one in resolved:
        paths.update(workload_files(one.experiment.workload, base_dir=one.workload_folder))
        paths.update(map(Path, one.experiment.cost.rollout.calibrations))
    digests: list[str] = []
    for path in sorted(paths):
        try:
            digests.append(file_sha256(path))
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest() if digests else ""


def _points(axis: str, given: Any, document: Document) -> dict[str, dict[str, Any]]:
    place = f"{document.origin(('sweep', 'axes', axis))}: sweep.axes.{axis}"
    if isinstance(given, list):
        values = cast(list[Any], given)
        points = {_value_name(value): {axis: value} for value in values}
        if len(points) != len(values):
            raise UserError(f"{place}: a value is listed twice; list each once")
    elif isinstance(given, dict):
        points = {}
        for name, overrides in cast(dict[Any, Any], given).items():
            if not isinstance(overrides, dict):
                raise UserError(
                    f"{place}.{name}: a point is a mapping of key paths to values, {{}} for the experiment as it is; "
                    "null drops a point of the base_config, which has none of this name"
                    if overrides is None
                    else f"{place}.{name}: a point is a mapping of key paths to values"
                )
            points[str(name)] = {str(key): value for key, value in cast(dict[Any, Any], overrides).items()}
    else:
        raise UserError(f"{place}: give a list of values, or a mapping of named points")
    if not points:
        raise UserError(f"{place}: the axis has no points, so the grid is empty; name at least one")
    for overrides in points.values():
        for key in overrides:
            if key.partition(".")[0] in _NOT_AN_AXIS:
                raise UserError(f"{place}: {key} cannot be an axis; seeds are listed in sweep.seeds")
    return points


def _seeds(config: SweepConfig, document: Document) -> list[int]:
    first = document.tree.get("seed", 0)
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        origin = document.origin(("seed",))
        raise UserError(f"{origin}: seed must be a whole number of at least 0, not {first}")
    try:
        return config.seed_list(first)
    except UserError as error:
        raise UserError(f"{document.origin(('sweep', 'seeds'))}: {error}") from None


def _baseline(config: SweepConfig, axes: Mapping[str, list[str]], document: Document) -> dict[str, str]:
    chosen = {axis: _value_name(value) for axis, value in config.baseline.items()}
    for axis, name in chosen.items():
        place = f"{document.origin(('sweep', 'baseline', axis))}: sweep.baseline.{axis}"
        if axis not in axes:
            raise UserError(f"{place}: no such axis{nearest_hint(axis, list(axes))}")
        if name not in axes[axis]:
            raise UserError(f"{place}: {name} is no point of it{nearest_hint(name, axes[axis])}")
    if chosen:
        return chosen
    return {axis: names[0] for axis, names in itertools.islice(axes.items(), 1)}


def _value_name(value: Any) -> str:
    return str(value) if isinstance(value, (int, float, str, bool)) else repr(value)


def _cell_name(point: Mapping[str, str], seed: int, document: Document) -> str:
    parts = [f"{quote(axis, safe='')}={quote(name, safe='')}" for axis, name in point.items()]
    name = ",".join([*parts, f"seed={seed}"])
    if len(name) > _LONGEST_NAME:
        raise UserError(
            f"{document.origin(('sweep', 'axes'))}: sweep.axes: the folder of a cell would have a name of "
            f"{len(name)} characters ({name[:40]}...), {_LONGEST_NAME} fit; shorten the names of the points"
        )
    return name
