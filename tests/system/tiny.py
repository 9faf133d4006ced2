"""A small experiment for system tests: some trajectories of few turns, runs of hundredths of a second."""

import copy
import hashlib
from pathlib import Path
from typing import Any

import yaml

EXPERIMENT: dict[str, Any] = {
    "name": "tiny",
    "hardware_config": "H100",
    "model_arch_config": "Qwen3-8B",
    "cluster": {"num_nodes": 1, "gpus_per_node": 8},
    "train_gpus": 4,
    "batch_size": 4,
    "n_samples": 2,
    "max_concurrent_rollouts": 6,
    "max_head_offpolicyness": 1,
    "total_steps": 2,
    "heterogeneous_rollout": {"instances": [{"tp": 2, "count": 2}]},
    "workload": {"kind": "turns", "path": "turns.csv", "repeat": 2},
}
"""What the tests vary. The trace stands beside the experiment file."""

TURNS = """trajectory_id,turn,prompt_tokens,output_tokens,tool_name,tool_latency_s
a,0,300,40,shell,0.5
a,1,380,25,shell,0.25
a,2,450,60,submit,0.1
b,0,500,90,shell,1.5
b,1,640,30,submit,0.1
c,0,200,15,shell,0.75
c,1,230,20,shell,0.5
c,2,270,20,shell,0.5
c,3,320,45,submit,0.1
d,0,900,120,submit,0.2
"""
"""Four recorded trajectories, ten turns."""


def write_experiment(folder: Path, changes: dict[str, Any] | None = None, name: str = "tiny.yaml") -> Path:
    """`EXPERIMENT` with values replaced at dotted paths (`None` removes a key), and its trace, in `folder`."""
    tree = copy.deepcopy(EXPERIMENT)
    for dotted, value in (changes or {}).items():
        *sections, last = dotted.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        if value is None:
            del node[last]
        else:
            node[last] = value
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    (folder / "turns.csv").write_text(TURNS, encoding="utf-8")
    return path


def files_below(folder: Path) -> dict[str, str]:
    """Every file and folder below `folder`: relative name -> SHA-256 of the content (folders: empty)."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else ""
        for path in sorted(folder.rglob("*"))
    }
