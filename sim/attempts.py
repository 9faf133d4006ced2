"""The folder of a real run: every attempt at it is a run directory of its own, `attempts/001`, `attempts/002`, ..."""

from pathlib import Path

from libra.errors import UserError

ATTEMPTS = "attempts"
RUN_FILE = "run.json"


def attempts_of(directory: Path) -> list[Path]:
    """Recorded attempts of a real run, the first one first; none where the folder is no real run's.

    Raises UserError for a real run of which no attempt has been recorded yet.
    """
    if (directory / "manifest.json").is_file() or not (directory / ATTEMPTS).is_dir():
        return []
    found = [path.parent for path in (directory / ATTEMPTS).glob("[!.]*/manifest.json")]
    if not found and (directory / RUN_FILE).is_file():
        raise UserError(
            f"{directory / ATTEMPTS}: no attempt at this run has been recorded yet; wait for the run's end"
        )
    return sorted(found, key=lambda path: (len(path.name), path.name))  # 1000 comes after 999


def last_attempt(directory: Path) -> Path:
    """The last attempt where the folder is a real run's, else the folder itself. Raises UserError as above."""
    found = attempts_of(directory)
    return found[-1] if found else directory
