"""`RolloutEngines`: turns, aborts and their races, loads, and the life of a replica."""

import pytest

from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import FailureKind, ReplicaId
from tests.contract import script


def kinds(events) -> list[type]:
    return [type(event) for event in events]


def generating(world, *trajectories: int, replica: int = 0) -> list[int]:
    """Turns that have produced tokens for a while."""
    world.begin(*trajectories)
    ids = [world.submit(i, replica) for i in trajectories]
    world.wait(1.0)
    assert not any(world.closing(i) for i in ids)
    return ids


def assert_failed(event, kind: FailureKind, what: type = ev.ActionFailed) -> None:
    assert (type(event), event.kind) == (what, kind)


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


def test_a_turn_that_fits_nowhere_fails_with_nothing_generated(world):
    world.begin(script.TOO_LONG)
    world.end_of(world.submit(script.TOO_LONG))
    world.first(ev.ToolReturned, script.TOO_LONG)
    ended = world.end_of(world.submit(script.TOO_LONG, turn=1))
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


def publish(world, version: int = 1) -> None:
    world.end_of(world.train(version - 1))
    world.end_of(world.publish(version))


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


def test_a_drain_ends_when_the_last_turn_has(world):
    ids = generating(world, 0, 1)
    drain_id = world.drain()
    drained = world.end_of(drain_id)
    assert drained == ev.ReplicaDrained(drain_id, 0)
    assert kinds(world.closing(i)[0] for i in ids) == [ev.TurnFinished] * 2
    assert world.events.index(drained) > max(world.events.index(world.closing(i)[0]) for i in ids)


def test_a_drain_of_a_replica_at_rest_ends_at_once(world):
    drain_id = world.drain(1)
    assert world.closing(drain_id) == [ev.ReplicaDrained(drain_id, 1)]


def test_a_drain_is_hastened_by_aborts(world):
    (submit_id,) = generating(world, 0)
    drain_id = world.drain()
    world.abort(0, submit_id)
    world.end_of(drain_id)
    assert_failed(world.closing(submit_id)[0], FailureKind.ABORTED, ev.TurnFailed)


def test_a_stop_ends_the_turns_first(world):
    ids = generating(world, 0, 1)
    stop_id = world.stop()
    stopped = world.end_of(stop_id)
    assert stopped == ev.ReplicaStopped(stop_id, 0)
    for submit_id in ids:
        (failed,) = world.closing(submit_id)
        assert_failed(failed, FailureKind.ABORTED, ev.TurnFailed)
        assert failed.output_tokens > 0
        assert world.events.index(failed) < world.events.index(stopped)
    before = len(world.events)
    world.wait(30.0)
    assert world.events[before:] == []


@pytest.mark.parametrize("ending", ["stop", "loss"])
def test_whatever_a_replica_was_about_ends_with_it(world, ending):
    publish(world)
    generating(world, 0, 1)
    load_id = world.load()
    drain_id = world.drain()
    world.wait(0.05)
    if ending == "stop":
        world.end_of(world.stop())
    else:
        world.lose(0)
    world.wait(1.0)
    kind = FailureKind.ABORTED if ending == "stop" else FailureKind.REPLICA_LOST
    for action_id in (load_id, drain_id):
        assert_failed(world.closing(action_id)[0], kind)
    assert world.open_actions() == []


def test_a_loss_is_told_first_and_then_what_was_lost(world):
    ids = generating(world, 0, 1)
    before = len(world.events)
    world.lose(0)
    world.wait(1.0)
    lost, *failed = world.events[before:]
    assert lost == ev.ReplicaLost(0)
    assert [event.closes for event in failed] == ids
    for event in failed:
        assert_failed(event, FailureKind.REPLICA_LOST, ev.TurnFailed)


def test_the_other_replica_goes_on(world):
    world.begin(0, 2)
    here, there = world.submit(0, 0), world.submit(2, 1)
    world.wait(1.0)
    world.lose(0)
    assert_failed(world.end_of(here), FailureKind.REPLICA_LOST, ev.TurnFailed)
    assert type(world.end_of(there)) is ev.TurnFinished


def test_a_turn_that_was_lost_goes_on_elsewhere_with_its_tokens(world):
    (submit_id,) = generating(world, 0)
    world.lose(0)
    failed = world.end_of(submit_id)
    resumed = world.end_of(world.submit(0, replica=1, more=failed.output_tokens))
    assert failed.output_tokens + resumed.output_tokens == script.FIRST_OUTPUT


@pytest.mark.parametrize("down", ["stopped", "lost"])
@pytest.mark.parametrize("ask", ["submit", "load", "drain", "stop"])
def test_what_is_asked_of_a_replica_that_is_down_fails(world, ask, down):
    publish(world)
    world.begin(0)
    if down == "stopped":
        world.end_of(world.stop())
    else:
        world.lose(0)
    action_id = world.submit(0) if ask == "submit" else getattr(world, ask)()
    assert_failed(
        world.end_of(action_id),
        FailureKind.REPLICA_LOST,
        ev.TurnFailed if ask == "submit" else ev.ActionFailed,
    )


@pytest.mark.parametrize("down", ["stopped", "lost"])
def test_a_replica_that_is_down_starts_with_the_published_weights_and_no_cache(world, down):
    publish(world)
    world.begin(0)
    world.end_of(world.submit(0))
    world.first(ev.ToolReturned, 0)
    if down == "stopped":
        world.end_of(world.stop())
    else:
        world.lose(0)
    start_id = world.start()
    ready = world.end_of(start_id)
    assert type(ready) is ev.ReplicaReady
    assert (ready.replica_id, ready.tp, ready.weight_version) == (0, 1, 1)
    assert (ready.max_num_seqs, ready.max_model_len) == (script.MAX_NUM_SEQS, script.MAX_MODEL_LEN)
    turn = world.end_of(world.submit(0, turn=1))
    assert (type(turn), turn.cached_tokens, turn.version_first) == (ev.TurnFinished, 0, 1)


def test_a_replica_may_be_started_in_answer_to_its_loss(world):
    started = []
    world.react = lambda event: started.append(world.start()) if type(event) is ev.ReplicaLost else None
    world.lose(0)
    world.run_until(lambda: bool(started))
    assert type(world.end_of(started[0])) is ev.ReplicaReady


def test_turns_may_be_submitted_elsewhere_in_answer_to_their_failure(world):
    ids = generating(world, 0, 1)

    def again(event) -> None:
        if type(event) is ev.TurnFailed:
            world.submit(event.trajectory_id, replica=1, more=event.output_tokens)

    world.react = again
    world.lose(0)
    for submit_id in ids:
        world.end_of(submit_id)
    world.run_until(lambda: len(world.of(ev.TurnFinished)) == 2)
    assert {event.replica_id for event in world.of(ev.TurnFinished)} == {1}


@pytest.mark.parametrize("replica", [0, 7])
def test_a_start_of_what_runs_or_does_not_exist_is_refused(world, replica):
    action_id = world.send(act.StartReplica(ReplicaId(replica), 1, 0, ""))
    assert_failed(world.end_of(action_id), FailureKind.REFUSED)
    world.begin(0)
    assert type(world.end_of(world.submit(0))) is ev.TurnFinished


def test_a_second_start_is_refused_and_the_first_goes_on(world):
    world.lose(0)
    first = world.start()
    assert_failed(world.end_of(world.start()), FailureKind.REFUSED)
    assert type(world.end_of(first)) is ev.ReplicaReady
    world.wait(30.0)
    assert len(world.of(ev.ReplicaReady)) == 3


def test_a_replica_lives_many_lives(world):
    world.begin(0)
    more = 0
    for _ in range(3):
        submit_id = world.submit(0, more=more)
        world.wait(0.5)
        world.lose(0)
        more += world.end_of(submit_id).output_tokens
        world.end_of(world.start())
    turn = world.end_of(world.submit(0, more=more))
    assert more + turn.output_tokens == script.FIRST_OUTPUT
