"""What an experiment leaves open of its trainer's layout is chosen so that it fits, and nothing else is accepted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.cost.hardware import find_gpu, find_model
from libra.cost.train_choice import (
    TrainerLayoutConfig,
    TrainerOptimizerConfig,
    TrainerPool,
    choose_layout,
)
from libra.cost.train_layout import check_layout
from libra.cost.train_memory import feasibility
from libra.errors import UserError


def pool(gpu="H100", num_gpus=8, longest=16_384, gpus_per_node=8):
    return TrainerPool(find_gpu(gpu), num_gpus, gpus_per_node, longest)


def chosen(model, the_pool, **given_sizes):
    return choose_layout(TrainerLayoutConfig(**given_sizes), find_model(model), the_pool, "train_gpus")


@pytest.mark.parametrize(
    ("model", "gpu", "num_gpus", "longest", "expected"),
    [
        ("Qwen3-0.6B", "H100", 8, 16_384, "DP 8"),
        ("Qwen3-8B", "H100", 8, 8_192, "TP 2 x DP 4"),
        ("Qwen3-14B", "A800", 32, 40_960, "TP 4 x DP 8"),
        ("Qwen3-32B", "H200", 16, 16_384, "TP 4 x DP 4"),
        ("Qwen3-30B-A3B", "H100", 32, 16_384, "EP 16 x DP 32"),
        ("Qwen3-8B", "L40S", 8, 4_096, "TP 2 x DP 4"),
    ],
)
def test_the_smallest_model_parallelism_that_fits(model, gpu, num_gpus, longest, expected):
    assert str(chosen(model, pool(gpu, num_gpus, longest))) == expected


def test_what_is_given_is_kept():
    layout = chosen(
        "Qwen3-8B",
        pool(num_gpus=16),
        train_pp_size=2,
        train_cp_size=2,
        recompute="none",
        micro_batch_tokens=4096,
        optimizer=TrainerOptimizerConfig(optimizer_cpu_offload=True, optimizer_offload_fraction=0.5),
    )
    assert (layout.pp, layout.cp, layout.recompute, layout.micro_batch_tokens) == (2, 2, "none", 4096)
    assert layout.optimizer_offload_fraction == 0.5
    assert layout.num_gpus == 16


def test_offloading_counts_only_where_it_is_switched_on():
    assert chosen("Qwen3-4B", pool()).optimizer_offload_fraction == 0.0


@given(
    st.sampled_from(["Qwen3-0.6B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-30B-A3B"]),
    st.sampled_from(["A800", "H200"]),
    st.sampled_from([2, 6, 8, 24, 32]),
    st.sampled_from([2_048, 32_768]),
    st.sampled_from([1, 2]),
)
def test_a_choice_fits_and_none_smaller_does(model, gpu, num_gpus, longest, cp):
    the_pool = pool(gpu, num_gpus, longest)
    try:
        layout = chosen(model, the_pool, train_cp_size=cp)
    except UserError:
        return
    assert layout.num_gpus == num_gpus
    assert layout.cp == cp
    check_layout(find_model(model), layout)

    def fits(each):
        return feasibility(the_pool.gpu, find_model(model), each, longest_sequence_tokens=longest).fits

    assert fits(layout)
    if layout.tp > 1 and layout.pp == 1:
        smaller = [tp for tp in range(1, layout.tp) if num_gpus % tp == 0]
        for tp in smaller:
            with pytest.raises(UserError):
                chosen(model, the_pool, train_tp_size=tp, train_pp_size=1, train_cp_size=cp)


@pytest.mark.parametrize(
    ("model", "the_pool", "sizes", "message"),
    [
        (
            "Qwen3-32B",
            pool("A100", 2),
            {},
            r"^train_gpus: Qwen3-32B at TP 2 x DP 1 needs 305\.0 GiB of 79.25 on",
        ),
        (
            "Qwen3-8B",
            pool(),
            {"train_tp_size": 1, "train_pp_size": 1},
            "at DP 8 needs .* use more GPUs a replica",
        ),
        (
            "Qwen3-8B",
            pool(),
            {"train_dp_size": 3},
            "no layout with TP any x PP any x CP 1 x DP 3 x EP any makes 8",
        ),
        ("Qwen3-8B", pool(), {"train_tp_size": 16}, "no layout with TP 16"),
        ("Qwen2.5-3B", pool(), {"train_tp_size": 4}, "train_tp_size: 4 does not divide the KV heads"),
    ],
)
def test_what_cannot_be_is_refused(model, the_pool, sizes, message):
    with pytest.raises(UserError, match=message):
        chosen(model, the_pool, **sizes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TrainerLayoutConfig(train_tp_size=-1),
        lambda: TrainerLayoutConfig(train_cp_size=0),
        lambda: TrainerLayoutConfig(micro_batch_tokens=-1),
        lambda: TrainerOptimizerConfig(optimizer_offload_fraction=2.0),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(ValueError, match="must"):
        make()
