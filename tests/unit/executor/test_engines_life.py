"""`VllmEngines` over stand-in servers: weight loads, and the life of a replica."""

import asyncio

import pytest

from executor.engines.errors import EngineStartError
from executor.engines.fake_engine import FakeConfig
from libra.config.schema import EngineConfig
from libra.core import events as ev
from libra.core.ids import FailureKind
from libra.errors import UserError
from tests.support.fake_rollout import FakeRollout, spin
from tests.unit.executor.test_engines_port import expected, generating, with_rollout

NO_VERSIONS = FakeConfig(max_model_len=1000, stream_interval_tokens=10, versions=False)


@pytest.mark.parametrize("fake", [None, NO_VERSIONS], ids=["stamped", "unstamped"])
@pytest.mark.parametrize("direct", [False, True], ids=["disk", "direct"])
def test_turns_under_way_go_on_under_the_new_weights(tmp_path, fake, direct):
    async def test(world: FakeRollout) -> None:
        rollout = world.rollout
        world.weights.publish(1)
        ids = await generating(world, 0, 1)
        loaded = await rollout.end_of(rollout.load())
        assert (type(loaded), loaded.replica_id, loaded.version) == (ev.WeightsLoaded, 0, 1)
        assert loaded.started_s <= loaded.finished_s
        world.launcher.server(0).engine.hold(None)
        for submit_id in ids:
            turn = await rollout.end_of(submit_id)
            assert (turn.version_first, turn.version_last, turn.version_token_sum) == (0, 1, 269)
            assert (turn.recomputed_tokens, turn.num_preemptions) == (131, 1)
        assert world.store.ended[0][2].versions() == [0] * 31 + [1] * 269
        after = await rollout.end_of(rollout.submit(2))
        assert (after.version_first, after.version_token_sum, after.num_preemptions) == (1, 300, 0)
        if direct:  # the group is joined once in an engine's life
            world.weights.publish(2)
            await rollout.end_of(rollout.load(version=2))
            assert world.weights.sent == ["join 0", "send 0", "send 0"]

    with_rollout(tmp_path, test, fake=fake, direct=direct)


def test_a_kept_prefix_cache_costs_no_recompute(tmp_path):
    async def test(world: FakeRollout) -> None:
        world.weights.publish(1)
        (submit_id,) = await generating(world, 0)
        await world.rollout.end_of(world.rollout.load())
        assert "/reset_prefix_cache" not in world.launcher.server(0).calls
        world.launcher.server(0).engine.hold(None)
        turn = await world.rollout.end_of(submit_id)
        assert (turn.recomputed_tokens, turn.num_preemptions, turn.version_last) == (0, 0, 1)

    with_rollout(tmp_path, test, engine=EngineConfig(keep_prefix_cache_on_load=True))


def test_a_second_load_waits_for_the_first(tmp_path):
    async def test(world: FakeRollout) -> None:
        world.weights.publish(2)
        world.weights.publish(1)
        first, second = world.rollout.load(version=1), world.rollout.load(version=2)
        assert (await world.rollout.end_of(second)).version == 2
        assert world.rollout.closing(first)
        assert world.launcher.server(0).engine.weights == 2

    with_rollout(tmp_path, test)


def test_without_partial_rollout_a_load_is_refused_while_a_turn_is_in_flight(tmp_path):
    async def test(world: FakeRollout) -> None:
        world.weights.publish(1)
        (submit_id,) = await generating(world, 0)
        failed = await world.rollout.end_of(world.rollout.load())
        assert (failed.kind, "1 turns in flight" in failed.message) == (FailureKind.REFUSED, True)
        world.launcher.server(0).engine.hold(None)
        assert (await world.rollout.end_of(submit_id)).version_token_sum == 0
        assert type(await world.rollout.end_of(world.rollout.load())) is ev.WeightsLoaded

    with_rollout(tmp_path, test, partial_rollout=False)


@pytest.mark.parametrize(
    ("setup", "kind", "text"),
    [
        ("gone", FailureKind.ENGINE_ERROR, "version 1 is gone"),
        ("empty", FailureKind.ENGINE_ERROR, "stage check failed: no *.safetensors in"),
        ("/pause", FailureKind.ENGINE_ERROR, "stage pause failed"),
    ],
)
def test_a_load_that_fails_before_anything_changed_keeps_the_old_weights(tmp_path, setup, kind, text):
    async def test(world: FakeRollout) -> None:
        if setup == "gone":
            world.weights.refuse = UserError("version 1 is gone")
        if setup == "/pause":
            world.weights.publish(1)
            world.launcher.server(0).faults.failing.add("/pause")
        failed = await world.rollout.end_of(world.rollout.load())
        assert (type(failed), failed.kind) == (ev.ActionFailed, kind)
        assert text in failed.message
        assert failed.message.startswith("replica 0 (tp 1) at http://127.0.0.1:")
        assert failed.message in world.rollout.notes
        turn = await world.rollout.end_of(world.rollout.submit(0))
        assert (type(turn), turn.version_token_sum) == (ev.TurnFinished, 0)

    with_rollout(tmp_path, test)


@pytest.mark.parametrize(
    ("fault", "direct", "text"),
    [
        ("/collective_rpc", False, "stage reload took more than 0.05 s"),
        ("/update_weights", True, "stage receive took more than 0.05 s"),
        ("/init_weight_transfer_engine", True, "stage join took more than 0.05 s"),
        ("send", True, "stage receive took more than 0.05 s"),
        ("verify", False, "replica 0 serves other weights"),
    ],
)
def test_a_replica_whose_weights_are_torn_is_lost_and_the_late_stage_named(tmp_path, fault, direct, text):
    async def test(world: FakeRollout) -> None:
        rollout = world.rollout
        world.weights.publish(1)
        if fault == "verify":
            world.weights.wrong = UserError("replica 0 serves other weights")
        world.weights.send_stuck = fault == "send"
        world.launcher.server(0).faults.stuck.add(fault)
        (submit_id,) = await generating(world, 0)
        before = len(rollout.events)
        load_id = rollout.load()
        failed = await rollout.end_of(load_id)
        assert failed.kind is (FailureKind.ENGINE_ERROR if fault == "verify" else FailureKind.TIMEOUT)
        assert text in failed.message
        assert [type(event) for event in rollout.events[before:]] == [
            ev.ReplicaLost,
            ev.TurnFailed,
            ev.ActionFailed,
        ]
        assert rollout.closing(submit_id)[0].output_tokens == 31
        assert rollout.engines.client(0) is None

    with_rollout(tmp_path, test, direct=direct, load_deadline_s=0.05 if fault != "verify" else 5.0)


# -- drain, stop, loss, start -----------------------------------------------------------------------------


def test_a_drain_ends_when_the_last_turn_has(tmp_path):
    async def test(world: FakeRollout) -> None:
        rollout = world.rollout
        at_rest = rollout.drain(1)
        assert rollout.closing(at_rest) == [ev.ReplicaDrained(at_rest, 1)]
        first, second = await generating(world, 0, 1)
        drain_id = rollout.drain()
        rollout.abort(0, first)
        await rollout.end_of(first)
        assert not rollout.closing(drain_id)
        world.launcher.server(0).engine.hold(None)
        assert await rollout.end_of(drain_id) == ev.ReplicaDrained(drain_id, 0)
        assert rollout.events.index(rollout.closing(drain_id)[0]) > rollout.events.index(
            rollout.closing(second)[0]
        )

    with_rollout(tmp_path, test)


@pytest.mark.parametrize("ending", ["stop", "loss"])
def test_whatever_a_replica_was_about_ends_with_it(tmp_path, ending):
    async def test(world: FakeRollout) -> None:
        rollout = world.rollout
        world.weights.publish(1)
        ids = await generating(world, 0, 1)
        world.launcher.server(0).faults.stuck.add("/pause")
        load_id, drain_id = rollout.load(), rollout.drain()
        await asyncio.sleep(0)
        before = len(rollout.events)
        if ending == "stop":
            stop_id = rollout.stop()
            assert await rollout.end_of(stop_id) == ev.ReplicaStopped(stop_id, 0)
        else:
            assert rollout.engines.lose(0)
            assert not rollout.engines.lose(0)
        kind = FailureKind.ABORTED if ending == "stop" else FailureKind.REPLICA_LOST
        told = rollout.events[before:]
        if ending == "loss":
            assert told.pop(0) == ev.ReplicaLost(0)
        else:
            assert told.pop() == ev.ReplicaStopped(stop_id, 0)
        assert [event.closes for event in told] == [*ids, load_id, drain_id]
        assert {event.kind for event in told} == {kind}
        assert [event.output_tokens for event in told[:2]] == [31, 31]

    with_rollout(tmp_path, test)


@pytest.mark.parametrize("death", ["process", "unhealthy", "connection"])
def test_a_death_is_noticed_told_first_and_the_reason_noted(tmp_path, death):
    async def test(world: FakeRollout) -> None:
        rollout, running = world.rollout, world.launcher.of(0)
        ids = await generating(world, 0, 1)
        before = len(rollout.events)
        if death == "process":
            await running.die()
        elif death == "unhealthy":
            running.server.faults.unhealthy = True
        else:
            await running.server.stop()
        await rollout.until(lambda: len(rollout.events) == before + 3)
        lost, *failed = rollout.events[before:]
        assert lost == ev.ReplicaLost(0)
        assert [(event.closes, event.kind, event.output_tokens) for event in failed] == [
            (submit_id, FailureKind.REPLICA_LOST, 31) for submit_id in ids
        ]
        (note,) = rollout.notes
        assert ("ended with status 1" if death == "process" else "health checks in a row failed") in note
        assert note.endswith("out of luck")
        assert type(await rollout.end_of(rollout.submit(0, replica=1))) is ev.TurnFinished

    with_rollout(tmp_path, test)


@pytest.mark.parametrize("down", ["stopped", "lost"])
def test_what_is_asked_of_a_replica_that_is_down_fails_until_it_is_started(tmp_path, down):
    async def test(world: FakeRollout) -> None:
        rollout = world.rollout
        await rollout.end_of(rollout.submit(0))
        world.weights.publish(1)
        if down == "stopped":
            await rollout.end_of(rollout.stop())
        else:
            rollout.engines.lose(0)
        for ask in (lambda: rollout.submit(0), rollout.load, rollout.drain, rollout.stop):
            (failed,) = rollout.closing(ask())
            assert failed.kind is FailureKind.REPLICA_LOST
        start_id = rollout.start()
        assert (await rollout.end_of(rollout.start())).kind is FailureKind.REFUSED
        ready = await rollout.end_of(start_id)
        assert (type(ready), ready.weight_version) == (ev.ReplicaReady, 1)
        turn = await rollout.end_of(rollout.submit(0, turn=1))
        assert (turn.cached_tokens, turn.version_token_sum) == (0, 300)
        assert list(world.store.ended[-1][2].token_ids) == expected(world.store.contexts[0][:400], 300, 1)

    with_rollout(tmp_path, test)


@pytest.mark.parametrize(("replica", "tp"), [(0, 1), (7, 1), (1, 2)])
def test_a_start_of_what_runs_or_is_not_planned_is_refused(tmp_path, replica, tp):
    async def test(world: FakeRollout) -> None:
        if tp == 2:
            world.rollout.engines.lose(1)
        failed = world.rollout.closing(world.rollout.start(replica, tp))
        assert [event.kind for event in failed] == [FailureKind.REFUSED]

    with_rollout(tmp_path, test)


def test_a_replica_is_started_in_answer_to_its_loss_and_lives_on(tmp_path):
    async def test(world: FakeRollout) -> None:
        rollout, started = world.rollout, []
        rollout.react = lambda event: started.append(rollout.start()) if type(event) is ev.ReplicaLost else 0
        for _ in range(3):
            (submit_id,) = await generating(world, 0)
            rollout.engines.lose(0)
            assert rollout.closing(submit_id)[0].output_tokens == 31
            assert type(await rollout.end_of(started[-1])) is ev.ReplicaReady
        turn = await rollout.end_of(rollout.submit(0))
        assert turn.output_tokens == 300 - 3 * 31
        assert world.store.contexts[0] == [1] * 100 + expected([1] * 100, 300)

    with_rollout(tmp_path, test)


def test_a_restart_brings_weights_that_were_published_while_it_came_up(tmp_path):
    async def test(world: FakeRollout) -> None:
        rollout = world.rollout
        rollout.engines.lose(0)
        start_id = rollout.start()
        await spin(lambda: len(world.launcher.launched) == 3)
        world.weights.publish(1)
        assert (await rollout.end_of(start_id)).weight_version == 1
        assert world.weights.sent == ["join 0", "send 0"]

    with_rollout(tmp_path, test, direct=True)


def test_an_engine_of_somebody_else_gets_the_weights_that_it_should_have(tmp_path):
    async def test(world: FakeRollout) -> None:
        world.launcher.loads_model = False
        await world.rollout.engines.boot()
        assert [world.launcher.server(i).engine.weights for i in range(2)] == [0, 0]
        assert world.rollout.events[0].weight_version == 0

    with_rollout(tmp_path, test, boot=False)


def test_a_start_that_fails_names_engine_and_log_and_may_be_tried_again(tmp_path):
    async def test(world: FakeRollout) -> None:
        rollout = world.rollout
        rollout.engines.lose(0)
        world.launcher.fail_next = 1
        failed = await rollout.end_of(rollout.start())
        assert (type(failed), failed.kind) == (ev.ActionFailed, FailureKind.ENGINE_ERROR)
        assert "its engine ended with status 1 before it was healthy" in failed.message
        assert "\n" not in failed.message
        assert rollout.notes[-1].endswith("last lines of engine.log:\nout of luck")
        assert type(await rollout.end_of(rollout.start())) is ev.ReplicaReady

    with_rollout(tmp_path, test)


def test_a_boot_that_fails_leaves_nothing_behind(tmp_path):
    async def test(world: FakeRollout) -> None:
        world.launcher.fail_next = 1
        with pytest.raises(EngineStartError, match="before it was healthy"):
            await world.rollout.engines.boot()
        assert world.rollout.events == []
        assert all(running.server._runner is None for _, _, running in world.launcher.launched)

    with_rollout(tmp_path, test, boot=False)


def test_an_engine_that_never_becomes_healthy_is_given_up(tmp_path):
    async def test(world: FakeRollout) -> None:
        launch = world.launcher.launch

        async def sick(plan, model_path):
            running = await launch(plan, model_path)
            running.server.faults.unhealthy = True
            return running

        world.launcher.launch = sick
        with pytest.raises(EngineStartError, match=r"was not healthy after 0.05 s; last lines of engine.log"):
            await world.rollout.engines.boot()

    with_rollout(tmp_path, test, boot=False, num_replicas=1, startup_timeout_s=0.05)
