"""A recorded run, played again, is the workload that it came from."""

import dataclasses

import numpy as np
import pytest

from libra.config.document import Document
from libra.config.resolve import resolve
from libra.errors import UserError
from libra.workloads.check import check_trace, drain
from libra.workloads.opening import open_workload
from libra.workloads.parquet import RunWorkload
from libra.workloads.synthetic import PresetWorkload
from sim.config import SimConfig
from sim.simulation import simulate

WORKLOAD = {"kind": "preset", "preset": "search_r1", "num_prompts": 6, "max_context_tokens": 8192}


def run(directory, workload, **more):
    tree = {
        "name": "small",
        "hardware_config": "H100",
        "model_arch_config": "Qwen3-8B",
        "max_concurrent_rollouts": 6,
        "n_samples": 3,
        "heterogeneous_rollout": {"instances": [{"tp": 1, "count": 2}]},
        "workload": workload,
        **more,
    }
    return simulate(resolve(Document(tree), {"sim": SimConfig}), directory)


def joined(source):
    chunks = drain(source)
    return {
        field.name: np.concatenate([getattr(c, field.name) for c in chunks])
        for field in dataclasses.fields(chunks[0])
        if field.name not in ("source_id", "prefix", "first_turn", "tool_names", "arrival_s", "tool")
    } | {
        "tools": [c.tool_names[code] for c in chunks for code in c.tool.tolist()],
        "prefix": [p for c in chunks for p in c.prefix],
    }


def test_the_columns_come_back(tmp_path):
    run(tmp_path / "run", WORKLOAD)
    original = open_workload(PresetWorkload(**WORKLOAD), seed=0, n_samples=3, base_dir=tmp_path)
    again = open_workload(RunWorkload(path="run"), seed=0, n_samples=1, base_dir=tmp_path)
    assert again.supply == original.supply
    expected, found = joined(original), joined(again)
    last = np.append(np.diff(expected["prompt_tokens"]) < 0, True)
    for name, values in expected.items():
        if name in ("tool_status", "payload_tokens"):  # nobody sees those of the last call
            assert (found[name][~last] == values[~last]).all(), name
        elif name in ("tool_latency_s", "start_latency_s", "reward"):
            np.testing.assert_allclose(found[name], values, atol=1e-9, err_msg=name)
        else:
            assert np.array_equal(found[name], values), name


def test_a_run_of_a_run_takes_the_same_time(tmp_path):
    _, first = run(tmp_path / "first", WORKLOAD)
    _, second = run(tmp_path / "second", {"kind": "run", "path": str(tmp_path / "first")})
    assert second["num_turns"] == first["num_turns"]
    assert second["makespan_s"] == pytest.approx(first["makespan_s"], rel=1e-6)


def test_attempts_of_a_turn_are_put_together(tmp_path):
    faults = {"sim": {"faults": {"replica_loss": {"mean_time_between_losses_s": 20.0}}}}
    _, first = run(tmp_path / "run", WORKLOAD, **faults)
    assert first["num_failed_turns"] > 0
    expected = joined(open_workload(PresetWorkload(**WORKLOAD), seed=0, n_samples=3, base_dir=tmp_path))
    found = joined(open_workload(RunWorkload(path="run"), seed=0, n_samples=1, base_dir=tmp_path))
    alive = np.isin(expected["trajectory_id"], found["trajectory_id"])
    assert alive.sum() == len(found["trajectory_id"]) > 0
    if alive.all():
        assert np.array_equal(found["output_tokens"], expected["output_tokens"])


def test_it_is_described_and_refused_in_one_line(tmp_path):
    run(tmp_path / "run", WORKLOAD)
    assert check_trace(tmp_path / "run").num_trajectories == 18
    (tmp_path / "run" / "turns.parquet").write_bytes(b"no table")
    with pytest.raises(UserError, match=r"turns\.parquet: cannot be read"):
        check_trace(tmp_path / "run")
