"""The worked example of CONTRIBUTING.md is what it says: it runs, and its run replays."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_example_policy_runs_and_replays(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 1
    (tmp_path / "my_policy.py").write_text(blocks[0])
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}

    def sim(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "sim", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )

    done = sim(
        "run",
        str(ROOT / "experiments" / "quickstart.yaml"),
        *("--out", "run", "--set", "total_steps=1", "--set", "workload.num_prompts=12"),
        *("--set", 'heterogeneous_rollout.scheduling={scheduler_type: "my_policy:Together", max_lead: 4}'),
    )
    assert done.returncode == 0, done.stderr
    assert "makespan_s" in done.stdout
    replayed = sim("replay", "run")
    assert replayed.returncode == 0, replayed.stdout
    assert "all actions equal" in replayed.stdout
