"""Sweep speed: one-step cells a second, in one process and in two, recorded in full and as a summary.

    python -m benchmarks.sweep [--cells 12] [--preset search_r1]

A cell is the product's own: 2,048 trajectories (256 prompts x 8 samples) on 48 rollout GPUs (6 x TP4, 8 x TP2,
8 x TP1), resolved, simulated, recorded and renamed by `sim.sweeps`. Wall time, since processes are what is measured;
CPU time beside it for one process.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from libra.config.document import Document
from libra.host import cpu_count
from sim.simulation import Provenance
from sim.sweeps.execute import prepare, run_grid
from sim.sweeps.grid import expand


def document(preset: str, num_cells: int) -> Document:
    """The experiment: seeds make the cells."""
    tree: dict[str, Any] = {
        "name": "one_step",
        "hardware_config": "H200",
        "model_arch_config": "Qwen3-14B",
        "cluster": {"num_nodes": 6},
        "n_samples": 8,
        "max_concurrent_rollouts": 2048,
        "heterogeneous_rollout": {
            "max_model_len": 65536,
            "instances": [{"tp": 4, "count": 6}, {"tp": 2, "count": 8}, {"tp": 1, "count": 8}],
            "scheduling": {
                "scheduler_type": "load_balance",
                "load_balance_strategy": "weighted",
                "max_queue_length": 1000,
            },
        },
        "workload": {"kind": "preset", "preset": preset, "num_prompts": 256, "max_context_tokens": 32768},
        "sweep": {"seeds": num_cells},
    }
    return Document(tree)


def measure(preset: str, num_cells: int, jobs: int, level: Literal["full", "summary"]) -> tuple[float, float]:
    """(cells per wall second, CPU seconds per cell)."""
    doc = document(preset, num_cells)
    grid = expand(doc)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "sweep"
        prepare(directory, grid, doc, "benchmark")
        before, begin = os.times(), time.monotonic()
        outcome = run_grid(
            directory,
            grid,
            level=level,
            jobs=jobs,
            shard=(0, 1),
            provenance=Provenance(),
            on_result=lambda result: None,
        )
        wall_s, after = time.monotonic() - begin, os.times()
    if outcome.num_done != num_cells:
        sys.exit(f"benchmarks.sweep: {outcome.num_failed} cells failed")
    cpu_s = sum(after[:4]) - sum(before[:4])
    return num_cells / wall_s, cpu_s / num_cells


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description="Sweep speed.")
    parser.add_argument("--cells", type=int, default=12)
    parser.add_argument("--preset", default="search_r1")
    args = parser.parse_args()
    levels: list[Literal["full", "summary"]] = ["full", "summary"]
    for jobs in sorted({1, cpu_count()}):
        for level in levels:
            cells_per_s, cpu_s = measure(args.preset, args.cells, jobs, level)
            cpu = f", {cpu_s:.3f} CPU s a cell" if jobs == 1 else ""  # workers are no children of ours
            print(f"{jobs} process(es), record={level}: {cells_per_s:.2f} cells/s wall{cpu}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
