"""File locks: whoever holds one is alone with its file, or among those who share it, until it is let go.

Locks are `flock`s, which the kernel lets go when their process ends, however it ends: the lock file of a process that
was killed is nobody's, and the next one takes it. A file system that knows no locks goes without. As of `libra.host`,
nothing inside libra imports this; programs of both worlds do.
"""

import errno
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


class HeldLock:
    """A lock that this process holds alone; `take_lock` makes it."""

    __slots__ = ("_file",)

    def __init__(self, file: int) -> None:
        self._file: int | None = file

    def let_go(self) -> None:
        """Others may take it. Harmless a second time."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def take_lock(path: Path, mode: int = 0o666) -> HeldLock | None:
    """The lock of a file, which is made with `mode` where there is none; None if another has it. Does not wait.

    A holder may remove the file before it lets go. Raises OSError where the file cannot be opened.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, mode)
        try:
            if not _flock(file, fcntl.LOCK_EX):
                os.close(file)
                return None
        except OSError:
            os.close(file)
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.stat()):
                return HeldLock(file)
        # Its holder removed it between the two: what was locked is no longer the file of that name.
        os.close(file)


def wait_until_free(path: Path) -> None:
    """Return when nobody holds the lock of the file any more; at once where there is no such file, or no locks."""
    with suppress(OSError):
        file = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        finally:
            os.close(file)


@contextmanager
def in_use(path: Path) -> Generator[None, None, None]:
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
