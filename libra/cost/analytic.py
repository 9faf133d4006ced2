"""Rollout coefficients of any GPU and model of the catalogue, from datasheets and shapes.

    decode base   weights read / (bandwidth * share) + launch per layer + two all-reduces a layer
    per context   KV bytes / (bandwidth * share)
    prefill       FLOPs / (peak * share) + the all-reduces' bytes

The shares and the host's times come from measured engines on H200 (vLLM 0.26.0: Qwen3-4B, 14B at TP 1, 14B at TP 2;
`AnalyticShares` says which figure each is from) and are taken to hold elsewhere, which is an assumption: on a GPU
that was not measured expect tens of per cent, and calibrate (`python -m sim calibrate`) before you trust a figure.
"""

from dataclasses import dataclass
from typing import Final

from libra.cost.collectives import CollectiveConfig, Fabric
from libra.cost.hardware import BF16_BYTES, Gpu, Model
from libra.cost.rollout import ReplicaCost

GPUS_PER_NODE: Final = 8


@dataclass(frozen=True, slots=True)
class AnalyticShares:
    """What an engine reaches of a datasheet, and its host's times.

    weights_share, kv_share: of memory bandwidth, reading weights (0.8: also the aiconfigurator-core 0.12.0 system
    files) and KV (H200: 0.93, 0.95, 0.88 of 4.8 TB/s on Qwen3-4B, 14B, 14B at TP 2).
    gemm_share, attention_share: of peak; 0.63 is what prefills on H200 reach in both (attention 0.675, 0.638, 0.584).
    batch_share: a decoding sequence costs this share of its own matrix products, the rest hides behind the weights;
        4, 14, 7 us of 13, 47, 23 on H200, where 8, 14, 11 were measured. seq_s: the rest, sampling included.
    layer_s: launch and scheduling of a decode step per layer. all_reduce_s: the engine's own kernel for small
    buffers. graph_layer_s, eager_layer_s: the host's time per layer of a step with prefill, in piecewise graphs and
        without: 7.1 and 17.2 ms on 36 layers, 8.0 and 21.7 on 40 at TP 2. host_seq_s: per sequence in such a step
        (mixed steps of Qwen3-4B). prefill_base_share: fixed part of such a step, of the decode base.
    workers_share: of host_seq_s, what is felt at TP > 1: 0.2 to 0.5 in the step logs of Qwen3-14B at TP 2 against
        Qwen3-4B and 8B at TP 1.
    admission_s: time to first token of a single prompt beyond its step. admission_seq_s: per running sequence.
    dispersed_kv_factor: multi-turn runs against freshly filled caches, three models: 1.14 to 1.3.
    """

    weights_share: float = 0.8
    kv_share: float = 0.92
    gemm_share: float = 0.63
    attention_share: float = 0.63
    batch_share: float = 0.3
    seq_s: float = 4e-6
    layer_s: float = 35e-6
    all_reduce_s: float = 10e-6
    graph_layer_s: float = 0.2e-3
    eager_layer_s: float = 0.48e-3
    host_seq_s: float = 0.14e-3
    workers_share: float = 0.3
    prefill_base_share: float = 0.8
    admission_s: float = 2e-3
    admission_seq_s: float = 0.1e-3
    dispersed_kv_factor: float = 1.2

    def host_per_seq_s(self, tp: int) -> float:
        """At TP > 1 launching is the workers' and scheduling the engine's own process, which work side by side."""
        return self.host_seq_s * self.process_share(tp)

    def process_share(self, tp: int) -> float:
        """Share of the host's time per sequence that is felt."""
        return 1.0 if tp == 1 else self.workers_share


SHARES: Final = AnalyticShares()


def attention_s(gpu: Gpu, model: Model, tp: int) -> float:
    """Prefill attention per (token x context token): four FLOPs per head dimension, heads split over `tp` GPUs."""
    return model.attention_flops / (tp * gpu.peak_bf16_flops * SHARES.attention_share)


def analytic_cost(
    gpu: Gpu, model: Model, tp: int, kv_capacity_tokens: int, shares: AnalyticShares = SHARES
) -> ReplicaCost:
    """Coefficients of a replica of `tp` GPUs within one node; see the module."""
    bandwidth = gpu.memory_bytes_per_s * tp
    flops = gpu.peak_bf16_flops * tp
    # The input embedding is looked up, not read; a tied one is read as the output layer.
    expert_params = model.num_layers * model.ffn_params * model.num_experts
    read = model.num_params - expert_params - (0 if model.tied_embeddings else model.embedding_params)
    active = model.num_active_params - (0 if model.tied_embeddings else model.embedding_params)
    num_reduces = 2 * model.num_layers if tp > 1 else 0
    per_token_s = 2.0 * active / (flops * shares.gemm_share)
    base_s = (
        read * BF16_BYTES / (bandwidth * shares.weights_share)
        + model.num_layers * shares.layer_s
        + num_reduces * shares.all_reduce_s
    )
    return ReplicaCost(
        gpu=gpu.name,
        model=model.name,
        tp=tp,
        decode_base_s=base_s,
        decode_per_seq_s=shares.seq_s + shares.batch_share * per_token_s,
        decode_per_context_token_s=model.kv_bytes_per_token(tp) / (gpu.memory_bytes_per_s * shares.kv_share),
        prefill_base_s=shares.prefill_base_share * base_s,
        prefill_per_token_s=(2.0 * _prefilled(model)) / (flops * shares.gemm_share)
        + num_reduces * _all_reduce_per_token_s(gpu, model, tp),
        prefill_per_attention_s=attention_s(gpu, model, tp),
        graph_host_s=model.num_layers * shares.graph_layer_s,
        eager_host_s=model.num_layers * shares.eager_layer_s,
        kv_capacity_tokens=kv_capacity_tokens,
        host_per_seq_s=shares.host_per_seq_s(tp),
        admission_s=shares.admission_s,
        admission_per_seq_s=shares.admission_seq_s,
        dispersed_kv_factor=shares.dispersed_kv_factor,
        experts_s=expert_params * BF16_BYTES / (bandwidth * shares.weights_share),
        num_experts=model.num_experts,
        experts_per_token=model.experts_per_token,
        source="analytic: datasheet and shape (libra.cost.analytic)",
    )


def _prefilled(model: Model) -> int:
    """Parameters that a prefilled token passes through: of a prompt, only the last token needs the output layer."""
    return model.num_active_params - model.embedding_params * (1 if model.tied_embeddings else 2)


def _all_reduce_per_token_s(gpu: Gpu, model: Model, tp: int) -> float:
    """Bandwidth part of one all-reduce per token; the slope between two large buffers."""
    fabric = Fabric(gpu, GPUS_PER_NODE, CollectiveConfig())
    group = fabric.group(tp)
    per_token = model.hidden * BF16_BYTES
    small, large = 4096, 65536
    return (fabric.all_reduce_s(large * per_token, group) - fabric.all_reduce_s(small * per_token, group)) / (
        large - small
    )
