"""The two sides of the router benchmark ask the same of the endpoints, and its gate can fail."""

import asyncio
import math
from dataclasses import replace

import pytest

from benchmarks import driver as bench
from benchmarks.driver_load import Load, Measured, run_bare
from benchmarks.driver_world import run_driver
from executor.engines.fake_engine import FakeConfig
from executor.engines.fake_server import FakeServer

LOAD = Load(num_trajectories=16, in_flight=4, prompt_tokens=20, payload_tokens=5, tokens_per_s=math.inf)


def both_sides(load, folder):
    async def measure():
        config = FakeConfig(max_model_len=load.max_model_len, max_num_seqs=load.in_flight)
        async with FakeServer(config) as first, FakeServer(config) as second:
            addresses = (first.base_url, second.base_url)
            return await run_bare(load, addresses), await run_driver(load, addresses, folder)

    return asyncio.run(measure())


def test_both_sides_make_the_same_requests_and_get_the_same_tokens(tmp_path):
    bare, driver = both_sides(LOAD, tmp_path)
    assert bare.answers == driver.answers
    assert bare.num_turns == LOAD.num_turns_in_all == 32
    assert bare.output_tokens == sum(map(sum, LOAD.lengths))
    assert driver.num_events > 2 * driver.num_turns
    assert (tmp_path / "run" / "manifest.json").exists()


def test_other_requests_show_in_the_answers(tmp_path):
    (tmp_path / "other").mkdir()
    bare, _ = both_sides(LOAD, tmp_path)
    other, _ = both_sides(replace(LOAD, payload_tokens=6), tmp_path / "other")
    assert bare.num_turns == other.num_turns
    assert bare.answers != other.answers


@pytest.mark.parametrize(
    ("cpu_s", "wall_s", "holds"), [(0.019, 1.09, True), (0.021, 1.0, False), (0.01, 1.2, False)]
)
def test_the_gate_takes_the_best_cpu_time_and_the_median_ratio(cpu_s, wall_s, holds):
    bare = Measured(wall_s=1.0, num_turns=10)
    slow = Measured(wall_s=3.0, cpu_s=0.2, num_turns=10)
    pairs = [(bare, Measured(wall_s=wall_s, cpu_s=cpu_s, num_turns=10))] * 2 + [(bare, slow)]
    assert bench._times_hold(pairs) is holds
