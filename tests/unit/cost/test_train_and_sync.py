"""Train and sync costs by hand-computed numbers."""

import pytest

from libra.cost.hardware import GIB, find_gpu, find_model
from libra.cost.sync import SyncCost, SyncCostConfig
from libra.cost.train import TrainCost, TrainCostConfig
from libra.errors import UserError


@pytest.mark.parametrize(("sequence", "measured"), [(16_384, 26_000), (65_536, 29_000)])
def test_train_throughput_is_near_the_published_table(sequence, measured):
    """prime-rl, Qwen3-4B, 8 H100, one sequence a GPU (no log-probability pass): within 30 %."""
    cost = TrainCost(
        find_gpu("H100"), find_model("Qwen3-4B"), TrainCostConfig(recompute_logprobs=False, fixed_s=0.0)
    )
    tokens = 8 * sequence
    assert tokens / cost.step_s(tokens, 8, sequence) == pytest.approx(measured, rel=0.30)


def test_train_step_by_hand():
    config = TrainCostConfig(max_mfu=0.5, half_tokens=1000.0, recompute_logprobs=True, fixed_s=2.0)
    cost = TrainCost(find_gpu("H100"), find_model("Qwen3-8B"), config)
    # 4 GPUs with 3,000 tokens each: MFU 0.375; 8 FLOPs per parameter and token.
    flops = 8 * find_model("Qwen3-8B").num_params * 12_000
    assert cost.step_s(12_000, 4) == pytest.approx(2.0 + flops / (4 * 989e12 * 0.375))
    assert cost.step_s(0, 4) == 2.0
    with pytest.raises(UserError, match="at least one GPU"):
        cost.step_s(10, 0)


def test_train_mixture_runs_at_a_lower_mfu():
    dense, mixture = (TrainCost(find_gpu("H100"), find_model(m)) for m in ("Qwen3-4B", "Qwen3-30B-A3B"))
    assert mixture.mfu(50_000) == pytest.approx(0.30 * dense.mfu(50_000))


def test_sync_by_hand():
    model = find_model("Qwen3-14B")
    gib = model.weight_bytes / GIB
    fast = SyncCost(find_gpu("H200"), model, SyncCostConfig(network_gib_per_s=1000.0))
    assert fast.load_s(2) == pytest.approx(0.6 + gib / 2 / 51.6)
    assert fast.publish_s(8) == pytest.approx(0.5 + gib / 8 / 51.4)
    slow = SyncCost(find_gpu("A800"), model)
    assert slow.load_s(1) == pytest.approx(0.6 + model.weight_bytes / 3.125e9)
    assert fast.start_s(1, warm=True) == 13.6
    assert fast.start_s(2, warm=False) == 85.0
    for bad in (lambda: fast.load_s(0), lambda: fast.publish_s(0), lambda: fast.start_s(0, warm=True)):
        with pytest.raises(UserError):
            bad()


@pytest.mark.parametrize(
    "make",
    [
        lambda: TrainCostConfig(max_mfu=0.0),
        lambda: TrainCostConfig(fixed_s=-1.0),
        lambda: SyncCostConfig(h2d_gib_per_s=0.0),
        lambda: SyncCostConfig(load_fixed_s=-0.1),
    ],
)
def test_config_out_of_domain_is_refused(make):
    with pytest.raises(UserError, match="cost: "):
        make()
