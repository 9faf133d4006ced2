"""`RolloutEngines`: the life of a replica. Drain, stop, loss and start, with turns in flight."""

import pytest

from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import FailureKind, ReplicaId
from tests.contract import script
from tests.contract.harness import assert_failed, generating, kinds, publish


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


def test_until_a_death_is_known_nothing_is_heard_of_what_was_lost(world):
    ids = generating(world, 0, 1)
    before, died_s = len(world.events), world.now_s()
    world.die(0)
    world.die(0)
    assert world.events[before:] == []
    world.run_until(lambda: len(world.events) > before + len(ids))
    noticed_s = world.now_s()
    assert noticed_s > died_s
    lost, *failed = world.events[before:]
    assert lost == ev.ReplicaLost(0)
    assert {event.failed_s for event in failed} == {noticed_s}
    world.wait(30.0)
    assert len(world.of(ev.ReplicaLost)) == 1


@pytest.mark.parametrize("ask", ["submit", "load", "drain", "stop"])
def test_what_is_asked_of_a_dead_replica_hangs_until_that_is_known(world, ask):
    publish(world)
    (under_way,) = generating(world, 0)
    world.begin(2)
    world.die(0)
    before = len(world.events)
    world.wait(0.1)
    action_id = world.submit(2) if ask == "submit" else getattr(world, ask)()
    world.abort(0, under_way)
    world.wait(0.1)
    if ask == "stop" and world.stops_the_dead:
        assert type(world.end_of(action_id)) is ev.ReplicaStopped
        assert_failed(world.end_of(under_way), FailureKind.ABORTED, ev.TurnFailed)
        return
    assert world.events[before:] == []
    failed = ev.TurnFailed if ask == "submit" else ev.ActionFailed
    assert_failed(world.end_of(action_id), FailureKind.REPLICA_LOST, failed)
    assert_failed(world.end_of(under_way), FailureKind.REPLICA_LOST, ev.TurnFailed)
    world.wait(30.0)
    assert world.open_actions() == []
    resumed = world.end_of(world.submit(0, replica=1, more=world.closing(under_way)[0].output_tokens))
    assert type(resumed) is ev.TurnFinished


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
