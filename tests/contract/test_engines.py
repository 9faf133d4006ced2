"""`RolloutEngines`: turns, aborts and their races, loads, and the life of a replica."""

import pytest

from libra.core import events as ev
from libra.core.ids import FailureKind
from tests.contract import script
from tests.contract.harness import assert_failed, generating, kinds, publish


def test_replicas_report_themselves_when_the_world_begins(world):
    assert [(e.replica_id, e.closes, e.weight_version) for e in world.of(ev.ReplicaReady)] == [
        (0, -1, 0),
        (1, -1, 0),
    ]


def test_a_turn_ends_with_all_its_tokens_and_times_in_order(world):
    world.begin(0)
    at = world.now_s()
    turn = world.end_of(world.submit(0, replica=1))
    assert type(turn) is ev.TurnFinished
    assert (turn.trajectory_id, turn.turn, turn.replica_id) == (0, 0, 1)
    assert (turn.prompt_tokens, turn.output_tokens) == (script.FIRST_PROMPT, script.FIRST_OUTPUT)
    assert at <= turn.submitted_s <= turn.started_s <= turn.first_token_s < turn.finished_s <= world.now_s()
    assert (turn.version_first, turn.version_last, turn.version_token_sum) == (0, 0, 0)


def test_a_second_turn_finds_its_prefix_where_the_first_one_was(world):
    world.begin(0, 2)
    for trajectory in (0, 2):
        world.end_of(world.submit(trajectory))
        world.first(ev.ToolReturned, trajectory)
    assert world.end_of(world.submit(0, replica=0, turn=1)).cached_tokens > 0
    assert world.end_of(world.submit(2, replica=1, turn=1)).cached_tokens == 0


def test_turns_beyond_the_limit_wait_and_are_served(world):
    world.begin(0, 1, 2, 3)
    ids = [world.submit(i) for i in range(4)]
    turns = [world.end_of(i) for i in ids]
    assert kinds(turns) == [ev.TurnFinished] * 4
    assert turns[3].started_s > turns[0].started_s


def test_a_turn_that_fits_nowhere_fails_with_nothing_generated_or_is_cut(world):
    world.begin(script.TOO_LONG)
    world.end_of(world.submit(script.TOO_LONG))
    world.first(ev.ToolReturned, script.TOO_LONG)
    ended = world.end_of(world.submit(script.TOO_LONG, turn=1))
    if not world.knows_lengths:
        assert type(ended) is ev.TurnFinished
        assert ended.prompt_tokens + ended.output_tokens == script.MAX_MODEL_LEN
        return
    assert_failed(ended, FailureKind.PROMPT_TOO_LONG, ev.TurnFailed)
    assert ended.output_tokens == 0


def test_an_aborted_turn_keeps_its_tokens_and_goes_on_from_there(world):
    (submit_id,) = generating(world, 0)
    world.abort(0, submit_id)
    failed = world.end_of(submit_id)
    assert_failed(failed, FailureKind.ABORTED, ev.TurnFailed)
    assert 0 < failed.output_tokens < script.FIRST_OUTPUT
    resumed = world.end_of(world.submit(0, replica=1, more=failed.output_tokens))
    assert type(resumed) is ev.TurnFinished
    assert failed.output_tokens + resumed.output_tokens == script.FIRST_OUTPUT
    assert world.first(ev.ToolReturned, 0).prompt_tokens == script.SECOND_PROMPT


def test_a_turn_that_waits_is_aborted_without_a_token(world):
    world.begin(0, 1, 2)
    last = [world.submit(i) for i in range(3)][-1]
    world.wait(0.5)
    world.abort(2, last)
    failed = world.end_of(last)
    assert_failed(failed, FailureKind.ABORTED, ev.TurnFailed)
    assert failed.output_tokens == 0


def test_an_abort_of_a_turn_that_has_ended_is_nothing(world):
    world.begin(0)
    submit_id = world.submit(0)
    world.end_of(submit_id)
    world.abort(0, submit_id)
    world.wait(30.0)
    assert len(world.closing(submit_id)) == 1
    assert type(world.first(ev.ToolReturned, 0)) is ev.ToolReturned


def test_two_aborts_end_a_turn_once(world):
    (submit_id,) = generating(world, 0)
    world.abort(0, submit_id)
    world.abort(0, submit_id)
    world.wait(30.0)
    assert len(world.closing(submit_id)) == 1


@pytest.mark.parametrize("part", [0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0, 1.001])
def test_abort_and_finish_race_to_one_end(world, part):
    """The time of a turn is measured first, then an abort is sent at a part of it."""
    world.begin(0, 2)
    measured = world.end_of(world.submit(0))
    world.first(ev.ToolReturned, 0)
    submit_id = world.submit(2)
    world.wait(part * (measured.finished_s - measured.submitted_s))
    world.abort(2, submit_id)
    ended = world.end_of(submit_id)
    world.wait(30.0)
    assert world.closing(submit_id) == [ended]
    if type(ended) is ev.TurnFailed:
        assert ended.kind is FailureKind.ABORTED
        assert ended.output_tokens < script.FIRST_OUTPUT
        assert not world.of(ev.ToolReturned)[1:]
    else:
        assert part > 0.9


def test_an_abort_in_answer_to_the_end_of_a_sibling(world):
    first, second = generating(world, 0, 1)
    world.react = lambda event: world.abort(1, second) if getattr(event, "closes", -1) == first else None
    world.end_of(first)
    world.end_of(second)
    world.wait(30.0)
    assert len(world.closing(second)) == 1


def test_a_load_lets_the_turns_under_way_go_on_under_the_new_weights(world):
    publish(world)
    ids = generating(world, 0, 1)
    loaded = world.end_of(world.load())
    assert type(loaded) is ev.WeightsLoaded
    assert (loaded.replica_id, loaded.version) == (0, 1)
    assert loaded.started_s <= loaded.finished_s <= world.now_s()
    assert not any(world.closing(i) for i in ids)
    for submit_id in ids:
        turn = world.end_of(submit_id)
        assert (turn.version_first, turn.version_last) == (0, 1)
        assert 0 < turn.version_token_sum < script.FIRST_OUTPUT
        assert turn.output_tokens == script.FIRST_OUTPUT


def test_a_turn_submitted_during_a_load_is_generated_by_the_new_weights(world):
    publish(world)
    world.begin(0)
    load_id = world.load()
    world.wait(0.05)
    turn = world.end_of(world.submit(0))
    assert world.closing(load_id)
    assert (turn.version_first, turn.version_token_sum) == (1, script.FIRST_OUTPUT)


def test_loads_of_two_replicas_and_two_versions(world):
    publish(world)
    assert [world.end_of(world.load(i)).replica_id for i in range(2)] == [0, 1]
    publish(world, 2)
    assert world.end_of(world.load(1, 2)).version == 2
