"""Python and the calculator as tools: each call is a fresh interpreter in the sandbox."""

import sys
from pathlib import Path

from executor.tools import calculator
from executor.tools.result import ToolResult
from executor.tools.sandbox import Sandbox

_BARE = ("-I", "-S", "-B")
"""No site packages, no user settings, no environment, no bytecode files: starts fast and sees nothing of ours."""
_CALCULATOR = str(Path(calculator.__file__).resolve())


async def run_python(
    sandbox: Sandbox, code: str, *, stdin: str = "", time_limit_s: float | None = None, packages: bool = False
) -> ToolResult:
    """Run `code` as a program, in a folder of its own; what it prints is the payload.

    packages: let it import what is installed beside this interpreter. An exception that it does not catch fails it.
    """
    options = ("-I", "-B") if packages else _BARE
    # By -c the code would be bounded by the length of an argument, and by standard input it could not read any.
    loader = (
        "import sys; n = int(sys.argv.pop(1)); exec(compile(sys.stdin.buffer.read(n), 'main.py', 'exec'))"
    )
    source = code.encode("utf-8", "replace")
    argv = (sys.executable, *options, "-c", loader, str(len(source)))
    return await sandbox.run(argv, stdin=source + stdin.encode(), time_limit_s=time_limit_s, folder=True)


async def calculate(
    sandbox: Sandbox, expression: str, *, sleep_s: float = 0.0, time_limit_s: float | None = None
) -> ToolResult:
    """Evaluate `expression` with the calculator; any text may be given. sleep_s: how long it dawdles first."""
    dawdle = ("--sleep", str(sleep_s)) if sleep_s > 0 else ()
    argv = (sys.executable, *_BARE, _CALCULATOR, *dawdle)
    return await sandbox.run(argv, stdin=expression.encode("utf-8", "replace"), time_limit_s=time_limit_s)
