"""One writer at a time: who makes a run directory holds a lock (`libra.locks`)."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from libra.errors import UserError
from libra.locks import take_lock, wait_until_free


class BusyError(UserError):
    """Somebody else holds the lock."""


def lock_file(directory: Path) -> Path:
    """The file whose holder may make the directory."""
    return directory.with_name(f".{directory.name}.lock")


@contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """Be the only process that makes this run directory; makes its parents. Raises BusyError."""
    path = lock_file(directory)
    try:
        with suppress(FileExistsError):  # a parent that is a file shows below, under its right name
            path.parent.mkdir(parents=True, exist_ok=True)
        lock = take_lock(path)
    except OSError as error:
        raise UserError(f"{directory}: cannot be made ({error.strerror}); give a writable place") from error
    if lock is None:
        raise BusyError(f"{directory}: another process is making it; wait for its end or give another --out")
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held, so that nobody else's is removed
        lock.let_go()


def wait_for_writer(directory: Path) -> None:
    """Return when nobody makes the run directory any more."""
    wait_until_free(lock_file(directory))
