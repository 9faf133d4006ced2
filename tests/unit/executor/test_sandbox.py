"""Programs under limits, for real: every test here starts processes."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from executor.environments.arithmetic import Arithmetic, ArithmeticConfig
from executor.environments.base import End, Task
from executor.tools.python_tool import calculate, run_python
from executor.tools.sandbox import Sandbox, SandboxConfig
from libra.core.ids import ToolStatus
from libra.errors import UserError

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
SUCCESS, FAILURE, TIMEOUT = ToolStatus.SUCCESS, ToolStatus.FAILURE, ToolStatus.TIMEOUT


def box(**settings):
    return Sandbox(SandboxConfig(**{"time_limit_s": 60.0, "memory_limit_bytes": 1 << 28, **settings}))


def python(code, sandbox=None, **options):
    return asyncio.run(run_python(sandbox or box(), textwrap.dedent(code), **options))


def running(mark):
    """Ids of the processes whose command line holds `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue  # it ended while we looked
        if mark.encode() in line:
            found.append(int(entry.name))
    return found


def gone(mark, within_s):
    until = time.monotonic() + within_s
    while running(mark) and time.monotonic() < until:
        time.sleep(0.05)
    return not running(mark)


def test_the_exit_code_decides_not_the_words():
    async def all_of_them():
        sandbox = box()
        return await asyncio.gather(
            calculate(sandbox, "12*(3+4)"),
            calculate(sandbox, "no error, all is success"),
            run_python(sandbox, "print('error: failed')"),
            run_python(sandbox, "import sys; print('success'); sys.exit(3)"),
            run_python(sandbox, "1/0"),
            run_python(sandbox, "print(input()[::-1])", stdin="olleh"),
            run_python(sandbox, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"),
            calculate(sandbox, "\ud800\0" + "1" * 100_000),
        )

    results = asyncio.run(all_of_them())
    assert [result.status for result in results] == [
        SUCCESS, FAILURE, SUCCESS, FAILURE, FAILURE, SUCCESS, FAILURE, FAILURE,
    ]  # fmt: skip
    assert [result.exit_code for result in results] == [0, 1, 0, 3, 1, 0, 128 + signal.SIGSEGV, 1]
    assert results[0].payload == "84\n"
    assert "ZeroDivisionError" in results[4].payload
    assert results[5].payload == "hello\n"
    assert "[exit code 139]" in results[6].payload
    assert all(result.latency_s > 0 for result in results)


def test_time_is_limited_and_nothing_is_left():
    mark = f"86400.{os.getpid()}"
    escape = f"""
        import subprocess, sys, time
        subprocess.Popen(["sleep", "{mark}"])
        subprocess.Popen(["setsid", "sleep", "{mark}"])
        print("started", flush=True)
        if {{wait}}:
            time.sleep(86400)
    """

    async def both():
        sandbox = box()
        late = await run_python(sandbox, textwrap.dedent(escape.format(wait=True)), time_limit_s=3)
        early = await run_python(sandbox, textwrap.dedent(escape.format(wait=False)))
        return await sandbox.isolation(), late, early

    isolation, late, early = asyncio.run(both())
    assert (late.status, late.exit_code) == (TIMEOUT, None)
    assert late.payload == "started\n[timed out after 3 s]"
    assert 3 <= late.latency_s < 30
    assert (early.status, early.payload) == (SUCCESS, "started\n")
    assert gone(mark, 10) or "pid" not in isolation
    for leftover in running(
        mark
    ):  # where there are no process ids of its own, who leaves the session gets away
        os.kill(leftover, signal.SIGKILL)


def test_memory_cpu_files_and_output_are_limited():
    assert "MemoryError" in python("bytearray(1 << 29)").payload
    spinning = python("while True: pass", box(cpu_limit_s=1))
    assert (spinning.status, spinning.exit_code) == (FAILURE, 128 + signal.SIGXCPU)
    large = python(f"open('x', 'wb').truncate({1 << 29})")
    assert large.status is FAILURE
    wordy = python("print('a' * 10**6 + 'z')", box(output_limit_bytes=100))
    assert wordy.status is SUCCESS
    assert wordy.payload == "a" * 50 + f"\n[... {10**6 + 2 - 100} bytes left out ...]\n" + "a" * 48 + "z\n"


def test_it_sees_nothing_of_the_driver(monkeypatch):
    monkeypatch.setenv("SECRET", "hush")
    code = """
        import os, socket
        print(sorted(os.environ), os.getcwd() == os.environ["HOME"], os.listdir())
        with socket.socket() as s:
            s.settimeout(5)
            print(s.connect_ex(("127.0.0.1", {port})) == 0)
    """
    # A listener that the driver could reach.
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        code = code.format(port=server.getsockname()[1])
        sandbox = box()
        shown, reached = python(code, sandbox).payload.splitlines()
        isolation = asyncio.run(box().isolation())
        assert asyncio.run(box(network=True).isolation()) == "session"
        assert python(code, box(network=True)).payload.splitlines()[1] == "True"
    assert shown in (
        "['HOME', 'LANG', 'PATH', 'PWD', 'TMPDIR'] True []",
        "['HOME', 'LANG', 'PATH', 'TMPDIR'] True []",
    )
    assert (reached == "False") == ("net" in isolation)


def test_places_are_bounded_and_waiting_is_latency():
    async def three():
        sandbox = box(max_concurrent=1)
        results = await asyncio.gather(
            *[run_python(sandbox, "import time; time.sleep(0.3)") for _ in range(3)]
        )
        return sorted(result.latency_s for result in results)

    first, second, third = asyncio.run(three())
    assert first >= 0.3
    assert second >= 0.6
    assert third >= 0.9


def test_a_cancelled_call_and_a_killed_driver_leave_nothing():
    mark = f"86401.{os.getpid()}"

    async def cancelled():
        call = asyncio.ensure_future(box().run(["sleep", mark]))
        while not running(mark):
            await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancelled())
    assert gone(mark, 10)
    code = (
        "import asyncio; from executor.tools.sandbox import *; "
        f"asyncio.run(Sandbox(SandboxConfig(time_limit_s=1)).run(['sleep', '8640{os.getpid()}']))"
    )
    mark = f"8640{os.getpid()}"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as driver:
        # The driver's own command line holds the mark as well.
        while not set(running(mark)) - {driver.pid}:
            time.sleep(0.02)
        driver.kill()
    assert gone(mark, 30)


def test_a_program_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match="no program no-such-program"):
        asyncio.run(box().run(["no-such-program"]))


def test_an_episode_with_real_calls():
    settings = {"time_limit_s": 60.0}
    environment = Arithmetic(ArithmeticConfig(max_turns=4, sandbox=SandboxConfig(**settings)))
    hasty = SandboxConfig(time_limit_s=0.5)
    slow = Arithmetic(ArithmeticConfig(slow_call_share=1.0, sandbox=hasty))
    sum_ = Task(0, "37*12", "444")

    async def play():
        import numpy as np

        episode = environment.reset(sum_, np.random.default_rng(0))
        results = []
        for text in (
            "37*12",
            "thirty-seven",
            '<tool_call>{"name":"calculator","arguments":{"expression":"1+1"}}',
        ):
            results.append(await episode.step(text, ()).call())
        end = episode.step("444", ())
        assert isinstance(end, End)
        call = slow.reset(sum_, np.random.default_rng(0)).step("37*12", ())
        return results, await end.final_reward(), await call.call()

    results, reward, late = asyncio.run(play())
    assert [result.status for result in results] == [SUCCESS, FAILURE, SUCCESS]
    assert [result.payload.strip() for result in results][0::2] == ["444", "2"]
    assert reward == pytest.approx(0.7 + 0.3 * 2 / 3)
    assert late.status is TIMEOUT
