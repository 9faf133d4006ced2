"""One writer at a time: who makes a run directory, or runs a sweep in a folder, holds a lock.

Locks are `flock`s, which the kernel lets go when their process ends, however it ends: the lock file of a process that
was killed is nobody's, and the next one takes it. A file system that knows no locks goes without.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from libra.errors import UserError

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


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
        file = _open_locked(path)
    except OSError as error:
        raise UserError(f"{directory}: cannot be made ({error.strerror}); give a writable place") from error
    if file is None:
        raise BusyError(f"{directory}: another process is making it; wait for its end or give another --out")
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held, so that nobody else's is removed
        os.close(file)


def wait_for_writer(directory: Path) -> None:
    """Return when nobody makes the run directory any more."""
    with suppress(OSError):
        file = os.open(lock_file(directory), os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        finally:
            os.close(file)


@contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Mark a file as used by this process, beside any others."""
    file = os.open(path, os.O_RDONLY)
    try:
        _flock(file, fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)


def is_in_use(path: Path) -> bool:
    """Whether any process is `in_use` of the file."""
    file = os.open(path, os.O_RDONLY)
    try:
        return not _flock(file, fcntl.LOCK_EX)
    finally:
        os.close(file)


def _open_locked(path: Path) -> int | None:
    """A descriptor that holds the lock, or None if another has it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if not _flock(file, fcntl.LOCK_EX):
            os.close(file)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        os.close(
            file
        )  # its holder removed it between the two: what was locked is no longer the file of that name


def _flock(file: int, how: int) -> bool:
    """Take a lock without waiting; whether it was free."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True
