"""Processes on this machine, started and ended for certain.

Guarantees: a program runs under a guard (`guard.py`) in a session of its own, so a terminal's Ctrl-C reaches only
the driver; its output goes to a log file; its end is noticed; `stop` ends it and all its descendants, politely and
then by force; and if the driver dies, by SIGKILL even, nothing is left behind. Linux only.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from executor.launchers import guard
from libra.errors import UserError

_TAIL_BYTES = 65_536
_KILL_WAIT_S = 10.0


class ManagedProcess:
    """One running program with its descendants. Make it with `start`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._process = process

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        log_path: str | Path,
        *,
        orphan_grace_s: float = 5.0,
    ) -> "ManagedProcess":
        """Start `argv`, with `env` added to this process's environment, its output appended to `log_path`.

        orphan_grace_s: seconds from SIGTERM to SIGKILL if this process dies first.
        Raises UserError where the program does not exist. Call it from the thread that runs the event loop.
        """
        environment = {**os.environ, **env}
        if shutil.which(argv[0], path=environment.get("PATH")) is None:
            raise UserError(f"{name}: no program {argv[0]}; install it, or name the right one")
        path = Path(log_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        head = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(orphan_grace_s), "--"]
        with path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *head,
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        return cls(name, process, path)

    @property
    def pid(self) -> int:
        """Id of the guard, which is also the id of the session; the program is its first descendant."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; else its exit status, 128 + N where signal N ended it or its guard."""
        code = self._process.returncode
        return 128 - code if code is not None and code < 0 else code

    def descendants(self) -> list[int]:
        """Ids of the program and of what it started, without the guard; empty when it has ended."""
        return guard.descendants(self.pid) if self.returncode is None else []

    async def wait(self) -> int:
        """Wait for its end, and that of all its descendants; the exit status."""
        code = await self._process.wait()
        if code >= 0:
            return code
        # Somebody killed the guard, which then could not sweep.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return 128 - code

    async def stop(self, grace_s: float = 10.0) -> int:
        """SIGTERM to the program, after `grace_s` seconds SIGKILL to it and its descendants; the exit status.

        Harmless where it has ended. Where the caller is cancelled meanwhile, it is killed at once.
        """
        try:
            if self._send(signal.SIGTERM):
                await asyncio.wait_for(self.wait(), grace_s)
        except TimeoutError:
            pass
        finally:
            if self.returncode is None:
                self._send(guard.KILL_NOW)
        try:
            return await asyncio.wait_for(self.wait(), _KILL_WAIT_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            return await self.wait()

    def kill(self) -> None:
        """SIGKILL to it and its descendants at once, without waiting; harmless where it has ended."""
        self._send(guard.KILL_NOW)

    def log_tail(self, num_lines: int = 20) -> str:
        """The last lines of its output; empty where there is none."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join(lines[-num_lines:]) if num_lines > 0 else ""

    def _send(self, number: int) -> bool:
        """Signal the guard; whether it was there to be signalled."""
        if self.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
            return True
        return False
