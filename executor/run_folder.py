"""The folder of a real run, over all attempts at it.

    run.json            what is run: configuration, its hash, hashes of the policies' sources; and whether it is done
    attempts/001/       the record of the first attempt, a run directory as the simulator writes them
    checkpoints/        `executor.checkpoints`
    weights/v000012/    published weights (weight_sync.mode disk)
    logs/               one file per engine and trainer rank
    steps.jsonl         a line per train step: prompts, reward, loss, times; the steps that led to the weights of now

Guarantees that one driver uses a folder at a time, that a run is continued only by the experiment that began it
(`executor.identity`), and that nothing in a folder is touched which this program has not put there.
"""

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from executor.checkpoints import Checkpoints, read_progress, version_reached
from executor.identity import first_difference, identity
from executor.progress import Progress
from libra.core.ids import EndReason
from libra.errors import UserError
from libra.locks import HeldLock, take_lock
from libra.record.manifest import config_sha256

RUN_FILE = "run.json"
LOCK_FILE = ".lock"
CHECKPOINTS = "checkpoints"
_DONE = (EndReason.STEPS_DONE, EndReason.COMPLETED)
_FOLDERS = ("attempts", CHECKPOINTS, "weights", "logs")
_FILES = ("steps.jsonl", "steps.partial", "report.html", "timeline.json")


class RunFolder:
    """Make it with `open`. `progress`: where the run goes on; `checkpoint`: the folder it goes on from, if any."""

    def __init__(self, root: Path, lock: HeldLock) -> None:
        self.root = root
        self.logs = root / "logs"
        self.weights = root / "weights"
        self.steps = root / "steps.jsonl"
        self.progress = Progress()
        self.checkpoint: Path | None = None
        self._lock = lock

    @classmethod
    def open(
        cls, root: Path, config: Mapping[str, Any], policies: Mapping[str, str], *, fresh: bool
    ) -> "RunFolder":
        """A new folder, or the one of an unfinished run of the same experiment. Raises UserError.

        fresh: remove what is there first, if it is a run and nobody is at work on it. The configuration of a run
        that goes on is stored anew: what is no part of its identity may have changed.
        """
        try:
            _refuse_foreign(root)  # before anything is written there
            root.mkdir(parents=True, exist_ok=True)
            lock = take_lock(root / LOCK_FILE)
        except OSError as error:
            raise UserError(f"{root}: cannot be made ({error.strerror}); give a writable --out") from error
        if lock is None:
            raise UserError(f"{root}: another executor is at work there; wait for it, or give another --out")
        folder = cls(root, lock)
        try:
            known = _refuse_foreign(root)
            if known is not None and fresh:
                folder._clear()
            elif known is not None:
                folder._check_identity(known, config, policies)
            _write_json(
                root / RUN_FILE,
                {
                    "done": False,
                    "config_sha256": config_sha256(config),
                    "policies": dict(policies),
                    "config": dict(config),
                },
            )
        except (UserError, OSError):
            folder.close()
            raise
        return folder

    def _clear(self) -> None:
        """Remove the run, and nothing else. `run.json` stays, so that what an interrupted removal leaves is a run."""
        for path in _own_entries(self.root):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        figures = self.root / "figures"
        if figures.is_dir() and not any(figures.iterdir()):
            figures.rmdir()

    def _check_identity(
        self, known: Mapping[str, Any], config: Mapping[str, Any], policies: Mapping[str, str]
    ) -> None:
        before, now = identity(known["config"]), identity(config)
        if config_sha256(before) != config_sha256(now):
            raise UserError(
                f"{self.root}: belongs to another configuration ({first_difference(before, now)}); "
                "give another --out, or --fresh"
            )
        if known.get("policies") != dict(policies):
            raise UserError(
                f"{self.root}: a policy's source has changed since; give another --out, or --fresh"
            )
        steps, reached = int(config.get("total_steps", 0)), version_reached(self.root / CHECKPOINTS)
        was = known["config"].get("total_steps")
        grows = isinstance(was, int) and steps > was
        if known.get("done") and not (known.get("end_reason") == EndReason.STEPS_DONE and grows):
            mend = (
                "give another --out, or --fresh to run it again"
                if known.get("end_reason") == EndReason.COMPLETED
                else "raise total_steps to go on, give another --out, or --fresh to run it again"
            )
            raise UserError(f"{self.root}: this run is finished; {mend}")
        if steps < reached:
            raise UserError(
                f"{self.root}: step {reached} is reached already, so total_steps cannot be {steps}; "
                f"give at least {reached}, another --out, or --fresh"
            )

    def resume(self, checkpoints: Checkpoints) -> None:
        """Find where to go on. Steps after the newest checkpoint are forgotten: they are made again."""
        self.checkpoint = checkpoints.latest()
        if self.checkpoint is not None:
            self.progress = read_progress(self.checkpoint)
        if self.steps.exists():
            lines = self.steps.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [line for line in lines if _version_of(line) <= self.progress.version]
            partial = self.steps.with_suffix(".partial")
            partial.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            partial.replace(self.steps)

    def next_attempt(self) -> Path:
        """Directory for the record of this attempt."""
        attempts = self.root / "attempts"
        attempts.mkdir(exist_ok=True)
        for leftover in attempts.glob(".*.partial"):  # of an attempt that was killed
            shutil.rmtree(leftover)
        numbers = [int(path.name) for path in attempts.iterdir() if path.name.isdecimal()]
        return attempts / f"{max(numbers, default=0) + 1:03d}"

    def log_step(self, row: Mapping[str, Any]) -> None:
        """Append to steps.jsonl."""
        with self.steps.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def finish(self, reason: EndReason, *, failed: bool = False) -> None:
        """The run ended; one that is done is not continued. failed: it is not done, whatever the reason."""
        path = self.root / RUN_FILE
        known = json.loads(path.read_text(encoding="utf-8"))
        _write_json(path, {**known, "done": reason in _DONE and not failed, "end_reason": reason.value})

    def close(self) -> None:
        """Let others use it."""
        self._lock.let_go()


def _refuse_foreign(root: Path) -> dict[str, Any] | None:
    """The content of `run.json`, None where there is none. UserError where the folder is somebody else's."""
    if not root.is_dir():
        return None
    path = root / RUN_FILE
    if not path.exists():
        ours = {LOCK_FILE, *(part.name for part in _half_written(root))}
        if any(entry.name not in ours for entry in root.iterdir()):
            raise UserError(f"{root}: is not empty and holds no run; give another --out")
        return None
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give another --out") from error
    except ValueError:
        known = None
    if (
        not isinstance(known, dict)
        or not isinstance(known.get("config_sha256"), str)
        or not isinstance(known.get("config"), dict)
    ):
        raise UserError(f"{path}: is not a run of this program; give another --out")
    return known


def _half_written(root: Path) -> Iterator[Path]:
    """What `_write_json` leaves where it is killed."""
    return (path for path in root.glob(f".{RUN_FILE}.*") if path.suffix[1:].isdecimal())


def _own_entries(root: Path) -> list[Path]:
    """What runs and their reports put into the folder, `run.json` and the lock aside."""
    named = [root / name for name in (*_FOLDERS, *_FILES)]
    figures = root / "figures"
    drawn = [] if figures.is_symlink() else list(figures.glob("*.png"))
    return [path for path in (*named, *drawn, *_half_written(root)) if path.exists() or path.is_symlink()]


def _version_of(line: str) -> float:
    """Of a line of steps.jsonl; later than any for the half of a line that a killed driver left."""
    try:
        return int(json.loads(line)["version"])
    except (ValueError, TypeError, KeyError):
        return math.inf


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
