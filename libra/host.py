"""What only the outermost layer of a program may ask: wall clock, cores, the state of the source tree.

Nothing inside libra imports it; the command lines of both worlds do.
"""

import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from libra.record.manifest import HostInfo

_ROOT = Path(__file__).resolve().parents[1]


class HostClock:
    """Wall time of a run."""

    def __init__(self) -> None:
        self._started = datetime.now(UTC)
        self._start_s = time.monotonic()

    def elapsed_s(self) -> float:
        """Seconds since construction."""
        return time.monotonic() - self._start_s

    def info(self) -> HostInfo:
        """For the run's `host.json`."""
        return HostInfo(
            started_at=self._started.isoformat(timespec="seconds"),
            ended_at=datetime.now(UTC).isoformat(timespec="seconds"),
            wall_s=self.elapsed_s(),
            shape={"cores": cpu_count(), "machine": platform.machine(), "python": platform.python_version()},
        )


def cpu_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def git_state(packages: Sequence[str]) -> tuple[str, bool]:
    """Commit of the source tree and whether these packages have changes; ("", False) outside a checkout."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return "", False
    return commit.strip(), bool(_git("status", "--porcelain", "--", *packages))


def code_hash(packages: Sequence[str]) -> str:
    """SHA-256 over the source files of the packages that a result depends on."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted((_ROOT / package).rglob("*")):
            if path.suffix in (".py", ".yaml") and path.is_file():
                digest.update(path.relative_to(_ROOT).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
