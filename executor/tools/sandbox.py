"""Programs under limits: time, memory, CPU, output, network. What a model wrote runs here and nowhere else.

Guarantees: a program and all that it started is over when `run` returns or is cancelled; it runs in a session of its
own with an environment of a few fixed variables, so nothing of the driver's leaks in; it gets at most the memory of
`memory_limit_bytes` a process, writes no file larger than that, and shows at most `output_limit_bytes`; at most
`max_concurrent` run at once and others wait. If the driver is killed, `timeout` ends the program a little after
its time. Where the machine lets us, it has no network and its own process ids, so even a process that left its
session is found; `isolation` says what is in force. It is no defence against a hostile program: it sees the
files that the driver's user sees.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from executor.tools.output import CappedOutput
from executor.tools.result import ToolResult
from libra.core.ids import ToolStatus
from libra.errors import UserError

_CHUNK_BYTES = 65_536
_END_OF_OUTPUT_S = 2.0
"""How long the pipe may stay open after everything was killed; only a process that got away holds it."""
_ORPHAN_GRACE_S = 2
_SHELL = "/bin/sh"
# `ulimit` in a shell, as the limits must stand before the program's first instruction: setting them from here would
# race, and code between fork and exec is unsafe in a driver with threads. A lower limit of the machine's own stays.
_LIMITS = (
    'ulimit -v "$1" 2>/dev/null; ulimit -S -t "$2" 2>/dev/null; ulimit -H -t "$3" 2>/dev/null; '
    'ulimit -f "$4" 2>/dev/null; ulimit -c 0 2>/dev/null; shift 4; exec "$@"'
)
# The program is a child of this shell and not its successor: the first process of a process id namespace ignores most
# signals, its own faults included. The shell ends as the program did, with 128 + N for signal N.
_PROGRAM = '"$@"; exit $?'
_NAMESPACES: Final = (
    ("--net", "--pid", "--fork", "--kill-child"),
    ("--map-root-user", "--net", "--pid", "--fork", "--kill-child"),
    ("--net",),
    ("--map-root-user", "--net"),
)
"""Options of `unshare`, best first; the first that works is taken."""


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """time_limit_s: on the wall clock, from the program's start. cpu_limit_s: 0 for a little over time_limit_s.

    memory_limit_bytes: address space of each process. output_limit_bytes: what is beyond is cut off, visibly.
    max_concurrent: programs at once. network: true leaves it on.
    """

    time_limit_s: float = 10.0
    cpu_limit_s: int = 0
    memory_limit_bytes: int = 1 << 30
    output_limit_bytes: int = 16_384
    max_concurrent: int = 8
    network: bool = False

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise ValueError("time_limit_s must be positive")
        if self.cpu_limit_s < 0:
            raise ValueError("cpu_limit_s must not be negative (0 for a little over time_limit_s)")
        if self.memory_limit_bytes < 1 << 26:
            raise ValueError("memory_limit_bytes must be at least 67108864 (64 MiB), or no program starts")
        if self.output_limit_bytes < 1:
            raise ValueError("output_limit_bytes must be at least 1")
        if self.max_concurrent < 1:
            raise ValueError("max_concurrent must be at least 1")


class Sandbox:
    """See the module. Use it from one event loop."""

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config
        self._places = asyncio.Semaphore(config.max_concurrent)
        self._detecting = asyncio.Lock()
        self._namespaces: tuple[str, ...] | None = None

    async def isolation(self) -> str:
        """What keeps programs apart, for the manifest: `net+pid`, `net`, or `session` where nothing else works."""
        options = await self._namespace_options()
        return "+".join(name for name in ("net", "pid") if f"--{name}" in options) or "session"

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        time_limit_s: float | None = None,
        folder: bool = False,
    ) -> ToolResult:
        """Run `argv` with `stdin` as its input; what it writes, to either stream, is the payload.

        Success means exit code 0. time_limit_s: instead of the config's, if shorter. folder: the program starts in
        an empty folder of its own, removed afterwards; otherwise in `/`. Raises UserError if `argv[0]` is no program.
        """
        if shutil.which(argv[0], path=os.defpath) is None:
            raise UserError(f"sandbox: no program {argv[0]}; install it, or name it with its full path")
        clock = asyncio.get_running_loop().time
        called_s = clock()
        limit_s = min(self.config.time_limit_s, time_limit_s or self.config.time_limit_s)
        head = self._head(limit_s, await self._namespace_options())
        async with self._places, _folder(folder) as cwd:
            output = CappedOutput(self.config.output_limit_bytes)
            exit_code = await _run(
                [*head, _SHELL, "-c", _PROGRAM, "sandbox", *argv], stdin, cwd, limit_s, output
            )
        return _result(exit_code, output, limit_s, clock() - called_s)

    def _head(self, limit_s: float, namespaces: tuple[str, ...]) -> list[str]:
        """What goes before the program: limits, a last resort if the driver dies, namespaces."""
        config = self.config
        cpu_s = config.cpu_limit_s or int(limit_s) + 2
        sizes = (config.memory_limit_bytes // 1024, cpu_s, cpu_s + 1, config.memory_limit_bytes // 512)
        head = [_SHELL, "-c", _LIMITS, "sandbox", *map(str, sizes)]
        if shutil.which("timeout", path=os.defpath):
            head += ["timeout", "-s", "KILL", str(int(limit_s) + 1 + _ORPHAN_GRACE_S)]
        return [*head, "unshare", *namespaces, "--"] if namespaces else head

    async def _namespace_options(self) -> tuple[str, ...]:
        """The options of `unshare` that work here; tried once."""
        async with self._detecting:
            if self._namespaces is None:
                self._namespaces = () if self.config.network else await _first_that_works(_NAMESPACES)
        return self._namespaces


async def _first_that_works(candidates: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    if shutil.which("unshare", path=os.defpath) is None:
        return ()
    for options in candidates:
        if await _run(["unshare", *options, "--", "true"], b"", "/", 10.0, CappedOutput(1)) == 0:
            return options
    return ()


@contextlib.asynccontextmanager
async def _folder(wanted: bool) -> AsyncIterator[str]:
    if not wanted:
        yield "/"
        return
    path = tempfile.mkdtemp(prefix="sandbox-")
    try:
        yield path
    finally:  # it may hold any number of files
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, path, ignore_errors=True))


async def _run(
    argv: Sequence[str], stdin: bytes, cwd: str, limit_s: float, output: CappedOutput
) -> int | None:
    """Exit code of the program, None if its time ran out; nothing of it is left either way."""
    variables = {"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": cwd, "TMPDIR": cwd if cwd != "/" else "/tmp"}
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=cwd,
            env=variables,
            start_new_session=True,
        )
    )
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:  # half started is started: it must be ended too
        await _end(await starting)
        raise
    talk = asyncio.gather(_feed(process, stdin), _collect(process, output))
    try:
        async with asyncio.timeout(limit_s):
            return await process.wait()
    except TimeoutError:
        return None
    finally:
        await _end(process)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_OF_OUTPUT_S):
                await talk


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the program, or what it has left running."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read what it is given
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _collect(process: asyncio.subprocess.Process, output: CappedOutput) -> None:
    """Read to the end, also what is not kept, or the program would block on a full pipe."""
    assert process.stdout is not None
    while chunk := await process.stdout.read(_CHUNK_BYTES):
        output.add(chunk)


def _result(exit_code: int | None, output: CappedOutput, limit_s: float, latency_s: float) -> ToolResult:
    text = output.text()
    if exit_code is None:
        text = f"{text.rstrip()}\n[timed out after {limit_s:g} s]".lstrip()
        return ToolResult(ToolStatus.TIMEOUT, text, latency_s)
    if exit_code > 128:
        text = f"{text.rstrip()}\n[exit code {exit_code}]".lstrip()
    status = ToolStatus.SUCCESS if exit_code == 0 else ToolStatus.FAILURE
    return ToolResult(status, text, latency_s, exit_code)
