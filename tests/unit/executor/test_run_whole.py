"""Whole runs of the executor with stand-in engines and trainer: they end, replay, resume, and fail in order."""

import asyncio
import json
from collections import Counter

import pytest

from executor.engines.fake_engine import FakeConfig
from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import EndReason, FailureKind, ToolStatus
from libra.errors import PolicyError, UserError
from libra.record.reader import Run
from sim.replay import replay
from tests.support.fake_run import FakeTrainer, run_fake

TALK = "workload.environment={kind: 'tests.support.talk:Talk', num_turns: 3, tools: [ok, bad]}"
ENOUGH = "workload.max_prompts=6"


def events_of(run) -> list[ev.Event]:
    return [step.event for step in Run.open(run.outcome.attempt).steps()]


def of(events, kind):
    return [event for event in events if type(event) is kind]


def assert_replays(run) -> None:
    replayed = replay(run.outcome.attempt)
    assert replayed.difference == ""
    assert replayed.num_events > 0


def assert_failed(run, text: str, kind: type = UserError) -> None:
    """It failed with one line, and its record ends in order and replays."""
    assert run.outcome.reason is EndReason.FAILED
    assert isinstance(run.outcome.error, kind)
    assert text in str(run.outcome.error)
    assert len(str(run.outcome.error).splitlines()) == 1
    assert_replays(run)
    manifest = json.loads((run.outcome.attempt / "manifest.json").read_text())
    assert manifest["exit_reason"] == "failed"
    assert not json.loads((run.root / "run.json").read_text())["done"]


def test_three_steps_end_and_replay_exactly(tmp_path):
    run = run_fake(tmp_path)
    assert (run.outcome.reason, run.outcome.error) == (EndReason.STEPS_DONE, None)
    assert [step["version"] for step in run.steps] == [1, 2, 3]
    assert len(run.prompts) == len(set(run.prompts)) == 6
    assert_replays(run)
    manifest = json.loads((run.outcome.attempt / "manifest.json").read_text())
    assert (manifest["world"], manifest["notes"]) == ("executor", ["it is a stand-in"])
    assert not list((run.root / "attempts").glob(".*"))
    with pytest.raises(UserError, match="this run is finished"):
        run_fake(tmp_path)


@pytest.mark.parametrize("mode", ["disk", "direct"])
def test_what_is_trained_on_is_what_the_engines_said(tmp_path, mode):
    """Tokens, masks and log-probs of several turns with tools, under weights that change between them."""
    run = run_fake(tmp_path, TALK, f"executor.weight_sync.mode={mode}")
    assert run.outcome.error is None
    events = events_of(run)
    statuses = Counter(event.status for event in of(events, ev.ToolReturned))
    assert set(statuses) == {ToolStatus.SUCCESS, ToolStatus.FAILURE}
    turns = {(e.trajectory_id, e.turn): e for e in of(events, ev.TurnFinished)}
    samples = [sample for batch in run.trainer.batches.values() for sample in batch.samples]
    assert len(samples) == 24
    for sample in samples:
        own = [turns[sample.trajectory_id, i] for i in range(3)]
        text = bytes(min(token, 255) for token in sample.tokens)
        assert text.startswith(b"prompt ")
        assert text.count(b"[payload]") == 2
        assert sample.loss_mask.sum() == sum(turn.output_tokens for turn in own)
        assert len(sample.tokens) == own[-1].prompt_tokens + own[-1].output_tokens
        said = sample.tokens[sample.loss_mask]
        assert sample.rollout_logprobs[sample.loss_mask].tolist() == [-(t % 8 + 1) / 4 for t in said.tolist()]
        assert not sample.rollout_logprobs[~sample.loss_mask].any()
    assert {e.version for e in of(events, ev.WeightsLoaded)} == {1, 2}
    assert_replays(run)


def test_without_partial_rollout_no_trajectory_mixes_versions(tmp_path):
    sets = (TALK, "partial_rollout=false", "total_steps=4", "executor.metrics_period_s=0.02")
    run = run_fake(tmp_path, *sets, fake=FakeConfig(max_model_len=64, vocab_size=128, tokens_per_s=400))
    assert run.outcome.error is None
    versions: dict[int, set[int]] = {}
    for turn in of(events_of(run), ev.TurnFinished):
        versions.setdefault(turn.trajectory_id, set()).update((turn.version_first, turn.version_last))
    assert {len(seen) for seen in versions.values()} == {1}
    assert len(set().union(*versions.values())) > 1


def test_a_resumed_run_trains_no_prompt_twice_and_skips_none(tmp_path):
    sets = (TALK, ENOUGH, "executor.checkpoint.interval_steps=2", "executor.checkpoint.keep=1")
    first = run_fake(tmp_path, *sets, trainer=FakeTrainer(fail_at=3))
    assert_failed(first, "trainer: step failed: out of luck")
    assert len(first.steps) == 2
    (first.root / "attempts" / ".002.partial").mkdir()  # as if a second one had been killed
    with (first.root / "steps.jsonl").open("a") as file:
        file.write('{"version": 3, "prompts": [99]}\n{"version": 4, "pro')
    second = run_fake(tmp_path, *sets)
    assert second.outcome.reason is EndReason.STEPS_DONE
    assert second.said == [f"going on after step 2, from {first.root / 'checkpoints' / 'step-000002'}"]
    assert [step["version"] for step in second.steps] == [1, 2, 3]
    assert sorted(second.prompts) == list(range(6))
    assert sorted(path.name for path in (second.root / "attempts").iterdir()) == ["001", "002"]
    assert_replays(second)
    assert [path.name for path in (second.root / "checkpoints").iterdir()] == ["step-000003"]


@pytest.mark.parametrize("mode", ["disk", "direct", "none"])
def test_an_interrupted_run_goes_on_with_the_weights_of_its_checkpoint(tmp_path, mode):
    """Also where versions after the checkpoint were published already, and are made again."""
    sets = (
        "total_steps=8", "workload.max_prompts=16", "executor.checkpoint.interval_steps=2",
        "executor.weight_sync.keep_versions=1", "executor.metrics_period_s=0.02",
        f"executor.weight_sync.mode={mode}", f"executor.weight_sync.required={str(mode != 'none').lower()}",
    )  # fmt: skip

    async def interrupt(run) -> None:
        while run.driver.controller.view.trainer.version < 3:
            await asyncio.sleep(0.005)
        run.driver.stop(EndReason.INTERRUPTED)

    first = run_fake(tmp_path, *sets, during=interrupt)
    assert first.outcome.reason is EndReason.INTERRUPTED
    assert_replays(first)
    second = run_fake(tmp_path, *sets)
    assert second.outcome.reason is EndReason.STEPS_DONE
    assert sorted(second.prompts) == list(range(16))
    events = events_of(second)
    resumed_at = events[0].version
    assert resumed_at >= 2
    ready = {event.weight_version for event in of(events, ev.ReplicaReady)}
    assert ready == {resumed_at}
    assert_replays(second)


def test_a_run_that_is_stopped_before_it_began_has_a_record(tmp_path):
    run = run_fake(tmp_path, on_driver=lambda run: run.driver.stop(EndReason.INTERRUPTED))
    assert (run.outcome.reason, run.outcome.error) == (EndReason.INTERRUPTED, None)
    assert_replays(run)
    assert run_fake(tmp_path).outcome.reason is EndReason.STEPS_DONE


def test_the_time_limit_ends_a_run_in_the_middle_of_a_step(tmp_path):
    run = run_fake(tmp_path, "executor.max_run_s=0.3", trainer=FakeTrainer(step_s=60.0))
    assert (run.outcome.reason, run.outcome.error) == (EndReason.TIME_LIMIT, None)
    assert_replays(run)
    assert run.trainer.calls[-1] == "stop"
    assert not (run.root / "steps.jsonl").exists()


def test_steps_without_a_signal_end_the_run_with_the_reason(tmp_path):
    sets = ("executor.trainer.grpo.max_empty_batches=2",)
    run = run_fake(tmp_path, *sets, trainer=FakeTrainer(signal=False))
    assert_failed(run, "2 train steps in a row had nothing to learn from")


@pytest.mark.parametrize("required", [True, False])
def test_a_publication_that_fails_ends_the_run_where_sync_is_required_else_is_tried_again(tmp_path, required):
    sets = (f"executor.weight_sync.required={str(required).lower()}", "policies.training.sync_retry_s=0.02")
    run = run_fake(tmp_path, *sets, trainer=FakeTrainer(fail_publications=2))
    if required:
        assert_failed(run, "weight sync failed, and weight_sync.required is true: trainer: publish failed")
        return
    assert run.outcome.reason is EndReason.STEPS_DONE
    assert len(of(events_of(run), ev.ActionFailed)) == 2


def test_an_engine_that_serves_other_weights_ends_a_run_that_requires_sync(tmp_path):
    sets = ("executor.weight_sync.verify_after_sync=true",)
    assert run_fake(tmp_path, *sets, out="sound").outcome.error is None
    run = run_fake(tmp_path, *sets, trainer=FakeTrainer(wrong_by=0.5))
    assert_failed(run, "serves other weights than version 1: log-probs of a probe differ by up to 0.5")


def test_an_environment_that_breaks_ends_the_run(tmp_path):
    run = run_fake(tmp_path, TALK.replace("num_turns: 3", "num_turns: 3, broken: true"))
    assert_failed(run, "the environment broke", RuntimeError)


def test_a_policy_that_breaks_ends_the_run_and_its_record_replays(tmp_path):
    """The event that it broke on is not recorded, and the controller, which holds half of it, is asked no more."""
    run = run_fake(
        tmp_path, "heterogeneous_rollout.scheduling={scheduler_type: 'tests.support.breaking:Breaking'}"
    )
    assert_failed(run, "at the fifth", PolicyError)
    assert not of(events_of(run), ev.RunEnding)


def test_engines_lost_for_good_are_a_stall(tmp_path, monkeypatch):
    monkeypatch.setattr("executor.driver.STALL_CHECK_S", 0.05)

    async def kill(run) -> None:
        for server in run.servers:
            server.faults.unhealthy = True

    sets = ("policies.recovery.max_restarts=0", "executor.engines.health_period_s=0.01")
    run = run_fake(tmp_path, *sets, "total_steps=1000", during=kill)
    assert (run.outcome.reason, run.outcome.error) == (EndReason.STALLED, None)
    assert len(of(events_of(run), ev.ReplicaLost)) == 2
    assert_replays(run)


@pytest.mark.parametrize("mode", ["disk", "direct"])
def test_an_engine_that_is_lost_comes_back_with_the_newest_weights(tmp_path, mode):
    """Long after the folder that was newest when it was launched has gone."""

    async def lose(run) -> None:
        view = run.driver.controller.view
        while view.trainer.published_version < 3:
            await asyncio.sleep(0.005)
        run.servers[0].faults.unhealthy = True
        while view.replicas[0].status != "lost":
            await asyncio.sleep(0.005)
        run.servers[0].faults.unhealthy = False
        while view.replicas[0].status != "ready":
            await asyncio.sleep(0.005)
        run.driver.stop(EndReason.INTERRUPTED)  # however long the machine took: the run did not end before

    sets = (
        f"executor.weight_sync.mode={mode}", "executor.weight_sync.keep_versions=1", "total_steps=10000",
        "executor.weight_sync.verify_after_sync=true", "policies.recovery.restart_delay_s=0.05",
        "executor.engines.health_period_s=0.01",
    )  # fmt: skip
    run = run_fake(tmp_path, *sets, TALK, trainer=FakeTrainer(step_s=0.02), during=lose)
    assert run.outcome.error is None
    assert run.outcome.reason is EndReason.INTERRUPTED
    ready = [e for e in of(events_of(run), ev.ReplicaReady) if e.closes != -1]
    assert [e.replica_id for e in ready] == [0]
    assert ready[0].weight_version >= 3
    lost = [e for e in of(events_of(run), ev.TurnFailed) if e.kind is FailureKind.REPLICA_LOST]
    assert {e.replica_id for e in lost} <= {0}  # none where no turn was on it just then
    assert_replays(run)


def test_a_supply_that_ends_early_completes_the_run_and_its_weights_are_kept(tmp_path):
    run = run_fake(tmp_path, "workload.max_prompts=4", "executor.checkpoint.interval_steps=0")
    assert (run.outcome.reason, run.outcome.error) == (EndReason.COMPLETED, None)
    assert [path.name for path in (run.root / "checkpoints").iterdir()] == ["step-000002"]
    assert json.loads((run.root / "run.json").read_text())["done"]


def test_a_run_that_trains_nothing_is_a_failure_and_begins_anew(tmp_path):
    """Here no engine takes any prompt; with one that does, none of them is missing."""
    sets = ("workload.max_prompts=2", "executor.sampling.max_new_tokens=8")
    run = run_fake(tmp_path, *sets, fake=FakeConfig(max_model_len=4, vocab_size=128))
    assert run.outcome.reason is EndReason.COMPLETED
    assert str(run.outcome.error).startswith(
        "no train step was made: 8 trajectories were given up, 8 of them for "
    )
    assert_replays(run)
    assert not json.loads((run.root / "run.json").read_text())["done"]
    assert not (run.root / "checkpoints").exists()
    again = run_fake(tmp_path, *sets)
    assert again.outcome.error is None
    assert sorted(again.prompts) == [0, 1]


def test_direct_transfers_are_joined_once_and_pushed_once_a_version(tmp_path):
    run = run_fake(tmp_path, TALK, "executor.weight_sync.mode=direct")
    calls = Counter(call for call in run.trainer.calls if call.startswith(("join", "push")))
    assert set(calls.values()) == {1}
    loads = [
        a for s in Run.open(run.outcome.attempt).steps() for a in s.actions if type(a) is act.LoadWeights
    ]
    assert sum(call.startswith("push") for call in calls) == len(loads)


def test_a_trainer_that_dies_while_nobody_waits_for_it_ends_the_run(tmp_path):
    async def kill(run) -> None:
        run.trainer.death.set()

    run = run_fake(tmp_path, fake=FakeConfig(max_model_len=64, vocab_size=128, tokens_per_s=0.1), during=kill)
    assert_failed(run, "trainer rank 1 ended with status 9")


def test_a_trainer_that_never_becomes_ready_is_told_of_in_one_error_and_no_record_is_left(tmp_path):
    with pytest.raises(UserError, match="trainer rank 0 ended with status 1: no module named megatron"):
        run_fake(
            tmp_path,
            trainer=FakeTrainer(unready="trainer rank 0 ended with status 1: no module named megatron"),
        )
    assert list((tmp_path / "run" / "attempts").iterdir()) == []
    assert run_fake(tmp_path).outcome.reason is EndReason.STEPS_DONE


def test_an_engine_that_never_becomes_healthy_is_named(tmp_path):
    sets = ("executor.engines.startup_timeout_s=0.1",)
    with pytest.raises(
        UserError, match=r"replica 0 \(tp 1\) at http://127.0.0.1:\d+: its engine was not healthy after 0.1 s"
    ):
        run_fake(tmp_path, *sets, on_servers=lambda servers: setattr(servers[0].faults, "unhealthy", True))
