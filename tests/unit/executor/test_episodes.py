"""Episodes under way: exact tokens over failures, room, and seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.episodes import PROMPT_VERSION, Episode, EpisodeStore, SamplingConfig, TurnTokens
from executor.world.trainer import sample_of


def store_of(max_new_tokens=10, max_model_len=40, seed=0):
    return EpisodeStore(
        SamplingConfig(max_new_tokens=max_new_tokens),
        max_model_len=max_model_len,
        seed=seed,
        stop_token_ids=(9,),
    )


def episode_of(store, number=0, prompt=(1, 2, 3)):
    episode = Episode(number, number // 2, number % 2, "task")
    episode.extend_prompt(prompt)
    store.add(episode)
    return episode


def said(*tokens, version=0):
    return TurnTokens(tokens, [-float(t) for t in tokens], [version] * len(tokens))


PARTS = st.lists(st.lists(st.integers(0, 300), max_size=5), max_size=4)


@given(st.lists(st.tuples(PARTS, st.lists(st.integers(0, 300), max_size=4)), max_size=4))
def test_a_context_is_what_was_said_in_order_whatever_failed_between(turns):
    """Each turn comes in parts, of which all but the last are of attempts that failed."""
    store = store_of()
    episode = episode_of(store)
    tokens, mask, versions = [1, 2, 3], [False] * 3, [PROMPT_VERSION] * 3
    for i, (parts, payload) in enumerate(turns):
        for part in parts:
            assert list(store.prompt_of(0).token_ids) == tokens
            episode.extend_generated(said(*part, version=i))
            tokens, mask, versions = tokens + part, mask + [True] * len(part), versions + [i] * len(part)
        assert episode.turn_tokens == [token for part in parts for token in part]
        episode.extend_prompt(payload)
        episode.turn += 1
        tokens, mask = tokens + payload, mask + [False] * len(payload)
        versions = versions + [PROMPT_VERSION] * len(payload)
    episode.reward = 0.5
    sample = sample_of(episode)
    assert (sample.tokens.tolist(), sample.loss_mask.tolist(), episode.versions) == (tokens, mask, versions)
    expected = [-float(t) if own else 0.0 for t, own in zip(tokens, mask, strict=True)]
    assert sample.rollout_logprobs.tolist() == expected
    assert (sample.tokens.dtype, sample.rollout_logprobs.dtype, sample.reward) == (np.int32, np.float32, 0.5)


def test_room_is_bounded_by_the_turn_and_by_the_context():
    store = store_of(max_new_tokens=10, max_model_len=15)
    episode = episode_of(store)
    assert store.prompt_of(0).max_tokens == 10
    episode.extend_generated(said(*range(4)))
    assert store.prompt_of(0).max_tokens == 6  # an attempt failed after four
    episode.extend_prompt((5, 5))
    assert store.prompt_of(0).max_tokens == 6  # a new turn, and the context ends
    episode.extend_generated(said(*range(6)))
    assert store.prompt_of(0).max_tokens == 1  # an engine takes no less


def test_seeds_differ_by_run_trajectory_turn_and_attempt_and_are_the_same_again():
    def seeds(seed):
        store = store_of(seed=seed)
        found = []
        for number in (0, 1):
            episode = episode_of(store, number)
            for episode.turn in (0, 1):
                found += [store.prompt_of(number).seed for _ in range(2)]
        return found

    assert len(set(seeds(0) + seeds(1))) == 16
    assert seeds(0) == seeds(0)
    assert all(0 <= seed < 2**31 for seed in seeds(0))


def test_groups_hold_their_live_members_in_order():
    store = store_of()
    for number in (3, 1, 0, 2):
        episode_of(store, number)
    assert [e.trajectory_id for e in store.group(0)] == [0, 1]
    assert store.remove(1).trajectory_id == 1
    assert store.remove(1) is None
    assert 1 not in store
    assert [e.trajectory_id for e in store.group(0)] == [0]
    store.remove(0)
    assert store.group(0) == []
    assert [e.trajectory_id for e in store.group(1)] == [2, 3]


def test_the_smaller_bound_of_a_turn_holds():
    sampling = SamplingConfig(max_new_tokens=10)
    assert [sampling.bounded(n).max_new_tokens for n in (0, 4, 40)] == [10, 4, 10]


@pytest.mark.parametrize(
    "wrong", [{"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}]
)
def test_sampling_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SamplingConfig(**wrong)
