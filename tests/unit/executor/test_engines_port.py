"""`VllmEngines`, the `RolloutEngines` port, over stand-in servers: turns, aborts, and their ends."""

import asyncio

import pytest

from executor.engines.fake_engine import FakeConfig, next_token
from libra.config.schema import EngineConfig
from libra.core import events as ev
from libra.core.ids import FailureKind, NextStep
from tests.support.fake_rollout import FakeRollout, fake_rollout, run, spin


def with_rollout(folder, test, **settings) -> None:
    async def body() -> None:
        async with fake_rollout(folder, **settings) as world:
            await test(world)

    run(body())


def expected(context: list[int], count: int, weights: int = 0) -> list[int]:
    context = list(context)
    for _ in range(count):
        context.append(next_token(context, weights, 512))
    return context[-count:]


async def generating(world: FakeRollout, *trajectories: int, replica: int = 0, tokens: int = 31) -> list[int]:
    """Turns of which the driver has seen so many tokens, and which then stand still."""
    world.launcher.server(replica).engine.hold(tokens)
    ids = [world.rollout.submit(i, replica) for i in trajectories]
    life = world.rollout.engines._lives[replica]
    full = 1 + (tokens - 1 + 9) // 10
    await spin(lambda: all(life.turns[i].generation.num_messages >= full for i in ids))
    return ids


def test_replicas_report_themselves_in_their_order(tmp_path):
    async def test(world: FakeRollout) -> None:
        assert [(e.closes, e.replica_id, e.weight_version) for e in world.rollout.events] == [
            (-1, 0, 0),
            (-1, 1, 0),
        ]
        ready = world.rollout.events[0]
        assert (ready.max_num_seqs, ready.max_model_len, ready.kv_capacity_tokens) == (4, 1000, 65536)

    with_rollout(tmp_path, test)


def test_a_turn_is_handed_over_then_told_then_goes_on(tmp_path):
    async def test(world: FakeRollout) -> None:
        rollout, store = world.rollout, world.store
        order = store.order
        rollout.react = lambda event: order.append(type(event).__name__)
        turn = await rollout.end_of(rollout.submit(0, replica=1))
        assert order == ["end", "TurnFinished", "after"]
        assert (turn.trajectory_id, turn.turn, turn.replica_id) == (0, 0, 1)
        assert (turn.prompt_tokens, turn.output_tokens, turn.cached_tokens) == (100, 300, 0)
        assert 0 <= turn.submitted_s <= turn.started_s <= turn.first_token_s <= turn.finished_s
        assert (turn.version_first, turn.version_last, turn.version_token_sum) == (0, 0, 0)
        assert (turn.next_step, turn.tool_name) == (NextStep.TOOL, "shell")
        ((trajectory, number, result),) = store.ended
        assert (trajectory, number) == (0, 0)
        assert list(result.token_ids) == expected([1] * 100, 300)
        assert result.versions() == [0] * 300
        again = await rollout.end_of(rollout.submit(0, replica=1, turn=1))
        assert (again.prompt_tokens, again.cached_tokens) == (400, 384)

    with_rollout(tmp_path, test)


def test_turns_beyond_the_limit_start_when_one_before_them_ends(tmp_path):
    async def test(world: FakeRollout) -> None:
        rollout = world.rollout
        world.launcher.server(0).engine.hold(1)
        ids = [rollout.submit(i) for i in range(3)]
        await spin(lambda: world.launcher.server(0).engine.num_generated == 2)
        world.launcher.server(0).engine.hold(None)
        turns = [await rollout.end_of(i) for i in ids]
        ends = sorted(turn.finished_s for turn in turns[:2])
        assert turns[2].started_s >= ends[0]
        assert turns[0].started_s == turns[0].submitted_s
        assert turns[2].first_token_s >= turns[2].started_s > turns[2].submitted_s

    one = FakeConfig(max_model_len=1000, max_num_seqs=2, stream_interval_tokens=10)
    with_rollout(tmp_path, test, fake=one, engine=EngineConfig(max_num_seqs=2))


@pytest.mark.parametrize(("policy", "sent"), [("fcfs", 0), ("priority", 5)])
def test_priority_is_sent_only_where_the_engine_orders_by_it(tmp_path, policy, sent):
    async def test(world: FakeRollout) -> None:
        (submit_id,) = [world.rollout.submit(0, priority=5)]
        turn = world.rollout.engines._lives[0].turns[submit_id]
        assert turn.generation.request.priority == sent
        await world.rollout.end_of(submit_id)

    with_rollout(tmp_path, test, engine=EngineConfig(scheduling_policy=policy))


def test_a_turn_that_fits_nowhere_fails_with_nothing_generated(tmp_path):
    async def test(world: FakeRollout) -> None:
        world.store.output = 901
        failed = await world.rollout.end_of(world.rollout.submit(0))
        assert (type(failed), failed.kind) == (ev.TurnFailed, FailureKind.PROMPT_TOO_LONG)
        assert (failed.output_tokens, failed.version_first) == (0, -1)
        assert not world.store.failed
        world.store.output = 900
        assert type(await world.rollout.end_of(world.rollout.submit(0))) is ev.TurnFinished

    with_rollout(tmp_path, test)


def test_an_aborted_turn_keeps_its_tokens_and_goes_on_elsewhere(tmp_path):
    async def test(world: FakeRollout) -> None:
        rollout = world.rollout
        (submit_id,) = await generating(world, 0)
        rollout.abort(0, submit_id)
        rollout.abort(0, submit_id)
        failed = await rollout.end_of(submit_id)
        assert (type(failed), failed.kind, failed.output_tokens) == (ev.TurnFailed, FailureKind.ABORTED, 31)
        assert failed.submitted_s <= failed.failed_s
        assert list(world.store.failed[0][2].token_ids) == expected([1] * 100, 31)
        resumed = await rollout.end_of(rollout.submit(0, replica=1))
        assert (resumed.prompt_tokens, resumed.output_tokens) == (131, 269)
        assert world.store.contexts[0] == [1] * 100 + expected([1] * 100, 300)
        rollout.abort(0, submit_id)  # it has long ended

    with_rollout(tmp_path, test)


def test_an_abort_that_overtakes_its_turn_is_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr("executor.engines.serving._ABORT_PATIENCE_S", (0.0, 0.01, 1.0))

    async def test(world: FakeRollout) -> None:
        world.launcher.server(0).engine.hold(1)
        submit_id = world.rollout.submit(0)
        world.rollout.abort(0, submit_id)
        failed = await world.rollout.end_of(submit_id)
        assert (failed.kind, failed.output_tokens < 300) == (FailureKind.ABORTED, True)

    with_rollout(tmp_path, test)


def test_an_abort_that_the_engine_does_not_answer_ends_the_connection(tmp_path, monkeypatch):
    monkeypatch.setattr("executor.engines.serving._ABORT_PATIENCE_S", (0.01,))

    async def test(world: FakeRollout) -> None:
        server = world.launcher.server(0)
        (submit_id,) = await generating(world, 0)
        server.engine.abort = lambda request_ids: None
        world.rollout.abort(0, submit_id)
        failed = await world.rollout.end_of(submit_id)
        assert (failed.kind, failed.output_tokens) == (FailureKind.ABORTED, 31)
        await spin(lambda: not server.engine.running)

    with_rollout(tmp_path, test)


@pytest.mark.parametrize(
    ("faults", "kind", "kept"),
    [
        ({"error_after_tokens": 31}, FailureKind.ENGINE_ERROR, 31),
        ({"break_after_tokens": 31}, FailureKind.ENGINE_ERROR, 31),
        ({"refuse": 400}, FailureKind.ENGINE_ERROR, 0),
        ({"stuck": {"/inference/v1/generate"}}, FailureKind.TIMEOUT, 0),
    ],
)
def test_a_turn_that_fails_on_a_healthy_replica_keeps_what_it_had(tmp_path, faults, kind, kept):
    async def test(world: FakeRollout) -> None:
        for name, value in faults.items():
            setattr(world.launcher.server(0).faults, name, value)
        failed = await world.rollout.end_of(world.rollout.submit(0))
        assert (failed.kind, failed.output_tokens) == (kind, kept)
        assert list(world.store.failed[0][2].token_ids) == (expected([1] * 100, kept) if kept else [])
        assert not [e for e in world.rollout.events if type(e) is ev.ReplicaLost]

    with_rollout(tmp_path, test, request_timeout_s=0.1)


def test_a_defect_in_a_callback_ends_the_run_instead_of_vanishing(tmp_path):
    async def test(world: FakeRollout) -> None:
        rollout = world.rollout

        def broken(*_) -> None:
            raise ZeroDivisionError

        world.store.on_turn_end = broken
        rollout.submit(0)
        await spin(lambda: bool(rollout.errors))
        assert [type(error) for error in rollout.errors] == [ZeroDivisionError]
        rollout.errors.clear()

    with_rollout(tmp_path, test)


def test_polling_tells_of_the_replicas_that_answer(tmp_path):
    async def test(world: FakeRollout) -> None:
        rollout = world.rollout
        await generating(world, 0, 1, replica=1)
        await rollout.engines.sample()
        sampled = rollout.events[-1]
        assert (sampled.replica_ids, sampled.num_running, sampled.num_waiting) == ((0, 1), (0, 2), (0, 0))
        assert sampled.kv_used_fraction[1] > sampled.kv_used_fraction[0] == 0.0
        world.launcher.server(0).faults.failing.add("/metrics")
        await rollout.engines.sample()
        assert rollout.events[-1].replica_ids == (1,)

    with_rollout(tmp_path, test)


def test_closing_ends_everything_without_an_event(tmp_path):
    async def test(world: FakeRollout) -> None:
        await generating(world, 0, 1)
        before = len(world.rollout.events)
        await world.rollout.engines.close()
        assert len(world.rollout.events) == before
        assert world.rollout.engines.client(0) is None
        assert not [task for task in asyncio.all_tasks() if "executor.engines.r" in repr(task)]

    with_rollout(tmp_path, test)
