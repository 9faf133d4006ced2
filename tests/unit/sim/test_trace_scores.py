"""Figures of a trace in both worlds, and their signed errors."""

from pathlib import Path

import numpy as np
import pytest

from sim.engine.base import EngineCounters
from sim.traces.client import Played
from sim.traces.records import Trace
from sim.traces.scores import ERROR_KEYS, UNITS, Score, score

NAN = float("nan")


def trace(**changes):
    """Three turns: 1 to 3 s, 2 to 6 s, 3 to 11 s; 5, 1 and 9 tokens."""
    columns = {
        "submit_s": np.array([1.0, 2.0, 3.0]),
        "prompt_tokens": np.array([10, 10, 10]),
        "output_tokens": np.array([5, 1, 9]),
        "cached_tokens": np.array([0, 16, 32]),
        "ttft_s": np.array([1.0, 4.0, 4.0]),
        "latency_s": np.array([2.0, 4.0, 8.0]),
        "wait_s": np.zeros(3),
    }
    return Trace(path=Path("t.csv"), first_turn=np.arange(4), open_loop=True, **(columns | changes))


def played(**changes):
    columns = {
        "submit_s": np.array([1.0, 2.0, 3.0]),
        "ttft_s": np.array([1.0, 4.0, 4.0]),
        "latency_s": np.array([2.0, 4.0, 8.0]),
        "cached_tokens": np.array([0, 16, 32]),
    }
    return Played(counters=EngineCounters(), **(columns | changes))


def test_figures_by_hand():
    found = score(trace(), played()).measured
    assert found == pytest.approx(
        {
            "makespan_s": 10.0,
            "output_tokens_per_s": 1.5,
            "mean_latency_s": 14 / 3,
            "p50_latency_s": 4.0,
            "p95_latency_s": 4.0 + 0.9 * 4.0,
            "mean_ttft_s": 3.0,
            "p50_ttft_s": 4.0,
            "mean_tpot_s": (1 / 4 + 4 / 8) / 2,  # a turn of one token has no time per further token
            "prefix_hit_tokens": 48.0,
        }
    )
    assert set(found) <= set(UNITS)
    assert set(ERROR_KEYS) <= set(found)


def test_equal_worlds_have_no_error():
    scored = score(trace(), played(), deadline_s=7.0)
    assert all(scored.error(name) == 0.0 for name in scored.measured)


def test_errors_are_signed_and_relative_to_the_measured():
    scored = score(trace(), played(latency_s=np.array([2.0, 4.0, 18.0]), ttft_s=np.array([1.0, 1.0, 4.0])))
    assert scored.error("makespan_s") == pytest.approx(20 / 10 - 1)
    assert scored.error("output_tokens_per_s") == pytest.approx(10 / 20 - 1)
    assert scored.error("mean_latency_s") == pytest.approx(24 / 14 - 1)
    assert scored.error("mean_ttft_s") == pytest.approx(6 / 9 - 1)


def test_by_a_deadline_turns_count_that_ended_in_time_in_their_own_world():
    # Measured ends: 3, 6, 11. Simulated: 3, 6, 5.
    scored = score(trace(), played(latency_s=np.array([2.0, 4.0, 2.0])), deadline_s=6.0)
    assert (scored.measured["turns_by_deadline"], scored.simulated["turns_by_deadline"]) == (2, 3)
    assert (scored.measured["tokens_by_deadline"], scored.simulated["tokens_by_deadline"]) == (6, 15)
    assert scored.error("tokens_by_deadline") == pytest.approx(1.5)
    assert "turns_by_deadline" not in score(trace(), played()).measured


def test_turns_that_the_simulated_engine_refused_count_in_neither_world():
    scored = score(trace(), played(latency_s=np.array([2.0, 4.0, NAN]), ttft_s=np.array([1.0, 4.0, NAN])))
    assert scored.measured["makespan_s"] == 5.0
    assert scored.measured["mean_latency_s"] == 3.0
    assert scored.measured["prefix_hit_tokens"] == 16
    assert scored.error("makespan_s") == 0.0


def test_where_nothing_ran_there_are_no_figures():
    scored = score(trace(), played(latency_s=np.full(3, NAN)), deadline_s=5.0)
    assert "makespan_s" not in scored.measured
    assert all(np.isnan(scored.error(name)) for name in ERROR_KEYS)


def test_hits_that_were_not_recorded_are_not_compared():
    assert "prefix_hit_tokens" not in score(trace(cached_tokens=np.array([-1, -1, -1])), played()).measured


def test_turns_of_one_token_have_no_time_per_token():
    scored = score(trace(output_tokens=np.array([1, 1, 1])), played())
    assert np.isnan(scored.measured["mean_tpot_s"])
    assert np.isnan(scored.error("mean_tpot_s"))


@pytest.mark.parametrize(
    ("measured", "simulated", "error"),
    [(2.0, 3.0, 0.5), (2.0, 1.0, -0.5), (0.0, 0.0, 0.0), (0.0, 1.0, NAN), (NAN, 1.0, NAN), (1.0, NAN, NAN)],
)
def test_an_error_of_what_is_nothing_or_unknown(measured, simulated, error):
    assert Score({"x": measured}, {"x": simulated}).error("x") == pytest.approx(error, nan_ok=True)
    assert np.isnan(Score({"x": measured}, {"x": simulated}).error("y"))
