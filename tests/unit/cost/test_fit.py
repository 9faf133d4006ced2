"""Fits find the coefficients that made the data, and say which ones the data could not tell."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.cost.fit import MAX_LEFT_OUT, fit_points, fit_relative, left_out
from libra.cost.points import Points
from libra.errors import UserError
from tests.support.costs import round_cost

CHUNK = 2048
DECODE_GRID = [(1, 100), (3, 5000), (8, 1000), (32, 2000), (64, 2000), (32, 16000), (8, 32000), (100, 300)]
PREFILL_GRID = [64, 128, 256, 400, 1024, 2048, 4096, 9000, 16384, 32768]


def points_of(cost, decode=DECODE_GRID, prefill=PREFILL_GRID):
    """What an engine of this cost would be measured at."""
    return Points(
        decode=[(batch, batch * each, cost.decode_s(batch, batch * each)) for batch, each in decode],
        prefill=[(tokens, cost.prompt_s(tokens, CHUNK)) for tokens in prefill],
    )


def off_start(cost):
    """A start that is wrong by tens of per cent in all that is fitted."""
    return replace(
        cost,
        decode_base_s=cost.decode_base_s * 1.5,
        decode_per_seq_s=cost.decode_per_seq_s * 0.5,
        decode_per_context_token_s=cost.decode_per_context_token_s * 2,
        prefill_base_s=cost.prefill_base_s * 1.1,
        prefill_per_token_s=cost.prefill_per_token_s * 1.3,
        graph_host_s=cost.graph_host_s * 1.3,
        eager_host_s=cost.eager_host_s * 1.2,
    )


DECODE = ("decode_base_s", "decode_per_seq_s", "decode_per_context_token_s")
PREFILL = ("prefill_base_s", "prefill_per_token_s", "graph_host_s", "eager_host_s")


@settings(deadline=None, max_examples=25)
@given(
    base_s=st.floats(1e-3, 3e-2),
    per_seq_s=st.floats(1e-5, 1e-4),
    per_context_s=st.floats(1e-8, 2e-7),
    is_mixture=st.booleans(),
)
def test_decode_coefficients_are_recovered_whatever_the_start(base_s, per_seq_s, per_context_s, is_mixture):
    mixture = {"experts_s": 6e-3, "num_experts": 128, "experts_per_token": 8} if is_mixture else {}
    cost = round_cost(
        decode_base_s=base_s, decode_per_seq_s=per_seq_s, decode_per_context_token_s=per_context_s, **mixture
    )
    start = replace(cost, decode_base_s=1.0, decode_per_seq_s=1.0, decode_per_context_token_s=1.0)
    points = points_of(cost, prefill=[128, 1024, 2048, 4096])
    fit = fit_points(points, start, CHUNK)
    for name in DECODE:
        assert getattr(fit.cost, name) == pytest.approx(getattr(cost, name), rel=1e-6), name
    assert fit.fitted[:3] == DECODE
    assert fit.errors["decode_max"] < 1e-9
    assert fit.errors["decode_leave_one_out_mean"] < 1e-9


@pytest.mark.parametrize("experts_s", [0.0, 6e-3])
def test_prefill_coefficients_are_recovered_within_the_weight_of_the_start(experts_s):
    mixture = {"experts_s": experts_s, "num_experts": 128, "experts_per_token": 8} if experts_s else {}
    # A base longer than a decode step's, and a host slower than short prefills, or none would show them.
    cost = round_cost(prefill_base_s=6e-3, graph_host_s=15e-3, eager_host_s=30e-3, **mixture)
    fit = fit_points(points_of(cost), off_start(cost), CHUNK)
    assert set(PREFILL) <= set(fit.fitted)
    for name in ("prefill_per_token_s", "graph_host_s", "eager_host_s"):
        assert getattr(fit.cost, name) == pytest.approx(getattr(cost, name), rel=0.03), name
    assert fit.cost.prefill_base_s == pytest.approx(cost.prefill_base_s, rel=0.08)
    assert fit.errors["prefill_mean"] < 0.01
    assert fit.cost.prefill_per_attention_s == cost.prefill_per_attention_s


def test_one_disturbed_prefill_does_not_move_the_rest():
    cost = round_cost()
    points = points_of(cost)
    points.prefill[4] = (points.prefill[4][0], 3 * points.prefill[4][1])
    fit = fit_points(points, cost, CHUNK)
    assert fit.cost.prefill_per_token_s == pytest.approx(cost.prefill_per_token_s, rel=0.02)
    assert fit.errors["prefill_max"] == pytest.approx(2 / 3, abs=0.02)


def test_without_long_prompts_nothing_is_said_of_the_eager_level():
    cost = round_cost()
    start = replace(cost, eager_host_s=0.0171)
    fit = fit_points(points_of(cost, prefill=[16, 32, 64, 128, 200, 256]), start, CHUNK)
    assert "eager_host_s" not in fit.fitted
    assert fit.cost.eager_host_s == pytest.approx(0.0171, rel=1e-6)
    assert "graph_host_s" in fit.fitted
    assert fit.cost.graph_host_s == pytest.approx(cost.graph_host_s, rel=1e-3)
    # The host hides the GPU's part of such short prefills altogether.
    assert not {"prefill_base_s", "prefill_per_token_s"} & set(fit.fitted)
    assert fit.cost.prefill_base_s == pytest.approx(cost.prefill_base_s, rel=1e-6)


def test_one_batch_size_does_not_tell_the_part_per_sequence():
    cost = round_cost()
    points = points_of(cost, decode=[(8, each) for each in (100, 1000, 4000, 16000)])
    fit = fit_points(points, replace(cost, decode_base_s=1.0), CHUNK)
    assert "decode_per_seq_s" not in fit.fitted
    assert fit.cost.decode_per_seq_s == cost.decode_per_seq_s
    assert fit.cost.decode_base_s == pytest.approx(cost.decode_base_s)
    assert fit.cost.decode_per_context_token_s == pytest.approx(cost.decode_per_context_token_s)


def test_contexts_that_grow_with_the_batch_do_not_tell_the_part_per_context_token():
    cost = round_cost()
    points = points_of(cost, decode=[(batch, 1000) for batch in (1, 8, 16, 64)])
    fit = fit_points(points, replace(cost, decode_per_seq_s=1.0), CHUNK)
    assert fit.fitted[:2] == ("decode_base_s", "decode_per_seq_s")
    assert "decode_per_context_token_s" not in fit.fitted
    assert fit.cost.decode_per_context_token_s == cost.decode_per_context_token_s
    assert fit.cost.decode_per_seq_s == pytest.approx(cost.decode_per_seq_s)


def test_a_coefficient_that_noise_pushes_below_nothing_stays_at_its_start():
    """Steps that get shorter with their contexts: nobody's attention gives time back."""
    cost = round_cost()
    points = points_of(cost)
    points.decode[:] = [
        (batch, context, 4e-3 + 1e-5 * cost.padded(batch) - 1e-10 * context)
        for batch, context, _ in points.decode
    ]
    fit = fit_points(points, cost, CHUNK)
    assert "decode_per_context_token_s" not in fit.fitted
    assert fit.cost.decode_per_context_token_s == cost.decode_per_context_token_s
    assert fit.cost.decode_base_s > 0


def test_experts_may_not_take_all_of_a_step():
    """Where the start's experts are slower than the whole measured step, a tenth of it is left for the rest."""
    cost = round_cost()
    start = round_cost(experts_s=10.0, num_experts=8, experts_per_token=2)
    fit = fit_points(points_of(cost), start, CHUNK)
    assert fit.cost.decode_base_s > 0


def test_leave_one_out_is_the_error_at_the_point_left_out():
    """Six equal steps and one of twice the time: without it the fit is exact, and half of it is predicted."""
    cost = round_cost()
    grid = [(1, 100), (8, 1000), (32, 2000), (64, 2000), (32, 16000), (8, 32000), (4, 700)]
    points = points_of(cost, decode=grid)
    points.decode[-1] = (*points.decode[-1][:2], 2 * points.decode[-1][2])
    fit = fit_points(points, cost, CHUNK)
    assert fit.errors["decode_leave_one_out_mean"] > fit.errors["decode_mean"]
    exact = fit_points(points_of(cost, decode=grid), cost, CHUNK)
    assert exact.errors["decode_leave_one_out_mean"] < 1e-9


def test_leaving_out_is_bounded_and_spread_evenly():
    asked = []

    def error(index):
        asked.append(index)
        return -0.5 if index % 2 else 0.5

    assert left_out(error, 3) == 0.5
    assert asked == [0, 1, 2]
    asked.clear()
    left_out(error, 1000)
    assert len(asked) == MAX_LEFT_OUT
    assert (asked[0], asked[-1]) == (0, 999)


@pytest.mark.parametrize(
    ("decode", "prefill", "message"),
    [
        (DECODE_GRID[:3], PREFILL_GRID, "3 decode points cannot fix 3 coefficients and show an error"),
        ([], PREFILL_GRID, "0 decode points"),
        (DECODE_GRID, PREFILL_GRID[:3], "3 prefill points cannot fix 4 coefficients; measure more"),
        (DECODE_GRID, [], "0 prefill points"),
    ],
)
def test_too_few_points_are_refused(decode, prefill, message):
    with pytest.raises(UserError, match=message):
        fit_points(points_of(round_cost(), decode, prefill), round_cost(), CHUNK)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_bad_times_are_refused(seconds):
    points = points_of(round_cost())
    points.decode[2] = (*points.decode[2][:2], seconds)
    with pytest.raises(UserError, match="a step time is zero, negative or nan; leave that row out"):
        fit_points(points, round_cost(), CHUNK)
    points = points_of(round_cost())
    points.prefill[2] = (points.prefill[2][0], seconds)
    with pytest.raises(UserError, match="a step time is zero, negative or nan; leave that row out"):
        fit_points(points, round_cost(), CHUNK)
    with pytest.raises(UserError, match="leave that row out"):
        fit_relative(np.ones((3, 1)), np.array([1.0, seconds, 1.0]))


def test_relative_error_lets_a_short_step_count_as_much_as_a_long_one():
    # Two points, one constant: the relative optimum of sum((x / t - 1)^2) is sum(1/t) / sum(1/t^2).
    fit = fit_relative(np.ones((2, 1)), np.array([1.0, 10.0]))
    assert fit.coefficients[0] == pytest.approx(1.1 / 1.01)


def test_coefficients_are_never_negative():
    features = np.column_stack([np.ones(4), [1.0, 2, 3, 4]])
    fit = fit_relative(features, np.array([4e-3, 3e-3, 2e-3, 1e-3]))
    assert fit.coefficients[1] == 0.0
    assert fit.coefficients[0] > 0.0


def test_what_is_known_is_taken_off_first():
    fit = fit_relative(np.ones((2, 1)), np.array([3.0, 5.0]), known_s=np.array([1.0, 3.0]))
    assert fit.coefficients == pytest.approx((2.0,))
    assert fit.mean_error < 1e-12


def test_more_coefficients_than_points_are_refused():
    with pytest.raises(UserError, match="2 points cannot fix 3 coefficients; measure more"):
        fit_relative(np.ones((2, 3)), np.ones(2))
