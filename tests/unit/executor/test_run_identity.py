"""What may change between two attempts at a run, and what makes it another run."""

import json

import pytest

from executor.identity import identity
from executor.run_folder import RunFolder
from libra.core.ids import EndReason
from libra.errors import UserError
from sim.replay import replay
from tests.support.fake_run import run_fake

CONFIG = {"name": "x", "seed": 0, "total_steps": 10, "executor": {"trainer": {"lr": 0.1}}}


def opened(root, config=CONFIG):
    return RunFolder.open(root, config, {"routing": "abc"}, fresh=False)


def with_value(path, value):
    config = json.loads(json.dumps(CONFIG))
    holder = config
    for key in path.split(".")[:-1]:
        holder = holder.setdefault(key, {})
    holder[path.split(".")[-1]] = value
    return config


@pytest.mark.parametrize(
    "path",
    [
        "total_steps",
        *(f"executor.{key}" for key in ("max_run_s", "metrics_period_s", "debug", "tool_timeout_s")),
        *(f"executor.checkpoint.{key}" for key in ("interval_steps", "keep")),
        *(
            f"executor.engines.{key}"
            for key in (
                "ports", "host", "python", "startup_timeout_s", "health_period_s", "request_timeout_s",
                "stop_grace_s", "lost_after_failures", "omp_threads", "endpoints",
            )
        ),
    ],
)  # fmt: skip
def test_what_is_adjusted_between_attempts_is_stored_and_the_run_goes_on(tmp_path, path):
    opened(tmp_path, with_value(path, 11)).close()
    opened(tmp_path, with_value(path, 12)).close()
    assert json.loads((tmp_path / "run.json").read_text())["config"] == with_value(path, 12)


@pytest.mark.parametrize("path", ["sync_interval", "executor.engines.extra_args", "executor.engines.dtype"])
def test_what_changes_the_result_is_another_experiment(tmp_path, path):
    opened(tmp_path, with_value(path, 11)).close()
    with pytest.raises(UserError, match=rf"another configuration \({path} was 11, is 12\)"):
        opened(tmp_path, with_value(path, 12))
    assert json.loads((tmp_path / "run.json").read_text())["config"] == with_value(path, 11)


def test_without_weight_sync_what_follows_from_the_number_of_steps_grows_with_it():
    none = {"executor": {"weight_sync": {"mode": "none"}}}
    first = {**none, "total_steps": 3, "sync_interval": 4, "max_head_offpolicyness": 3}
    assert identity(first) == none
    assert first["total_steps"] == 3, "what is given is left as it is"


def test_the_number_of_steps_does_not_shrink_below_what_is_reached(tmp_path):
    opened(tmp_path).close()
    (tmp_path / "checkpoints" / "step-000004").mkdir(parents=True)
    with pytest.raises(
        UserError, match="step 4 is reached already, so total_steps cannot be 3; give at least 4"
    ):
        opened(tmp_path, {**CONFIG, "total_steps": 3})
    opened(tmp_path, {**CONFIG, "total_steps": 4}).close()


def test_a_finished_run_goes_on_with_more_steps(tmp_path):
    folder = opened(tmp_path)
    folder.finish(EndReason.STEPS_DONE)
    folder.close()
    for steps in (9, 10):
        with pytest.raises(UserError, match="this run is finished; raise total_steps to go on"):
            opened(tmp_path, {**CONFIG, "total_steps": steps})
    opened(tmp_path, {**CONFIG, "total_steps": 11}).close()
    assert not json.loads((tmp_path / "run.json").read_text())["done"]


def test_more_steps_do_not_help_where_the_prompts_have_run_out(tmp_path):
    folder = opened(tmp_path)
    folder.finish(EndReason.COMPLETED)
    folder.close()
    with pytest.raises(UserError, match="this run is finished; give another --out, or --fresh"):
        opened(tmp_path, {**CONFIG, "total_steps": 11})


def test_a_finished_run_goes_on_with_more_steps_and_other_limits(tmp_path):
    first = run_fake(tmp_path)
    assert first.outcome.reason is EndReason.STEPS_DONE
    second = run_fake(tmp_path, "total_steps=5", "executor.max_run_s=60", "executor.checkpoint.keep=1")
    assert second.outcome.reason is EndReason.STEPS_DONE
    assert [step["version"] for step in second.steps] == [1, 2, 3, 4, 5]
    assert len(second.prompts) == len(set(second.prompts)) == 10
    assert replay(second.outcome.attempt).difference == ""
