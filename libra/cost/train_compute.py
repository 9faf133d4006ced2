"""Seconds that one GPU computes for one micro-batch: layers, attention and logits, forward and backward.

A layer's linear part (projections, FFN, norms, rotations, residuals) takes

    max(launch, matrix FLOPs / (peak * gemm_efficiency) + passes over activations / memory bandwidth)

so its share of peak (MFU) follows from the work in its kernels: it falls with fewer tokens in a micro-batch, with a
narrower shard (TP) and with a smaller hidden size. Measured for this module on one H200 (PyTorch 2.11, bf16, eager;
forward and backward of one layer; shapes of Qwen3-0.6B, 4B and 14B, shards of TP 1, 2, 4, 8; 512 to 32,768 tokens in
sequences of 512): the 36 points above the launch time are met within 3 % on average, 12 % at most, by the constants
below; the 48 others took 1.76 to 2.56 ms, whatever was in them. Experts: grouped products of 128 experts of 768.

Attention's FLOPs are causal: half of all pairs. Backward costs twice the forward pass, in everything.
"""

from dataclasses import dataclass
from typing import Final

from libra.cost.hardware import BF16_BYTES, Gpu, Model
from libra.cost.stamped import stamp
from libra.cost.train_layout import TrainLayout
from libra.errors import UserError

RESIDUAL_PASSES: Final = 44.0
"""Times that forward and backward move a token's `hidden` numbers. Fitted, see the module."""

HEAD_PASSES: Final = 142.0
"""The same for its Q, K and V: norms and rotation without fused kernels. Fitted."""

ROUTED_PASSES: Final = 13.0
"""The same for what is sent to experts (`experts_per_token * hidden`). Fitted to 15.2 ms at 32,768 tokens."""

HALF_ROWS: Final = 200.0
"""Rows of one expert at which its products reach half the efficiency of large ones. Fitted to 4.75 ms at 8,192."""

LOGITS_TRAFFIC_BYTES: Final = 43.0
"""Per entry of the vocabulary and token. Measured, output layer and cross-entropy: 42, 43, 44."""

BACKWARD: Final = 2.0
"""Cost of the backward pass in forward passes."""


@dataclass(frozen=True, slots=True)
class ComputeConfig:
    """Shares of the GPU's peaks; each default carries its source (`sim list costs`).

    gemm_efficiency: of large matrix products. attention_efficiency: of causal flash attention. trainer_efficiency: of
    a whole trainer's linear part over its kernels alone: loss, masks, gathering, host. moe_factor: the same of a
    mixture relative to a dense model: routing, uneven experts. launch_s: least time of one layer, forward and
    backward: the host's.
    """

    gemm_efficiency: float = stamp(0.67, "measured: one H200, PyTorch 2.11 (see libra.cost.train_compute)")
    attention_efficiency: float = stamp(
        0.65, "0.63 fitted to prefills on H200; 0.67 from prime-rl's steps of Qwen3-4B at 16K and 64K tokens"
    )
    trainer_efficiency: float = stamp(
        0.70,
        "0.65 to 0.75 in prime-rl's steps of Qwen3-4B on H100 and H200 (baselines of 2026-01-15); with "
        "gemm_efficiency a bound of 47 % MFU. 0.85 gives the 41 to 48 % of Megatron-LM's README for 175B",
    )
    moe_factor: float = stamp(0.57, "0.40 / 0.70 in the same steps of Qwen3-30B-A3B")
    launch_s: float = stamp(2.2e-3, "measured: one H200 machine, 1.76 to 2.56 ms a layer")

    def __post_init__(self) -> None:
        shares = (self.gemm_efficiency, self.attention_efficiency, self.trainer_efficiency, self.moe_factor)
        if not all(0.0 < share <= 1.0 for share in shares):
            raise UserError("train cost: efficiencies and moe_factor must lie in (0, 1]")
        if self.launch_s < 0.0:
            raise UserError("train cost: launch_s must not be negative")


@dataclass(frozen=True, slots=True)
class MicroBatchTime:
    """Seconds of one forward pass of one micro-batch on one GPU of the slowest stage (the last, with the logits)."""

    linear_s: float
    attention_s: float
    logits_s: float

    @property
    def forward_s(self) -> float:
        """All of it."""
        return self.linear_s + self.attention_s + self.logits_s


def forward_time(
    gpu: Gpu, model: Model, layout: TrainLayout, config: ComputeConfig, tokens: float, sequence_tokens: float
) -> MicroBatchTime:
    """A forward pass over `tokens` of one replica (all of a CP group), in sequences of `sequence_tokens`."""
    if tokens <= 0:
        return MicroBatchTime(0.0, 0.0, 0.0)
    mine = tokens / layout.cp
    num_layers = model.num_layers / layout.pp
    forward = 1 / (1 + BACKWARD)
    efficiency = config.trainer_efficiency * (config.moe_factor if model.num_experts else 1.0)
    layer_s = max(config.launch_s, layer_kernels_s(gpu, model, layout, config, mine) / efficiency)
    pairs = mine * sequence_tokens / 2
    attention = model.attention_flops / layout.pp / layout.tp * pairs
    products = 6 * model.embedding_params / layout.tp * mine / (gpu.peak_bf16_flops * config.gemm_efficiency)
    traffic = LOGITS_TRAFFIC_BYTES * model.vocabulary / layout.tp * mine / gpu.memory_bytes_per_s
    return MicroBatchTime(
        linear_s=num_layers * layer_s * forward,
        attention_s=attention / (gpu.peak_bf16_flops * config.attention_efficiency),
        logits_s=(products + traffic) * forward / config.trainer_efficiency,
    )


def layer_kernels_s(
    gpu: Gpu, model: Model, layout: TrainLayout, config: ComputeConfig, tokens: float
) -> float:
    """Forward and backward of one layer's linear part on one GPU with `tokens`, as its kernels alone take."""
    peak = gpu.peak_bf16_flops * config.gemm_efficiency
    flops = 6 * model.attention_params / layout.tp * tokens
    hidden = RESIDUAL_PASSES * model.hidden / layout.sequence_shards
    heads = HEAD_PASSES * (model.num_heads + 2 * model.num_kv_heads) * model.head_dim / layout.tp
    passes = hidden + heads
    if not model.num_experts:
        flops += 6 * model.ffn_params / layout.tp * tokens
        expert_s = 0.0
    else:
        # Routed tokens of the whole group meet the experts of this GPU: on average what it sent away.
        routed = tokens * model.experts_per_token / layout.tp * layout.etp
        rows = routed * layout.ep / model.num_experts
        slowed = (rows + HALF_ROWS) / rows
        expert_s = 6 * model.ffn_params / layout.etp * routed * slowed / peak
        passes += ROUTED_PASSES * model.hidden * model.experts_per_token / layout.tp * layout.etp
    return flops / peak + expert_s + BF16_BYTES * passes * tokens / gpu.memory_bytes_per_s
