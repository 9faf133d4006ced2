"""What a train step needs of one GPU's memory, by part, and whether that fits.

By definition, per parameter: bf16 weights 2 bytes, fp32 gradients 4, fp32 master weights 4, Adam's two moments 8:
18 without any sharding. The distributed optimizer splits the last 12 over the GPUs that hold the same parameters;
offloading moves a share of them to host memory.

Activations follow Korthikanti et al. 2022 (arXiv 2205.05198), counted anew for this family: grouped KV heads, gated
FFN, RMSNorm of Q and K, no dropout. With their shapes (KV heads = heads, 6 ffn = 16 hidden) one layer keeps tokens *
hidden * (8 + 24 / t) bytes: their 34 less 2 for dropout masks. Backward needs in addition the gradients of one layer,
and after full recomputation the layer itself: twice one layer beside the inputs of all. That is what prime-rl's
published peaks ask for: 415 KB a token for Qwen3-4B and 154 KB for Qwen3-0.6B between 16K and 64K tokens
(benchmarks/baselines of 2026-01-15); this gives 404 and 147 KB.
"""

import dataclasses
from dataclasses import dataclass
from typing import Final

from libra.cost.hardware import BF16_BYTES, GIB, Gpu, Model
from libra.cost.train_layout import StageParams, TrainLayout, check_layout, stage_params
from libra.errors import UserError

GRADIENT_BYTES: Final = 4
OPTIMIZER_BYTES: Final = 12
"""fp32 master weights 4, Adam's moments 8."""

LOGITS_BYTES: Final = 16
"""Per entry of the vocabulary and token, forward and backward together: bf16 and fp32 logits, probabilities, their
gradients. prime-rl's runs without chunks: 17.2 for Qwen3-0.6B (8K and 16K tokens), 16.2 for Qwen3-4B."""

BUFFER_BYTES: Final = 24
"""Per token of a step that waits on a GPU: ids, mask, advantage, log-probs of engine, trainer and reference."""

TRAIN_WORKSPACE_GIB: Final = 3.0
"""CUDA context, cuBLAS, NCCL's buffers, fragmentation. aiconfigurator-core 0.12.0 has 3.6 GiB for serving; prime-rl
leaves 1.3 GiB unexplained on a single GPU, beside the context."""


@dataclass(frozen=True, slots=True)
class TrainMemory:
    """GiB on the fullest GPU, by part. host_gib: what offloading keeps in host memory instead, for that GPU."""

    weights_gib: float
    gradients_gib: float
    optimizer_gib: float
    activations_gib: float
    logits_gib: float
    reference_gib: float
    buffers_gib: float
    workspace_gib: float
    host_gib: float

    @property
    def total_gib(self) -> float:
        """All parts on the GPU."""
        return sum(getattr(self, field.name) for field in dataclasses.fields(self)) - self.host_gib

    def parts(self) -> str:
        """`weights 28.0, gradients 55.0, ...`; parts of nothing are left out, but never the first five."""
        named = [(f.name.removesuffix("_gib"), getattr(self, f.name)) for f in dataclasses.fields(self)]
        shown = [f"{name} {gib:.1f}" for i, (name, gib) in enumerate(named) if i < 5 or gib >= 0.05]
        return ", ".join(shown).replace("host", "and in host memory")


def layer_bytes_per_token(model: Model, layout: TrainLayout, sequence_tokens: float) -> float:
    """Bytes that one layer keeps of a token for the backward pass, on one GPU, with nothing recomputed.

    sequence_tokens: length of the sequence that the token belongs to; only unfused attention depends on it.
    """
    return _linear_bytes(model, layout) + _scores_bytes(model, layout, sequence_tokens)


def _linear_bytes(model: Model, layout: TrainLayout) -> float:
    """All but the scores. Each tensor is counted once, at two bytes a number."""
    hidden, head_dim = model.hidden, model.head_dim
    heads, kv_heads = model.num_heads, model.num_kv_heads
    residual = BF16_BYTES * 4 * hidden  # inputs and outputs of both norms
    attention = BF16_BYTES * head_dim * (2 * heads + 2 * kv_heads)  # Q, K, V and the output
    if model.qk_norm:
        attention += BF16_BYTES * head_dim * (heads + kv_heads)
    attention += 4 * heads  # flash attention's sums
    if not model.num_experts:
        ffn = BF16_BYTES * 3 * model.ffn / layout.tp  # gate, up, their product
    else:  # a token is at `experts_per_token` experts, each with its own input and output
        one = BF16_BYTES * (2 * hidden + 3 * model.ffn / layout.etp)
        ffn = model.experts_per_token * one * layout.etp / layout.tp
        residual += 4 * model.num_experts  # the router's logits
    return residual / layout.sequence_shards + attention / layout.tp + ffn


def _scores_bytes(model: Model, layout: TrainLayout, sequence_tokens: float) -> float:
    """Scores of unfused attention: 5 bytes each, as published (softmax in and out at two bytes, a mask)."""
    if layout.attention == "flash":
        return 0.0
    return 5 * model.num_heads * sequence_tokens / layout.tp


def activation_bytes_per_token(
    model: Model, layout: TrainLayout, sequence_tokens: float, micro_batches_in_flight: int
) -> float:
    """Bytes of activations on one GPU of a stage, per token that it has of one micro-batch."""
    linear, scores = _linear_bytes(model, layout), _scores_bytes(model, layout, sequence_tokens)
    kept = linear + scores
    working = kept  # gradients of the layer that is at work
    if layout.recompute == "selective":
        kept = linear
    elif layout.recompute == "full":
        kept = BF16_BYTES * model.hidden / layout.sequence_shards
        working += linear
    if layout.recompute != "none":
        working += scores
    return model.num_layers / layout.pp * kept * micro_batches_in_flight + working


def train_memory(
    model: Model,
    layout: TrainLayout,
    *,
    longest_sequence_tokens: int = 0,
    num_micro_batches: int = 0,
    buffered_tokens: float = 0.0,
    workspace_gib: float = TRAIN_WORKSPACE_GIB,
) -> TrainMemory:
    """Memory of the fullest GPU of the pipeline. Raises UserError for a layout that cannot be built.

    longest_sequence_tokens: a micro-batch holds at least one sequence, so this many tokens even where they exceed
    `micro_batch_tokens`; unfused attention grows with it. 0 means all of a micro-batch is one sequence.
    num_micro_batches: of a step, which bounds how many a stage holds in 1F1B; 0 means enough of them.
    buffered_tokens: tokens of a step that one GPU holds log-probs and the like for.
    """
    check_layout(model, layout)
    longest = longest_sequence_tokens or layout.micro_batch_tokens
    tokens = max(layout.micro_batch_tokens, longest_sequence_tokens) / layout.cp
    in_flight = min(layout.pp, num_micro_batches or layout.pp)
    stages = [(True, layout.pp == 1, in_flight)]
    if layout.pp > 1:
        stages.append((False, True, 1))
    candidates = [
        _stage_memory(
            model,
            layout,
            stage_params(model, layout, first=first, last=last),
            tokens=tokens,
            logits_tokens=min(tokens, layout.logits_chunk_tokens or tokens) if last else 0.0,
            activation_bytes=activation_bytes_per_token(model, layout, longest, count),
        )
        for first, last, count in stages
    ]
    fullest = max(candidates, key=lambda memory: memory.total_gib)
    return dataclasses.replace(
        fullest, buffers_gib=buffered_tokens * BUFFER_BYTES / GIB, workspace_gib=workspace_gib
    )


def _stage_memory(
    model: Model,
    layout: TrainLayout,
    params: StageParams,
    *,
    tokens: float,
    logits_tokens: float,
    activation_bytes: float,
) -> TrainMemory:
    shards, expert_shards = 1, 1
    if layout.use_distributed_optimizer:
        shards, expert_shards = layout.dp * layout.cp, layout.expert_dp
    optimizer = OPTIMIZER_BYTES * (params.dense / shards + params.expert / expert_shards)
    return TrainMemory(
        weights_gib=BF16_BYTES * params.total / GIB,
        gradients_gib=GRADIENT_BYTES * params.total / GIB,
        optimizer_gib=optimizer * (1.0 - layout.optimizer_offload_fraction) / GIB,
        activations_gib=tokens * activation_bytes / GIB,
        logits_gib=LOGITS_BYTES * logits_tokens * model.vocabulary / layout.tp / GIB,
        reference_gib=BF16_BYTES * params.total / GIB if layout.reference_model else 0.0,
        buffers_gib=0.0,
        workspace_gib=0.0,
        host_gib=optimizer * layout.optimizer_offload_fraction / GIB,
    )


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Whether a layout fits, with one line that says why."""

    fits: bool
    memory: TrainMemory
    available_gib: float
    explanation: str

    def require(self, place: str) -> None:
        """Raise UserError at `place` unless it fits."""
        if not self.fits:
            raise UserError(
                f"{place}: {self.explanation}; use more GPUs a replica (train_tp_size, train_pp_size, "
                "train_cp_size), fewer micro_batch_tokens or more recompute, or offload the optimizer"
            )


def feasibility(
    gpu: Gpu,
    model: Model,
    layout: TrainLayout,
    *,
    longest_sequence_tokens: int = 0,
    num_micro_batches: int = 0,
    buffered_tokens: float = 0.0,
) -> Feasibility:
    """Whether the fullest GPU holds it all; arguments of `train_memory`. Raises UserError as that does."""
    memory = train_memory(
        model,
        layout,
        longest_sequence_tokens=longest_sequence_tokens,
        num_micro_batches=num_micro_batches,
        buffered_tokens=buffered_tokens,
    )
    fits = memory.total_gib <= gpu.memory_gib
    verb = "needs" if not fits else "takes"
    explanation = (
        f"{model.name} at {layout} {verb} {memory.total_gib:.1f} GiB of {gpu.memory_gib:g} on each {gpu.name}: "
        f"{memory.parts()}"
    )
    return Feasibility(fits, memory, gpu.memory_gib, explanation)
