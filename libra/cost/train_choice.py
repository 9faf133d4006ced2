"""The trainer's layout of an experiment: what a file gives, and the rest chosen so that it fits.

Guarantees that a layout comes from here or not at all: the configuration is checked with it, the simulator computes
with it, and one that does not fit is refused before a run with the line that says which part is too large.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from libra.cost.hardware import Gpu, Model
from libra.cost.train_layout import Attention, Recompute, TrainLayout, check_layout
from libra.cost.train_memory import Feasibility, feasibility
from libra.errors import UserError


@dataclass(frozen=True, slots=True)
class TrainerOptimizerConfig:
    """Memory switches of the optimizer, with Megatron-Core's names.

    optimizer_offload_fraction: share of the states that offloading keeps in host memory; counts with
    optimizer_cpu_offload only.
    """

    use_distributed_optimizer: bool = True
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.optimizer_offload_fraction <= 1:
            raise ValueError("optimizer_offload_fraction must lie in [0, 1]")


@dataclass(frozen=True, slots=True)
class TrainerLayoutConfig:
    """How the trainer's GPUs share the model.

    train_tp_size, train_pp_size, train_ep_size: 0 takes the smallest TP x PP that fits, TP first and inside a node;
    for a mixture the smallest EP with it. train_dp_size: 0 is what the trainer's GPUs leave.
    micro_batch_tokens: tokens (packed) of one forward pass of a replica; 0 is the longest trajectory
    (heterogeneous_rollout.max_model_len), which a micro-batch holds in any case.
    sequence_parallel, recompute, attention, reference_model, logits_chunk_tokens: see
    `libra.cost.train_layout.TrainLayout`.
    """

    train_tp_size: int = 0
    train_pp_size: int = 0
    train_dp_size: int = 0
    train_cp_size: int = 1
    train_ep_size: int = 0
    expert_tensor_parallel_size: int = 1
    micro_batch_tokens: int = 0
    sequence_parallel: bool = True
    recompute: Recompute = "full"
    attention: Attention = "flash"
    reference_model: bool = False
    logits_chunk_tokens: int = 0
    optimizer: TrainerOptimizerConfig = field(default_factory=TrainerOptimizerConfig)

    def __post_init__(self) -> None:
        for name in ("train_tp_size", "train_pp_size", "train_dp_size", "train_ep_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 1, or 0 to have it chosen")
        for name in ("train_cp_size", "expert_tensor_parallel_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.micro_batch_tokens < 0 or self.logits_chunk_tokens < 0:
            raise ValueError("micro_batch_tokens and logits_chunk_tokens must not be negative")


@dataclass(frozen=True, slots=True)
class TrainerPool:
    """The GPUs that a layout is for. longest_sequence_tokens: that a trajectory may reach, prompt included."""

    gpu: Gpu
    num_gpus: int
    gpus_per_node: int
    longest_sequence_tokens: int


def choose_layout(config: TrainerLayoutConfig, model: Model, pool: TrainerPool, place: str) -> TrainLayout:
    """The layout that `config` gives, with what it leaves open chosen.

    Raises UserError, at `place` where no setting is to blame: sizes that do not make the GPUs, a layout that cannot
    be built, or none that fits; the last with the parts of the one that comes nearest.
    """
    nearest: Feasibility | None = None
    refusal: UserError | None = None
    for layout in _candidates(config, model, pool):
        try:
            check_layout(model, layout)
        except UserError as error:
            refusal = refusal or error
            continue
        found = feasibility(pool.gpu, model, layout, longest_sequence_tokens=pool.longest_sequence_tokens)
        if found.fits:
            return layout
        if nearest is None or found.memory.total_gib < nearest.memory.total_gib:
            nearest = found
    if nearest is not None:
        nearest.require(place)
    if refusal is not None:
        raise refusal
    raise UserError(
        f"{place}: no layout with {_sizes(config)} makes {pool.num_gpus} GPUs; change a size in trainer or train_gpus"
    )


def _sizes(config: TrainerLayoutConfig) -> str:
    named = (
        ("TP", config.train_tp_size),
        ("PP", config.train_pp_size),
        ("CP", config.train_cp_size),
        ("DP", config.train_dp_size),
        ("EP", config.train_ep_size),
    )
    return " x ".join(f"{name} {size or 'any'}" for name, size in named)


def _candidates(config: TrainerLayoutConfig, model: Model, pool: TrainerPool) -> Iterator[TrainLayout]:
    """Layouts with the sizes of `config`, by GPUs of a model, then stages, then EP."""
    cp = config.train_cp_size
    sizes: list[tuple[int, int, int]] = []
    for tp in _open(config.train_tp_size, pool.num_gpus, pool.gpus_per_node):
        for pp in _open(config.train_pp_size, pool.num_gpus, model.num_layers):
            dp, rest = divmod(pool.num_gpus, tp * pp * cp)
            if rest or dp < 1 or config.train_dp_size not in (0, dp):
                continue
            spread = tp * cp * dp // config.expert_tensor_parallel_size
            for ep in _open(config.train_ep_size, spread, model.num_experts or 1):
                if (tp * cp * dp) % (ep * config.expert_tensor_parallel_size) == 0:
                    sizes.append((tp, pp, ep))
    optimizer = config.optimizer
    for tp, pp, ep in sorted(sizes, key=lambda size: (size[0] * size[1], size[1], size[2])):
        yield TrainLayout(
            tp=tp,
            pp=pp,
            cp=cp,
            dp=pool.num_gpus // (tp * pp * cp),
            ep=ep,
            etp=config.expert_tensor_parallel_size,
            micro_batch_tokens=config.micro_batch_tokens or pool.longest_sequence_tokens,
            sequence_parallel=config.sequence_parallel,
            recompute=config.recompute,
            attention=config.attention,
            use_distributed_optimizer=optimizer.use_distributed_optimizer,
            optimizer_offload_fraction=(
                optimizer.optimizer_offload_fraction if optimizer.optimizer_cpu_offload else 0.0
            ),
            reference_model=config.reference_model,
            logits_chunk_tokens=config.logits_chunk_tokens,
        )


def _open(given: int, whole: int, most: int) -> list[int]:
    """The size that is given, or every divisor of `whole` up to `most`."""
    if given:
        return [given]
    return [size for size in range(1, min(whole, most) + 1) if whole % size == 0]
