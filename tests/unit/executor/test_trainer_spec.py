"""What the trainer refuses before anything starts, in one line each; and what it says about memory and switches."""

import dataclasses
import json
import struct

import pytest

from executor.trainer.shape import read_shape
from executor.trainer.spec import (
    GrpoConfig,
    OptimizerConfig,
    TrainerConfig,
    TrainerSpec,
    check_trainer,
    estimate_memory,
)
from executor.trainer.switches import decide
from libra.errors import UserError

CONFIG = {
    "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 16, "vocab_size": 32, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64, "rope_theta": 1e6,
}  # fmt: skip


def write_model(folder, config=None, *, rows=32, largest_token=31, weights=True):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": largest_token}}}))
    if weights:
        table = {"model.embed_tokens.weight": {"dtype": "F32", "shape": [rows, 8], "data_offsets": [0, 0]}}
        header = json.dumps(table).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


@pytest.fixture
def shape(tmp_path):
    return read_shape(write_model(tmp_path / "model"))


def test_a_shape_is_read_from_the_folder(shape):
    assert (shape.num_layers, shape.num_kv_heads, shape.ffn_size, shape.rope_theta) == (2, 2, 16, 1e6)
    # Two layers of q, k, v, o, three FFN matrices and norms; two embeddings; the last norm.
    assert shape.num_params == 2 * (8 * 4 * (4 + 2) * 2 + 3 * 8 * 16 + 2 * 8 + 2 * 4) + 2 * 32 * 8 + 8


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"model_type": "llama"}, {}, "model_type 'llama' cannot be trained; take one of qwen3, qwen3_moe"),
        ({"attention_bias": True}, {}, "attention_bias True cannot be trained"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, {}, "rope scaling 'yarn' cannot be trained"),
        ({"head_dim": None}, {}, "key head_dim is missing"),
        ({}, {"rows": 40}, "says vocab_size 32, its embedding has 40 rows"),
        ({}, {"largest_token": 32}, r"tokenizer.json has token 32, config.json a vocabulary of 32"),
        ({}, {"weights": False}, r"no model.safetensors in it"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(tmp_path, change, options, message):
    config = {key: value for key, value in (CONFIG | change).items() if value is not None}
    with pytest.raises(UserError, match=message) as caught:
        read_shape(write_model(tmp_path / "model", config, **options))
    assert "\n" not in str(caught.value)


def test_an_absent_model_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such folder; name a folder with config"):
        read_shape(tmp_path / "nowhere")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        read_shape(tmp_path / "broken")


@pytest.mark.parametrize(
    ("config", "gpus", "facts", "message"),
    [
        ({"train_tp_size": 4}, 4, {}, "train_tp_size 4 does not divide the model's KV heads 2"),
        ({"train_pp_size": 4}, 4, {}, "train_pp_size 4 does not divide the model's 2 layers"),
        ({"train_tp_size": 2, "train_dp_size": 2}, 2, {}, "TP 2 x PP 1 x DP 2 does not make 2 GPUs"),
        ({"train_tp_size": 2}, 3, {}, "TP 2 x PP 1 x DP any does not make 3 GPUs"),
        ({}, 1, {"group_size": 1}, "a group of 1 has no advantage to learn from"),
        (
            {"micro_batch_size": 4},
            2,
            {"num_trajectories": 12},
            r"12 trajectories a step do not divide .* of 8",
        ),
        ({}, 1, {"max_length_tokens": 65}, "may reach 65 tokens, the trainer takes 64"),
        ({"max_seq_length_tokens": 32}, 1, {"max_length_tokens": 33}, "the trainer takes 32"),
    ],
)
def test_a_layout_that_cannot_run_is_refused(shape, config, gpus, facts, message):
    with pytest.raises(UserError, match=message) as caught:
        check_trainer(TrainerConfig(**config), gpus, shape, **facts)
    assert "\n" not in str(caught.value)


def test_a_mixture_of_experts_is_not_split_by_tensors(shape):
    moe = dataclasses.replace(shape, num_experts=4, experts_per_token=2)
    check_trainer(TrainerConfig(), 2, moe)
    with pytest.raises(UserError, match="train_tp_size must be 1 for a mixture of experts"):
        check_trainer(TrainerConfig(train_tp_size=2), 2, moe)


def test_a_layout_that_fits_passes(shape):
    config = TrainerConfig(train_tp_size=2, train_pp_size=2, micro_batch_size=2)
    facts = {"num_trajectories": 16, "group_size": 8, "max_length_tokens": 64}
    check_trainer(config, 8, shape, **facts)
    assert config.with_dp(8).train_dp_size == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: OptimizerConfig(lr=-1.0),
        lambda: OptimizerConfig(beta2=1.0),
        lambda: OptimizerConfig(optimizer_offload_fraction=1.5),
        lambda: GrpoConfig(clip=0.0),
        lambda: GrpoConfig(kl_coef=-0.1),
        lambda: GrpoConfig(importance_cap=0.5),
        lambda: GrpoConfig(max_empty_batches=0),
        lambda: TrainerConfig(micro_batch_size=0),
        lambda: TrainerConfig(max_seq_length_tokens=1),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="must"):
        make()


def test_a_specification_survives_the_file(tmp_path):
    config = TrainerConfig(
        train_dp_size=2, optimizer=OptimizerConfig(lr=3e-4), grpo=GrpoConfig(clip_high=0.3)
    )
    spec = TrainerSpec(config, "models/a", 1234, 1235, start_version=4, checkpoint="ck")
    spec.write(tmp_path / "spec.json")
    assert TrainerSpec.read(tmp_path / "spec.json") == spec
    assert spec.world_size == 2
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(UserError, match="is no trainer specification"):
        TrainerSpec.read(tmp_path / "spec.json")


def test_memory_follows_the_layout(shape):
    one = estimate_memory(TrainerConfig(train_dp_size=1), shape)
    gib = shape.num_params / 1024**3
    assert one.weights_gib == pytest.approx(2 * gib, rel=0.01)
    assert one.grads_gib == pytest.approx(4 * gib, rel=0.01)
    assert one.optimizer_gib == pytest.approx(12 * gib, rel=0.01)
    assert one.reference_gib == 0.0
    half = estimate_memory(
        TrainerConfig(train_tp_size=2, train_dp_size=1, grpo=GrpoConfig(kl_coef=0.1)), shape
    )
    assert half.weights_gib == half.reference_gib == pytest.approx(one.weights_gib / 2)
    assert half.activations_gib < one.activations_gib
    assert one.total_gib == pytest.approx(sum(dataclasses.astuple(one)))
    fp32 = estimate_memory(TrainerConfig(dtype="float32"), shape)
    assert fp32.weights_gib + fp32.optimizer_gib == pytest.approx(12 * gib, rel=0.01)


def test_switches_act_or_say_what_runs_instead():
    wanted = OptimizerConfig(use_precision_aware_optimizer=True, optimizer_cpu_offload=True)
    without = decide(wanted, has_transformer_engine=False)
    assert (without.distributed, without.precision_aware, without.cpu_offload) == (False, False, False)
    assert [note.split(":")[0] for note in without.notes] == [
        "trainer.optimizer.use_precision_aware_optimizer",
        "trainer.optimizer.optimizer_cpu_offload",
    ]
    acting = decide(wanted, has_transformer_engine=True)
    assert acting.distributed
    assert acting.precision_aware
    assert acting.cpu_offload
    assert len(acting.notes) == 1  # the distributed optimizer came along
    assert decide(OptimizerConfig(), has_transformer_engine=False).notes == ()
