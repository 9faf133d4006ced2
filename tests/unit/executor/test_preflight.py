"""What is looked at before a run: engines of others, room for the prompts; and the tolerance of verification."""

import asyncio
import socket

import pytest

from executor.engines.fake_engine import FakeConfig
from executor.engines.fake_server import FakeServer
from executor.preflight import check_machine, check_prompts, knock
from executor.run import probe_tolerance
from libra.errors import UserError
from tests.support.fake_run import plan_of, run_fake, tokens_of
from tests.support.talk import Talk, TalkConfig


def test_engines_of_others_must_answer():
    async def body():
        async with FakeServer(FakeConfig()) as server:
            await knock([server.base_url, server.base_url + "/"])
            with socket.socket() as dead:
                dead.bind(("127.0.0.1", 0))  # bound, and nobody listens
                address = f"http://127.0.0.1:{dead.getsockname()[1]}"
                with pytest.raises(UserError) as refused:
                    await knock([server.base_url, address])
            (line,) = str(refused.value).splitlines()
            assert line.startswith(f"executor.engines.endpoints: {address}/health: ")
            assert line.endswith("; start this engine, or name another")
            server.faults.failing.add("/health")
            with pytest.raises(UserError, match=f"endpoints: {server.base_url}/health: refused with status"):
                await knock([server.base_url])

    asyncio.run(body())


def test_an_engine_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr("executor.preflight.HEALTH_TIMEOUT_S", 0.02)

    async def body():
        with (
            socket.create_server(("127.0.0.1", 0)) as silent,
            pytest.raises(UserError, match=r"/health: no answer within 0\.02 s; start this engine"),
        ):
            await knock([f"http://127.0.0.1:{silent.getsockname()[1]}"])

    asyncio.run(body())


def test_the_machine_is_refused_for_a_dead_engine(tmp_path, monkeypatch):
    monkeypatch.setattr("executor.preflight.load_tokens", lambda plan: None)
    with pytest.raises(UserError, match=r"endpoints: http://127\.0\.0\.1:1/health: "):
        check_machine(plan_of(tmp_path))


def test_a_prompt_that_never_fits_is_refused(tmp_path):
    talk = "workload.environment={kind: 'tests.support.talk:Talk', num_tasks: 11}"
    length_tokens = len("prompt 10:")
    fits, misses = (
        plan_of(tmp_path, talk, f"heterogeneous_rollout.max_model_len={bound}")
        for bound in (length_tokens + 1, length_tokens)
    )
    check_prompts(fits, tokens_of(tmp_path))
    check_prompts(misses, None)  # without transformers nobody can know
    with pytest.raises(UserError) as refused:
        check_prompts(misses, tokens_of(tmp_path))
    assert str(refused.value) == (
        "heterogeneous_rollout.max_model_len: 10 leaves no room for an answer to task 10 of "
        "tests.support.talk:Talk, whose prompt has 10 tokens; set at least 11"
    )


def test_the_machine_is_refused_for_such_a_prompt(tmp_path, monkeypatch):
    async def well(endpoints):
        pass

    monkeypatch.setattr("executor.preflight.knock", well)
    monkeypatch.setattr("executor.preflight.load_tokens", lambda plan: tokens_of(plan.model_path))
    talk = "workload.environment={kind: 'tests.support.talk:Talk'}"
    assert check_machine(plan_of(tmp_path, talk)) == []
    with pytest.raises(UserError, match="max_model_len: 8 leaves no room"):
        check_machine(plan_of(tmp_path, talk, "heterogeneous_rollout.max_model_len=8"))


@pytest.mark.parametrize(
    ("trainer", "engines", "tolerance"),
    [
        ("float32", "float32", 1e-3),
        ("float32", "bfloat16", 0.25),
        ("float32", "auto", 0.25),  # half precision, also for a model of float32
        ("bfloat16", "float32", 0.25),
    ],
)
def test_verification_takes_the_rounding_of_the_coarser_dtype(tmp_path, trainer, engines, tolerance):
    plan = plan_of(tmp_path, f"executor.trainer.dtype={trainer}", f"executor.engines.dtype={engines}")
    assert probe_tolerance(plan) == tolerance


def test_the_environment_is_made_once_from_the_plan_to_the_end(tmp_path, monkeypatch):
    made, make = [], Talk.__init__

    def counted(self, config: TalkConfig) -> None:
        made.append(self)
        make(self, config)

    monkeypatch.setattr(Talk, "__init__", counted)
    talk = "workload.environment={kind: 'tests.support.talk:Talk'}"
    run = run_fake(tmp_path, talk, on_driver=lambda run: check_prompts(run.plan, tokens_of(tmp_path)))
    assert run.outcome.error is None
    assert made == [run.plan.environment]
