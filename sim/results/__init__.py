"""Results for notebooks and the command line: runs and sweeps as frames, tables and figures."""

from pathlib import Path

from libra.errors import UserError
from sim.attempts import last_attempt
from sim.results.reading import is_sweep
from sim.results.run import RunResult, compare_runs
from sim.results.sweep import SweepResult

__all__ = ["RunResult", "SweepResult", "compare_runs", "open_result"]


def open_result(directory: Path | str) -> RunResult | SweepResult:
    """The run or sweep in a directory; of a real run's folder the last attempt.

    Raises UserError for a directory that holds neither.
    """
    path = last_attempt(Path(directory))
    if is_sweep(path):
        return SweepResult(path)
    if path.is_dir() and not (path / "manifest.json").is_file():
        raise UserError(
            f"{path}: holds neither a run (manifest.json) nor a sweep (sweep.json); give one of them"
        )
    return RunResult(path)
