"""Advantages, token weights and micro-batches: what a train step is made of, before any torch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.trainer.batch import (
    Sample,
    TrainBatch,
    group_advantages,
    pack_arrays,
    plan_step,
    split,
    unpack_arrays,
)
from libra.errors import UserError


def sample(i=0, group=0, length=6, generated=(3, 4, 5), reward=0.0):
    mask = np.zeros(length, bool)
    mask[list(generated)] = True
    tokens = np.arange(length, dtype=np.int32) + 10 * i
    return Sample(i, group, tokens, mask, np.where(mask, -1.5, 0).astype(np.float32), reward)


def plan(samples, aggregation="sequence_mean", limit=100):
    return plan_step(
        TrainBatch(tuple(samples)), normalize_std=True, aggregation=aggregation, max_length_tokens=limit
    )


def test_an_advantage_is_the_distance_from_the_groups_mean_in_standard_deviations():
    rewards = np.array([1.0, 5.0, 0.0, 5.0, 2.0, 5.0])
    groups = np.array([7, 3, 7, 3, 7, 3])  # members in any order
    plain, flat = group_advantages(rewards, groups, False)
    assert plain.tolist() == [0.0, 0.0, -1.0, 0.0, 1.0, 0.0]
    assert flat.tolist() == [False, True, False, True, False, True]
    scaled, _ = group_advantages(rewards, groups, True)
    assert scaled[[0, 2, 4]] == pytest.approx(np.array([0, -1, 1]) / np.sqrt(2 / 3), rel=1e-5)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1e3, 1e3)), min_size=1, max_size=30), st.booleans())
def test_advantages_of_a_group_add_up_to_nothing(rows, normalize_std):
    groups, rewards = np.array([g for g, _ in rows]), np.array([r for _, r in rows], float)
    advantages, flat = group_advantages(rewards, groups, normalize_std)
    assert np.isfinite(advantages).all()
    assert not advantages[flat].any()
    for group in np.unique(groups):
        assert advantages[groups == group].sum() == pytest.approx(0.0, abs=1e-6 * len(rows) * 1e3)


def test_groups_of_equal_rewards_and_silent_trajectories_are_left_out_and_counted():
    made = plan([
        sample(0, 0, reward=1.0), sample(1, 0, reward=0.0), sample(2, 0, generated=(), reward=0.5),
        sample(3, 1, reward=0.3), sample(4, 1, reward=0.3),
        sample(5, 2, reward=0.9),  # a group of which only one came back
    ])  # fmt: skip
    assert [s.trajectory_id for s in made.samples] == [0, 1]
    assert made.num_zero_variance_groups == 2
    assert made.mean_reward == pytest.approx(0.5)
    assert plan([sample(0, 0), sample(1, 0)]).samples == ()
    assert plan([]).mean_reward == 0.0


def test_weights_give_each_trajectory_or_each_token_the_same_say():
    samples = [sample(0, 0, reward=1.0), sample(1, 0, generated=(5,), reward=0.0)]
    assert plan(samples).weights.tolist() == pytest.approx([1 / 6, 1 / 2])
    assert plan(samples, "token_mean").weights.tolist() == pytest.approx([1 / 4, 1 / 4])


def test_a_trajectory_longer_than_the_trainer_takes_is_refused():
    with pytest.raises(UserError, match=r"trajectory 3 has 9 tokens, the trainer takes 8; raise"):
        plan([sample(3, length=9)], limit=8)


@settings(max_examples=60)
@given(st.data())
def test_however_a_step_is_split_its_parts_make_up_the_whole(data):
    lengths = data.draw(st.lists(st.integers(3, 20), min_size=1, max_size=12))
    samples = [
        sample(i, i // 2, n, data.draw(st.sets(st.integers(1, n - 1), min_size=1)), float(i % 2))
        for i, n in enumerate(lengths)
    ]
    dp_size, micro, same = (
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(1, 3)),
        data.draw(st.booleans()),
    )
    made = plan(samples)
    if not made.samples:
        return
    parts = [
        split(made.samples, dp_size=dp_size, dp_rank=rank, micro_batch_size=micro, same_length=same,
              advantages=made.advantages, weights=made.weights)
        for rank in range(dp_size)
    ]  # fmt: skip
    assert len({len(part) for part in parts}) == 1
    batches = [batch for part in parts for batch in part]
    assert len({batch.tokens.shape for batch in batches}) == 1 or not same
    assert sorted(row for batch in batches for row in batch.rows if row >= 0) == list(
        range(len(made.samples))
    )
    assert sum(batch.weights.sum(dtype=float) for batch in batches) == pytest.approx(1.0, rel=1e-5)
    for batch in batches:
        assert batch.mask.any(axis=1).all()
        assert not batch.weights[~batch.mask].any()
        for line, row in enumerate(batch.rows):
            if row < 0:
                assert not batch.weights[line].any()
                continue
            own = made.samples[row]
            assert batch.tokens[line, : len(own.tokens)].tolist() == own.tokens.tolist()
            assert set(batch.advantages[line][batch.mask[line]]) == {np.float32(made.advantages[row])}


def test_a_batch_survives_the_wire():
    batch = TrainBatch((sample(1, 4, 5, (2, 4), 0.25), sample(2, 4, 9, (8,), 0.5)))
    back = TrainBatch.from_bytes(batch.to_bytes())
    for old, new in zip(batch.samples, back.samples, strict=True):
        assert (new.trajectory_id, new.group_id, new.reward) == (old.trajectory_id, old.group_id, old.reward)
        for name in ("tokens", "loss_mask", "rollout_logprobs"):
            assert getattr(new, name).dtype == getattr(old, name).dtype
            assert getattr(new, name).tolist() == getattr(old, name).tolist()
    assert TrainBatch.from_bytes(TrainBatch(()).to_bytes()).samples == ()
    with pytest.raises(ValueError, match="array offsets is missing"):
        TrainBatch.from_bytes(_npz(tokens=np.zeros(2)))


def test_lists_of_arrays_survive_the_wire():
    arrays = [np.array([1.5, 2.0], np.float32), np.zeros(0, np.float32), np.array([3.0], np.float32)]
    assert [a.tolist() for a in unpack_arrays(pack_arrays(arrays))] == [a.tolist() for a in arrays]
    assert unpack_arrays(pack_arrays([])) == []


def test_samples_that_nothing_could_foretell_are_refused():
    with pytest.raises(ValueError, match="needs one before it"):
        sample(generated=(0,))
    with pytest.raises(ValueError, match="differ in length"):
        Sample(0, 0, np.zeros(3, np.int32), np.zeros(2, bool), np.zeros(3, np.float32), 0.0)


def _npz(**arrays):
    import io

    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()
