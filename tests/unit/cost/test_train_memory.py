"""What a train step needs of a GPU's memory: by definition, by published formulas and peaks, and in direction."""

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from libra.cost.hardware import GIB, find_gpu, find_model
from libra.cost.train_layout import TrainLayout, check_layout, stage_params
from libra.cost.train_memory import (
    activation_bytes_per_token,
    feasibility,
    layer_bytes_per_token,
    train_memory,
)
from libra.errors import UserError

GB = 1e9 / GIB
UNSHARDED = TrainLayout(use_distributed_optimizer=False)
QWEN14 = find_model("Qwen3-14B")
MIXTURE = find_model("Qwen3-30B-A3B")


def states_gib(memory):
    return memory.weights_gib + memory.gradients_gib + memory.optimizer_gib


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Qwen3-14B", "Qwen3-30B-A3B", "Qwen2.5-7B", "Llama-3.1-8B"])
def test_eighteen_bytes_a_parameter_without_sharding(name):
    """2 + 4 + 4 + 8; tied embeddings count once."""
    model = find_model(name)
    assert states_gib(train_memory(model, UNSHARDED)) == pytest.approx(18 * model.num_params / GIB)


def test_fourteen_billion_parameters_are_266_gigabytes():
    assert states_gib(train_memory(QWEN14, UNSHARDED)) == pytest.approx(266 * GB, rel=0.002)


def test_the_distributed_optimizer_splits_twelve_bytes_over_dp_and_cp():
    memory = train_memory(QWEN14, TrainLayout(dp=4, cp=2))
    assert memory.optimizer_gib == pytest.approx(12 * QWEN14.num_params / 8 / GIB)
    assert memory.weights_gib + memory.gradients_gib == pytest.approx(6 * QWEN14.num_params / GIB)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_offloading_moves_a_share_of_the_optimizer_to_the_host(share):
    memory = train_memory(QWEN14, dataclasses.replace(UNSHARDED, optimizer_offload_fraction=share))
    assert memory.host_gib == pytest.approx(share * 12 * QWEN14.num_params / GIB)
    assert memory.optimizer_gib == pytest.approx((1 - share) * 12 * QWEN14.num_params / GIB)
    everything = train_memory(QWEN14, UNSHARDED)
    assert memory.total_gib + memory.host_gib == pytest.approx(everything.total_gib)


def fits(tp, micro_batch_tokens, **changes):
    layout = TrainLayout(
        tp=tp, micro_batch_tokens=micro_batch_tokens, use_distributed_optimizer=False, **changes
    )
    return feasibility(find_gpu("A100"), QWEN14, layout).fits


def test_qwen3_14b_on_80_gigabytes():
    """Not at TP 1 or 2; at TP 4 with short micro-batches only; at TP 8 with long ones too."""
    assert not fits(1, 256)
    assert not fits(2, 256)
    assert fits(4, 4096)
    assert fits(4, 4096, recompute="none")
    assert not fits(4, 40_960)
    assert not fits(4, 16_384, recompute="none")
    assert fits(8, 40_960)
    assert fits(8, 16_384, recompute="none")


def test_sharding_and_offloading_make_smaller_tp_degrees_fit():
    def with_dp(**changes):
        return feasibility(
            find_gpu("A100"), QWEN14, TrainLayout(tp=2, dp=8, micro_batch_tokens=4096, **changes)
        )

    assert not with_dp(use_distributed_optimizer=False).fits
    assert with_dp().fits
    alone = TrainLayout(tp=2, micro_batch_tokens=4096, use_distributed_optimizer=False)
    assert feasibility(
        find_gpu("A100"), QWEN14, dataclasses.replace(alone, optimizer_offload_fraction=1.0)
    ).fits


def test_the_explanation_is_one_line_with_the_parts():
    found = feasibility(
        find_gpu("A100"),
        QWEN14,
        TrainLayout(tp=2, use_distributed_optimizer=False, micro_batch_tokens=4096),
    )
    expected = (
        "Qwen3-14B at TP 2 x DP 1 needs 132.9 GiB of 79.25 on each A100: weights 13.8, gradients 27.5, "
        "optimizer 82.5, activations 1.5, logits 4.6, workspace 3.0"
    )
    assert (found.fits, found.explanation) == (False, expected)
    with pytest.raises(
        UserError, match=r"^trainer: Qwen3-14B at TP 2 .*workspace 3.0; use more GPUs a replica"
    ):
        found.require("trainer")
    good = feasibility(find_gpu("A100"), QWEN14, TrainLayout(tp=8, dp=4, optimizer_offload_fraction=0.5))
    assert "takes" in good.explanation
    assert good.explanation.endswith("and in host memory 2.6")
    good.require("trainer")


CLASSIC = dataclasses.replace(
    find_model("Qwen3-8B"), num_heads=32, num_kv_heads=32, hidden=4096, head_dim=128, qk_norm=False, ffn=12288
)
"""Shapes in which 6 ffn = 18 hidden, KV heads = heads, heads * head_dim = hidden."""


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_activations_by_the_published_formula(tp, sequence_parallel):
    """tokens * hidden * (8 + 24 / t + 5 a s / (h t)); all over t with sequence parallelism.

    Korthikanti et al., equations 2 and 4, without dropout masks (2 of the 10) and with a gated FFN of 3 hidden (18
    instead of the 16 of an FFN of 4 hidden), beside flash attention's sums.
    """
    layout = TrainLayout(tp=tp, sequence_parallel=sequence_parallel)
    residual, inside = (8 / tp if sequence_parallel else 8), 24 + 2
    sums = 4 * CLASSIC.num_heads / tp
    expected = CLASSIC.hidden * (residual + inside / tp) + sums
    assert layer_bytes_per_token(CLASSIC, layout, 4096) == pytest.approx(expected)
    unfused = dataclasses.replace(layout, attention="unfused")
    scores = 5 * CLASSIC.num_heads * 4096 / tp
    assert layer_bytes_per_token(CLASSIC, unfused, 4096) == pytest.approx(expected + scores)


def test_recomputation_keeps_less():
    """Full: 2 bytes a hidden unit for each layer. Selective: all but the scores."""
    layout = TrainLayout(attention="unfused", recompute="none")
    kept = {
        recompute: activation_bytes_per_token(
            CLASSIC, dataclasses.replace(layout, recompute=recompute), 8192, 1
        )
        for recompute in ("none", "selective", "full")
    }
    layer, scores = layer_bytes_per_token(CLASSIC, layout, 8192), 5 * 32 * 8192
    assert kept["none"] == pytest.approx(37 * layer)
    assert kept["selective"] == pytest.approx(36 * (layer - scores) + layer + scores)
    assert kept["full"] == pytest.approx(36 * 2 * 4096 + 2 * layer)


@pytest.mark.parametrize(
    ("name", "at_16k_gib", "at_64k_gib"), [("Qwen3-4B", 17.0957, 36.1048), ("Qwen3-0.6B", 12.5280, 19.5605)]
)
def test_growth_with_length_is_that_of_published_peaks(name, at_16k_gib, at_64k_gib):
    """prime-rl, RL with full recomputation and chunked logits, H100 (benchmarks/baselines, 2026-01-15)."""

    def activations_gib(tokens):
        layout = TrainLayout(dp=8, micro_batch_tokens=tokens, logits_chunk_tokens=1024)
        return train_memory(find_model(name), layout).activations_gib

    grown_gib = activations_gib(65_536) - activations_gib(16_384)
    assert grown_gib == pytest.approx(at_64k_gib - at_16k_gib, rel=0.05)


def test_logits_are_those_of_published_peaks():
    """Qwen3-0.6B, one H100, supervised and without chunks: 31.7 GiB at 8K tokens, 52.8 GiB at 16K (same source)."""

    def needed_gib(tokens):
        memory = train_memory(find_model("Qwen3-0.6B"), TrainLayout(micro_batch_tokens=tokens))
        return memory.activations_gib + memory.logits_gib

    assert needed_gib(16_384) - needed_gib(8_192) == pytest.approx(52.8 - 31.7, rel=0.08)


def test_parts_of_a_model_are_on_their_gpus():
    """Every projection once over the GPUs of a replica, norms and router on each, experts by EP and ETP."""
    layout = TrainLayout(tp=4, dp=8, ep=8)
    held = stage_params(MIXTURE, layout, first=True, last=True)
    experts = 48 * 128 * MIXTURE.ffn_params
    copied = 48 * (MIXTURE.norm_params + MIXTURE.router_params) + MIXTURE.hidden
    split = MIXTURE.num_params - experts - copied
    assert held.expert == experts / 8
    assert held.dense == pytest.approx(split / 4 + copied)
    halves = stage_params(MIXTURE, dataclasses.replace(layout, etp=2, ep=4), first=True, last=True)
    assert halves.expert == experts / 8
    memory = train_memory(MIXTURE, layout)
    assert memory.optimizer_gib == pytest.approx(12 * (held.dense / 8 + held.expert / 4) / GIB)


@pytest.mark.parametrize("name", ["Qwen3-4B", "Qwen3-14B"])
def test_stages_share_the_layers_and_the_ends(name):
    model = find_model(name)
    layout = TrainLayout(pp=4)
    first, middle, last = (
        stage_params(model, layout, first=f, last=n).dense for f, n in ((1, 0), (0, 0), (0, 1))
    )
    copied = model.embedding_params if model.tied_embeddings else 0  # each end has one
    assert first + 2 * middle + last == model.num_params + copied
    assert first - middle == model.embedding_params
    assert last - middle == model.embedding_params + model.hidden


def test_the_first_stage_holds_as_many_micro_batches_as_there_are_stages():
    def activations(pp, **given):
        layout = TrainLayout(pp=pp, recompute="none", micro_batch_tokens=8192, logits_chunk_tokens=1)
        return train_memory(QWEN14, layout, **given).activations_gib

    one_layer = activations(1) / 41
    assert activations(4) == pytest.approx(one_layer * (10 * 4 + 1))
    assert activations(4, num_micro_batches=2) == pytest.approx(one_layer * (10 * 2 + 1))


layouts = st.builds(
    TrainLayout,
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 8]),
    micro_batch_tokens=st.sampled_from([512, 4096, 32_768]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    attention=st.sampled_from(["flash", "unfused"]),
    use_distributed_optimizer=st.booleans(),
    optimizer_offload_fraction=st.sampled_from([0.0, 0.5, 1.0]),
    reference_model=st.booleans(),
    logits_chunk_tokens=st.sampled_from([0, 1024]),
)
models = st.sampled_from(["Qwen3-0.6B", "Qwen3-4B", "Qwen3-14B", "Qwen3-30B-A3B", "Llama-3.1-8B"]).map(
    find_model
)


def total_gib(model, layout):
    return train_memory(model, layout, longest_sequence_tokens=4096).total_gib


@given(models, layouts)
def test_parts_are_never_negative_and_sum_to_the_total(model, layout):
    memory = train_memory(model, layout, longest_sequence_tokens=4096, buffered_tokens=1000.0)
    parts = dataclasses.asdict(memory)
    assert min(parts.values()) >= 0
    assert memory.total_gib == pytest.approx(sum(parts.values()) - memory.host_gib)


@given(models, layouts, st.sampled_from(["tp", "pp", "cp", "dp"]))
def test_more_gpus_never_need_more_memory_each(model, layout, degree):
    """PP least of all: its first stage holds as many more micro-batches as it has fewer layers, and tied embeddings
    stand twice."""
    larger = dataclasses.replace(layout, **{degree: 2 * getattr(layout, degree)})
    try:
        check_layout(model, larger)
    except UserError:
        assume(False)
    slack_gib = 0.0
    if degree == "pp":
        slack_gib = 22 * model.embedding_params / GIB if model.tied_embeddings else 1e-9
    assert total_gib(model, larger) <= total_gib(model, layout) + slack_gib


@given(models, layouts)
def test_what_makes_room_makes_room(model, layout):
    for change in (
        {"optimizer_offload_fraction": 1.0},
        {"use_distributed_optimizer": True},
        {"reference_model": False},
        {"micro_batch_tokens": 256},
        {"logits_chunk_tokens": 64},
        {"attention": "flash"},
        {"sequence_parallel": True},
    ):
        assert total_gib(model, dataclasses.replace(layout, **change)) <= total_gib(model, layout) + 1e-9
    kept = [
        total_gib(model, dataclasses.replace(layout, pp=1, recompute=recompute))
        for recompute in ("none", "selective", "full")
    ]
    assert (
        kept[1] <= kept[0] + 0.1 * kept[0]
    )  # one layer's scores, computed again, beside those of the gradients
    assert kept[2] <= kept[1] + 1e-9


@given(layouts, st.sampled_from([2, 4, 8]))
def test_more_expert_parallelism_needs_less(layout, ep):
    layout = dataclasses.replace(layout, dp=8)
    assert total_gib(MIXTURE, dataclasses.replace(layout, ep=ep)) < total_gib(MIXTURE, layout)


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("Qwen2.5-7B", {"tp": 8}, "train_tp_size: 8 does not divide the attention heads"),
        ("Qwen2.5-3B", {"tp": 4}, r"train_tp_size: 4 does not divide the KV heads \(2\) of Qwen2.5-3B"),
        ("Qwen3-4B", {"pp": 5}, "train_pp_size: 5 does not divide the 36 layers"),
        ("Qwen3-4B", {"ep": 2, "dp": 2}, "train_ep_size: Qwen3-4B has no experts; set 1"),
        ("Qwen3-30B-A3B", {"ep": 3, "dp": 3}, "train_ep_size: 3 does not divide the 128 experts"),
        ("Qwen3-30B-A3B", {"etp": 5, "dp": 5}, "expert_tensor_parallel_size: 5 does not divide"),
        ("Qwen3-30B-A3B", {"tp": 2, "sequence_parallel": False}, "sequence_parallel: a mixture of experts"),
    ],
)
def test_layouts_that_cannot_be_built(model, changes, message):
    with pytest.raises(UserError, match=message):
        train_memory(find_model(model), TrainLayout(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 0}, "all degrees and micro_batch_tokens must be at least 1"),
        ({"optimizer_offload_fraction": 1.5}, r"must lie in \[0, 1\]"),
        ({"logits_chunk_tokens": -1}, "must not be negative"),
        ({"ep": 4, "dp": 2}, "EP 4 x ETP 1 must divide TP 1 x CP 1 x DP 2"),
    ],
)
def test_nonsense_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        TrainLayout(**changes)
