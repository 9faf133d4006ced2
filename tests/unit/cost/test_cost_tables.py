"""Look-ups of rollout costs in the catalogue."""

import pytest

from libra.cost.hardware import catalogue
from libra.cost.tables import rollout_cost, tp_degrees
from libra.errors import UserError


def test_a_model_that_does_not_fit_says_needed_and_available():
    with pytest.raises(UserError, match=r"needs 60\.9 GiB .* and 39\.6 GiB are available"):
        rollout_cost("H100", "Qwen3-30B-A3B", 1, gpu_memory_utilization=0.5)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("B300", "Qwen3-8B", 1), "gpu 'B300' is not in the cost catalogue; choose one of: A100, A800"),
        (("H100", "Qwen3-9B", 1), "model 'Qwen3-9B' is not in the cost catalogue"),
        (("H100", "Qwen3-8B", 3), "tp 3 does not divide"),
        (("H100", "Qwen3-8B", 16), "tp degrees with data: 1, 2, 4, 8"),
        (("A100", "Qwen3-30B-A3B", 8), "tp degrees with data: 1, 2, 4"),
        (("H100", "Qwen3-8B", 1, 1.5), r"must lie in \(0, 1\]"),
    ],
)
def test_unknown_combinations_are_refused(args, message):
    with pytest.raises(UserError, match=message):
        rollout_cost(*args)


def test_every_catalogue_entry_has_a_source_and_sane_ratios():
    assert tp_degrees("CPU", "Qwen3-tiny") == [1, 2]
    for gpu in ("A100", "A800", "H100", "H200"):
        for model in ("Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-30B-A3B"):
            costs = [rollout_cost(gpu, model, tp) for tp in tp_degrees(gpu, model)]
            assert len(costs) >= 3
            assert all(cost.source for cost in costs)
            steps = [cost.decode_s(32, 32 * 16_384) for cost in costs]
            assert steps == sorted(steps, reverse=True), (gpu, model)
            prefills = [cost.mixed_s(0, 0, 8192, 8192**2 / 2) for cost in costs]
            assert prefills == sorted(prefills, reverse=True), (gpu, model)
            assert [c.kv_capacity_tokens for c in costs] == sorted(c.kv_capacity_tokens for c in costs)
    assert len(catalogue("rollout")["entries"]) == 62


def test_a_mixed_step_is_never_faster_than_the_decode_step_in_it():
    cost = rollout_cost("A100", "Qwen3-14B", 1)
    assert cost.mixed_s(64, 200_000, 16, 16 * 8) > cost.decode_s(64, 200_000)


def test_eight_small_replicas_beat_one_large_on_short_contexts_and_lose_the_lead_on_long():
    """Direction of the published A800 comparison (arXiv 2606.03077): 3.1x for 0-2K, 1 / 2.8x for 16-32K.

    At most 128 sequences a replica, the largest batch in the data that the coefficients were fitted to.
    """
    one, eight = rollout_cost("A800", "Qwen3-14B", 1), rollout_cost("A800", "Qwen3-14B", 8)

    def tokens_per_s(cost, replicas, context):
        batch = min(128, 512 // replicas, cost.kv_capacity_tokens // context)
        return replicas * batch / cost.decode_s(batch, batch * context)

    short = tokens_per_s(one, 8, 1024) / tokens_per_s(eight, 1, 1024)
    long = tokens_per_s(one, 8, 24_576) / tokens_per_s(eight, 1, 24_576)
    assert short > 1.2
    assert long < 0.8
