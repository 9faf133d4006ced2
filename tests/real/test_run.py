"""Real runs from the command line: they learn, call tools, survive kills, and leave nothing behind."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from executor.tiny_model import make_tiny_model
from libra.core import events as ev
from libra.core.ids import ToolStatus
from libra.record.reader import Run
from sim.replay import replay

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]

ROOT = Path(__file__).resolve().parents[2]
TAG = "LIBRA_TEST_RUN"
GONE_S = 15.0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", initializer_range=0.1)


class Command:
    """`python -m executor run` as a process, and all processes that belong to it."""

    def __init__(self, experiment: str, model: Path, out: Path, *sets: str) -> None:
        self.out = out
        self.log = out.with_suffix(".log")
        self._tag = uuid.uuid4().hex
        given = [f"executor.model_path={model}", *sets]
        argv = [
            sys.executable,
            "-m",
            "executor",
            "run",
            str(ROOT / "experiments" / experiment),
            "--out",
            str(out),
        ]
        argv += [word for value in given for word in ("--set", value)]
        self._seen: dict[int, psutil.Process] = {}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, TAG: self._tag},
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Those alive now: by descent while the driver lives, by the environment they inherited afterwards."""
        with contextlib.suppress(psutil.NoSuchProcess):
            driver = psutil.Process(self.process.pid)
            self._seen |= {p.pid: p for p in (driver, *driver.children(recursive=True))}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(TAG) == self._tag:
                    self._seen[process.pid] = process
        return [p for p in self._seen.values() if _is_alive(p)]

    def until(self, predicate: Callable[[], bool], limit_s: float = 600.0) -> None:
        """Wait while it runs; AssertionError with its output if it ends before, or takes too long."""
        deadline = time.monotonic() + limit_s
        while not predicate():
            assert self.process.poll() is None, f"it ended: {self.text()}"
            assert time.monotonic() < deadline, f"never; it says {self.text()}"
            time.sleep(0.5)

    def until_step(self, number: int) -> None:
        """Wait for so many train steps."""
        self.until(lambda: len(steps_of(self.out)) >= number)

    def end(self, limit_s: float = 900.0) -> int:
        """Its exit status."""
        return self.process.wait(limit_s)

    def assert_gone(self) -> None:
        """Nothing of it is left, or will be in a moment."""
        deadline = time.monotonic() + GONE_S
        while left := self.processes():
            assert time.monotonic() < deadline, (
                f"left: {[p.as_dict(['pid', 'name', 'cmdline']) for p in left]}"
            )
            time.sleep(0.2)

    def text(self) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-3000:]


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def steps_of(out: Path) -> list[dict]:
    with contextlib.suppress(FileNotFoundError):
        lines = (out / "steps.jsonl").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
    return []


def attempts_of(out: Path) -> list[Path]:
    return sorted((out / "attempts").iterdir())


def assert_replays(attempt: Path) -> None:
    replayed = replay(attempt)
    assert replayed.difference == ""
    assert replayed.num_events > 100


def events_of(attempt: Path, *kinds: type) -> list:
    return [step.event for step in Run.open(attempt).steps() if type(step.event) in kinds]


def test_a_tiny_model_learns_the_cipher_in_thirty_steps(tmp_path, model):
    """Two engines, two data-parallel ranks, weights over disk, verified after every load."""
    began_s = time.monotonic()
    command = Command("executor_cipher_cpu.yaml", model, tmp_path / "run")
    command.until(lambda: bool(steps_of(command.out)))
    assert (
        len(command.processes()) > 8
    )  # driver; guard and process of each rank and engine; what engines start
    assert command.end() == 0, command.text()
    took_s = time.monotonic() - began_s
    command.assert_gone()
    rows = steps_of(command.out)
    assert [row["version"] for row in rows] == list(range(1, 31))
    rewards = np.array([row["reward_mean"] for row in rows])
    first, last = rewards[:5], rewards[-5:]
    gain = last.mean() - first.mean()
    error = np.sqrt(first.var(ddof=1) / 5 + last.var(ddof=1) / 5)
    print(f"\n{took_s:.0f} s; reward {first.mean():.3f} to {last.mean():.3f}, standard error {error:.4f}")
    print(" ".join(f"{reward:.3f}" for reward in rewards))
    assert ((rewards >= 0) & (rewards <= 1)).all()
    assert gain >= 0.2
    assert gain > 3 * error
    assert {row["output_tokens_mean"] > 3.5 for row in rows} == {True}
    (attempt,) = attempts_of(command.out)
    assert_replays(attempt)
    manifest = json.loads((attempt / "manifest.json").read_text())
    assert (manifest["world"], manifest["exit_reason"]) == ("executor", "steps_done")


def test_a_run_that_is_interrupted_and_killed_leaves_nothing_and_goes_on(tmp_path, model):
    """SIGINT twice, then SIGKILL, then the same command again: every prompt is trained on once."""
    num_steps, groups = 24, 4
    sets = (
        f"total_steps={num_steps}", f"workload.max_prompts={num_steps * groups}", "batch_size=32", "n_samples=8",
        "max_concurrent_rollouts=32", "executor.checkpoint.interval_steps=2", "executor.metrics_period_s=0.5",
        "heterogeneous_rollout.instances=[{tp: 1, count: 1}]", "train_gpus=1",
        "executor.trainer.grpo.max_empty_batches=100",
    )  # fmt: skip

    def start() -> Command:
        return Command("executor_cipher_cpu.yaml", model, tmp_path / "run", *sets)

    command = start()
    command.until(
        lambda: len(command.processes()) > 4
    )  # driver; guard and process of the rank and of the engine
    os.killpg(command.process.pid, signal.SIGINT)  # while they start
    assert command.end(60.0) == 130, command.text()
    command.assert_gone()
    assert attempts_of(command.out) == []

    command = start()
    command.until_step(5)
    command.processes()
    os.killpg(command.process.pid, signal.SIGINT)  # as a terminal would
    asked_s = time.monotonic()
    assert command.end(60.0) == 130, command.text()
    print(f"\nSIGINT: over after {time.monotonic() - asked_s:.1f} s")
    command.assert_gone()
    (attempt,) = attempts_of(command.out)
    assert json.loads((attempt / "manifest.json").read_text())["exit_reason"] == "interrupted"
    assert_replays(attempt)
    resumed_at = len(steps_of(command.out))

    command = start()
    command.until_step(resumed_at + 5)
    command.processes()
    killed_s = time.monotonic()
    command.process.kill()
    command.process.wait()
    command.assert_gone()
    print(f"SIGKILL: nothing left after {time.monotonic() - killed_s:.1f} s")

    command = start()
    assert command.end() == 0, command.text()
    command.assert_gone()
    rows = steps_of(command.out)
    assert [row["version"] for row in rows] == list(range(1, num_steps + 1))
    trained = Counter(number for row in rows for number in row["prompts"])
    assert trained == Counter(range(num_steps * groups))
    for attempt in attempts_of(command.out):
        assert_replays(attempt)
    assert len(re.findall("going on after step", command.log.read_text())) == 2
    refused = start()
    assert refused.end(120.0) == 2
    assert "this run is finished" in refused.text()


def test_tool_calls_reach_the_record_and_no_trajectory_mixes_versions(tmp_path, model):
    """Weights are broadcast to two engines; calculator calls succeed, fail, and some run out of time."""
    command = Command("executor_arithmetic_cpu.yaml", model, tmp_path / "run")
    assert command.end() == 0, command.text()
    command.assert_gone()
    (attempt,) = attempts_of(command.out)
    assert_replays(attempt)
    events = events_of(attempt, ev.ToolReturned, ev.WeightsLoaded, ev.TurnFailed)
    tools = [event for event in events if type(event) is ev.ToolReturned]
    counts = Counter(event.status for event in tools)
    print(f"\ntool calls: {dict(counts)}")
    assert counts[ToolStatus.SUCCESS] > 0
    assert counts[ToolStatus.FAILURE] > 0
    assert counts[ToolStatus.TIMEOUT] > 0
    assert all(event.latency_s >= 5.0 for event in tools if event.status is ToolStatus.TIMEOUT)
    loads = {(e.replica_id, e.version) for e in events if type(e) is ev.WeightsLoaded}
    assert loads == {(replica, version) for replica in (0, 1) for version in (1, 2, 3, 4)}
    assert not [event for event in events if type(event) is ev.TurnFailed]
    turns = Run.open(attempt).turns
    assert (turns.version_first == turns.version_last).all()
    per_trajectory = turns.groupby("trajectory_id").version_first.nunique()
    assert per_trajectory.max() == 1
    assert turns.version_first.nunique() > 2
    assert turns.turn.max() == 2
