"""Runs one program so that nothing of it outlives who started it: `python guard.py PARENT_PID GRACE_S -- ARGV...`.

Guarantees, on Linux: when the program ends, whatever it left running is ended; when the starter dies, even by
SIGKILL, the program gets SIGTERM and, `GRACE_S` seconds later, it and all its descendants get SIGKILL. Descendants
that changed their session or lost their parent are found too: the guard adopts orphans. Exits with the program's
status (128 + N for signal N, 127 where the program cannot be run).

Signals to the guard: SIGTERM passes on to the program alone, SIGUSR2 kills everything at once. Standard library
only and run by path, so that it starts in a few hundredths of a second and needs no import path.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

PARENT_DIED = signal.SIGUSR1
KILL_NOW = signal.SIGUSR2
_WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, PARENT_DIED, KILL_NOW}
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_GRACE_S = 2.0
_LIBC = ctypes.CDLL(None, use_errno=True)


def descendants(root: int) -> list[int]:
    """Ids of the processes below `root` as /proc shows them now, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                state, parent = file.read().rsplit(b")", 1)[1].split()[:2]
        except OSError:
            continue  # it ended while we looked
        if state != b"Z":
            children.setdefault(int(parent), []).append(int(entry))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def main(argv: list[str]) -> int:
    """Run the program and wait; returns its exit status as a shell would tell it."""
    parent, grace_s, program = int(argv[0]), float(argv[1]), argv[3:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(PARENT_DIED), 0, 0, 0)
    if os.getppid() != parent:
        return 143  # the starter died before it could be watched
    try:
        child = subprocess.Popen(program, preexec_fn=_as_child, close_fds=True)
    except OSError as error:
        sys.stderr.write(f"{program[0]}: cannot be run ({error.strerror})\n")
        return 127
    status = _watch(child.pid, parent, grace_s)
    _sweep()
    return status


def _as_child() -> None:
    """In the program before it runs: no blocked signals, and death with the guard."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _watch(child: int, parent: int, grace_s: float) -> int:
    """Wait for the program's end, passing signals on; its exit status."""
    deadline: float | None = None
    while True:
        wait_s = 3600.0 if deadline is None else max(0.0, deadline - time.monotonic())
        info = signal.sigtimedwait(_WATCHED, wait_s)
        number = info.si_signo if info else 0
        # A thread of the starter may have ended, which signals us too: then the parent is still the same.
        orphaned = os.getppid() != parent
        if number in (signal.SIGTERM, signal.SIGINT) or (number == PARENT_DIED and orphaned):
            os.kill(child, signal.SIGTERM)
        if orphaned and deadline is None:
            deadline = time.monotonic() + grace_s
        if number == KILL_NOW or (deadline is not None and time.monotonic() >= deadline):
            _signal_all(signal.SIGKILL)
        status = _reap(child)
        if status is not None:
            return status


def _reap(child: int) -> int | None:
    """Collect ended children, adopted ones among them; the program's status if it was one."""
    result = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return result
        if pid == 0:
            return result
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            result = code if code >= 0 else 128 - code


def _signal_all(number: int) -> bool:
    """Signal every descendant; whether there was one."""
    found = descendants(os.getpid())
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return bool(found)


def _sweep() -> None:
    """End what the program left behind: SIGTERM, and SIGKILL for what does not go."""
    deadline = time.monotonic() + _SWEEP_GRACE_S
    if not _signal_all(signal.SIGTERM):
        return
    while True:
        signal.sigtimedwait({signal.SIGCHLD, KILL_NOW}, 0.1)
        _reap(-1)
        if not descendants(os.getpid()):
            return
        if time.monotonic() >= deadline:
            _signal_all(signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
