"""The manifest of a run: what was run, from which code, under which configuration.

Guarantees that two runs of the same code, configuration and seed write the same bytes into `manifest.json`;
what differs between them (wall times, the host) goes into `host.json`. All of it is passed in: this module
reads neither clock nor environment.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import isnan, nan
from pathlib import Path
from typing import Any, Final, Literal

from libra.core.ids import EndReason
from libra.record.schema import SCHEMA_VERSION

World = Literal["sim", "executor"]

RECORDED_PACKAGES: Final = ("libra-rl", "numpy", "pandas", "pyarrow", "pydantic", "scipy", "simpy")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What the driver tells about a run.

    config: the resolved configuration, plain values. commit, dirty: of the working tree. policies: role to
    SHA-256 of the policy's source. calibration_id: of the cost coefficients used. packages: see `package_versions`.
    code_hash: of the sources that ran, or that compiled modules were made of. compiled: whether there were any
    (`libra.compiled`; results are the same). notes: what ran otherwise than configured, one line each. cell: point
    and seed in a sweep, None outside of one.
    """

    world: World
    config: Mapping[str, Any]
    seed: int
    exit_reason: EndReason
    commit: str = ""
    dirty: bool = False
    calibration_id: str = ""
    policies: Mapping[str, str] = field(default_factory=dict[str, str])
    packages: Mapping[str, str] = field(default_factory=dict[str, str])
    code_hash: str = ""
    compiled: bool = False
    notes: tuple[str, ...] = ()
    cell: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class HostInfo:
    """Where and when it ran. Times are ISO 8601 texts; `shape` is free (cores, memory, GPUs)."""

    started_at: str = ""
    ended_at: str = ""
    wall_s: float = nan
    shape: Mapping[str, Any] = field(default_factory=dict[str, Any])


def canonical_json(value: Any) -> str:
    """Sorted keys, no spaces: equal values give equal texts. ValueError for nan or infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def config_sha256(config: Mapping[str, Any]) -> str:
    """Hash of the resolved configuration."""
    return hashlib.sha256(canonical_json(config).encode()).hexdigest()


def package_versions(names: Iterable[str] = RECORDED_PACKAGES) -> dict[str, str]:
    """Installed versions, `python` first; packages that are not installed are left out."""
    found = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    for name in names:
        installed = _installed_version(name)
        if installed is not None:
            found[name] = installed
    return found


@cache
def _installed_version(name: str) -> str | None:
    """Read from disk once a process: a sweep writes a manifest per cell."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def file_sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest(
    info: RunInfo, *, level: str, horizon_s: float, counts: Mapping[str, int], files: Mapping[str, str]
) -> dict[str, Any]:
    """The content of `manifest.json`.

    horizon_s: time of the last event, on the run's own clock. files: name to SHA-256 of each table's file.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "level": level,
        "world": info.world,
        "seed": info.seed,
        "exit_reason": info.exit_reason.value,
        "horizon_s": horizon_s,
        "counts": dict(counts),
        "files": dict(files),
        "commit": info.commit,
        "dirty": info.dirty,
        "code_hash": info.code_hash,
        "compiled": info.compiled,
        "notes": list(info.notes),
        "cell": None if info.cell is None else dict(info.cell),
        "calibration_id": info.calibration_id,
        "policies": dict(info.policies),
        "packages": dict(info.packages),
        "config_sha256": config_sha256(info.config),
        "config": dict(info.config),
    }


def host(info: HostInfo) -> dict[str, Any]:
    """The content of `host.json`."""
    return {
        "started_at": info.started_at,
        "ended_at": info.ended_at,
        "wall_s": None if isnan(info.wall_s) else info.wall_s,
        "shape": dict(info.shape),
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Indented JSON with a final newline; nan is written as null."""
    plain = {k: None if isinstance(v, float) and isnan(v) else v for k, v in content.items()}
    path.write_text(json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
