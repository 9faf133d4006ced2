"""Prompts of a real run: each once an epoch, and after any interruption those that are not done."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.episodes import EpisodeStore, SamplingConfig
from executor.progress import Progress
from executor.world.source import TaskOrder, TaskSource
from libra.core import events as ev
from libra.core.actions import FetchPrompts


def source_of(num_tasks, progress, *, group_size=2, max_prompts=None, seed=0):
    store = EpisodeStore(SamplingConfig(), max_model_len=100, seed=0, stop_token_ids=())
    events = []
    order = TaskOrder(num_tasks, seed, max_prompts)
    tasks = [f"task {i}" for i in range(num_tasks)]
    source = TaskSource(
        tasks, order, group_size, store, progress, events.append, lambda e: e.extend_prompt((1, 2, 3))
    )
    return source, store, events


def fetch(source, number):
    source.fetch(7, FetchPrompts(number, ""))


def groups_of(events):
    return list(dict.fromkeys(e.group_id for e in events if type(e) is ev.TrajectoryArrived))


@given(st.integers(1, 12), st.integers(0, 3), st.integers(0, 5))
def test_every_epoch_has_every_task_once_in_an_order_of_its_own(num_tasks, num_epochs, seed):
    order = TaskOrder(num_tasks, seed)
    for epoch in range(num_epochs):
        tasks = [order.task_of(epoch * num_tasks + i) for i in range(num_tasks)]
        assert sorted(tasks) == list(range(num_tasks))
    assert order.task_of(1) == TaskOrder(num_tasks, seed).task_of(1)  # also out of order


def test_orders_differ_between_epochs_and_seeds():
    orders = {
        tuple(TaskOrder(20, seed).task_of(e * 20 + i) for i in range(20)) for seed in (0, 1) for e in (0, 1)
    }
    assert len(orders) == 4


def test_a_fetch_brings_whole_groups_and_says_when_the_supply_ends():
    source, store, events = source_of(3, Progress(), max_prompts=4)
    fetch(source, 3)
    assert [(e.trajectory_id, e.group_id, e.sample_index, e.group_size, e.prompt_tokens) for e in events[:-1]] == [
        (0, 0, 0, 2, 3), (1, 0, 1, 2, 3), (2, 1, 0, 2, 3), (3, 1, 1, 2, 3),
    ]  # fmt: skip
    assert events[-1] == ev.PromptsFetched(7, 4, False)
    assert [episode.trajectory_id for episode in store.group(1)] == [2, 3]
    fetch(source, 100)
    assert events[-1] == ev.PromptsFetched(7, 4, True)
    fetch(source, 1)
    assert events[-1] == ev.PromptsFetched(7, 0, True)


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_over_any_interruptions_each_prompt_is_played_to_its_end_once(max_prompts, seed):
    """Attempts fetch, finish some groups in any order and are cut off; what was not checkpointed is played again."""
    rng = np.random.default_rng(seed)
    saved, trained = Progress(), Counter()
    for attempt in range(4):
        progress = Progress.from_plain(saved.to_plain(), "here")
        source, _, events = source_of(5, progress, max_prompts=max_prompts)
        done_before, since_checkpoint = set(trained), Counter()
        while True:
            fetch(source, int(rng.integers(1, 7)))
            under_way = [group for group in groups_of(events) if not progress.is_done(group)]
            if not under_way and events[-1].exhausted:
                break
            # The last attempt is left in peace.
            ended = under_way if attempt == 3 else [group for group in under_way if rng.random() < 0.5]
            progress.finish(ended)
            since_checkpoint.update(ended)
            if attempt == 3 or rng.random() < 0.5:
                saved = Progress.from_plain(progress.to_plain(), "here")
                trained.update(since_checkpoint)
                since_checkpoint.clear()
            if attempt < 3 and rng.random() < 0.5:
                break  # killed
        assert not done_before & set(groups_of(events))
    assert trained == Counter(range(max_prompts))


@pytest.mark.parametrize("done", [(), (0, 2), (1,), tuple(range(6))])
def test_a_resumed_source_skips_what_is_done(done):
    progress = Progress()
    progress.finish(done)
    source, _, events = source_of(4, progress, max_prompts=6)
    fetch(source, 100)
    assert groups_of(events) == [n for n in range(6) if n not in done]
    order = TaskOrder(4, 0)
    arrived = {e.group_id: e.prompt_id for e in events if type(e) is ev.TrajectoryArrived}
    assert all(order.task_of(number) == task for number, task in arrived.items())
