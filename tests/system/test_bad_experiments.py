"""Mistakes in an experiment, its trace or the command line: exit status 2, one line that names place and mend,
nothing new on disk.
"""

import pytest

from tests.system.tiny import TURNS, write_experiment

ROUTER = "heterogeneous_rollout.scheduling"
SWEEP = "sweep"


def scheduling(kind: str, **own) -> dict:
    return {ROUTER: {"scheduler_type": kind, **own}}


def sweep(**block) -> dict:
    return {SWEEP: block}


# What is changed in the experiment, where the complaint starts, what else it must say.
MISTAKES = {
    "unknown key": ({"totl_steps": 3}, "tiny.yaml:21: totl_steps: ", "did you mean total_steps?"),
    "unknown key, nothing near": ({"zzz": 3}, "tiny.yaml:21: zzz: ", "known keys: name, workload"),
    "nested key": (
        {"heterogeneous_rollout.max_modellen": 9},
        "tiny.yaml:17: heterogeneous_rollout.max_modellen: ",
        "max_model_len?",
    ),
    "key in a list": (
        {"heterogeneous_rollout.instances": [{"tp": 2, "cuont": 2}]},
        "tiny.yaml:16: heterogeneous_rollout.instances.0.cuont: ",
        "did you mean count?",
    ),
    "key of a policy": (
        {"policies.training": {"kind": "async_grpo", "on_stal": "drop"}},
        "tiny.yaml:24: policies.training.on_stal: ",
        "unknown key of async_grpo; did you mean on_stale?",
    ),
    "key of a router": (scheduling("load_balance", stiky=True), f"tiny.yaml:19: {ROUTER}.stiky: ", "sticky?"),
    "key below a router": (
        scheduling("length_aware", length_thresholds={"shrt": 3}),
        f"tiny.yaml:20: {ROUTER}.length_thresholds.shrt: ",
        "did you mean short?",
    ),
    "key of a policy that is shared": (
        {"policies.admission": {"kind": "concurrency_and_staleness", "n_samples": 3}},
        "tiny.yaml:24: policies.admission.n_samples: ",
        "at the top of the experiment",
    ),
    "key of the simulator": ({"sim.engin": "skip"}, "tiny.yaml:22: sim.engin: ", "did you mean engine?"),
    "key of a fault": ({"sim.faults.slowtool": {}}, "tiny.yaml:23: sim.faults.slowtool: ", "slow_tool?"),
    "key of a workload": (
        {"workload.repeats": 2},
        "tiny.yaml:21: workload.repeats: ",
        "did you mean repeat?",
    ),
    "number in quotes": ({"batch_size": "8"}, "tiny.yaml:8: batch_size: ", 'must be a whole number, not "8"'),
    "broken number": ({"total_steps": 2.5}, "tiny.yaml:12: total_steps: ", "must be a whole number, not 2.5"),
    "word for a flag": ({"partial_rollout": "no"}, "tiny.yaml:21: partial_rollout: ", "true or false"),
    "unit in the value": ({"sim.tool_timeout_s": "600s"}, "tiny.yaml:22: sim.tool_timeout_s: ", "a number"),
    "list for a mapping": ({"cluster": [1]}, "tiny.yaml:4: cluster: ", "must be a mapping of keys to values"),
    "mapping for a list": (
        {"heterogeneous_rollout.instances": {"tp": 2}},
        "tiny.yaml:14: heterogeneous_rollout.instances: ",
        "must be a list",
    ),
    "nothing for a number": ({"workload.repeat": []}, "tiny.yaml:20: workload.repeat: ", "whole number"),
    "not a number": ({"sim.tool_timeout_s": float("nan")}, "tiny.yaml:22: sim.tool_timeout_s: ", "finite"),
    "without end": ({"sim.max_sim_s": float("inf")}, "tiny.yaml:22: sim.max_sim_s: ", "a finite number"),
    "negative count": ({"total_steps": -1}, "tiny.yaml:12: total_steps ", "at least 1, not -1"),
    "negative seed": ({"seed": -1}, "tiny.yaml:21: seed ", "at least 0, not -1"),
    "negative time": ({"sim.tool_timeout_s": -5}, "tiny.yaml:22: sim.tool_timeout_s ", "positive"),
    "percent for a fraction": (
        {"heterogeneous_rollout.gpu_memory_utilization": 90},
        "tiny.yaml:17: heterogeneous_rollout.gpu_memory_utilization ",
        "(0, 1]",
    ),
    "setting of a policy": (
        {"policies.recovery": {"kind": "give_up_or_restart", "restart_delay_s": -1.0}},
        "tiny.yaml:24: policies.recovery.restart_delay_s ",
        "must not be negative",
    ),
    "thresholds that fall": (
        scheduling("length_aware", length_thresholds={"short": 9000, "medium": 5}),
        f"tiny.yaml:19: {ROUTER}.length_thresholds: ",
        "must rise",
    ),
    "tp that does not divide": (
        {"heterogeneous_rollout.instances": [{"tp": 3}]},
        "tiny.yaml:14: heterogeneous_rollout.instances: ",
        "tp 3 does not divide a node of 8 GPUs; use a divisor of 8",
    ),
    "tp over the node": (
        {"heterogeneous_rollout.instances": [{"tp": 16}]},
        "tiny.yaml:14: heterogeneous_rollout.instances: ",
        "use a divisor of 8",
    ),
    "too many GPUs": (
        {"heterogeneous_rollout.instances": [{"tp": 2, "count": 3}]},
        "tiny.yaml:4: cluster: ",
        "6 rollout GPUs + 4 train_gpus exceed its 8 (num_nodes x gpus_per_node); take fewer or add nodes",
    ),
    "groups that do not fit": ({"batch_size": 5}, "tiny.yaml:8: batch_size ", "multiple of n_samples (2)"),
    "bound below the interval": (
        {"sync_interval": 3},
        "tiny.yaml:11: max_head_offpolicyness ",
        "must be at least sync_interval - 1 (2)",
    ),
    "no name": ({"name": None}, "tiny.yaml: name: ", "is required"),
    "no workload": ({"workload": None}, "tiny.yaml: workload: ", "is required"),
    "no instances": ({"heterogeneous_rollout.instances": []}, "tiny.yaml:14: ", "at least one replica"),
    "workload kind": ({"workload.kind": "tunrs"}, "tiny.yaml:17: workload: ", "known: 'preset', 'turns'"),
    "workload without kind": ({"workload.kind": None}, "tiny.yaml:17: workload: ", "needs a key `kind`"),
    "preset": (
        {"workload": {"kind": "preset", "preset": "terminal_agnt"}},
        "tiny.yaml:19: workload.preset: ",
        "choose one of dapo_math",
    ),
    "GPU": ({"hardware_config": "H1000"}, "tiny.yaml:2: hardware_config: ", "choose one of: A100"),
    "model": (
        {"model_arch_config": "Qwen3-9B"},
        "tiny.yaml:3: model_arch_config: ",
        "choose one of: Qwen2.5-3B",
    ),
    "model that does not fit": (
        {"heterogeneous_rollout.gpu_memory_utilization": 0.05},
        "tiny.yaml:14: heterogeneous_rollout.instances: ",
        "use a larger tp or gpu_memory_utilization",
    ),
    "trainer that does not fit": (
        {"trainer.train_tp_size": 1, "trainer.train_pp_size": 1},
        "tiny.yaml:21: trainer: Qwen3-8B at DP 4 needs 186.1 GiB of 79.18 on each H100: weights 15.3, ",
        "optimizer 22.9, activations 21.7, logits 92.7, workspace 3.0; use more GPUs a replica (train_tp_size, ",
    ),
    "trainer on too few GPUs": (
        {"train_gpus": 1},
        "tiny.yaml:7: train_gpus: Qwen3-8B at DP 1 needs ",
        "or offload the optimizer",
    ),
    "trainer of sizes that make no pool": (
        {"trainer.train_tp_size": 3},
        "tiny.yaml:21: trainer: no layout with TP 3 x PP any x CP 1 x DP any x EP any makes 4 GPUs",
        "change a size in trainer or train_gpus",
    ),
    "trainer that cannot be built": (
        {"trainer.train_tp_size": 4, "trainer.train_ep_size": 2},
        "tiny.yaml:23: trainer.train_ep_size: Qwen3-8B has no experts",
        "set 1",
    ),
    "trainer with a misspelt key": (
        {"trainer.train_tp": 2},
        "tiny.yaml:22: trainer.train_tp: unknown key",
        "did you mean train_tp_size?",
    ),
    "block larger than the memory": (
        {"heterogeneous_rollout.engine.block_size": 10**9},
        "tiny.yaml:18: heterogeneous_rollout.engine.block_size: ",
        "the usual size is 16",
    ),
    "policy module": (
        scheduling("nowhere.mod:Cls"),
        f"tiny.yaml:18: {ROUTER}.scheduler_type: ",
        "PYTHONPATH",
    ),
    "policy class": (
        scheduling("libra.policies.load_balance:Nope"),
        f"tiny.yaml:18: {ROUTER}.scheduler_type: ",
        "has no class Nope",
    ),
    "class without on_event": (
        scheduling("libra.core.state:ClusterState"),
        f"tiny.yaml:18: {ROUTER}.scheduler_type: ",
        "needs a method on_event(self, now, event, view)",
    ),
    "class without config": (
        scheduling("libra.policies.placement:Placement"),
        f"tiny.yaml:18: {ROUTER}.scheduler_type: ",
        "(self, config: <a dataclass>, rng)",
    ),
    "class without module": (
        scheduling(":Cls"),
        f"tiny.yaml:18: {ROUTER}.scheduler_type: ",
        "package.module:",
    ),
    "policy name": ({"policies.recovery": {"kind": "x"}}, "tiny.yaml:23: ", "known: give_up_or_restart"),
    "policy without name": (
        {"policies.recovery": {"kind": 4}},
        "tiny.yaml:23: policies.recovery.kind ",
        "must name a policy, such as give_up_or_restart",
    ),
    "key of a default policy": (
        {"policies.recovery": {"max_restart": 2}},
        "tiny.yaml:23: policies.recovery.max_restart: ",
        "unknown key of give_up_or_restart; did you mean max_restarts?",
    ),
    "priority that nobody sets": (
        {"heterogeneous_rollout.engine": {"scheduling_policy": "priority"}},
        "tiny.yaml:",
        "engine.scheduling_policy: load_balance gives every turn the same priority; use fcfs, or a router",
    ),
    "absurd batch": (
        {"heterogeneous_rollout.engine": {"max_num_seqs": 10**9, "max_num_batched_tokens": 10**9}},
        "tiny.yaml:18: heterogeneous_rollout.engine.max_num_seqs ",
        "must be at most 65536, not 1000000000",
    ),
    "absurd number of replicas": (
        {"heterogeneous_rollout.instances": [{"tp": 2, "count": 10**12}]},
        "tiny.yaml:4: cluster: ",
        "exceed its 8",
    ),
    "stragglers that are none": (
        {"sim.faults.straggler": {"fraction": 0.2}},
        "tiny.yaml:24: sim.faults.straggler.fraction: ",
        "0.2 of 2 replicas is less than one; give at least 0.5, or 0 for none",
    ),
    "stragglers that end before they begin": (
        {"sim.faults.straggler": {"fraction": 1.0, "start_s": 9.0, "end_s": 8.0}},
        "tiny.yaml:26: sim.faults.straggler.end_s ",
        "must be later than start_s (9), or 0: to the end of the run",
    ),
    "stragglers of no time": (
        {"sim.faults.straggler": {"fraction": 1.0, "start_s": 9.0, "end_s": 9.0}},
        "tiny.yaml:26: sim.faults.straggler.end_s ",
        "must be later than start_s (9)",
    ),
    "trace that is not there": ({"workload.path": "no.csv"}, "no.csv: ", "no such file; check the path"),
    "trace that is a folder": ({"workload.path": "."}, ".: ", "is a directory; name the CSV file inside it"),
    "trace without name": ({"workload.path": None}, "tiny.yaml:17: workload.path: ", "name the CSV file"),
}


@pytest.mark.parametrize("verb", ["run", "sweep"])
@pytest.mark.parametrize(("changes", "place", "mend"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_the_experiment(refused, tmp_path, changes, place, mend, verb):
    write_experiment(tmp_path, changes)
    message = refused(verb, "tiny.yaml")
    assert message.startswith(place)
    assert mend in message


CELLS = {
    "missing column": (("output_tokens", "outputs"), "line 1: no column 'output_tokens'"),
    "negative": (("380,25", "380,-25"), "line 3, column output_tokens: -25 is below 0"),
    "no number": (("380,25", "380,many"), "line 3, column output_tokens: 'many' is not a number"),
    "nan": (("380,25", "380,nan"), "line 3, column output_tokens: 'nan' is not a finite number"),
    "negative latency": (("25,shell,0.25", "25,shell,-1"), "line 3, column tool_latency_s: -1 is below 0"),
    "turn twice": (("a,1,380", "a,0,380"), "line 3, column turn: trajectory a has turn 0 already on line 2"),
    "turn missing": (("a,2,450", "a,5,450"), "line 4, column turn: trajectory a has no turn 2"),
    "field missing": (("a,2,450,60", "a,2,450"), "line 4: 5 fields under 6 column names"),
    "no rows": ((TURNS[TURNS.index("\n") :], "\n"), "line 1: no rows below the header"),
    "no header": ((TURNS, ""), "line 1: no header"),
}


@pytest.mark.parametrize(("change", "expected"), CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_a_mistake_in_the_trace(refused, tmp_path, change, expected, verb):
    write_experiment(tmp_path)
    (tmp_path / "turns.csv").write_text(TURNS.replace(*change), encoding="utf-8")
    assert refused(verb, "tiny.yaml").startswith(f"turns.csv, {expected}")


SETS = {
    "batch_size": "--set batch_size: write it as key.path=value",
    "=4": "--set =4: write it as key.path=value",
    "a..b=4": "--set a..b: 'a..b' is not a key path such as a.b.c",
    "name.x=4": "--set name.x: name.x: name is a value, not a section; set name itself",
    "batch_size=[1": "--set batch_size=[1: the value is not YAML (line 1: expected ',' or ']'",
    "batchsize=4": "--set batchsize: batchsize: unknown key; did you mean batch_size?",
    "policies.admission.max_concurrent_rollouts=8": (
        "--set policies.admission.max_concurrent_rollouts: policies.admission.max_concurrent_rollouts: "
        "set max_concurrent_rollouts at the top of the experiment"
    ),
    "seed=abc": '--set seed: seed: must be a whole number, not "abc"',
    "total_steps=0": "--set total_steps: total_steps must be at least 1, not 0",
}


@pytest.mark.parametrize(("given", "expected"), SETS.items(), ids=SETS)
def test_a_mistake_on_the_command_line(refused, tmp_path, given, expected):
    write_experiment(tmp_path)
    assert refused("run", "tiny.yaml", "--set", given).startswith(expected)
