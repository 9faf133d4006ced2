"""World replay, with a simulated run as the recorded one: its costs are known."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from libra.config.document import Document, apply_overrides
from libra.config.resolve import resolve
from libra.cost.tables import rollout_costs
from libra.record.reader import Run
from sim.cli.main import main
from sim.config import SimConfig
from sim.fidelity import Figure
from sim.replay import replay
from sim.simulation import simulate
from sim.validate import experiment_of, fitted, validate

EXPERIMENT = {
    "name": "recorded",
    "hardware_config": "CPU",
    "model_arch_config": "Qwen3-tiny",
    "cluster": {"num_nodes": 1, "gpus_per_node": 8},
    "train_gpus": 2,
    "batch_size": 32,
    "n_samples": 4,
    "max_concurrent_rollouts": 192,
    "max_head_offpolicyness": 1,
    "total_steps": 4,
    "heterogeneous_rollout": {
        "instances": [{"tp": 1, "count": 1}, {"tp": 2, "count": 1}],
        "max_model_len": 4096,
        "engine": {"max_num_seqs": 32, "max_num_batched_tokens": 8192},
    },
    "workload": {
        "kind": "preset",
        "preset": "terminal_agent",
        "num_prompts": 64,
        "max_context_tokens": 4096,
    },
}


def record(directory: Path, level="full", **overrides) -> Path:
    document = Document(dict(EXPERIMENT)).copy()
    apply_overrides(document, {key.replace("__", "."): value for key, value in overrides.items()}, "test")
    simulate(resolve(document, {"sim": SimConfig}), directory, level=level)
    return directory


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "run")


@pytest.fixture(scope="module")
def slow(tmp_path_factory) -> Path:
    """The same on a machine that trains and publishes more slowly."""
    directory = tmp_path_factory.mktemp("slow") / "run"
    return record(directory, cost__train__fixed_s=300.0, cost__sync__publish_fixed_s=5.0)


def refused(capsys, *argv) -> str:
    assert main(["validate", *map(str, argv)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("error: ")


def test_the_costs_that_made_a_run_are_recovered(recorded):
    costs = fitted(Run.open(recorded))
    assert set(costs.steps) == {1, 2}
    for tp, step in costs.steps.items():
        known = rollout_costs("CPU", "Qwen3-tiny", [tp])[tp]
        assert step.decode_base_s == pytest.approx(known.decode_base_s, rel=0.03)
        # Time, unlike steps, weighs long steps more, and those have more turns in them: b comes out a little low.
        assert step.decode_per_seq_s == pytest.approx(known.decode_per_seq_s, rel=0.07)
        assert step.prefill_per_token_s == pytest.approx(known.prefill_per_token_s, rel=0.15)
        assert step.mean_error < 0.01
    assert costs.publish_s == pytest.approx(0.5, abs=0.01)
    assert costs.load_s[1] == pytest.approx(0.6, abs=0.01)


def test_a_run_against_itself_has_small_errors(recorded, tmp_path):
    found = validate(recorded, out=tmp_path / "out")
    figures = {figure.name: figure.error_percent for figure in found.figures}
    assert abs(found.makespan_error_percent) < 2
    assert found.makespan_error_percent == figures["makespan_s"]
    assert abs(figures["publish_s"]) < 1
    assert abs(figures["load_s"]) < 1
    assert abs(figures["step_train_s"]) < 2
    assert abs(figures["turn_latency_mean_s"]) < 3
    assert {"turn_latency_p95_tp1_s", "turn_latency_p95_tp2_s", "ttft_mean_s", "output_tokens_per_s"} <= set(
        figures
    )
    assert found.notes[0].startswith("fitted on the same run")
    written = json.loads((tmp_path / "out" / "validation.json").read_text())
    assert written["fitted_on_same_run"]
    assert {row["name"] for row in written["figures"]} == set(figures)
    simulated = Run.open(tmp_path / "out" / "simulated")
    assert simulated.manifest["calibration_id"] == written["calibration_id"] != ""
    assert replay(simulated.directory).difference == ""


def test_the_same_validation_gives_the_same_bytes(recorded, tmp_path):
    for _ in range(2):
        validate(recorded, out=tmp_path / "one")
        (tmp_path / "one").rename(tmp_path / f"done{_}")
    first, second = (sorted((tmp_path / f"done{i}").rglob("*.*")) for i in range(2))
    assert [path.name for path in first] == [path.name for path in second]
    for one, other in zip(first, second, strict=True):
        if one.is_file() and one.name != "host.json":
            assert one.read_bytes() == other.read_bytes(), one


def test_replicas_are_those_that_the_record_shows(recorded, tmp_path):
    validate(recorded, out=tmp_path / "out")
    shown = [Run.open(path).events for path in (recorded, tmp_path / "out" / "simulated")]
    fields = ["replica_id", "tp", "node_id", "kv_capacity_tokens", "max_num_seqs", "max_model_len"]
    ready = [events[events["type"] == "ReplicaReady"][fields].to_numpy().tolist() for events in shown]
    assert ready[0] == ready[1]


def test_costs_of_a_slower_machine_show_as_positive_errors(recorded, slow):
    validation = validate(recorded, fit=slow)
    found = {figure.name: figure.error_percent for figure in validation.figures}
    assert found["publish_s"] == pytest.approx(900, abs=5)
    assert found["step_train_s"] > 100
    assert found["makespan_s"] > 20
    assert validation.notes[0] == f"fitted to {slow}"


def test_a_real_run_brings_its_own_block_and_no_workload(recorded):
    run = Run.open(recorded)
    config = {key: value for key, value in run.config.items() if key != "sim"}
    config["workload"] = {"kind": "environment", "environment": {"kind": "cipher"}, "max_prompts": 0}
    config["executor"] = {"tool_timeout_s": 7.0, "metrics_period_s": 2.0, "model_path": "gone"}
    real = Run(recorded, {**run.manifest, "world": "executor", "config": config})
    resolved = experiment_of(real)
    assert resolved.private["sim"] == replace(SimConfig(), tool_timeout_s=7.0, metrics_period_s=2.0)
    assert resolved.experiment.workload.kind == "run"
    assert resolved.experiment.total_steps == 4


def test_a_run_that_was_cut_off_counts_to_its_last_step(tmp_path):
    # What is in flight at the cut is not in the record's workload, so the last step may be missing.
    cut = record(tmp_path / "cut", sim__max_sim_s=Run.open(record(tmp_path / "whole")).end_s * 0.8)
    found = validate(cut)
    assert found.figures[0].real == Run.open(cut).train_steps["finished_s"].max()
    assert any(note.startswith("the runs ended time_limit and ") for note in found.notes)


def test_status_1_where_the_makespan_is_too_far_off(recorded, slow, capsys):
    assert main(["validate", str(recorded), "--fit", str(slow), "--max-error", "1000"]) == 0
    assert main(["validate", str(recorded), "--fit", str(slow), "--max-error", "1"]) == 1
    out = capsys.readouterr().out
    assert "makespan_s" in out
    assert f"note: fitted to {slow}" in out


def test_one_line_for_what_cannot_be_validated(recorded, tmp_path, capsys):
    summary = record(tmp_path / "summary", level="summary")
    other = record(tmp_path / "other", heterogeneous_rollout__instances=[{"tp": 1, "count": 2}])
    out = tmp_path / "out"
    assert refused(capsys, tmp_path / "nothing", "--out", out).endswith(
        "nothing: no such directory; give the directory of a run"
    )
    assert "the run has only its summary; record with level full" in refused(capsys, summary, "--out", out)
    assert "the run has only its summary" in refused(capsys, recorded, "--fit", summary, "--out", out)
    assert refused(capsys, recorded, "--fit", other, "--out", out) == (
        f"{other}: has no turns at tp 2, which {recorded} has; give a --fit with the same TP degrees (it has 1)"
    )
    assert "0 or more" in refused(capsys, recorded, "--max-error", "-1")
    assert not out.exists()


def test_a_record_that_was_changed_is_refused(recorded, tmp_path, capsys):
    changed = tmp_path / "changed"
    shutil.copytree(recorded, changed)
    manifest = json.loads((changed / "manifest.json").read_text())
    manifest["config"]["seed"] = 99
    (changed / "manifest.json").write_text(json.dumps(manifest))
    assert "the configuration was changed after the run; give" in refused(capsys, changed)


def test_errors_are_signed_and_an_unknown_one_is_nan():
    assert Figure("a", "s", 2.0, 1.0).error_percent == -50.0
    assert Figure("a", "s", 2.0, 3.0).error_percent == 50.0
    assert Figure("a", "s", 0.0, 0.0).error_percent == 0.0
    assert Figure("a", "s", 0.0, 1.0).error_percent != Figure("a", "s", 0.0, 1.0).error_percent
