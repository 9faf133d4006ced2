"""The folder of a real run, over all attempts at it.

    run.json            what is run: configuration, its hash, hashes of the policies' sources; and whether it is done
    attempts/001/       the record of the first attempt, a run directory as the simulator writes them
    checkpoints/        `executor.checkpoints`
    weights/v000012/    published weights (weight_sync.mode disk)
    logs/               one file per engine and trainer rank
    steps.jsonl         a line per train step: prompts, reward, loss, times; the steps that led to the weights of now

Guarantees that one driver uses a folder at a time, and that a run is continued only by the experiment that began it.
"""

import fcntl
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from executor.checkpoints import Checkpoints, read_progress
from executor.progress import Progress
from libra.core.ids import EndReason
from libra.errors import UserError
from libra.record.manifest import config_sha256

RUN_FILE = "run.json"
LOCK_FILE = ".lock"
_DONE = (EndReason.STEPS_DONE, EndReason.COMPLETED)


class RunFolder:
    """Make it with `open`. `progress`: where the run goes on; `checkpoint`: the folder it goes on from, if any."""

    def __init__(self, root: Path, lock: IO[str]) -> None:
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

        fresh: remove what is there first, if it is a run and nobody is at work on it.
        """
        try:
            root.mkdir(parents=True, exist_ok=True)
            lock = (root / LOCK_FILE).open("a+")
        except OSError as error:
            raise UserError(f"{root}: cannot be made ({error.strerror}); give a writable --out") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise UserError(
                f"{root}: another executor is at work there; wait for it, or give another --out"
            ) from None
        folder = cls(root, lock)
        try:
            if fresh and (root / RUN_FILE).exists():
                folder._clear()
            folder._check_identity(config, policies)
        except (UserError, OSError):
            folder.close()
            raise
        return folder

    def _clear(self) -> None:
        """Remove the run; `run.json` last, so that what an interrupted removal leaves is a run still."""
        for entry in sorted(self.root.iterdir(), key=lambda entry: entry.name == RUN_FILE):
            if entry.name == LOCK_FILE:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def _check_identity(self, config: Mapping[str, Any], policies: Mapping[str, str]) -> None:
        wanted = {"config_sha256": config_sha256(config), "policies": dict(policies), "config": dict(config)}
        path = self.root / RUN_FILE
        if not path.exists():
            ours = (LOCK_FILE, f".{RUN_FILE}.")  # the second: of a write that was killed
            if any(not entry.name.startswith(ours) for entry in self.root.iterdir()):
                raise UserError(f"{self.root}: is not empty and holds no run; give another --out")
            _write_json(path, {"done": False, **wanted})
            return
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(known, dict):
                raise ValueError("it holds no object")
        except ValueError as error:
            raise UserError(f"{path}: cannot be read ({error}); use --fresh to start over") from error
        if known.get("config_sha256") != wanted["config_sha256"]:
            changed = _first_difference(known.get("config", {}), wanted["config"])
            raise UserError(
                f"{self.root}: belongs to another configuration ({changed}); give another --out, or --fresh"
            )
        if known.get("policies") != wanted["policies"]:
            raise UserError(
                f"{self.root}: a policy's source has changed since; give another --out, or --fresh"
            )
        if known.get("done"):
            raise UserError(
                f"{self.root}: this run is finished; give another --out, or --fresh to run it again"
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

    def finish(self, reason: EndReason) -> None:
        """The run ended; one that is done is not continued."""
        path = self.root / RUN_FILE
        known = json.loads(path.read_text(encoding="utf-8"))
        _write_json(path, {**known, "done": reason in _DONE, "end_reason": reason.value})

    def close(self) -> None:
        """Let others use it."""
        self._lock.close()


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


def _first_difference(known: Any, wanted: Any, place: str = "") -> str:
    """Path and both values of the first value that differs."""
    if isinstance(known, dict) and isinstance(wanted, dict):
        for key in [*wanted, *(k for k in known if k not in wanted)]:
            if known.get(key) != wanted.get(key):
                return _first_difference(
                    known.get(key), wanted.get(key), f"{place}.{key}" if place else str(key)
                )
    return f"{place} was {known!r}, is {wanted!r}"
