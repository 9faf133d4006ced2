"""The client of a trace: whom it submits when, in a closed and in an open loop, by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.clock import TICKS_PER_S
from sim.engine.base import CostTable, EngineSpec
from sim.traces.client import play
from sim.traces.records import Trace

SECOND = TICKS_PER_S
SPEC = EngineSpec(max_num_seqs=8, max_num_batched_tokens=10_000, max_model_len=1000, num_blocks=1000)
# A step with prefill takes a second, a decode step two, whatever is in it.
COST = CostTable([2 * SECOND] * 9, [0] * 9, 0, SECOND, 0, 0, 1)


def made(*lengths, submit_s=None, prompt=10, output=3, wait_s=0.5, open_loop=False):
    """Trajectories of so many turns each. A turn alone on the engine takes 1 + 2 * (output - 1) s."""
    total = sum(lengths)
    first = np.concatenate([[0], np.cumsum(lengths)])
    at = np.zeros(total)
    at[first[:-1]] = submit_s if submit_s is not None else 0.0
    return Trace(
        path=Path("made-up.csv"),
        first_turn=first,
        submit_s=at,
        prompt_tokens=np.full(total, prompt),
        output_tokens=np.full(total, output),
        cached_tokens=np.zeros(total, dtype=np.int64),
        ttft_s=np.zeros(total),
        latency_s=np.zeros(total),
        wait_s=np.full(total, wait_s),
        open_loop=open_loop,
    )


def test_one_slot_plays_one_turn_after_another_with_its_waits():
    played = play(made(2, 2), SPEC, COST, concurrency=1)
    # A turn takes 5 s; 0.5 s pass after each, also before the next trajectory takes the slot.
    assert played.submit_s.tolist() == [0.0, 5.5, 11.0, 16.5]
    assert played.ttft_s.tolist() == [1.0] * 4
    assert played.latency_s.tolist() == [5.0] * 4
    assert played.end_s.tolist() == [5.0, 10.5, 16.0, 21.5]


def test_the_first_of_the_slots_start_at_their_recorded_times_the_others_when_one_is_free():
    trace = made(1, 1, 1, submit_s=[0.0, 20.0, 3.0])
    played = play(trace, SPEC, COST, concurrency=2)
    # The third takes the first one's slot at 5.5, whatever its own time was; the second had been due at 20.
    assert played.submit_s.tolist() == [0.0, 20.0, 5.5]


def test_more_slots_than_trajectories():
    played = play(made(1, 1, submit_s=[0.0, 50.0]), SPEC, COST, concurrency=10)
    assert played.submit_s.tolist() == [0.0, 50.0]


def test_the_wait_is_that_of_the_turn_that_ended():
    trace = made(3)
    trace = replace(trace, wait_s=np.array([0.25, 7.0, 100.0]))
    assert play(trace, SPEC, COST, 1).submit_s.tolist() == [0.0, 5.25, 17.25]


def test_turns_of_a_trajectory_share_a_prefix_and_no_others_do():
    trace = replace(made(2, 1), prompt_tokens=np.array([32, 64, 64]))
    played = play(trace, SPEC, COST, concurrency=1)
    # 32 + 3 tokens, of which 34 have KV: two blocks of 16.
    assert played.cached_tokens.tolist() == [0, 32, 0]


def test_a_refused_turn_ends_its_trajectory_and_frees_its_slot():
    trace = made(3, 1)
    trace = replace(trace, prompt_tokens=np.array([10, 2000, 10, 10]))
    played = play(trace, SPEC, COST, concurrency=1)
    assert played.submit_s[0] == 0.0
    assert played.submit_s[1] == 5.5  # it was submitted, and refused at once
    assert np.isnan(played.latency_s[1:3]).all()
    assert np.isnan(played.ttft_s[1:3]).all()
    assert np.isnan(played.submit_s[2])  # it never was
    assert played.submit_s[3] == 6.0
    assert played.latency_s[3] == 5.0
    assert played.cached_tokens.tolist() == [0, -1, -1, 0]
    assert played.counters.num_refused == 1


def test_an_open_loop_submits_at_the_recorded_times_whatever_the_engine_does():
    trace = made(1, 1, 1, submit_s=[0.0, 0.25, 30.0], open_loop=True)
    played = play(trace, SPEC, COST, concurrency=1)
    assert played.submit_s.tolist() == [0.0, 0.25, 30.0]
    # The second waits for the step in flight. Its prefill, from 1 to 2 s, is a step of the first one's, too; then
    # both decode from 2 to 4, and the second alone to 6.
    assert played.ttft_s.tolist() == [1.0, 1.75, 1.0]
    assert played.latency_s.tolist() == [4.0, 5.75, 5.0]


def test_a_refused_request_of_an_open_loop_stands_alone():
    trace = replace(made(1, 1, submit_s=[0.0, 1.0], open_loop=True), prompt_tokens=np.array([5000, 10]))
    played = play(trace, SPEC, COST, concurrency=1)
    assert np.isnan(played.latency_s[0])
    assert played.latency_s[1] == 5.0


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    concurrency=st.integers(1, 10),
    wait_s=st.sampled_from([0.0, 0.5, 3.0]),
)
def test_never_more_trajectories_than_slots_and_no_turn_before_its_wait(lengths, concurrency, wait_s):
    trace = made(*lengths, wait_s=wait_s)
    played = play(trace, SPEC, COST, concurrency)
    assert np.isfinite(played.latency_s).all()
    first = trace.first_turn
    begin, end = played.submit_s[first[:-1]], played.end_s[first[1:] - 1]
    for at in begin:
        assert ((begin <= at) & (end > at)).sum() <= concurrency
    within = np.setdiff1d(np.arange(len(played.submit_s)), first[:-1])
    assert np.allclose(played.submit_s[within], played.end_s[within - 1] + wait_s)
    assert (played.ttft_s <= played.latency_s).all()
    assert played.counters.output_tokens == trace.output_tokens.sum()
