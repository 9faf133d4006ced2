"""`python -m benchmarks.gpu` on a real engine of a tiny model on the CPU."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")

ROOT = Path(__file__).resolve().parents[2]
TRACE = """trajectory_id,turn,prompt_tokens,output_tokens,tool_latency_s
a,0,70,9,0.01
a,1,90,5,0
b,0,40,3,0
c,0,64,12,0
"""

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def run(*arguments):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, env=env, capture_output=True, text=True
    )


def test_what_the_engine_computed_is_what_was_asked_for(tmp_path):
    trace = tmp_path / "tiny.csv"
    trace.write_text(TRACE)
    out = tmp_path / "out"
    done = run(
        "benchmarks.gpu",
        *("--out", str(out), "--phases", "decode,trace", "--trace", str(trace), "--concurrency", "2"),
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    facts = json.loads((out / "facts.json").read_text())
    assert facts["scheduler"] == "benchmarks.gpu.scheduler.LoggedScheduler"
    assert facts["kv_tokens"] == 2**28 // 1024  # 2 layers x K, V x 2 heads x 32 x 4 bytes a token
    assert facts["workers"][0]["attention_backends"] == ["CPU_ATTN"]
    assert facts["trace_mismatches"] == {"tiny_c2": 0}

    turns = {(row["trajectory_id"], row["turn"]): row for row in rows(out / "trace_tiny_c2.csv")}
    assert {key: (row["prompt_tokens"], row["output_tokens"]) for key, row in turns.items()} == {
        ("a", "0"): ("70", "9"),
        ("a", "1"): ("90", "5"),
        ("b", "0"): ("40", "3"),
        ("c", "0"): ("64", "12"),
    }
    # Blocks of 32: of the 78 tokens that the first turn left in the cache two whole ones, and nobody else's.
    assert {key: row["cached_tokens"] for key, row in turns.items() if row["cached_tokens"] != "0"} == {
        ("a", "1"): "64"
    }
    assert all(float(row["value_s"]) > 0 for row in rows(out / "grid.csv"))

    checked = run("benchmarks.gpu.check", str(out))
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count(": equal\n") == 3
