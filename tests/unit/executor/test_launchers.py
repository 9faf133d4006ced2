"""Processes that end when asked, when they do not want to, and when their starter is gone. Real ones, so slow."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from executor.launchers.local import ManagedProcess
from libra.errors import UserError

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]

# Leaves a grandchild in a session of its own, says who it is, and waits.
STUBBORN = "trap '' TERM; setsid sleep 300 & echo $! $$; while true; do sleep 1; done"


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def start(log, *argv):
    return await ManagedProcess.start("example", argv, {"LIBRA_EXAMPLE": "yes"}, log)


async def until(condition, deadline_s=20.0):
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.02)


def test_output_environment_and_status(tmp_path):
    async def run():
        process = await start(
            tmp_path / "a" / "log", "bash", "-c", "echo $LIBRA_EXAMPLE; echo two >&2; exit 3"
        )
        assert await process.wait() == process.returncode == 3
        assert process.log_tail() == "yes\ntwo"
        assert process.log_tail(1) == "two"
        assert await process.stop() == 3  # harmless
        killed = await start(tmp_path / "b", "bash", "-c", "kill -9 $$")
        assert await killed.wait() == 128 + 9
        with pytest.raises(UserError, match="example: no program surely-not-there; install it"):
            await start(tmp_path / "c", "surely-not-there")

    asyncio.run(run())


def test_stopping_ends_even_what_ignores_it_and_what_left_its_session(tmp_path):
    async def run():
        process = await start(tmp_path / "log", "bash", "-c", STUBBORN)
        await until(process.log_tail)
        members = [process.pid, *map(int, process.log_tail().split())]
        assert all(map(is_running, members))
        assert set(members[1:]) <= set(process.descendants())
        assert await process.stop(grace_s=0.1) == 128 + 9
        assert not any(map(is_running, members))
        polite = await start(tmp_path / "polite", "sleep", "300")
        assert await polite.stop() == 128 + 15

    asyncio.run(run())


def test_a_guard_that_is_killed_takes_all_with_it(tmp_path):
    async def run():
        process = await start(tmp_path / "log", "bash", "-c", "sleep 300 & echo $! $$; wait")
        await until(process.log_tail)
        members = [*map(int, process.log_tail().split())]
        os.kill(process.pid, signal.SIGKILL)
        assert await process.wait() == 128 + 9
        await until(lambda: not any(map(is_running, members)))

    asyncio.run(run())


def test_a_killed_starter_leaves_nothing_behind(tmp_path):
    code = f"""if True:
        import asyncio
        from executor.launchers.local import ManagedProcess
        async def main():
            argv = ["bash", "-c", {STUBBORN!r}]
            process = await ManagedProcess.start("x", argv, {{}}, {str(tmp_path / "log")!r}, orphan_grace_s=0.2)
            while len(process.log_tail().split()) < 2:
                await asyncio.sleep(0.02)
            print(process.pid, *process.log_tail().split(), flush=True)
            await asyncio.sleep(300)
        asyncio.run(main())
    """
    starter = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    with starter.stdout:
        members = [int(pid) for pid in starter.stdout.readline().split()]
    assert len(members) == 3
    starter.kill()
    starter.wait()
    asyncio.run(until(lambda: not any(map(is_running, members))))
