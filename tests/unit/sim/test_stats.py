"""Intervals and verdicts of paired comparisons."""

from math import isnan, nan

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sim.stats import MIN_BOOTSTRAP_PAIRS, difference_of_pairs, mean_interval, paired_difference

VALUES = st.floats(0.5, 1e6, allow_subnormal=False)


@st.composite
def two_arms(draw, least=2):
    size = draw(st.integers(least, 12))
    return draw(arrays(np.float64, size, elements=VALUES)), draw(arrays(np.float64, size, elements=VALUES))


def frame_of(cells):
    """Rows of (policy, layout, seed, value)."""
    return pd.DataFrame(cells, columns=["policy", "layout", "seed", "output_tokens_per_s"])


@pytest.mark.parametrize(("count", "least"), [(2, 0.90), (4, 0.90), (5, 0.87), (8, 0.91), (20, 0.92)])
def test_interval_covers_the_mean_about_95_times_in_100(count, least):
    rng = np.random.default_rng(7)
    samples = rng.normal(3.0, 2.0, size=(400, count))
    found = [mean_interval(sample) for sample in samples]
    coverage = np.mean([interval.low <= 3.0 <= interval.high for interval in found])
    assert least <= coverage <= 0.985


@given(two_arms())
def test_swapping_the_arms_turns_the_sign(arms):
    base, arm = arms
    there, back = difference_of_pairs(base, arm, "higher"), difference_of_pairs(arm, base, "higher")
    size = max(np.abs(base).max(), np.abs(arm).max())
    assert there["difference"] == -back["difference"]
    assert there["low"] == pytest.approx(-back["high"], rel=1e-9, abs=1e-9 * size)
    assert there["high"] == pytest.approx(-back["low"], rel=1e-9, abs=1e-9 * size)
    opposite = {"better": "worse", "worse": "better"}
    if min(abs(there["low"]), abs(there["high"])) > 1e-6 * size:
        assert back["verdict"] == opposite.get(there["verdict"], there["verdict"])


@given(two_arms(), st.integers(-20, 20))
def test_a_change_of_unit_changes_no_percentage_and_no_verdict(arms, exponent):
    factor = 2.0**exponent  # exact in binary, so that even the last bit must agree
    base, arm = arms
    plain = difference_of_pairs(base, arm, "lower")
    scaled = difference_of_pairs(base * factor, arm * factor, "lower")
    for name in ("relative_percent", "low_percent", "high_percent"):
        assert scaled[name] == pytest.approx(plain[name], rel=1e-9, abs=1e-9)
    assert scaled["verdict"] == plain["verdict"]
    assert scaled["difference"] == plain["difference"] * factor


@given(arrays(np.float64, st.integers(1, 12), elements=VALUES))
def test_identical_arms_differ_by_exactly_nothing(values):
    found = difference_of_pairs(values, values.copy(), "higher")
    assert (found["difference"], found["relative_percent"], found["verdict"]) == (0.0, 0.0, "equal")
    if len(values) > 1:
        assert found["low"] == found["high"] == found["low_percent"] == found["high_percent"] == 0.0


@given(two_arms(least=MIN_BOOTSTRAP_PAIRS))
def test_bounds_enclose_the_mean_and_stay_in_the_range_of_the_pairs(arms):
    base, arm = arms
    found = difference_of_pairs(base, arm, "higher")
    change = arm - base
    slack = 1e-9 * max(1.0, np.abs(change).max())
    assert found["method"] == "bootstrap"
    assert change.min() - slack <= found["low"] <= found["difference"] + slack
    assert found["difference"] - slack <= found["high"] <= change.max() + slack


@given(two_arms(), st.floats(1.0, 1e6))
def test_a_shift_beyond_every_difference_decides(arms, margin):
    base, arm = arms
    assume(len(base) >= MIN_BOOTSTRAP_PAIRS)
    above = base.max() + arm + margin
    assert difference_of_pairs(base, above, "higher")["verdict"] == "better"
    assert difference_of_pairs(base, above, "lower")["verdict"] == "worse"
    assert difference_of_pairs(base, above, "neutral")["verdict"] == "higher"


def test_one_pair_has_no_interval_and_no_verdict():
    found = difference_of_pairs(np.array([10.0]), np.array([20.0]), "higher")
    assert isnan(found["low"])
    assert isnan(found["high_percent"])
    assert (found["relative_percent"], found["method"], found["verdict"]) == (100.0, "none", "undecided")


def test_a_baseline_of_zero_keeps_its_absolute_difference():
    found = difference_of_pairs(np.zeros(6), np.arange(1.0, 7.0), "lower")
    assert isnan(found["relative_percent"])
    assert isnan(found["low_percent"])
    assert found["difference"] == 3.5
    assert found["verdict"] == "worse"


def test_below_five_pairs_the_interval_is_students():
    found = difference_of_pairs(np.zeros(3), np.array([1.0, 2.0, 3.0]), "higher")
    # Mean 2, deviation 1: 2 +- 4.3027 / sqrt(3), 4.3027 being t(0.975, 2) of any table.
    assert found["method"] == "student t"
    assert found["low"] == pytest.approx(2 - 2.48414, abs=1e-4)
    assert found["high"] == pytest.approx(2 + 2.48414, abs=1e-4)


def test_arms_of_unequal_length_are_a_defect():
    with pytest.raises(ValueError, match="do not make pairs"):
        difference_of_pairs(np.zeros(2), np.zeros(3), "higher")


def test_pairs_are_made_by_seed_within_the_other_axes():
    cells = [("a", "x", 0, 10.0), ("a", "x", 1, 20.0), ("b", "x", 1, 22.0), ("b", "x", 0, 11.0)]
    cells += [("a", "y", 0, 1.0), ("a", "y", 1, 1.0), ("b", "y", 0, 3.0), ("b", "y", 1, 1.0)]
    first, second = paired_difference(
        frame_of(cells), "output_tokens_per_s", "policy", "a", ["layout"], [0, 1]
    )
    assert (first.others, first.difference, first.relative_percent) == ({"layout": "x"}, 1.5, 10.0)
    assert (second.others, second.difference, second.num_pairs) == ({"layout": "y"}, 1.0, 2)


def test_seeds_without_both_values_are_dropped_and_counted():
    cells = [("a", "x", s, 10.0) for s in range(6)] + [("b", "x", s, 12.0) for s in range(5)]
    cells[2] = ("a", "x", 2, nan)
    (row,) = paired_difference(frame_of(cells), "output_tokens_per_s", "policy", "a", ["layout"], range(6))
    assert (row.num_pairs, row.num_missing, row.difference) == (4, 2, 2.0)


def test_an_absent_baseline_leaves_no_pair():
    (row,) = paired_difference(frame_of([("b", "x", 0, 1.0)]), "output_tokens_per_s", "policy", "a", [], [0])
    assert (row.num_pairs, row.num_missing, row.verdict) == (0, 1, "undecided")
    assert isnan(row.difference)
