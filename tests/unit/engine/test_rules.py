"""Rules E1-E6 of `sim.engine.base`, one example each with its numbers added up by hand, on both engines.

Costs (conftest): a decode step lasts 100 + context tokens, a step with prefill 50 + decoding context + 2 per
prefilled token. Blocks hold 4 tokens.
"""

from typing import Any

import pytest

from libra.core.ids import FailureKind
from sim.engine.base import CostTable, QueueOrder, Request


def test_e1_first_token_from_prefill_then_one_per_step(bench: Any) -> None:
    engine = bench.engine()
    request = bench.submit(0, 1, prompt=5, output=3)
    bench.run()
    assert (request.started_t, request.first_token_t) == (0, 50 + 2 * 5)
    assert request.end_t == 60 + (100 + 6) + (100 + 7)
    assert (request.num_emitted, engine.counters.output_tokens, engine.counters.prefill_tokens) == (3, 3, 5)
    assert engine.counters.num_steps == 3
    assert engine.counters.busy_t == 273


def test_e1_one_token_ends_with_the_prefill(bench: Any) -> None:
    bench.engine()
    request = bench.submit(0, 1, prompt=5, output=1)
    bench.run()
    assert request.first_token_t == request.end_t == 60


def test_e2_oldest_first_and_callbacks_take_part_in_the_boundary(bench: Any) -> None:
    engine = bench.engine()
    bench.submit(0, 1, prompt=4, output=1)
    bench.submit(0, 2, prompt=4, output=1)
    from_callback = Request(3, 5, 1, ())
    bench.then[1] = lambda: engine.submit(from_callback)
    later: list[Request] = []
    bench.then[2] = lambda: later.append(bench.submit(66, 4, prompt=5, output=1))
    bench.run()
    assert bench.ended == [(66, 1, None), (66, 2, None), (126, 3, None), (186, 4, None)]
    assert from_callback.started_t == 66
    assert later[0].submitted_t == 66  # an event of the same tick, but after the boundary
    assert later[0].started_t == 126


def test_e2_aborts_leave_at_the_boundary_waiting_ones_at_once(bench: Any) -> None:
    engine = bench.engine(max_num_seqs=1)
    running = bench.submit(0, 1, prompt=5, output=9)
    waiting = bench.submit(1, 2, prompt=5, output=9)
    bench.at(70, lambda: (engine.abort(running), engine.abort(waiting)))
    bench.run()
    assert bench.ended == [(70, 2, FailureKind.ABORTED), (166, 1, FailureKind.ABORTED)]
    assert (running.num_emitted, running.end_t, waiting.started_t) == (2, 166, -1)
    engine.abort(running)  # it has ended: no effect
    assert len(bench.ended) == 2


def test_e3_pause_holds_after_the_step_and_pauses_nest(bench: Any) -> None:
    engine = bench.engine()
    request = bench.submit(0, 1, prompt=5, output=3)
    bench.at(70, engine.pause)
    bench.at(80, engine.pause)
    bench.at(900, engine.resume)
    bench.at(1000, engine.resume)
    bench.run()
    assert request.end_t == 1000 + 107
    assert (engine.counters.paused_t, engine.counters.busy_t, engine.counters.idle_t) == (1000 - 166, 273, 0)


def test_e3_pause_that_ends_within_the_step_is_nothing(bench: Any) -> None:
    engine = bench.engine()
    request = bench.submit(0, 1, prompt=5, output=3)
    bench.at(70, engine.pause)
    bench.at(80, engine.resume)
    bench.run()
    assert request.end_t == 273
    assert engine.counters.num_steps == 3


def test_e3_load_counts_versions_per_token(bench: Any) -> None:
    engine = bench.engine()
    request = bench.submit(0, 1, prompt=5, output=4)
    loaded = []
    bench.at(70, lambda: engine.load_weights(7, 500, lambda start: loaded.append((bench.clock.now, start))))
    bench.at(75, lambda: engine.load_weights(9, 10, lambda start: loaded.append((bench.clock.now, start))))
    bench.run()
    assert loaded == [(666, 166), (676, 666)]
    assert request.end_t == 676 + 107 + 108
    assert (request.version_first, request.version_last, request.version_token_sum) == (0, 9, 18)
    assert engine.weight_version == 9


@pytest.mark.parametrize(("keep", "cached"), [(False, 0), (True, 8)])
def test_e3_load_forgets_the_cache_unless_told(bench: Any, keep: bool, cached: int) -> None:
    engine = bench.engine(keep_cache_on_load=keep)
    bench.submit(0, 1, prompt=9, output=1, path=((1, 0),))
    bench.at(500, lambda: engine.load_weights(1, 10, lambda start: None))
    after = bench.submit(600, 2, prompt=9, output=1, path=((1, 0),))
    bench.run()
    assert after.cached_tokens == cached


def test_e3_blocks_that_run_through_a_load_are_not_hit_later(bench: Any) -> None:
    engine = bench.engine()
    through = bench.submit(0, 1, prompt=9, output=9, path=((1, 0),))
    bench.at(80, lambda: engine.load_weights(1, 10, lambda start: None))
    after = bench.submit(5000, 2, prompt=13, output=1, path=((1, 0),))
    bench.run()
    assert through.end_t < 5000
    assert after.cached_tokens == 0


def test_e4_preempts_the_newest_and_recomputes(bench: Any) -> None:
    """Three blocks: both need a second one at 66; the newer gives way until the older has ended."""
    engine = bench.engine(num_blocks=3, max_model_len=12)
    first = bench.submit(0, 1, prompt=4, output=5)
    second = bench.submit(0, 2, prompt=4, output=4)
    seen = []
    bench.at(100, lambda: seen.append((engine.used_blocks(), engine.num_running, engine.num_waiting)))
    bench.run()
    assert first.end_t == 66 + 105 + 106 + 107 + 108
    assert second.end_t == first.end_t + (50 + 2 * 5) + 106 + 107
    assert (first.num_preemptions, second.num_preemptions, second.recomputed_tokens) == (0, 1, 4)
    assert engine.counters.recomputed_tokens == 4
    assert seen == [(2, 1, 1)]


def test_e4_priority_preempts_the_highest_number(bench: Any) -> None:
    """The older one is the less urgent: it gives way at 58 + 63, when the newer needs its second block."""
    bench.engine(num_blocks=3, max_model_len=12, queue_order=QueueOrder.PRIORITY)
    older = bench.submit(0, 1, prompt=4, output=5, priority=5)
    newer = bench.submit(1, 2, prompt=4, output=5, priority=0)
    bench.run()
    assert (older.num_preemptions, newer.num_preemptions) == (1, 0)
    assert newer.first_token_t == 58 + (50 + 5 + 8)
    assert newer.end_t == 121 + 105 + 106 + 107 + 108


def test_e5_prefill_in_chunks_of_the_budget(bench: Any) -> None:
    engine = bench.engine(max_num_seqs=4, max_num_batched_tokens=4)
    request = bench.submit(0, 1, prompt=10, output=1)
    seen = []
    bench.at(60, lambda: seen.append(engine.used_blocks()))
    bench.run()
    assert request.end_t == 58 + 58 + 54
    assert seen == [2]  # taken chunk by chunk


def test_e5_max_num_seqs_and_watermark_hold_the_head_back(bench: Any) -> None:
    bench.engine(max_num_seqs=1)
    bench.engine(num_blocks=4, watermark_blocks=2)
    requests = [bench.submit(0, n, prompt=8, output=1, engine=n // 2) for n in range(4)]
    alone = bench.submit(900, 4, prompt=16, output=1, engine=1)
    bench.run()
    assert [request.started_t for request in requests] == [0, 66, 0, 66]
    assert alone.started_t == 900  # the watermark is waived where nothing runs


def test_e5_hits_leave_the_last_token_to_compute(bench: Any) -> None:
    engine = bench.engine()
    bench.submit(0, 1, prompt=8, output=1, path=((1, 2), (2, 0)))
    same = bench.submit(1000, 2, prompt=8, output=1, path=((1, 2), (3, 0)))
    longer = bench.submit(2000, 3, prompt=9, output=1, path=((1, 2), (4, 0)))
    bench.run()
    assert (same.cached_tokens, same.end_t) == (4, 1000 + 58)
    assert (longer.cached_tokens, longer.end_t) == (8, 2000 + 52)
    assert engine.counters.cached_tokens == 12


def test_e5_same_boundary_hit(bench: Any) -> None:
    """A full block can be hit as soon as it has been scheduled: the group's second member finds the first's."""
    bench.engine()
    bench.submit(0, 1, prompt=9, output=1, path=((1, 2), (2, 0)))
    second = bench.submit(0, 2, prompt=9, output=1, path=((1, 2), (3, 0)))
    bench.run()
    assert (second.cached_tokens, second.end_t) == (8, 50 + 2 * 10)


def test_eviction_takes_the_oldest_release_from_its_last_block(bench: Any) -> None:
    bench.engine(num_blocks=6, max_model_len=24)
    bench.submit(0, 1, prompt=9, output=1, path=((1, 0),))
    bench.submit(1000, 2, prompt=9, output=1, path=((2, 0),))
    bench.submit(2000, 3, prompt=12, output=1)  # two free blocks, so one is evicted: chain 1's second
    one = bench.submit(3000, 4, prompt=9, output=1, path=((1, 0),))
    two = bench.submit(4000, 5, prompt=9, output=1, path=((2, 0),))
    bench.run()
    assert (one.cached_tokens, two.cached_tokens) == (4, 8)


def test_blocked_head_is_admitted_when_a_running_request_completes_its_prefix(bench: Any) -> None:
    """Four blocks; the head needs four and can hit one of the runner's, then two (boundary before step 3)."""
    bench.engine(num_blocks=4, max_model_len=16)
    bench.submit(0, 1, prompt=4, output=9, path=((1, 0),))
    head = bench.submit(100, 2, prompt=13, output=1, path=((1, 0),))
    bench.run()
    assert (head.started_t, head.cached_tokens) == (58 + 105 + 106 + 107, 8)


def test_second_request_on_an_open_chain_keeps_private_blocks(bench: Any) -> None:
    bench.engine()
    bench.submit(0, 1, prompt=5, output=40, path=((1, 0),))
    bench.submit(
        1, 2, prompt=21, output=2, path=((1, 0),)
    )  # far ahead of the first, but not the chain's writer
    later = bench.submit(1000, 3, prompt=21, output=1, path=((1, 0),))
    bench.run()
    assert later.cached_tokens == 12  # at the boundary 1056 the first one fills its third block


def test_another_continuation_is_forgotten(bench: Any) -> None:
    bench.engine()
    bench.submit(0, 1, prompt=21, output=1, path=((1, 0),))
    bench.submit(
        1000, 2, prompt=9, output=1, path=((1, 0),)
    )  # goes on from block 2: blocks 2-4 are another text
    later = bench.submit(2000, 3, prompt=21, output=1, path=((1, 0),))
    bench.run()
    assert later.cached_tokens == 8


def test_e6_mixed_step_counts_decodes_attention_and_floor(bench: Any) -> None:
    cost = CostTable([100] * 9, [1] * 9, 3, 50, 2, 2000, 120)
    bench.engine(cost=cost)
    first = bench.submit(0, 1, prompt=4, output=9)
    second = bench.submit(1, 2, prompt=8, output=1)
    bench.run()
    assert first.first_token_t == 120  # 50 + 2 * 4 + 4 * 4 = 74 is below the floor
    assert second.end_t == 120 + 50 + 3 * 1 + 5 + 2 * 8 + 8 * 8


def hosted(
    graph: int, eager: int | None = None, capture: int = 0, lag: bool = True, **settings: int
) -> CostTable:
    """The plain cost with a host that takes `graph` ticks to launch a step of up to `capture` tokens with prefill."""
    return CostTable(
        [100] * 9, [1] * 9, 0, 50, 2, 0, graph, 0, lag, eager=eager, capture_tokens=capture, **settings
    )


@pytest.mark.parametrize("lag", [False, True])
def test_e6_at_rest_a_short_prefill_takes_as_long_as_the_host(bench: Any, lag: bool) -> None:
    engine = bench.engine(hosted(300, lag=lag))
    request = bench.submit(0, 1, prompt=5, output=2)
    bench.run()
    assert request.first_token_t == 300  # 60 on the GPU
    assert request.end_t == 300 + 106  # a decode step is one graph
    assert engine.counters.busy_t == 406


def test_e6_a_prefill_longer_than_the_host_takes_its_own_time(bench: Any) -> None:
    bench.engine(hosted(60))
    request = bench.submit(0, 1, prompt=6, output=1)
    bench.run()
    assert request.end_t == 50 + 12


@pytest.mark.parametrize(
    ("host", "lag", "ended"),
    [
        (106, True, 406 + 67),  # launched while the decode step before it ran: its own time on the GPU
        (173, True, 406 + 67),  # 106 + 67: done at the very end of it
        (174, True, 406 + 68),  # one tick too slow
        (300, True, 406 + 194),  # the host began at 300, with the decode step
        (174, False, 406 + 174),  # no head start
        (60, False, 406 + 67),
    ],
)
def test_e6_a_decode_step_before_it_hides_the_host(bench: Any, host: int, lag: bool, ended: int) -> None:
    """The first request decodes from 300 on, for 106 ticks; the second's prefill begins at 406 beside it."""
    cost = hosted(300, eager=host, capture=5, lag=lag)
    bench.engine(cost)
    bench.submit(0, 1, prompt=5, output=9)
    second = bench.submit(300 if lag else 350, 2, prompt=5, output=1)
    bench.run()
    # Beside a decode of 7 tokens: 50 + 7 + 10 = 67 on the GPU, 6 tokens in the step.
    assert (second.started_t, second.first_token_t) == (406, ended)


def test_e6_the_head_start_is_the_last_decode_step_of_many(bench: Any) -> None:
    """Five decode steps, of 106 to 110 ticks, in one segment: the host had only the last one's time."""
    bench.engine(hosted(300))
    bench.submit(0, 1, prompt=5, output=20)
    began = 300 + 106 + 107 + 108 + 109  # of the fifth
    second = bench.submit(began, 2, prompt=5, output=1)
    bench.run()
    assert second.started_t == began + 110
    assert second.end_t == second.started_t + (300 - 110)


def test_e6_two_prefills_in_a_row_share_one_host(bench: Any) -> None:
    """Chunks of 8 and 8 tokens, 66 ticks each on the GPU: the host launches one after the other, 100 ticks each."""
    bench.engine(hosted(100), max_num_seqs=8, max_num_batched_tokens=8)
    request = bench.submit(0, 1, prompt=16, output=1)
    bench.run()
    assert request.end_t == 100 + 100


def test_e6_what_the_gpu_takes_longer_the_host_has_for_the_next(bench: Any) -> None:
    """A chunk of 40 (130 ticks), then one of 5 (60 ticks): the host is done with the first at 100, and with the
    second at 200, which is 10 ticks past what the GPU would need.
    """
    bench.engine(hosted(100), max_num_batched_tokens=40)
    request = bench.submit(0, 1, prompt=45, output=1)
    bench.run()
    assert request.end_t == 130 + 70


@pytest.mark.parametrize(("lag", "ended"), [(True, 130 + 130 + 60), (False, 130 + 130 + 100)])
def test_e6_the_host_never_gets_further_ahead_than_one_step(bench: Any, lag: bool, ended: int) -> None:
    """Chunks of 40, 40 and 5: at 130 the host has had 30 ticks of the second's 100, at 260 60 of the third's, and
    is done with that before its 60 ticks on the GPU are over. Without lag it begins at 260.
    """
    bench.engine(hosted(100, lag=lag), max_num_batched_tokens=40)
    request = bench.submit(0, 1, prompt=85, output=1)
    bench.run()
    assert request.end_t == ended


def test_e6_a_host_that_is_early_begins_the_next_with_the_step_and_not_before(bench: Any) -> None:
    """The host needs 20 ticks, and has the decode step of 106 for the first chunk: done before that one starts, it
    begins with the second chunk when the first does, not earlier. No step waits for it.
    """
    bench.engine(hosted(20), max_num_batched_tokens=40)
    bench.submit(0, 1, prompt=5, output=30)
    second = bench.submit(60, 2, prompt=78, output=1)
    bench.run()
    # Beside a decode: 39 tokens a chunk. Contexts 7 and 8.
    assert second.started_t == 60 + 106
    assert second.end_t == 166 + (50 + 7 + 78) + (50 + 8 + 78)


def test_e6_rest_ends_the_head_start(bench: Any) -> None:
    bench.engine(hosted(300))
    bench.submit(0, 1, prompt=5, output=3)  # ends at 513 after a decode step
    second = bench.submit(1000, 2, prompt=5, output=1)
    bench.run()
    assert second.end_t == 1300


def test_e6_a_pause_ends_the_head_start(bench: Any) -> None:
    engine = bench.engine(hosted(300))
    bench.submit(0, 1, prompt=5, output=9)
    second = bench.submit(310, 2, prompt=5, output=1)
    bench.at(310, engine.pause)
    bench.at(1000, engine.resume)
    bench.run()
    assert (second.started_t, second.end_t) == (1000, 1300)


@pytest.mark.parametrize(("prompt", "ended"), [(9, 300), (10, 300), (11, 700)])
def test_e6_the_host_has_two_levels_by_the_tokens_of_the_step(bench: Any, prompt: int, ended: int) -> None:
    bench.engine(hosted(300, eager=700, capture=10))
    request = bench.submit(0, 1, prompt=prompt, output=1)
    bench.run()
    assert request.end_t == ended


@pytest.mark.parametrize(("prompt", "host"), [(9, 300), (10, 700)])
def test_e6_decodes_count_among_the_tokens_of_the_step(bench: Any, prompt: int, host: int) -> None:
    bench.engine(hosted(300, eager=700, capture=10, lag=False))
    bench.submit(0, 1, prompt=5, output=9)
    second = bench.submit(350, 2, prompt=prompt, output=1)
    bench.run()
    assert second.end_t == 406 + host


def test_e6_the_host_takes_more_for_every_sequence_in_the_step(bench: Any) -> None:
    bench.engine(hosted(300, lag=False, host_seq=10))
    first = bench.submit(0, 1, prompt=5, output=9)
    pair = [bench.submit(350, number, prompt=5, output=1) for number in (2, 3)]
    bench.run()
    assert first.first_token_t == 310
    assert [request.end_t for request in pair] == [416 + 330, 416 + 330]  # two prefills beside one decode


@pytest.mark.parametrize(("prompt", "gpu"), [(5, 200), (75, 200), (76, 202)])
def test_e6_a_step_with_prefill_reads_all_weights_at_least(bench: Any, prompt: int, gpu: int) -> None:
    bench.engine(hosted(1, least=200))
    request = bench.submit(0, 1, prompt=prompt, output=1)
    bench.run()
    assert request.end_t == gpu


def test_e6_contexts_come_on_top_of_the_least(bench: Any) -> None:
    bench.engine(hosted(1, least=200, lag=False))
    bench.submit(0, 1, prompt=5, output=9)  # to 200, then a decode step to 306
    second = bench.submit(250, 2, prompt=5, output=1)
    bench.run()
    assert second.end_t == 306 + 200 + 7


def test_e6_a_slower_table_from_the_next_step_on(bench: Any) -> None:
    engine = bench.engine(hosted(300))
    bench.submit(0, 1, prompt=5, output=2)
    bench.at(320, lambda: engine.set_cost(hosted(3000)))
    second = bench.submit(1000, 2, prompt=5, output=1)
    bench.run()
    assert second.end_t == 4000


def test_e6_without_graphs_a_decode_step_gives_the_host_no_head_start(bench: Any) -> None:
    """The host launches the decode step itself (150 of its 150 ticks), so the next prefill waits for it in full."""
    slow = CostTable([100] * 9, [1] * 9, 0, 50, 2, 0, 80, 0, True, decode_host=[0, *[150] * 8])
    bench.engine(slow)
    bench.submit(0, 1, prompt=5, output=9)  # its prefill ends at 80, by the host
    second = bench.submit(
        81, 2, prompt=5, output=1
    )  # seen at 230, when the step that began at 80 ends: too late
    bench.run()
    assert second.started_t == 80 + 2 * 150
    assert second.first_token_t == second.started_t + 80
