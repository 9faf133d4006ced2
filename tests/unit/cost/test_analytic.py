"""The analytic model: more hardware is never slower, more model never faster, and estimates are met."""

import csv
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.cost.analytic import SHARES, analytic_cost, attention_s
from libra.cost.hardware import find_gpu, find_model, gpu_names, model_names
from tests.support.costs import DATA, needs_data

GPUS = st.sampled_from([find_gpu(name) for name in gpu_names() if name != "CPU"])
DENSE = ("Qwen3-4B", "Qwen3-8B", "Qwen3-14B")
MODELS = st.sampled_from([find_model(name) for name in model_names() if name != "Qwen3-tiny"])
STEPS = st.tuples(st.integers(1, 128), st.integers(1, 32_768))
FACTOR = st.floats(1.0, 8.0)
SLACK = 1 + 1e-9


def step_times(cost, batch, each):
    """A decode step, and a prefill of `each` tokens beside it."""
    return cost.decode_s(batch, batch * each), cost.prefill_gpu_s(batch, batch * each, each, each * each / 2)


@given(gpu=GPUS, model=MODELS, step=STEPS, factor=FACTOR)
def test_more_bandwidth_is_never_slower(gpu, model, step, factor):
    faster = replace(gpu, memory_bytes_per_s=gpu.memory_bytes_per_s * factor)
    before, after = (analytic_cost(each, model, 1, 10_000) for each in (gpu, faster))
    for slow_s, fast_s in zip(step_times(before, *step), step_times(after, *step), strict=True):
        assert fast_s <= slow_s * SLACK


@given(gpu=GPUS, model=MODELS, step=STEPS, factor=FACTOR)
def test_more_flops_are_never_slower(gpu, model, step, factor):
    faster = replace(gpu, peak_bf16_flops=gpu.peak_bf16_flops * factor)
    before, after = (analytic_cost(each, model, 1, 10_000) for each in (gpu, faster))
    for slow_s, fast_s in zip(step_times(before, *step), step_times(after, *step), strict=True):
        assert fast_s <= slow_s * SLACK


@given(
    gpu=GPUS.filter(lambda gpu: gpu.nvlink_bytes_per_s > 0),
    model=st.sampled_from([find_model(name) for name in ("Qwen3-8B", "Qwen3-14B", "Llama-3.1-8B")]),
    tp=st.sampled_from([1, 2, 4]),
    batch=st.integers(32, 128),
    each=st.integers(16_384, 32_768),
)
def test_more_gpus_are_faster_on_large_batches_with_long_contexts(gpu, model, tp, batch, each):
    """Where reading outweighs the all-reduces; on short steps of small models it need not, and does not."""
    narrow, wide = analytic_cost(gpu, model, tp, 10_000), analytic_cost(gpu, model, 2 * tp, 10_000)
    assert wide.decode_s(batch, batch * each) < narrow.decode_s(batch, batch * each)
    assert wide.prefill_gpu_s(0, 0, 8192, 8192**2 / 2) < narrow.prefill_gpu_s(0, 0, 8192, 8192**2 / 2)


@given(gpu=GPUS, model=MODELS, tp=st.sampled_from([1, 2, 4]))
def test_more_gpus_hold_less_of_each_and_pay_more_for_talking(gpu, model, tp):
    narrow, wide = analytic_cost(gpu, model, tp, 10_000), analytic_cost(gpu, model, 2 * tp, 10_000)
    assert wide.decode_per_context_token_s <= narrow.decode_per_context_token_s
    assert wide.prefill_per_attention_s == pytest.approx(narrow.prefill_per_attention_s / 2)
    assert wide.experts_s == pytest.approx(narrow.experts_s / 2)
    # Launches do not shrink with the GPUs.
    assert wide.decode_base_s > model.num_layers * SHARES.layer_s
    assert wide.graph_host_s == narrow.graph_host_s


@given(
    gpu=GPUS,
    model=MODELS,
    step=STEPS,
    grown=st.sampled_from(["num_layers", "hidden", "ffn", "vocabulary", "num_kv_heads"]),
)
def test_a_larger_model_is_never_faster(gpu, model, step, grown):
    larger = replace(model, **{grown: 2 * getattr(model, grown)})
    small, large = (analytic_cost(gpu, each, 1, 10_000) for each in (model, larger))
    for small_s, large_s in zip(step_times(small, *step), step_times(large, *step), strict=True):
        assert small_s <= large_s * SLACK
    assert small.prompt_s(step[1], 2048) <= large.prompt_s(step[1], 2048) * SLACK


def test_coefficients_of_a_dense_model_by_hand():
    """Qwen3-4B on H200: tied embeddings are read once, as the output layer, and not prefilled with."""
    gpu, model = find_gpu("H200"), find_model("Qwen3-4B")
    cost = analytic_cost(gpu, model, 1, 10_000)
    read_s = 2 * model.num_params / (gpu.memory_bytes_per_s * SHARES.weights_share)
    assert cost.decode_base_s == pytest.approx(read_s + 36 * SHARES.layer_s)
    assert cost.decode_per_context_token_s == pytest.approx(
        2 * 36 * 8 * 128 * 2 / (gpu.memory_bytes_per_s * SHARES.kv_share)
    )
    assert cost.prefill_per_token_s == pytest.approx(
        2 * (model.num_params - 151_936 * 2560) / (gpu.peak_bf16_flops * SHARES.gemm_share)
    )
    assert cost.prefill_per_attention_s == attention_s(gpu, model, 1)
    assert (cost.num_experts, cost.experts_s) == (0, 0.0)


def test_a_mixture_reads_its_experts_apart():
    gpu, model = find_gpu("H100"), find_model("Qwen3-30B-A3B")
    cost = analytic_cost(gpu, model, 1, 10_000)
    expert_bytes = 2 * 48 * 128 * 3 * 2048 * 768
    assert cost.experts_s == pytest.approx(expert_bytes / (gpu.memory_bytes_per_s * SHARES.weights_share))
    assert (cost.num_experts, cost.experts_per_token) == (128, 8)
    # All weights but the input embedding are read in a step of many tokens.
    whole_s = (
        2 * (model.num_params - model.embedding_params) / (gpu.memory_bytes_per_s * SHARES.weights_share)
    )
    assert cost.decode_base_s + cost.experts_s == pytest.approx(whole_s + 48 * SHARES.layer_s)


class TestAgainstOperatorEstimates:
    pytestmark = needs_data

    @staticmethod
    def errors(mode):
        """Relative errors by (GPU, dense or mixture)."""
        found = defaultdict(list)
        with (DATA / "aic_oracle.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                if row["mode"] != mode:
                    continue
                gpu, model = find_gpu(row["system"].split("_")[0].upper()), find_model(row["model"])
                cost = analytic_cost(gpu, model, int(row["tp"]), 10_000)
                batch, context = int(row["batch"]), int(row["ctx"])
                if mode == "static_gen":
                    error = cost.decode_s(batch, batch * context) / (float(row["tpot_ms"]) / 1e3) - 1
                else:
                    # Static estimates know no host.
                    gpu_s = cost.prefill_gpu_s(0, 0, context, context * context / 2)
                    error = gpu_s / (float(row["ttft_ms"]) / 1e3) - 1
                found[(gpu.name, "mixture" if model.num_experts else "dense")].append(error)
        return found

    def test_decode(self):
        by_gpu = defaultdict(list)
        for (gpu, _), errors in self.errors("static_gen").items():
            by_gpu[gpu] += errors
        means = {gpu: float(np.mean(np.abs(errors))) for gpu, errors in by_gpu.items()}
        print(means)
        assert set(means) == {"A100", "H100", "H200"}
        assert sum(map(len, by_gpu.values())) >= 200
        assert max(means.values()) <= 0.17
        assert means["H200"] <= 0.10

    def test_prefill_of_dense_models(self):
        means = {
            gpu: float(np.mean(np.abs(errors)))
            for (gpu, kind), errors in self.errors("static_ctx").items()
            if kind == "dense"
        }
        print(means)
        assert set(means) == {"A100", "H100", "H200"}
        assert max(means.values()) <= 0.17
