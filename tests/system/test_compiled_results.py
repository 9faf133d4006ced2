"""Compiled modules give the bytes that their sources give. Skipped where nothing is compiled (`make compiled`)."""

import json
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from libra import compiled
from libra.record.reader import Run
from tests.system.sweeping import contents, write_sweep
from tests.system.tiny import TURNS, write_experiment

pytestmark = pytest.mark.skipif(not compiled.in_use, reason="nothing is compiled, or not from these sources")

LONG = 20_000.0
"""Seconds; ticks above 2^53, which floats cannot all hold, begin at 9,007."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The same sources where there is no build."""
    folder = tmp_path_factory.mktemp("sources")
    for package in ("libra", "sim", "tests/support"):
        shutil.copytree(compiled.ROOT / package, folder / package)
    return folder


def sweep(root, experiment, out):
    """What the cells of a sweep hold, run from `root`, and whether they were made by compiled modules."""
    command = [sys.executable, "-m", "sim", "sweep", experiment, "--out", out, "--no-report", "--jobs", "1"]
    done = subprocess.run(
        command, cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    cells = contents(out)
    made_by = set()
    for files in cells.values():
        manifest = json.loads(files["manifest.json"])
        made_by.add(manifest.pop("compiled"))
        files["manifest.json"] = json.dumps(manifest).encode()
    assert len(made_by) == 1
    return cells, made_by.pop()


def check_same(sources, experiment, folder):
    ours, is_compiled = sweep(compiled.ROOT, experiment, folder / "compiled")
    theirs, also = sweep(sources, experiment, folder / "sources")
    assert (is_compiled, also) == (True, False)
    assert ours == theirs


def test_a_sweep_with_faults(sources, tmp_path):
    faults = {
        "slow_tool": {"fraction": 0.1, "hang_fraction": 0.01},
        "replica_loss": {"mean_time_between_losses_s": 200.0, "detection_delay_s": 3.0},
        "straggler": {"fraction": 0.5, "slowdown": 1.7, "start_s": 5.0, "end_s": 50.0},
    }
    changes = {"sim.faults": faults, "policies.recovery": {"restart_delay_s": 1.0, "max_restarts": 1000}}
    check_same(sources, write_sweep(tmp_path, num_prompts=8, **changes), tmp_path)


@pytest.mark.parametrize(
    ("scheduling", "router"),
    [("fcfs", "load_balance"), ("priority", "tests.support.priorities:YoungestFirst")],
)
def test_both_engines_over_hours(sources, tmp_path, scheduling, router):
    axes = {"sim.engine": ["skip", "reference"], "max_head_offpolicyness": [0, 2]}
    experiment = write_experiment(
        tmp_path,
        {
            "workload.repeat": 6,
            "total_steps": 6,
            "sim.tool_timeout_s": 10 * LONG,
            "sim.max_sim_s": 1000 * LONG,
            "sim.metrics_period_s": LONG / 7,
            "heterogeneous_rollout.engine.scheduling_policy": scheduling,
            "heterogeneous_rollout.engine.max_num_seqs": 2,
            "heterogeneous_rollout.scheduling.scheduler_type": router,
            "sweep": {"seeds": 1, "axes": axes},
        },
    )
    head, *rows = TURNS.splitlines()
    cells = [row.split(",") for row in rows]
    slow = [",".join([*row[:-1], repr(float(row[-1]) * LONG / 3)]) for row in cells]
    (tmp_path / "turns.csv").write_text("\n".join([head, *slow, ""]))
    check_same(sources, experiment, tmp_path)
    cells_of_skip = list((tmp_path / "compiled" / "cells").glob("*engine=skip*"))
    assert len(cells_of_skip) == 2
    for path in cells_of_skip:
        run, literal = Run.open(path), Run.open(path.with_name(path.name.replace("=skip", "=reference")))
        assert run.turns["finished_s"].max() > LONG
        pd.testing.assert_frame_equal(run.turns, literal.turns)
