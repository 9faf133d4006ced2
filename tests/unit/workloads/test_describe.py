"""The figures of a data card, on a workload small enough to check by hand."""

import math

import numpy as np

from libra.workloads.describe import describe
from libra.workloads.table import Chunk


def test_figures_by_hand():
    reward = np.array([1.0, 0.0, np.nan])
    chunk = Chunk(
        trajectory_id=np.arange(3),
        group_id=np.array([0, 0, 1]),
        prompt_id=np.array([0, 0, 1]),
        sample_index=np.array([0, 1, 0]),
        group_size=np.array([2, 2, 1]),
        arrival_s=np.zeros(3),
        start_latency_s=np.zeros(3),
        reward=reward,
        source_id=("a", "b", "c"),
        prefix=((), (), ()),
        first_turn=np.array([0, 2, 3, 4]),
        prompt_tokens=np.array([10, 30, 10, 20]),
        output_tokens=np.array([5, 6, 70, 19]),
        prefix_tokens=np.array([0, 15, 0, 0]),
        tool=np.array([0, 1, 1, 1]),
        tool_latency_s=np.array([9.0, 1.0, 2.0, 3.0]),
        tool_status=np.array([0, 0, 1, 2]),
        payload_tokens=np.array([15, 0, 0, 0]),
        tool_names=("none", "run"),
    )
    got = describe([chunk])
    assert (got["num_groups"], got["num_trajectories"], got["num_turns"]) == (2, 3, 4)
    assert got["turns"] == {"mean": 4 / 3, "p10": 1, "p50": 1, "p90": 1.8, "p95": 1.9, "p99": 1.98, "max": 2}
    assert got["trajectory_output_tokens"]["p50"] == 19
    assert got["first_prompt_tokens"]["max"] == 20
    assert got["final_context_tokens"]["p50"] == 39
    assert got["tool_latency_s"]["max"] == 9
    # A turn without a tool is no call: one success and one timeout of three.
    assert math.isclose(got["tool_ok"], 1 / 3)
    assert math.isclose(got["tool_timeout"], 1 / 3)
    assert got["longest_tenth_share"] == 0.7
    assert got["reward"] == 0.5


def test_nothing_is_described_as_nothing():
    assert describe([]) == {"num_trajectories": 0, "num_turns": 0}
