"""Duration of a train step, by part, from the work in it and the layout that shares it.

Computing (`libra.cost.train_compute`), what is computed again, log-probs, the pipeline's bubble, communication of
every dimension of the layout (`libra.cost.collectives`), the optimizer. Published times of RL trainers that it is
held against: prime-rl's benchmark runs (benchmarks/baselines of 2026-01-15: full recomputation, two micro-batches a
step). Their table's MFU (13.9 and 35.4 % for Qwen3-4B on 8 H100 at 16K and 64K tokens, 2.9 and 15.4 % for
Qwen3-30B-A3B) is over the time between steps, which has the export of the weights in it, at about 1.6 GB/s; their
step times alone give 27, 36, 18 and 30 %. Here the export is not part of a step (`libra.cost.sync`).
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Final

from libra.cost.collectives import CollectiveConfig, Fabric
from libra.cost.hardware import BF16_BYTES, Gpu, Model
from libra.cost.stamped import stamp
from libra.cost.train_compute import BACKWARD, ComputeConfig, MicroBatchTime, forward_time
from libra.cost.train_layout import TrainLayout, stage_params
from libra.cost.train_memory import GRADIENT_BYTES
from libra.errors import UserError

ADAM_BYTES: Final = 30
"""Per parameter: fp32 weight, gradient and moments read (16), weight and moments written (12), bf16 weight (2)."""


@dataclass(frozen=True, slots=True)
class TrainCostConfig:
    """Knobs of the trainer's cost; defaults carry their source (`sim list costs`).

    compute, collectives: see there. recompute_logprobs: adds a forward pass for the log-probabilities under the
    trainer's weights; a reference model (`TrainLayout.reference_model`) adds one of its own.
    cp_overlap: share of the ring's exchange that hides behind attention. dp_overlap: share of gradient and weight
    exchange that hides behind the last micro-batch's backward pass. adam_efficiency: of memory bandwidth.
    host_adam_bytes_per_s: the same on the host, per GPU. pinned_copy_efficiency: of PCIe. fixed_s: per step, whatever
    its size: gathering the batch, logging.
    """

    compute: ComputeConfig = field(default_factory=ComputeConfig)
    collectives: CollectiveConfig = field(default_factory=CollectiveConfig)
    recompute_logprobs: bool = True
    cp_overlap: float = stamp(0.5, "assumption")
    dp_overlap: float = stamp(0.5, "Libra's public artifact has 0.5 with a pipeline, 0.3 without")
    adam_efficiency: float = stamp(
        0.72, "measured: H200, 1e9 parameters in 8.09 ms (PyTorch 2.11, fused AdamW)"
    )
    host_adam_bytes_per_s: float = stamp(127e9, "measured: 16 cores of an H200 host, 4e8 parameters in 88 ms")
    pinned_copy_efficiency: float = stamp(0.866, "measured: H200, 51.6 GiB/s of PCIe 5's 64 GB/s")
    fixed_s: float = stamp(1.0, "assumption")

    def __post_init__(self) -> None:
        if not (0.0 <= self.cp_overlap <= 1.0 and 0.0 <= self.dp_overlap <= 1.0):
            raise UserError("train cost: cp_overlap and dp_overlap must lie in [0, 1]")
        if not (0.0 < self.adam_efficiency <= 1.0 and 0.0 < self.pinned_copy_efficiency <= 1.0):
            raise UserError("train cost: adam_efficiency and pinned_copy_efficiency must lie in (0, 1]")
        if self.host_adam_bytes_per_s <= 0.0 or self.fixed_s < 0.0:
            raise UserError(
                "train cost: host_adam_bytes_per_s must be positive and fixed_s must not be negative"
            )


@dataclass(frozen=True, slots=True)
class TrainStepTime:
    """Seconds of a step by part; communication is what is left after what overlaps.

    compute_s: forward and backward. recompute_s: activations computed again. logprob_s: forward passes for
    log-probabilities, with their own communication and bubble. bubble_s: the pipeline filling and draining.
    """

    compute_s: float
    recompute_s: float
    logprob_s: float
    bubble_s: float
    tp_comm_s: float
    cp_comm_s: float
    ep_comm_s: float
    pp_comm_s: float
    dp_comm_s: float
    optimizer_s: float
    fixed_s: float

    @property
    def total_s(self) -> float:
        """All parts."""
        return sum(getattr(self, part.name) for part in dataclasses.fields(self))

    def parts(self) -> str:
        """`compute 10.2, tp_comm 1.1, ... s`, largest first; parts below a thousandth of the total are left out."""
        named = [
            (part.name.removesuffix("_s"), getattr(self, part.name)) for part in dataclasses.fields(self)
        ]
        shown = sorted(((s, name) for name, s in named if s > self.total_s / 1000), reverse=True)
        return ", ".join(f"{name} {s:.3g}" for s, name in shown) + " s"


@dataclass(frozen=True, slots=True)
class TrainCost:
    """Training cost of one model in one layout on nodes of `gpus_per_node` GPUs of one kind."""

    gpu: Gpu
    model: Model
    layout: TrainLayout
    config: TrainCostConfig = TrainCostConfig()
    gpus_per_node: int = 8

    @property
    def fabric(self) -> Fabric:
        """The links between the trainer's GPUs."""
        return Fabric(self.gpu, self.gpus_per_node, self.config.collectives)

    def micro_batches(self, num_tokens: float, mean_sequence_tokens: float = 0.0) -> tuple[int, float]:
        """How many micro-batches a replica has in a step, and the tokens of each.

        Sequences are not cut and replicas get equal shares: one with fewer sequences than replicas waits for the
        others, and a micro-batch holds at least one.
        """
        tokens = max(num_tokens / self.layout.dp, min(num_tokens, mean_sequence_tokens))
        most = max(self.layout.micro_batch_tokens, mean_sequence_tokens)
        count = max(1, math.ceil(tokens / most * (1 - 1e-12)))
        return count, tokens / count

    def step(self, num_tokens: float, mean_sequence_tokens: float = 0.0) -> TrainStepTime:
        """A step on `num_tokens` (prompts and outputs), in sequences whose token-weighted mean length is given.

        0 leaves attention out, which is right within 10 % up to about 2,700 tokens on Qwen3-4B.
        """
        if num_tokens < 0 or mean_sequence_tokens < 0:
            raise UserError(f"a train step of {num_tokens} tokens; give 0 or more")
        layout, config = self.layout, self.config
        if num_tokens == 0:
            return TrainStepTime(*[0.0] * 10, fixed_s=config.fixed_s)
        count, tokens = self.micro_batches(num_tokens, mean_sequence_tokens)
        once = forward_time(self.gpu, self.model, layout, config.compute, tokens, mean_sequence_tokens)
        recompute_s = self._recompute_s(once)
        # Passes of communication: forward, backward, and forward again where layers are computed again.
        again = 1 if layout.recompute == "full" else 0
        tp_s = (2 + again) * self._tp_s(tokens)
        cp_s = self._exposed_ring_s(tokens, 3 + again, (1 + BACKWARD + again) * once.attention_s)
        ep_s = (2 + again) * self._ep_s(tokens)
        busy_s = (1 + BACKWARD) * once.forward_s + recompute_s + tp_s + cp_s + ep_s
        passes = int(config.recompute_logprobs) + int(layout.reference_model)
        forward_s = (
            once.forward_s + self._tp_s(tokens) + self._ep_s(tokens) + self._pp_s(tokens)
        ) + self._exposed_ring_s(tokens, 1, once.attention_s)
        slots = count + layout.pp - 1
        return TrainStepTime(
            compute_s=count * (1 + BACKWARD) * once.forward_s,
            recompute_s=count * recompute_s,
            logprob_s=passes * slots * forward_s,
            bubble_s=(layout.pp - 1) * busy_s,
            tp_comm_s=count * tp_s,
            cp_comm_s=count * cp_s,
            ep_comm_s=count * ep_s,
            pp_comm_s=slots * 2 * self._pp_s(tokens),
            dp_comm_s=self._dp_s(BACKWARD * once.forward_s + recompute_s),
            optimizer_s=self._optimizer_s(),
            fixed_s=config.fixed_s,
        )

    def step_s(self, num_tokens: float, mean_sequence_tokens: float = 0.0) -> float:
        """Seconds of `step`."""
        return self.step(num_tokens, mean_sequence_tokens).total_s

    def flops_per_token(self, mean_sequence_tokens: float = 0.0) -> float:
        """Useful FLOPs of one token of the model: 6 per active parameter, causal attention; nothing done twice."""
        model = self.model
        lookup = 0 if model.tied_embeddings else model.embedding_params
        forward = (
            2.0 * (model.num_active_params - lookup) + model.attention_flops * mean_sequence_tokens / 2.0
        )
        return (1 + BACKWARD) * forward

    def mfu(self, num_tokens: float, mean_sequence_tokens: float = 0.0) -> float:
        """Share of the GPUs' peak that a step's useful FLOPs are (fraction)."""
        useful = self.flops_per_token(mean_sequence_tokens) * num_tokens
        seconds = self.step_s(num_tokens, mean_sequence_tokens)
        return useful / (seconds * self.layout.num_gpus * self.gpu.peak_bf16_flops) if seconds else 0.0

    def _recompute_s(self, once: MicroBatchTime) -> float:
        """Of one micro-batch. Selective: attention alone, whose scores were not kept."""
        if self.layout.recompute == "none":
            return 0.0
        return once.attention_s + (once.linear_s if self.layout.recompute == "full" else 0.0)

    def _residual_bytes(self, tokens: float) -> float:
        return BF16_BYTES * self.model.hidden * tokens / self.layout.cp

    def _tp_s(self, tokens: float) -> float:
        """One pass of one micro-batch over a stage's layers: two all-reduces a layer, or with sequence parallelism a
        reduce-scatter and an all-gather in place of each."""
        layout, fabric = self.layout, self.fabric
        group, num_bytes = fabric.group(layout.tp), self._residual_bytes(tokens)
        if layout.sequence_parallel:
            one_s = fabric.reduce_scatter_s(num_bytes, group) + fabric.all_gather_s(num_bytes, group)
        else:
            one_s = fabric.all_reduce_s(num_bytes, group)
        return self.model.num_layers / layout.pp * 2 * one_s

    def _exposed_ring_s(self, tokens: float, passes: int, attention_s: float) -> float:
        """Context parallelism: keys and values go round the ring; backward sends their gradients along as well."""
        layout, model = self.layout, self.model
        if layout.cp == 1:
            return 0.0
        num_bytes = 2 * BF16_BYTES * model.num_kv_heads * model.head_dim / layout.tp * tokens / layout.cp
        same_node = self.fabric.group(layout.cp, layout.tp).num_nodes == 1
        hop_s = self.fabric.point_to_point_s(num_bytes, same_node=same_node)
        ring_s = model.num_layers / layout.pp * passes * (layout.cp - 1) * hop_s
        return ring_s - self.config.cp_overlap * min(ring_s, attention_s)

    def _ep_s(self, tokens: float) -> float:
        """One pass: tokens go to their experts and come back, two all-to-alls a layer, over TP-sharded tokens."""
        layout, model, fabric = self.layout, self.model, self.fabric
        if not model.num_experts:
            return 0.0
        num_bytes = self._residual_bytes(tokens) * model.experts_per_token / layout.tp
        one_s = fabric.all_to_all_s(num_bytes, fabric.group(layout.ep, layout.etp))
        inside = fabric.group(layout.etp)
        one_s += (
            fabric.all_gather_s(num_bytes * layout.etp, inside) if layout.etp > 1 else 0.0
        )  # every GPU of an expert needs all its tokens
        return model.num_layers / layout.pp * 2 * one_s

    def _pp_s(self, tokens: float) -> float:
        """A micro-batch's residual stream (or its gradient) to the next stage."""
        layout = self.layout
        if layout.pp == 1:
            return 0.0
        stride = layout.tp * layout.cp * layout.dp
        same_node = stride * layout.pp <= self.gpus_per_node
        num_bytes = self._residual_bytes(tokens) / layout.sequence_shards
        return self.fabric.point_to_point_s(num_bytes, same_node=same_node)

    def _dp_s(self, backward_s: float) -> float:
        """Gradients are summed once a step; with the distributed optimizer each GPU gets its share of them and hands
        out its share of the new weights."""
        layout, fabric = self.layout, self.fabric
        held = stage_params(self.model, layout, first=layout.pp == 1, last=True)
        dense = fabric.group(layout.dp * layout.cp, layout.tp)
        experts = fabric.group(layout.expert_dp, layout.ep * layout.etp)
        comm_s = 0.0
        for params, group in ((held.dense, dense), (held.expert, experts)):
            if layout.use_distributed_optimizer:
                comm_s += fabric.reduce_scatter_s(GRADIENT_BYTES * params, group)
                comm_s += fabric.all_gather_s(BF16_BYTES * params, group)
            else:
                comm_s += fabric.all_reduce_s(GRADIENT_BYTES * params, group)
        return comm_s - self.config.dp_overlap * min(comm_s, backward_s)

    def _optimizer_s(self) -> float:
        """Adam reads and writes its states; the offloaded share on the host, with gradients down and weights up."""
        layout, config, gpu = self.layout, self.config, self.gpu
        held = stage_params(self.model, layout, first=layout.pp == 1, last=True)
        params = held.total
        if layout.use_distributed_optimizer:
            params = held.dense / (layout.dp * layout.cp) + held.expert / layout.expert_dp
        offloaded = params * layout.optimizer_offload_fraction
        on_gpu_s = ADAM_BYTES * (params - offloaded) / (gpu.memory_bytes_per_s * config.adam_efficiency)
        copied = offloaded * (GRADIENT_BYTES + BF16_BYTES)
        copies_s = copied / (gpu.pcie_bytes_per_s * config.pinned_copy_efficiency)
        return on_gpu_s + copies_s + ADAM_BYTES * offloaded / config.host_adam_bytes_per_s
