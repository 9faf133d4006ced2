"""Laws that hold on any script, whichever implementation runs it (`benchmarks.engine_script`)."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.engine_script import HORIZON, Outcome, Run
from benchmarks.engine_script_draws import Script, draw_script

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 2**32)
SIZES = {
    "num_engines": st.integers(1, 3),
    "num_groups": st.integers(1, 5),
    "num_faults": st.sampled_from([0, 4, 25]),
    "tiny": st.booleans(),
}
both = pytest.mark.parametrize("kind", ["reference", "skip"])


def succeeded(out: Outcome) -> set[int]:
    """Requests whose callback brought success."""
    return {entry[2] for entry in out.log if entry[1] == "end" and entry[3] is None}


@both
@QUICK
@given(script=st.builds(draw_script, seed=SEEDS, **SIZES))
def test_every_request_ends_once_with_its_tokens(kind: str, script: Script) -> None:
    out = Run(script, kind).finish()
    ends = [entry[2] for entry in out.log if entry[1] == "end"]
    assert sorted(ends) == list(range(len(out.requests)))
    done = succeeded(out)
    for request in out.requests:
        assert request.end_t >= request.submitted_t >= 0
        assert 0 <= request.num_emitted <= request.output_tokens
        if request.request_id in done:
            assert request.num_emitted == request.output_tokens
            assert request.submitted_t <= request.started_t < request.first_token_t <= request.end_t
        assert (request.version_first < 0) == (request.num_emitted == 0)
        if request.version_first == request.version_last:
            assert request.version_token_sum == request.num_emitted * max(request.version_first, 0)
    assert sum(engine.counters.output_tokens for engine in out.engines) == sum(
        request.num_emitted for request in out.requests
    )


@both
@QUICK
@given(script=st.builds(draw_script, seed=SEEDS, **{**SIZES, "num_faults": st.just(0)}))
def test_prefill_and_hits_cover_what_the_contexts_demand(kind: str, script: Script) -> None:
    """Each engine: prefilled + hit tokens = those of the prompts, plus what preemptions lost and did not hit."""
    out = Run(script, kind).finish()
    counters = [engine.counters for engine in out.engines]
    done = succeeded(out)
    prompts = sum(request.prompt_tokens for request in out.requests if request.request_id in done)
    served = sum(each.prefill_tokens + each.cached_tokens for each in counters)
    assert served >= prompts
    if not sum(each.num_preemptions for each in counters):
        assert served == prompts
        assert sum(each.recomputed_tokens for each in counters) == 0
    assert sum(each.recomputed_tokens for each in counters) == sum(
        request.recomputed_tokens for request in out.requests
    )
    assert sum(each.num_preemptions for each in counters) == sum(
        request.num_preemptions for request in out.requests
    )


@both
@QUICK
@given(script=st.builds(draw_script, seed=SEEDS, **SIZES))
def test_time_and_blocks_are_conserved(kind: str, script: Script) -> None:
    """Busy + paused + idle is the engine's life; blocks return; nothing waits on an engine at rest.

    The recount of blocks runs at every probe of the script (`check`).
    """
    out = Run(script, kind).finish()
    stops = [fault for fault in script.faults if fault[1] == "stop"]
    for index, engine in enumerate(out.engines):
        life = min([fault[0] for fault in stops if fault[2] == index], default=HORIZON)
        counters = engine.counters
        assert counters.busy_t + counters.paused_t + counters.idle_t == life
        assert engine.used_blocks() == 0
        assert engine.num_running == engine.num_waiting == 0
    times = [entry[0] for entry in out.log]
    assert times == sorted(times)


@both
@QUICK
@given(script=st.builds(draw_script, seed=SEEDS, **{**SIZES, "num_faults": st.just(0)}))
def test_fcfs_admits_in_order_of_arrival(kind: str, script: Script) -> None:
    out = Run(script, kind).finish()
    if len(out.engines) == 1 and script.specs[0].queue_order == "fcfs":
        started = [request.started_t for request in out.requests if request.started_t >= 0]
        assert started == sorted(started)


@both
@QUICK
@given(script=st.builds(draw_script, seed=SEEDS, **SIZES))
def test_twice_the_costs_and_delays_is_twice_the_time(kind: str, script: Script) -> None:
    """To the tick, ties included. (The attention coefficients of scripts are multiples of 2,000: no rounding.)"""
    single = Run(script, kind).finish()
    double = Run(script, kind, factor=2).finish()
    for one, two in zip(single.requests, double.requests, strict=True):
        for name in ("submitted_t", "started_t", "first_token_t", "end_t"):
            once, twice = getattr(one, name), getattr(two, name)
            assert twice == (2 * once if once >= 0 else -1)
        assert one.num_emitted == two.num_emitted
        assert one.cached_tokens == two.cached_tokens
    for one, two in zip(single.engines, double.engines, strict=True):
        assert two.counters.busy_t == 2 * one.counters.busy_t
        assert two.counters.num_steps == one.counters.num_steps


@QUICK
@given(seed=SEEDS)
def test_same_script_same_run(seed: int) -> None:
    script = draw_script(seed, 2, 3, 10, tiny=True)
    assert Run(script, "skip").finish().visible() == Run(script, "skip").finish().visible()
