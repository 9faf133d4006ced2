"""Paths of calibrations belong to the file that names them, and their content to the sweep's identity."""

from pathlib import Path

from libra.config.document import load_document
from libra.config.resolve import resolve
from sim.config import SimConfig
from sim.sweeps.grid import hash_files

COMMITTED = Path(__file__).parents[3] / "libra" / "cost" / "calibrations"
EXPERIMENT = """\
name: one
hardware_config: H200
model_arch_config: Qwen3-14B
workload: {kind: preset, preset: terminal_agent}
heterogeneous_rollout: {instances: [{tp: 1}]}
cost: {rollout: {calibrations: [cals/one.yaml]}}
train_gpus: 0
"""


def test_a_relative_path_is_of_the_experiment_and_its_content_counts(tmp_path, monkeypatch):
    (tmp_path / "cals").mkdir()
    calibration = tmp_path / "cals" / "one.yaml"
    text = (COMMITTED / "h200_qwen3-14b_tp1_vllm0.26.0.yaml").read_text(encoding="utf-8")
    calibration.write_text(text, encoding="utf-8")
    (tmp_path / "one.yaml").write_text(EXPERIMENT, encoding="utf-8")
    monkeypatch.chdir(COMMITTED)
    document = load_document(tmp_path / "one.yaml")
    resolved = resolve(document, {"sim": SimConfig})
    assert resolved.experiment.cost.rollout.calibrations == (str(calibration),)
    assert document.tree["cost"]["rollout"]["calibrations"] == ["cals/one.yaml"]
    assert resolved.experiment.rollout_costs()[1].decode_base_s == 0.0084655
    before = hash_files([resolved])
    calibration.write_text(text.replace("0.0084655", "0.009"), encoding="utf-8")
    assert hash_files([resolved]) != before
    assert resolved.experiment.rollout_costs()[1].decode_base_s == 0.009
