"""How a trainer's GPUs share one model, and what share of its parameters each then holds.

Guarantees that a layout which Megatron-Core would refuse to build is refused here, in one line with the name of the
setting; what fits in memory is another question (`libra.cost.train_memory`).

Ranks are numbered as Megatron-Core numbers them: TP fastest, then CP, DP, PP. Experts are spread over the ranks of
one pipeline stage (`expert parallel folding`): `tp * cp * dp = ep * etp * expert data parallel`.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from libra.cost.hardware import Model
from libra.errors import UserError

Recompute: TypeAlias = Literal["none", "selective", "full"]
Attention: TypeAlias = Literal["flash", "unfused"]


@dataclass(frozen=True, slots=True)
class TrainLayout:
    """Degrees of parallelism and what else decides memory and time of a train step.

    tp, pp, cp, dp: tensor, pipeline, context, data. ep, etp: GPUs that share one layer's experts, and one expert.
    micro_batch_tokens: tokens (packed, no padding) of one forward pass of one data-parallel replica.
    sequence_parallel: norms and residuals are split over TP as well. recompute: activations that are not kept but
    computed again: none, the scores of attention, or all but the inputs of layers.
    attention: unfused holds all scores of a head at once (Megatron-Core without TransformerEngine).
    use_distributed_optimizer: fp32 weights and Adam's moments are split over DP and CP. optimizer_offload_fraction:
    share of these kept in host memory. reference_model: a second set of bf16 weights, for a KL term.
    logits_chunk_tokens: logits are made and used up for so many tokens at a time; 0 for all of a micro-batch.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    micro_batch_tokens: int = 8192
    sequence_parallel: bool = True
    recompute: Recompute = "full"
    attention: Attention = "flash"
    use_distributed_optimizer: bool = True
    optimizer_offload_fraction: float = 0.0
    reference_model: bool = False
    logits_chunk_tokens: int = 0

    def __post_init__(self) -> None:
        if min(self.tp, self.pp, self.cp, self.dp, self.ep, self.etp, self.micro_batch_tokens) < 1:
            raise UserError(f"trainer layout {self}: all degrees and micro_batch_tokens must be at least 1")
        if not 0.0 <= self.optimizer_offload_fraction <= 1.0:
            raise UserError("trainer: optimizer_offload_fraction must lie in [0, 1]")
        if self.logits_chunk_tokens < 0:
            raise UserError("trainer: logits_chunk_tokens must not be negative (0 for no chunks)")
        if (self.tp * self.cp * self.dp) % (self.ep * self.etp):
            raise UserError(
                f"trainer: EP {self.ep} x ETP {self.etp} must divide TP {self.tp} x CP {self.cp} x DP {self.dp}; "
                "change train_ep_size"
            )

    def __str__(self) -> str:
        """The degrees above 1, and DP."""
        names = ("tp", "pp", "cp", "ep", "etp")
        parts = [f"{name.upper()} {getattr(self, name)}" for name in names if getattr(self, name) > 1]
        return " x ".join([*parts, f"DP {self.dp}"])

    @property
    def num_gpus(self) -> int:
        """GPUs of the trainer."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def model_gpus(self) -> int:
        """GPUs of one data-parallel replica."""
        return self.tp * self.pp * self.cp

    @property
    def expert_dp(self) -> int:
        """GPUs of a stage that hold the same experts."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def sequence_shards(self) -> int:
        """GPUs that share the norms' and residuals' activations of a sequence, beside CP."""
        return self.tp if self.sequence_parallel else 1


def check_layout(model: Model, layout: TrainLayout) -> None:
    """Refuse in one UserError what Megatron-Core does not build for this model."""
    for what, size in (
        ("attention heads", model.num_heads),
        ("KV heads", model.num_kv_heads),
        ("FFN width", model.ffn if not model.num_experts else layout.tp),
        ("vocabulary", model.vocabulary),
    ):
        if size % layout.tp:
            raise UserError(
                f"trainer.train_tp_size: {layout.tp} does not divide the {what} ({size}) of {model.name}; "
                "take a divisor"
            )
    if model.num_layers % layout.pp:
        raise UserError(
            f"trainer.train_pp_size: {layout.pp} does not divide the {model.num_layers} layers of {model.name}"
        )
    if not model.num_experts:
        if layout.ep > 1 or layout.etp > 1:
            raise UserError(f"trainer.train_ep_size: {model.name} has no experts; set 1")
        return
    if model.num_experts % layout.ep:
        raise UserError(
            f"trainer.train_ep_size: {layout.ep} does not divide the {model.num_experts} experts of {model.name}"
        )
    if model.ffn % layout.etp:
        raise UserError(
            f"trainer.expert_tensor_parallel_size: {layout.etp} does not divide an expert's FFN of {model.ffn}"
        )
    if layout.tp > 1 and not layout.sequence_parallel:
        raise UserError("trainer.sequence_parallel: a mixture of experts with TP above 1 needs it; set true")


@dataclass(frozen=True, slots=True)
class StageParams:
    """Parameters that one GPU of a pipeline stage holds: `dense` and, of the experts' weights, `expert`."""

    dense: float
    expert: float

    @property
    def total(self) -> float:
        """Both."""
        return self.dense + self.expert


def stage_params(model: Model, layout: TrainLayout, *, first: bool, last: bool) -> StageParams:
    """Parameters on one GPU of a stage.

    TP splits the projections, the FFN, embedding and output layer; norms and router are copied. The embedding stands
    on the first stage and the output layer on the last; where they are tied, each of the two holds a copy.
    """
    tp, num_layers = layout.tp, model.num_layers // layout.pp
    experts = model.num_experts // layout.ep * model.ffn_params / layout.etp if model.num_experts else 0.0
    ffn = 0.0 if model.num_experts else model.ffn_params / tp
    dense = num_layers * (model.attention_params / tp + ffn + model.norm_params + model.router_params)
    copies = int(first) + int(last and not (first and model.tied_embeddings))
    return StageParams(
        dense=dense + copies * model.embedding_params / tp + (model.hidden if last else 0),
        expert=num_layers * experts,
    )
