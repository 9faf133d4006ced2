"""The catalogue of GPUs and models: published figures, exact parameter counts, KV capacity."""

import pytest

from executor.trainer.shape import ModelShape
from libra.cost.hardware import find_gpu, find_model, gpu_names, kv_capacity_tokens, model_names
from libra.errors import UserError

GB_PER_S = 1e9
GBIT_PER_S = 1e9 / 8


@pytest.mark.parametrize(
    ("name", "total", "active", "kv_bytes"),
    [
        ("Qwen2.5-3B", 3.09e9, 3.09e9, 36_864),
        ("Qwen2.5-7B", 7.62e9, 7.62e9, 57_344),
        ("Qwen3-0.6B", 0.596e9, 0.596e9, 114_688),
        ("Qwen3-1.7B", 1.72e9, 1.72e9, 114_688),
        ("Qwen3-4B", 4.022e9, 4.022e9, 147_456),
        ("Qwen3-8B", 8.191e9, 8.191e9, 147_456),
        ("Qwen3-14B", 14.768e9, 14.768e9, 163_840),
        ("Qwen3-32B", 32.762e9, 32.762e9, 262_144),
        ("Qwen3-30B-A3B", 30.532e9, 3.35e9, 98_304),
        ("Llama-3.1-8B", 8.030e9, 8.030e9, 131_072),
    ],
)
def test_parameter_counts_are_the_published_ones(name, total, active, kv_bytes):
    model = find_model(name)
    assert model.num_params == pytest.approx(total, rel=2e-3)
    assert model.num_active_params == pytest.approx(active, rel=2e-3)
    assert model.kv_bytes_per_token() == kv_bytes


@pytest.mark.parametrize(
    ("name", "without_embeddings"),
    [
        ("Qwen2.5-3B", 2.77e9),
        ("Qwen2.5-7B", 6.53e9),
        ("Qwen3-0.6B", 0.44e9),
        ("Qwen3-1.7B", 1.4e9),
        ("Qwen3-4B", 3.6e9),
        ("Qwen3-8B", 6.95e9),
        ("Qwen3-14B", 13.2e9),
        ("Qwen3-32B", 31.2e9),
        ("Qwen3-30B-A3B", 29.9e9),
    ],
)
def test_counts_without_embeddings_are_those_of_the_model_cards(name, without_embeddings):
    """The cards give two or three digits, which fixes tying and the vocabulary."""
    model = find_model(name)
    ends = model.embedding_params * (1 if model.tied_embeddings else 2)
    assert model.num_params - ends == pytest.approx(without_embeddings, rel=0.012)


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("Qwen2.5-3B", 3_085_938_688),
        ("Qwen2.5-7B", 7_615_616_512),
        ("Qwen3-0.6B", 596_049_920),
        ("Qwen3-4B", 4_022_468_096),
        ("Qwen3-14B", 14_768_307_200),
        ("Qwen3-30B-A3B", 30_532_122_624),
        ("Llama-3.1-8B", 8_030_261_248),
    ],
)
def test_counts_are_exact(name, exact):
    """Summed over the parameters of transformers 5.19.0's own classes, built from these shapes."""
    assert find_model(name).num_params == exact


@pytest.mark.parametrize("name", [name for name in model_names() if name.startswith("Qwen3")])
def test_the_trainer_counts_the_same_parameters(name):
    """Two formulas written apart."""
    model = find_model(name)
    shape = ModelShape(
        num_layers=model.num_layers,
        hidden_size=model.hidden,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        ffn_size=model.ffn,
        vocab_size=model.vocabulary,
        tied_embeddings=model.tied_embeddings,
        num_experts=model.num_experts,
        experts_per_token=model.experts_per_token,
        normalize_expert_weights=True,
        rope_theta=1e6,
        norm_epsilon=1e-6,
        max_length_tokens=1,
    )
    assert shape.num_params == model.num_params


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_has_sane_figures_and_a_source(name):
    gpu = find_gpu(name)
    assert gpu.source
    assert gpu.node_bytes_per_s >= gpu.pcie_bytes_per_s > 0
    assert gpu.memory_bytes_per_s > gpu.node_bytes_per_s  # memory is faster than any link
    assert gpu.engine_workspace_gib < gpu.memory_gib / 4


@pytest.mark.parametrize(
    ("name", "nominal_gib", "tflops", "nvlink", "network"),
    [
        ("A100", 80, 312, 300 * GB_PER_S, 200 * GBIT_PER_S),
        ("A800", 80, 312, 200 * GB_PER_S, 200 * GBIT_PER_S / 8),  # one NIC for the eight GPUs of a node
        ("H100", 80, 989, 450 * GB_PER_S, 400 * GBIT_PER_S),
        ("H200", 141, 989, 450 * GB_PER_S, 400 * GBIT_PER_S),
        ("L40S", 48, 362, 0, 200 * GBIT_PER_S),
        ("RTX4090", 24, 165, 0, 25 * GBIT_PER_S),
        ("RTXPRO6000", 96, 504, 0, 400 * GBIT_PER_S),
    ],
)
def test_gpus_by_their_datasheets(name, nominal_gib, tflops, nvlink, network):
    """Bits and bytes apart: the network figures are given in Gb/s by their sources."""
    gpu = find_gpu(name)
    assert 0.92 * nominal_gib < gpu.memory_gib < nominal_gib
    assert gpu.peak_bf16_flops == pytest.approx(tflops * 1e12, rel=2e-3)
    assert (gpu.nvlink_bytes_per_s, gpu.network_bytes_per_s) == (nvlink, network)


def test_peaks_by_dtype():
    assert find_gpu("H100").peak_flops("fp8") == 2 * find_gpu("H100").peak_flops("bf16")
    with pytest.raises(UserError, match="A100 has no fp8 matrix units; use bf16"):
        find_gpu("A100").peak_flops("fp8")


@pytest.mark.parametrize(
    ("gpu", "model", "tp", "measured"),
    [
        ("H200", "Qwen3-4B", 1, 833_824),
        ("H200", "Qwen3-14B", 1, 614_864),
        ("H200", "Qwen3-14B", 2, 1_419_536),
        ("RTX4090", "Llama-3.1-8B", 1, 41_408),
    ],
)
def test_kv_capacity_is_what_engines_reported(gpu, model, tp, measured):
    assert kv_capacity_tokens(find_gpu(gpu), find_model(model), tp) == pytest.approx(measured, rel=0.006)


def test_kv_heads_are_copied_where_gpus_outnumber_them():
    model = find_model("Qwen3-30B-A3B")
    assert model.kv_bytes_per_token(4) == model.kv_bytes_per_token(8) == model.kv_bytes_per_token(1) // 4


def test_tp_degrees_beyond_the_kv_heads_add_only_the_room_of_their_weights():
    """Twice the GPUs never give more than the weights' share again: each holds a whole KV head already."""
    gpu, model = find_gpu("H100"), find_model("Qwen3-30B-A3B")
    four, eight = (kv_capacity_tokens(gpu, model, tp) for tp in (4, 8))
    freed_bytes = model.weight_bytes / 8
    assert eight - four == pytest.approx(freed_bytes / model.kv_bytes_per_token(8), abs=2)


def test_kv_in_fp8_holds_twice_as_many_tokens():
    gpu, model = find_gpu("A800"), find_model("Qwen3-14B")
    assert kv_capacity_tokens(gpu, model, 2, kv_dtype="fp8") == pytest.approx(
        2 * kv_capacity_tokens(gpu, model, 2), abs=1
    )


def test_an_engine_with_another_workspace():
    gpu, model = find_gpu("H100"), find_model("Qwen3-8B")
    less, more = (kv_capacity_tokens(gpu, model, 1, workspace_gib=gib) for gib in (6.0, 2.0))
    assert more - less == pytest.approx(4 * 1024**3 / model.kv_bytes_per_token(), abs=2)


@pytest.mark.parametrize(
    ("model", "tp", "message"),
    [
        (
            "Qwen2.5-7B",
            8,
            "tp 8 does not divide the 28 attention heads of Qwen2.5-7B; use one of 1, 2, 4, 7, 14",
        ),
        ("Qwen3-8B", 0, "tp 0 does not divide"),
        ("Qwen3-32B", 1, r"needs 65\.1 GiB on each A800 before any KV cache and 39\.6 GiB are available"),
    ],
)
def test_what_does_not_fit_is_refused(model, tp, message):
    with pytest.raises(UserError, match=message):
        kv_capacity_tokens(find_gpu("A800"), find_model(model), tp, 0.5)
