"""The step-time model by numbers that one can add up by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clock import Clock
from sim.engine import make_engine
from sim.engine.base import CostTable, EngineSpec, Request
from tests.support.costs import round_cost


@pytest.mark.parametrize(
    ("batch", "padded"),
    [(0, 0), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 16), (17, 24), (250, 256), (256, 256)],
)
def test_a_decode_step_is_padded_to_the_next_captured_graph(batch, padded):
    cost = round_cost()
    assert cost.padded(batch) == padded
    assert cost.decode_fixed_s(batch) == pytest.approx(4e-3 + 1e-5 * padded)


@pytest.mark.parametrize(
    ("batch", "padded"), [(256, 256), (257, 272), (272, 272), (273, 288), (512, 512), (513, 513)]
)
def test_graphs_above_256_come_in_steps_of_16_up_to_the_largest(batch, padded):
    assert round_cost(capture_tokens=512).padded(batch) == padded


def test_without_graphs_nothing_is_padded():
    assert [round_cost(capture_tokens=0).padded(batch) for batch in (0, 1, 3, 100)] == [0, 1, 3, 100]


@given(batch=st.integers(0, 600), capture_tokens=st.integers(0, 512).map(lambda n: n // 16 * 16))
def test_padding_never_shrinks_a_batch_and_never_adds_a_graph_step(batch, capture_tokens):
    cost = round_cost(capture_tokens=capture_tokens)
    padded = cost.padded(batch)
    assert batch <= padded < batch + 16
    assert cost.padded(padded) == padded
    assert padded <= max(batch, capture_tokens)


def test_decode_step_by_hand():
    # 3 sequences run in the graph of 4.
    assert round_cost().decode_s(3, 10_000) == pytest.approx(4e-3 + 4e-5 + 3e-4)


def test_the_experts_that_a_batch_reads():
    """2 of 8 experts a token: one token reads a quarter; two read 1 - (3/4)^2 of them in expectation."""
    cost = round_cost(experts_s=8e-3, num_experts=8, experts_per_token=2)
    assert cost.experts_read_s(0) == 0.0
    assert cost.experts_read_s(1) == pytest.approx(2e-3)
    assert cost.experts_read_s(2) == pytest.approx(8e-3 * 7 / 16)
    assert cost.experts_read_s(10_000) == pytest.approx(8e-3)
    assert cost.decode_fixed_s(2) == pytest.approx(4e-3 + 2e-5 + 8e-3 * 7 / 16)
    assert cost.decode_fixed_s(0) == pytest.approx(4e-3)
    assert cost.prefill_gpu_s(1, 0, 1, 0.0) == pytest.approx(3e-3 + 2e-5 + 8e-3 * 7 / 16)


def test_a_dense_model_reads_no_experts():
    assert round_cost(experts_s=1.0).experts_read_s(100) == 0.0


def test_the_gpu_part_of_a_step_with_prefill_by_hand():
    # 2 decodes with 1,000 tokens of context, 500 prefilled tokens behind 100 earlier ones.
    attention = 500 * (100 + 250)
    assert round_cost().prefill_gpu_s(2, 1000, 500, attention) == pytest.approx(
        3e-3 + 2e-5 + 5e-3 + 3e-5 + 1.75e-4
    )


def test_a_short_prefill_reads_all_weights_like_a_decode_step():
    assert round_cost().prefill_gpu_s(0, 0, 1, 0.5) == pytest.approx(4e-3 + 5e-10)


def test_a_decoding_sequence_in_a_mixed_step_costs_a_token_or_what_it_costs_in_a_decode_step():
    assert round_cost(decode_per_seq_s=1e-6).mixed_per_seq_s == 1e-5
    assert round_cost(decode_per_seq_s=5e-5).mixed_per_seq_s == 5e-5


@pytest.mark.parametrize(("tokens", "level_s"), [(1, 7e-3), (256, 7e-3), (257, 17e-3), (2048, 17e-3)])
def test_the_host_has_two_levels_and_a_part_per_sequence(tokens, level_s):
    cost = round_cost(host_per_seq_s=1e-4)
    assert cost.host_s(tokens, 3) == pytest.approx(level_s + 3e-4)


def test_time_to_first_token_of_a_short_prompt_is_the_hosts():
    # 100 tokens: 3 ms + 1 ms on the GPU, 7 ms on the host, 2 ms until the scheduler sees it.
    assert round_cost(admission_s=2e-3).prompt_s(100, 2048) == pytest.approx(9e-3)
    assert round_cost().prompt_s(300, 2048) == pytest.approx(17e-3)


def test_time_to_first_token_in_chunks():
    """2,048 + 1,052 tokens without graphs: the host has half of the second chunk's 17 ms before that starts."""
    first = 3e-3 + 20.48e-3 + 2048 * 1024 * 1e-9
    second = 3e-3 + 10.52e-3 + 1052 * (2048 + 526) * 1e-9
    assert first > 17e-3
    assert second > 17e-3 - (first - 17e-3)
    assert round_cost().prompt_s(3100, 2048) == pytest.approx(first + second)


def test_time_to_first_token_where_the_host_is_slower_than_every_chunk():
    # 512 tokens take 8.1 to 8.9 ms on the GPU: the host is done with one and goes on with the next.
    assert round_cost().prompt_s(2048, 512) == pytest.approx(4 * 17e-3)


def test_without_async_scheduling_the_host_begins_when_a_chunk_has_ended():
    cost = round_cost(async_scheduling=False)
    # The second chunk, 100 tokens behind 2,048, takes 4.2 ms on the GPU; its host 7 ms from its start on.
    first = 3e-3 + 20.48e-3 + 2048 * 1024 * 1e-9
    assert cost.prompt_s(2148, 2048) == pytest.approx(first + 7e-3)
    assert round_cost().prompt_s(2148, 2048) == pytest.approx(first + 4e-3 + 100 * 2098 * 1e-9)


@settings(deadline=None)
@given(
    prompt=st.integers(1, 6000),
    chunk=st.sampled_from([64, 256, 512, 2048]),
    host_per_seq_s=st.sampled_from([0.0, 1e-4]),
    is_async=st.booleans(),
    experts=st.booleans(),
)
def test_time_to_first_token_is_what_the_engine_takes(prompt, chunk, host_per_seq_s, is_async, experts):
    """The formula that prefills are fitted by and rule E6 of the engine are one account."""
    mixture = {"experts_s": 5e-3, "num_experts": 128, "experts_per_token": 8} if experts else {}
    cost = round_cost(admission_s=2e-3, host_per_seq_s=host_per_seq_s, async_scheduling=is_async, **mixture)
    clock, ended = Clock(), []
    spec = EngineSpec(max_num_seqs=8, max_num_batched_tokens=chunk)
    table = CostTable.from_cost(cost, 8)
    engine = make_engine("skip", clock, 0, spec, table, lambda request, kind: ended.append(request.end_t))
    engine.submit(Request(0, prompt, 1, ()))
    clock.env.run()
    assert ended[0] / 1e12 == pytest.approx(cost.prompt_s(prompt, chunk), rel=1e-9)
