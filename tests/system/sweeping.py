"""A sweep of twelve cells in a process of its own, and what it leaves behind."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd

from libra.record.reader import Run
from sim.results import SweepResult
from tests.system.tiny import write_experiment

ROOT = Path(__file__).parents[2]

AXES = {
    "router": {
        "least": {"heterogeneous_rollout.scheduling": {"scheduler_type": "load_balance"}},
        "round": {
            "heterogeneous_rollout.scheduling": {
                "scheduler_type": "load_balance",
                "load_balance_strategy": "round_robin",
            }
        },
        "length": {"heterogeneous_rollout.scheduling": {"scheduler_type": "length_aware"}},
    },
    "max_head_offpolicyness": [1, 2],
}
NUM_CELLS = 12


def write_sweep(folder: Path, num_prompts: int = 16, **changes: Any) -> Path:
    """Three routers x two bounds x two seeds on a synthetic workload with faults."""
    return write_experiment(
        folder,
        {
            "workload": {"kind": "preset", "preset": "terminal_agent", "num_prompts": num_prompts},
            "batch_size": 8,
            "total_steps": max(2, num_prompts // 4),
            "sim": {"faults": {"slow_tool": {"fraction": 0.1, "hang_fraction": 0.01}}},
            "sweep": {"seeds": 2, "axes": AXES},
            **changes,
        },
    )


def start(experiment: Path, out: Path, *options: str, hash_seed: int = 0) -> "subprocess.Popen[str]":
    """The sweep in a session of its own, so that all its processes can be found."""
    return subprocess.Popen(
        [sys.executable, "-m", "sim", "sweep", experiment, "--out", out, "--no-report", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_hear_interrupts,
        env={"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": str(hash_seed)},
    )


def _hear_interrupts() -> None:
    """A shell without job control lets its background jobs ignore Ctrl-C, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_to_end(experiment: Path, out: Path, *options: str, hash_seed: int = 0) -> None:
    """All of it; demands success."""
    process = start(experiment, out, *options, hash_seed=hash_seed)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


def members(session: int) -> list[int]:
    """Live processes of a session."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_for(condition, limit_s: float = 10.0) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def finished_cells(out: Path) -> list[Path]:
    """Cells under their final names."""
    return sorted(path for path in (out / "cells").iterdir() if not path.name.startswith("."))


def check_whole(out: Path) -> None:
    """Whatever has its final name is complete and as it was written."""
    for path in finished_cells(out):
        run = Run.open(path)
        assert run.verify() == ""
        assert run.summary
        assert len(run.events) == run.manifest["counts"]["events"]


def contents(out: Path) -> dict[str, dict[str, bytes]]:
    """Every file of every cell but `host.json`; of the manifest what does not name the state of the checkout."""
    cells: dict[str, dict[str, bytes]] = {}
    for cell in finished_cells(out):
        files = {path.name: path.read_bytes() for path in sorted(cell.iterdir()) if path.name != "host.json"}
        manifest = json.loads(files["manifest.json"])
        for key in ("commit", "dirty", "code_hash"):
            del manifest[key]
        files["manifest.json"] = json.dumps(manifest).encode()
        cells[cell.name] = files
    return cells


def summary(out: Path) -> pd.DataFrame:
    """The frame that a report is made of."""
    return SweepResult(out).frame
