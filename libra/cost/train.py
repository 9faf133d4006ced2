"""Duration of an optimizer step, from the work in it.

FLOPs / (GPUs * peak * MFU), where the MFU rises with the tokens that each GPU gets: RL trainers run far below
pre-training because their batches are small and ragged, so a constant MFU is wrong by a factor. Anchors
(prime-rl benchmark table of 2026-02-01: FSDP, full recomputation): Qwen3-4B on 8 H100 at 16K tokens 13.9 %
and at 64K tokens 35.4 %; Megatron-LM's README reports at most 47 to 48 %.
"""

from dataclasses import dataclass

from libra.cost.hardware import Gpu, Model
from libra.errors import UserError


@dataclass(frozen=True, slots=True)
class TrainCostConfig:
    """Knobs of the trainer's cost.

    max_mfu: MFU with endless tokens per GPU (fraction). Megatron-LM README, H100.
    half_tokens: tokens per GPU at which half of `max_mfu` is reached. Between 39,000 and 21,500, which the
        two Qwen3-4B anchors ask for one by one: 33,000 gives 15.6 % and 31.3 %.
    moe_factor: MFU of a mixture of experts relative to a dense model. Same table, Qwen3-30B-A3B:
        2.9 / 13.9 at 16K and 15.4 / 36.1 at 64K; the geometric mean.
    recompute_logprobs: adds a forward pass (2 of 6) for the log-probabilities under the trainer's weights.
    fixed_s: per step, whatever its size: gathering the batch, optimizer, logging. Assumption.
    """

    max_mfu: float = 0.47
    half_tokens: float = 33_000.0
    moe_factor: float = 0.30
    recompute_logprobs: bool = True
    fixed_s: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.max_mfu <= 1.0 or not 0.0 < self.moe_factor <= 1.0:
            raise UserError("train cost: max_mfu and moe_factor must lie in (0, 1]")
        if self.half_tokens < 0.0 or self.fixed_s < 0.0:
            raise UserError("train cost: half_tokens and fixed_s must not be negative")


@dataclass(frozen=True, slots=True)
class TrainCost:
    """Training cost of one model on GPUs of one kind."""

    gpu: Gpu
    model: Model
    config: TrainCostConfig = TrainCostConfig()

    def mfu(self, tokens_per_gpu: float) -> float:
        """Fraction of peak, 0 for no tokens, rising to `max_mfu` (times `moe_factor` for a mixture)."""
        config = self.config
        factor = config.moe_factor if self.model.num_experts else 1.0
        return factor * config.max_mfu * tokens_per_gpu / (tokens_per_gpu + config.half_tokens)

    def flops_per_token(self, mean_sequence_tokens: float = 0.0) -> float:
        """FLOPs of one token: 6 per active parameter (+2 for log-probabilities), attention in proportion.

        A token attends to half its sequence on average; backward costs twice the forward pass.
        """
        passes = 4.0 if self.config.recompute_logprobs else 3.0
        attention = self.model.attention_flops * mean_sequence_tokens / 2.0
        return passes * (2.0 * self.model.num_active_params + attention)

    def step_s(self, num_tokens: int, num_gpus: int, mean_sequence_tokens: float = 0.0) -> float:
        """Seconds of a step on `num_tokens` (prompts and outputs) over `num_gpus`.

        `mean_sequence_tokens` (token-weighted) adds the attention's work; 0 leaves it out, which is right
        within 10 % up to about 2,700 tokens on Qwen3-4B (attention FLOPs / 2 against 2 * parameters).
        """
        if num_gpus < 1:
            raise UserError(f"a train step needs at least one GPU, not {num_gpus}; give the trainer GPUs")
        if num_tokens <= 0:
            return self.config.fixed_s
        rate = num_gpus * self.gpu.peak_bf16_flops * self.mfu(num_tokens / num_gpus)
        return self.config.fixed_s + self.flops_per_token(mean_sequence_tokens) * num_tokens / rate
