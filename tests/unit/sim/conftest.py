"""Run and sweep directories made by the recorder itself out of a few scripted steps."""

import json
from pathlib import Path

import numpy as np
import pytest

from libra.core import actions as ac
from libra.core import events as ev
from libra.core.ids import NO_ACTION, EndReason, NextStep, Supply, ToolStatus
from libra.core.step import Step
from libra.record.manifest import RunInfo
from libra.record.writer import RunWriter

NUM_TRAJECTORIES = 12
TP = (1, 4)


def script(speed: float, seed: int) -> list[Step]:
    """12 trajectories of two turns on two replicas, then a train step with publication and loads.

    The seed makes the lengths, and `speed` divides the time of every turn: arms of one seed meet one world.
    """
    rng = np.random.default_rng(seed)
    planned: list[tuple[float, ev.Event, list[ac.Action]]] = []
    planned.append((0.0, ev.RunStarted(Supply.PULL), []))
    for replica, tp in enumerate(TP):
        planned.append((0.0, ev.ReplicaReady(NO_ACTION, replica, tp, 0, 0, 100_000, 64, 40_960), []))
    last = 0.0
    for trajectory in range(NUM_TRAJECTORIES):
        at, replica, prompt = 0.1 * trajectory, trajectory % 2, 100
        arrived = ev.TrajectoryArrived(
            trajectory, trajectory // 4, trajectory // 4, trajectory % 4, 4, prompt
        )
        planned.append((at, arrived, [ac.StartTrajectory(trajectory, "")]))
        at += 0.05
        planned.append(
            (at, ev.TrajectoryStarted(0, trajectory), [ac.SubmitTurn(trajectory, 0, replica, prompt, 0, "")])
        )
        for turn in range(2):
            took, output = float(rng.exponential(3.0)) / speed, int(rng.integers(50, 200))
            times = (at, at + 0.1 * took, at + 0.2 * took, at + took)
            then = NextStep.TOOL if turn == 0 else NextStep.END
            tokens = (prompt, output, prompt // 2, 0, 0, 0, 0, 0)
            at += took
            planned.append(
                (at, ev.TurnFinished(0, trajectory, turn, replica, *tokens, *times, then, "shell"), [])
            )
            at += 0.5
            if turn == 0:
                prompt += output + 10
                answer = ev.ToolReturned(trajectory, 0, "shell", ToolStatus.SUCCESS, 10, 0.5, prompt)
                planned.append((at, answer, [ac.SubmitTurn(trajectory, 1, replica, prompt, 0, "")]))
            else:
                planned.append((at, ev.TrajectoryFinished(trajectory, 2, 1.0), []))
        last = max(last, at)
    planned.sort(key=lambda row: row[0])
    steps: list[Step] = []
    action_id = 0
    for now, event, actions in planned:
        steps.append(Step(len(steps), now, event, action_id, actions))
        action_id += len(actions)
    train = ac.StartTrainStep((0, 1, 2), NUM_TRAJECTORIES, 5000, "")
    tail: list[tuple[float, ev.Event, list[ac.Action]]] = [
        (last, ev.TimerFired(0, "train"), [train]),
        (last + 2, ev.TrainStepFinished(action_id, 1, NUM_TRAJECTORIES, 5000, last, last + 2), []),
        (last + 3, ev.WeightsPublished(0, 1, last + 2, last + 3), []),
        *((last + 4, ev.WeightsLoaded(0, replica, 1, last + 3, last + 4), []) for replica in (0, 1)),
        (last + 4, ev.RunEnding(EndReason.STEPS_DONE), []),
    ]
    for now, event, actions in tail:
        steps.append(Step(len(steps), now, event, action_id, actions))
        action_id += len(actions)
    return steps


def write_run(directory: Path, speed=1.0, seed=0, level="full", cell=None, name="story") -> Path:
    """A finished run directory."""
    info = RunInfo(
        world="sim",
        config={"name": name, "seed": seed},
        seed=seed,
        exit_reason=EndReason.STEPS_DONE,
        cell=cell,
    )
    with RunWriter(directory, level) as writer:
        for step in script(speed, seed):
            writer.append(step)
        writer.close(info)
    return directory


def write_sweep(
    directory: Path, speeds, layouts=("mixed",), seeds=2, level="full", failed=(), name="tiny"
) -> Path:
    """A sweep: `speeds` maps policy to speed, the first being the baseline; `failed`: (policy, layout, seed)."""
    (directory / "failed").mkdir(parents=True)
    axes = {"policy": list(speeds), "layout": list(layouts)}
    described = {
        "schema_version": 1,
        "name": name,
        "axes": axes,
        "seeds": list(range(seeds)),
        "baseline": {"policy": axes["policy"][0]},
        "metric": "output_tokens_per_s",
        "experiment_hash": "e" * 8,
        "code_hash": "c" * 8,
    }
    (directory / "sweep.json").write_text(json.dumps(described))
    for policy, speed in speeds.items():
        for number, layout in enumerate(layouts):
            for seed in range(seeds):
                cell = {"point": {"policy": policy, "layout": layout}, "seed": seed}
                folder = f"policy={policy},layout={layout},seed={seed}"
                if (policy, layout, seed) in failed:
                    row = cell | {"error": "trace.csv:3: <column> is missing"}
                    (directory / "failed" / f"{folder}.json").write_text(json.dumps(row))
                else:
                    write_run(directory / "cells" / folder, speed * (1 + number), seed, level, cell, name)
    return directory


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    """A run with its tables."""
    return write_run(tmp_path_factory.mktemp("run") / "full")


@pytest.fixture(scope="session")
def sweep_dir(tmp_path_factory):
    """Two policies x two layouts x six seeds; `fast` is 1.5 times as fast, and one of its cells failed."""
    return write_sweep(
        tmp_path_factory.mktemp("sweep") / "s",
        {"slow": 1.0, "fast": 1.5},
        layouts=("mixed", "uniform"),
        seeds=6,
        failed=[("fast", "uniform", 5)],
    )


@pytest.fixture(scope="session")
def make_sweep():
    """`write_sweep`."""
    return write_sweep


@pytest.fixture(scope="session")
def make_run():
    """`write_run`."""
    return write_run
