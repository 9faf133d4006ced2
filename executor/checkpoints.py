"""Checkpoints of a run: the trainer's state and the prompts that led to it, in one folder, whole or not at all.

    checkpoints/step-000010/trainer/...       written by the trainer's ranks
    checkpoints/step-000010/progress.json     `executor.progress`

A folder under its final name is complete: it is written beside and renamed. What an interrupted save left is removed
by the next.
"""

import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from executor.progress import Progress
from libra.errors import UserError

_PREFIX = "step-"


class Checkpoints:
    """The checkpoints below `folder`. interval_steps: 0 for only the last step."""

    def __init__(self, folder: Path, *, interval_steps: int, keep: int, last_step: int) -> None:
        self._folder = folder
        self._interval = interval_steps
        self._keep = keep
        self._last_step = last_step

    def latest(self) -> Path | None:
        """The newest complete one."""
        found = self._all()
        return found[-1] if found else None

    def has(self, version: int) -> bool:
        """Whether there is one after step `version`."""
        return self._path(version).is_dir()

    def is_due(self, version: int) -> bool:
        """Whether one is to be written after step `version`."""
        return version == self._last_step or (self._interval > 0 and version % self._interval == 0)

    async def save(self, progress: Progress, save_trainer: Callable[[Path], Awaitable[None]]) -> Path:
        """Write one for `progress.version`; older ones beyond `keep` go."""
        final = self._path(progress.version)
        partial = self._folder / f".{final.name}.partial"
        for leftover in self._folder.glob(".*.partial"):
            shutil.rmtree(leftover)
        partial.mkdir(parents=True)
        await save_trainer(partial / "trainer")
        (partial / "progress.json").write_text(json.dumps(progress.to_plain()) + "\n", encoding="utf-8")
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        for old in self._all()[: -self._keep]:
            shutil.rmtree(old)
        return final

    def _path(self, version: int) -> Path:
        return self._folder / f"{_PREFIX}{version:06d}"

    def _all(self) -> list[Path]:
        return sorted(path for path in self._folder.glob(f"{_PREFIX}*") if path.is_dir())


def version_reached(folder: Path) -> int:
    """Version of the newest complete checkpoint below `folder`, 0 where there is none."""
    numbers = (path.name.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*") if path.is_dir())
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def read_progress(checkpoint: Path) -> Progress:
    """The progress stored in a checkpoint. Raises UserError."""
    path = checkpoint / "progress.json"
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be read ({error}); remove {checkpoint} to resume from an older one"
        ) from error
    return Progress.from_plain(plain, str(path))
