"""Costs fitted to tables come out as those that made the tables."""

import numpy as np
import pytest

from libra.cost.run_costs import MIN_TURNS, fit_run_costs, fit_steps, fit_train
from libra.errors import UserError

BASE_S, PER_SEQ_S, PER_TOKEN_S = 4e-3, 2e-4, 3e-5
NO_LOADS = {"replica_id": np.array([]), "started_s": np.array([]), "finished_s": np.array([])}
NO_STEPS = {
    name: np.array([])
    for name in ("num_tokens", "started_s", "finished_s", "publish_started_s", "publish_finished_s")
}


def turns_in_waves(pause_s=0.0, tp=1):
    """Turns of one replica that come in waves of 1 to 64 and run in step, and where each wave's middle is (s).

    pause_s: how long the replica stands still in the middle of every wave.
    """
    rows, middles, now = [], [], 0.0
    for wave, size in enumerate([1, 2, 4, 8, 16, 32, 64] * 3):
        tokens, prompt, cached = 20 + 30 * (wave % 4), 50 * (1 + wave % 3), 10 * (wave % 2)
        first = now + BASE_S + PER_TOKEN_S * size * (prompt - cached)
        decode_s = (tokens - 1) * (BASE_S + PER_SEQ_S * size)
        rows += [(now, first, first + decode_s + pause_s, tokens, prompt, cached)] * size
        middles.append(first + decode_s / 2)
        now = first + decode_s + pause_s + 1.0
    names = ("started_s", "first_token_s", "finished_s", "output_tokens", "prompt_tokens", "cached_tokens")
    turns = dict(zip(names, np.array(rows).T, strict=True))
    count = len(rows)
    turns |= {"tp": np.full(count, tp), "replica_id": np.zeros(count), "recomputed_tokens": np.zeros(count)}
    return turns | {"status": np.full(count, "finished", dtype=object)}, np.array(middles)


def test_the_step_time_is_recovered_from_turns():
    fit = fit_steps(turns_in_waves()[0], NO_LOADS, 1)
    assert fit.decode_base_s == pytest.approx(BASE_S, rel=0.03)
    assert fit.decode_per_seq_s == pytest.approx(PER_SEQ_S, rel=0.03)
    assert fit.prefill_per_token_s == pytest.approx(PER_TOKEN_S, rel=0.1)
    assert fit.num_turns == 3 * 127
    assert fit.mean_error < 0.01


def test_the_time_of_weight_loads_is_taken_out():
    turns, middles = turns_in_waves(pause_s=2.0)
    loads = {"replica_id": np.zeros(len(middles)), "started_s": middles, "finished_s": middles + 2.0}
    fit = fit_steps(turns, loads, 1)
    assert fit.decode_base_s == pytest.approx(BASE_S, rel=0.05)
    assert fit.decode_per_seq_s == pytest.approx(PER_SEQ_S, rel=0.05)
    elsewhere = loads | {"replica_id": np.ones(len(middles))}
    assert fit_steps(turns, elsewhere, 1).decode_base_s > 2 * BASE_S


def test_failed_attempts_and_turns_without_tokens_are_left_out():
    turns, _ = turns_in_waves()
    turns["status"][:3] = "aborted"
    turns["started_s"][:3] = np.nan
    turns["output_tokens"][3] = 0
    assert fit_steps(turns, NO_LOADS, 1).num_turns == 3 * 127 - 4


def test_each_degree_has_its_own_fit_and_loads():
    turns, _ = turns_in_waves()
    other, _ = turns_in_waves(tp=2)
    other["replica_id"] = other["replica_id"] + 1
    for name in ("started_s", "first_token_s", "finished_s"):
        other[name] = 2 * other[name]
    both = {name: np.concatenate([turns[name], other[name]]) for name in turns}
    loads = {
        "replica_id": np.array([0, 0]),
        "started_s": np.array([1e6, 2e6]),
        "finished_s": np.array([1e6 + 1, 2e6 + 3]),
    }
    costs = fit_run_costs(both, loads, NO_STEPS)
    assert costs.steps[2].decode_base_s == pytest.approx(2 * costs.steps[1].decode_base_s)
    assert costs.load_s == {1: 2.0, 2: 2.0}  # the second loaded nothing
    assert (costs.train, costs.publish_s) == (None, 0.0)


def test_train_steps_are_affine_in_tokens():
    tokens = np.array([1000.0, 4000.0, 2500.0])
    fit = fit_train(tokens, 0.5 + 2e-3 * tokens)
    assert (fit.fixed_s, fit.per_token_s) == pytest.approx((0.5, 2e-3))
    assert fit.step_s(3000) == pytest.approx(6.5)
    assert fit.mean_error < 1e-9


def test_train_steps_of_one_size_are_all_fixed():
    fit = fit_train(np.array([3072.0, 3069.0]), np.array([1.0, 3.0]))
    assert (fit.fixed_s, fit.per_token_s, fit.mean_error) == (2.0, 0.0, 0.5)
    assert fit_train(np.array([100.0]), np.array([4.0])).fixed_s == 4.0


def test_publication_is_the_mean_of_those_that_were():
    steps = {
        "num_tokens": np.array([10.0, 10.0, 10.0]),
        "started_s": np.array([0.0, 5.0, 9.0]),
        "finished_s": np.array([1.0, 6.0, 10.0]),
        "publish_started_s": np.array([1.0, 6.0, np.nan]),
        "publish_finished_s": np.array([1.25, 6.75, np.nan]),
    }
    assert fit_run_costs(turns_in_waves()[0], NO_LOADS, steps).publish_s == 0.5


def test_too_few_turns_fix_nothing():
    turns = {name: column[: MIN_TURNS - 1] for name, column in turns_in_waves()[0].items()}
    with pytest.raises(UserError, match=r"^7 finished turns at tp 1 are too few .*; give a longer run$"):
        fit_run_costs(turns, NO_LOADS, NO_STEPS)
    none = {name: column[:0] for name, column in turns.items()}
    with pytest.raises(UserError, match="no turn to fit costs to; give a run"):
        fit_run_costs(none, NO_LOADS, NO_STEPS)
