"""What a trainer is asked to be, and whether it can be that: settings, checks, a memory estimate. Loads no torch.

Guarantees: `check_trainer` refuses in one line, naming the key, what the workers could not run; what passes here
starts, unless the machine lacks memory.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from executor.trainer.shape import ModelShape
from libra.errors import UserError

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """Adam with decoupled weight decay (none on norms).

    lr: constant; 0 trains nothing. beta1, beta2, eps: Adam's own. weight_decay: times lr a step.
    clip_grad: largest global gradient norm, 0 for no clipping.
    use_precision_aware_optimizer, optimizer_cpu_offload, use_distributed_optimizer: the manual's memory switches;
    where TransformerEngine is missing something else runs, and the trainer says so in one line each.
    optimizer_offload_fraction: share of the optimizer state that offloading keeps in host memory.
    """

    lr: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_grad: float = 1.0
    use_precision_aware_optimizer: bool = False
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: float = 0.0
    use_distributed_optimizer: bool = False

    def __post_init__(self) -> None:
        if self.lr < 0 or self.eps <= 0 or self.weight_decay < 0 or self.clip_grad < 0:
            raise ValueError("lr, weight_decay and clip_grad must not be negative, and eps must be positive")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError("beta1 and beta2 must lie in [0, 1)")
        if not 0 <= self.optimizer_offload_fraction <= 1:
            raise ValueError("optimizer_offload_fraction must lie in [0, 1]")


@dataclass(frozen=True, slots=True)
class GrpoConfig:
    """The loss, with one optimizer step a batch.

    clip, clip_high: the probability ratio is clipped to [1 - clip, 1 + clip_high]; clip_high null means clip.
    loss_aggregation: the mean over all tokens, or over trajectories of the mean over each one's tokens.
    kl_coef: weight of the k3 estimate of KL(policy || start weights); 0 loads no reference model.
    recompute_logprobs: true takes the old log-probs from the trainer's own weights, in the same forward pass (their
    ratio is then 1), and weighs each token by how likely the trainer finds it against the engine that sampled it, at
    most `importance_cap`. False takes the engine's log-probs as the old ones.
    importance_cap: of that weight; null for no such weight.
    max_empty_batches: batches in a row whose groups all have equal rewards, after which the run stops.
    normalize_advantage_std: divide a group's advantages by the standard deviation of its rewards.
    """

    clip: float = 0.2
    clip_high: float | None = None
    kl_coef: float = 0.0
    loss_aggregation: Literal["token_mean", "sequence_mean"] = "sequence_mean"
    recompute_logprobs: bool = True
    importance_cap: float | None = 2.0
    max_empty_batches: int = 5
    normalize_advantage_std: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.clip < 1 or (self.clip_high is not None and self.clip_high <= 0):
            raise ValueError("clip must lie in (0, 1), and clip_high be positive or null")
        if self.kl_coef < 0:
            raise ValueError("kl_coef must not be negative")
        if self.importance_cap is not None and self.importance_cap < 1:
            raise ValueError("importance_cap must be at least 1, or null")
        if self.max_empty_batches < 1:
            raise ValueError("max_empty_batches must be at least 1")


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """Layout and settings of the trainer.

    train_tp_size: tensor-parallel ranks. train_pp_size: pipeline stages. train_dp_size 0: what the trainer's GPUs
    leave beside TP and PP.

    dtype: of weights and activations. seed: the experiment's, whatever stands here.
    micro_batch_size: trajectories in one forward pass. max_seq_length_tokens: longest trajectory, prompt included.
    """

    train_tp_size: int = 1
    train_pp_size: int = 1
    train_dp_size: int = 0
    micro_batch_size: int = 1
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    max_seq_length_tokens: int = 4096
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    grpo: GrpoConfig = field(default_factory=GrpoConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.train_tp_size, self.train_pp_size, self.micro_batch_size) < 1 or self.train_dp_size < 0:
            raise ValueError("train_tp_size, train_pp_size and micro_batch_size must be at least 1")
        if self.max_seq_length_tokens < 2:
            raise ValueError("max_seq_length_tokens must be at least 2")

    def with_dp(self, train_gpus: int) -> Self:
        """The same with `train_dp_size` filled in, one process a GPU. Raises UserError where they do not fit."""
        model_size = self.train_tp_size * self.train_pp_size
        dp_size = self.train_dp_size or train_gpus // model_size
        if dp_size < 1 or model_size * dp_size != train_gpus:
            raise UserError(
                f"trainer: TP {self.train_tp_size} x PP {self.train_pp_size} x DP {self.train_dp_size or 'any'} does "
                f"not make {train_gpus} GPUs; change a size or the number of GPUs"
            )
        return dataclasses.replace(self, train_dp_size=dp_size)


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """One worker process's orders, the same for all ranks; `rank` comes from its environment.

    model_path: Hugging Face folder; its weights are the start, and the reference where `kl_coef` is above 0.
    checkpoint: folder of `save` to go on from, empty for none. start_version: of the weights after that.
    master_port, control_port: ports on `master_address`, of the ranks' rendezvous and of rank 0's HTTP server.
    timeout_s: how long a rank waits for the others in one collective operation.
    """

    config: TrainerConfig
    model_path: str
    master_port: int
    control_port: int
    master_address: str = "127.0.0.1"
    start_version: int = 0
    checkpoint: str = ""
    timeout_s: float = 1800.0

    @property
    def world_size(self) -> int:
        """Number of worker processes."""
        return self.config.train_tp_size * self.config.train_pp_size * self.config.train_dp_size

    def write(self, path: str | Path) -> None:
        """Store it as JSON."""
        Path(path).write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """What `write` stored. Raises UserError."""
        try:
            plain = json.loads(Path(path).read_text(encoding="utf-8"))
            config = plain.pop("config")
            optimizer, grpo = OptimizerConfig(**config.pop("optimizer")), GrpoConfig(**config.pop("grpo"))
            return cls(TrainerConfig(**config, optimizer=optimizer, grpo=grpo), **plain)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{path}: is no trainer specification ({error}); write it with TrainerSpec"
            ) from error


def check_trainer(
    config: TrainerConfig,
    train_gpus: int,
    model: ModelShape,
    *,
    num_trajectories: int | None = None,
    group_size: int | None = None,
    max_length_tokens: int | None = None,
) -> None:
    """Refuse what could not run, in one UserError.

    num_trajectories: of one train step. group_size: trajectories of a prompt. max_length_tokens: longest trajectory
    that the rollout may make.
    """
    layout = config.with_dp(train_gpus)
    tp_size, dp_size = layout.train_tp_size, layout.train_dp_size
    for name, size in (
        ("KV heads", model.num_kv_heads),
        ("FFN", model.ffn_size),
        ("vocabulary", model.vocab_size),
    ):
        if size % tp_size:
            raise UserError(
                f"trainer.train_tp_size {tp_size} does not divide the model's {name} {size}; take a divisor"
            )
    if model.num_heads % model.num_kv_heads:
        raise UserError(f"model: {model.num_kv_heads} KV heads do not divide {model.num_heads} heads")
    if model.num_layers % layout.train_pp_size:
        raise UserError(
            f"trainer.train_pp_size {layout.train_pp_size} does not divide the model's {model.num_layers} layers"
        )
    if model.num_experts and tp_size > 1:
        raise UserError(
            "trainer.train_tp_size must be 1 for a mixture of experts: more needs sequence parallelism, which needs "
            "TransformerEngine"
        )
    if group_size is not None and group_size < 2:
        raise UserError(
            f"a group of {group_size} has no advantage to learn from; set n_samples to at least 2"
        )
    share = dp_size * layout.micro_batch_size
    if num_trajectories is not None and num_trajectories % share:
        raise UserError(
            f"{num_trajectories} trajectories a step do not divide among DP {dp_size} x micro_batch_size "
            f"{layout.micro_batch_size}; make the batch a multiple of {share}"
        )
    longest = min(layout.max_seq_length_tokens, model.max_length_tokens)
    if max_length_tokens is not None and max_length_tokens > longest:
        raise UserError(
            f"trajectories may reach {max_length_tokens} tokens, the trainer takes {longest}; raise "
            f"trainer.max_seq_length_tokens (the model's limit is {model.max_length_tokens})"
        )


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """GiB on the fullest rank; on CPU machines, of its process. Rough: within a fifth, workspaces left out."""

    weights_gib: float
    grads_gib: float
    optimizer_gib: float
    activations_gib: float
    reference_gib: float

    @property
    def total_gib(self) -> float:
        """All parts together."""
        return sum(dataclasses.astuple(self))


def estimate_memory(config: TrainerConfig, model: ModelShape, num_micro_batches: int = 8) -> MemoryEstimate:
    """What one rank needs, from the shapes alone.

    Activations follow Korthikanti et al. 2022 without recomputation: per layer s*b*h*(10 + 24/t) + 5*a*s^2*b/t bytes
    at two bytes a number, the second part because the attention here holds all scores; and four copies of the logits
    of one micro-batch in float32. A stage of a pipeline holds up to as many micro-batches as there are stages.
    """
    tp_size, pp_size = config.train_tp_size, config.train_pp_size
    num_layers = model.num_layers // pp_size
    rows = 2 if pp_size == 1 and not model.tied_embeddings else 1
    params = (num_layers * model.layer_params + rows * model.vocab_size * model.hidden_size) / tp_size
    number_bytes = 4 if config.dtype == "float32" else 2
    master_bytes = 0 if config.dtype == "float32" else 4
    shards = max(1, config.train_dp_size) if config.optimizer.use_distributed_optimizer else 1
    kept = 1.0 - (
        config.optimizer.optimizer_offload_fraction if config.optimizer.optimizer_cpu_offload else 0.0
    )

    length, batch = config.max_seq_length_tokens, config.micro_batch_size
    linear = length * batch * model.hidden_size * (10 + 24 / tp_size)
    scores = 5 * model.num_heads * length * length * batch / tp_size
    in_flight = min(pp_size, num_micro_batches)
    logits = 4 * 4 * length * batch * model.vocab_size / tp_size
    return MemoryEstimate(
        weights_gib=params * number_bytes / GIB,
        grads_gib=params * 4 / GIB,
        optimizer_gib=params * (8 + master_bytes) * kept / shards / GIB,
        activations_gib=((linear + scores) * num_layers * in_flight * number_bytes / 2 + logits) / GIB,
        reference_gib=params * number_bytes / GIB if config.grpo.kl_coef > 0 else 0.0,
    )
