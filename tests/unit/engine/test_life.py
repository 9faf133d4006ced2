"""Ties, stops, drains, new costs, refusals, lazily read state, and what a spec refuses."""

from typing import Any

import pytest

from libra.core.ids import FailureKind
from libra.cost.rollout import ReplicaCost
from libra.errors import UserError
from sim.clock import STEP, Clock
from sim.engine import make_engine
from sim.engine.base import CostTable, EngineSpec, Request
from sim.engine.segment import steps_within
from sim.engine.skip import SkipEngine


def cost_of(base: int) -> CostTable:
    return CostTable([base] * 9, [1] * 9, 0, 50, 2, 0, 1)


def test_arrival_at_the_tick_of_a_boundary_is_taken_by_it(bench: Any) -> None:
    bench.engine()
    bench.submit(0, 1, prompt=5, output=9)
    tied = bench.submit(166, 2, prompt=5, output=1)  # the second step ends at 60 + 106
    bench.run()
    assert tied.started_t == 166


@pytest.mark.parametrize(("index", "started"), [(0, 273), (2, 166)])
def test_callback_of_another_engine_at_the_same_tick(bench: Any, index: int, started: int) -> None:
    """Engine 1 ends a request at 166, when engines 0 and 2 have a boundary: 0's has passed, 2's has not."""
    for _ in range(3):
        bench.engine()
    for number in (0, 2):
        bench.submit(0, number, prompt=5, output=9, engine=number)
    bench.submit(0, 1, prompt=5, output=2, engine=1)
    sent = Request(3, 5, 1, ())
    bench.then[1] = lambda: bench.engines[index].submit(sent)
    bench.run()
    assert (sent.submitted_t, sent.started_t) == (166, started)


def test_stop_keeps_the_tokens_of_ended_steps(bench: Any) -> None:
    engine = bench.engine(max_num_seqs=1)
    running = bench.submit(0, 1, prompt=5, output=9)
    bench.submit(1, 2, prompt=5, output=9)
    bench.at(200, lambda: engine.stop(FailureKind.REPLICA_LOST))
    bench.submit(300, 3, prompt=5, output=1)
    bench.run()
    assert [entry[:2] for entry in bench.ended] == [(200, 1), (200, 2), (300, 3)]
    assert {entry[2] for entry in bench.ended} == {FailureKind.REPLICA_LOST}
    assert running.num_emitted == 2
    assert (engine.counters.busy_t, engine.counters.num_steps, engine.used_blocks()) == (200, 2, 0)


def test_drain_waits_for_the_queue_too(bench: Any) -> None:
    engine = bench.engine(max_num_seqs=1)
    drained: list[int] = []
    engine.drain(lambda: drained.append(bench.clock.now))
    bench.submit(0, 1, prompt=5, output=1)
    bench.submit(0, 2, prompt=5, output=1)
    bench.at(10, lambda: engine.drain(lambda: drained.append(bench.clock.now)))
    bench.run()
    assert drained == [0, 120]


def test_new_costs_count_from_the_next_step_on(bench: Any) -> None:
    engine = bench.engine()
    request = bench.submit(0, 1, prompt=5, output=4)
    bench.at(100, lambda: engine.set_cost(cost_of(1000)))
    bench.run()
    assert request.end_t == 60 + 106 + 1007 + 1008


def test_what_can_never_fit_is_refused_at_once(bench: Any) -> None:
    engine = bench.engine(num_blocks=3, max_model_len=20)
    bench.submit(5, 1, prompt=10, output=3)  # 12 tokens of KV: just fits
    bench.submit(5, 2, prompt=10, output=4)
    bench.submit(5, 3, prompt=20, output=1)
    bench.run()
    assert bench.ended[:2] == [(5, 2, FailureKind.PROMPT_TOO_LONG), (5, 3, FailureKind.PROMPT_TOO_LONG)]
    assert bench.ended[2][1:] == (1, None)
    assert engine.counters.num_refused == 2


def test_blocks_and_counters_are_read_without_a_boundary(bench: Any) -> None:
    engine = bench.engine()
    request = bench.submit(0, 1, prompt=4, output=9)  # blocks 2 from step 1 on, 3 from step 5 on
    seen: list[tuple[int, int]] = []

    def look() -> None:
        engine.settle()
        seen.append((engine.used_blocks(), engine.counters.output_tokens))

    for tick in (57, 59, 58 + 105 + 106 + 107 + 107, 58 + 105 + 106 + 107 + 109):
        bench.at(tick, look)
    bench.run()
    assert seen == [(1, 0), (2, 1), (2, 4), (3, 5)]
    assert request.end_t == 58 + sum(range(105, 113))


def test_a_request_that_breaks_the_contract_is_a_defect(bench: Any) -> None:
    engine = bench.engine()
    with pytest.raises(ValueError, match="at least one token"):
        engine.submit(Request(1, 0, 1, ()))
    with pytest.raises(ValueError, match="closed blocks"):
        engine.submit(Request(1, 7, 1, ((1, 2), (2, 0))))
    with pytest.raises(ValueError, match="without a pause"):
        engine.resume()


def test_blocked_arrivals_cost_no_wakes() -> None:
    """Ninety arrivals at an engine whose batch is full leave the segment whole: 2 wakes for 500 tokens."""
    clock = Clock()
    engine = SkipEngine(clock, 0, EngineSpec(max_num_seqs=1), cost_of(100), lambda request, kind: None, 0)
    engine.submit(Request(0, 5, 500, ()))
    for tick in range(100, 1000, 10):
        clock.env.timeout(tick).callbacks.append(lambda event: engine.submit(Request(1, 5, 1, ())))
    clock.env.run(until=10_000)
    assert engine.counters.num_wakes == 2  # its kick and the end of its prefill
    assert engine.num_waiting == 90


@pytest.mark.parametrize("beta", [0, 1, 7, 10**6])
def test_steps_within_inverts_the_sum_of_durations(beta: int) -> None:
    for alpha in (beta + 1, 3 * beta + 2, 10**10):
        for steps in (1, 2, 3, 17, 1000, 10**6):
            span = alpha * steps + beta * (steps * (steps - 1) // 2)
            assert steps_within(alpha, beta, span) == steps
            assert steps_within(alpha, beta, span - 1) == steps - 1


def test_clock_ranks_boundaries_of_one_tick() -> None:
    clock = Clock()
    seen: list[list[bool]] = []

    def look(index: int) -> None:
        clock.enter_step(index)
        seen.append([clock.boundary_passed(other) for other in range(3)])

    for index in (2, 1):
        clock.wake(lambda event: look(event.value), STEP + index, 5, index)
    assert not clock.boundary_passed(0)
    clock.env.run()
    assert seen == [[True, True, False], [True, True, True]]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_num_batched_tokens": 255}, "raise it to 256"),
        ({"block_size": 0}, "block_size is 0"),
        ({"num_blocks": 4, "watermark_blocks": 4}, "watermark_blocks"),
    ],
)
def test_spec_refuses_what_has_no_meaning(settings: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        EngineSpec(**settings)  # type: ignore[arg-type]


def test_costs_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="no time"):
        CostTable([0, 0], [1, 1], 0, 0, 0, 0, 1)
    with pytest.raises(UserError, match="negative"):
        CostTable([1, 1], [-1, 1], 0, 0, 0, 0, 1)
    with pytest.raises(UserError, match="give 257"):
        make_engine("skip", Clock(), 0, EngineSpec(), cost_of(1), lambda request, kind: None)
    with pytest.raises(UserError, match="choose one of skip, reference"):
        make_engine("fast", Clock(), 0, EngineSpec(), cost_of(1), lambda request, kind: None)


def test_costs_in_seconds_become_ticks_and_scale_with_a_slowdown() -> None:
    cost = ReplicaCost(
        "gpu", "model", 1, 1e-3, 1e-6, 1e-9, 2e-3, 1e-7, 1e-12, 3e-3, 7e-3, 1000, 1e-5, 2e-3, 1e-6, 1.5
    )
    table = CostTable.from_cost(cost, 2, slowdown=2.0)
    assert table.base == [2 * 10**9, 2 * 10**9 + 2 * 10**6, 2 * 10**9 + 4 * 10**6]
    assert (table.per_context[1], table.prefill_base, table.least) == (3000, [4 * 10**9], 2 * 10**9)
    assert (table.floor, table.eager, table.host_seq) == (6 * 10**9, 14 * 10**9, 2 * 10**7)
    assert (table.admission, table.admission_seq, table.lag) == (4 * 10**9, 2 * 10**6, True)
    assert table.mixed(0, 0, 1000, 10**6) == 4 * 10**9 + 2 * 10**8 + 10**6
    # The decoding sequence costs what it costs in a decode step, which is more than a prefilled token here.
    assert table.mixed(1, 10**6, 10**4, 0) == 4 * 10**9 + 2 * 10**6 + 2 * 10**9 + 3 * 10**9
    assert (table.host(256, 0), table.host(257, 3)) == (6 * 10**9, 14 * 10**9 + 6 * 10**7)
