"""The experiment: sections and fields, with the names of the cluster manual.

One file runs in both worlds. What only one of them needs stands in its own block (`sim:`, `executor:`,
`sweep:`), which the other leaves alone. Each component's settings are the frozen dataclass beside the
component; this module only puts them together and checks what concerns more than one of them.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from libra.cost.hardware import find_gpu, find_model
from libra.cost.rollout import ReplicaCost
from libra.cost.sync import SyncCostConfig
from libra.cost.tables import RolloutCostConfig, rollout_costs
from libra.cost.train import TrainCostConfig
from libra.cost.train_choice import TrainerLayoutConfig, TrainerPool, choose_layout
from libra.cost.train_layout import TrainLayout
from libra.cost.transitions import TransitionCostConfig
from libra.errors import UserError
from libra.workloads.opening import WorkloadConfig

MAX_NUM_SEQS: Final = 65_536
"""Cost tables hold an entry for each batch size up to `max_num_seqs`; engines run hundreds of sequences."""

DEFAULT_KINDS: Final[dict[str, str]] = {
    "admission": "concurrency_and_staleness",
    "training": "async_grpo",
    "recovery": "give_up_or_restart",
    "routing": "load_balance",
}
"""The policy of each role where its section names none: a section may give one field and leave the rest."""


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Machines. GPUs of a replica lie on one node."""

    num_nodes: int = 1
    gpus_per_node: int = 8

    def __post_init__(self) -> None:
        _at_least(self, 1, "num_nodes", "gpus_per_node")

    @property
    def num_gpus(self) -> int:
        """All GPUs."""
        return self.num_nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """`count` replicas of `tp` GPUs each."""

    tp: int
    count: int = 1

    def __post_init__(self) -> None:
        _at_least(self, 1, "tp", "count")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Scheduler settings of the serving engines, with the names and defaults of vLLM.

    scheduling_policy: `priority` serves the turns of lowest `SubmitTurn.priority` first. No built-in router sets one,
    so it takes a router of your own. enforce_eager: no CUDA graphs; every step is launched kernel by kernel.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    enable_prefix_caching: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    kv_watermark_fraction: float = 0.0
    keep_prefix_cache_on_load: bool = False
    enforce_eager: bool = False

    def __post_init__(self) -> None:
        _at_least(self, 1, "max_num_seqs", "max_num_batched_tokens", "block_size")
        if self.max_num_seqs > MAX_NUM_SEQS:
            raise ValueError(f"max_num_seqs must be at most {MAX_NUM_SEQS}, not {self.max_num_seqs}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs")
        if not 0 <= self.kv_watermark_fraction < 1:
            raise ValueError("kv_watermark_fraction must lie in [0, 1)")


@dataclass(frozen=True, slots=True)
class HeterogeneousRolloutConfig:
    """The rollout pool. `scheduling` is the routing policy: `scheduler_type` (default `load_balance`) and that
    policy's own fields."""

    instances: tuple[InstanceConfig, ...]
    max_model_len: int = 40960
    gpu_memory_utilization: float = 0.9
    engine: EngineConfig = field(default_factory=EngineConfig)
    scheduling: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        _at_least(self, 2, "max_model_len")
        if not self.instances:
            raise ValueError("instances must name at least one replica")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError("gpu_memory_utilization must lie in (0, 1]")
        router = str(self.scheduling.get("scheduler_type", "load_balance"))
        if self.engine.scheduling_policy == "priority" and ":" not in router:
            raise ValueError(
                f"engine.scheduling_policy: {router} gives every turn the same priority; use fcfs, or a router that "
                "sets priorities (scheduler_type: package.module:Class)"
            )

    def tp_list(self) -> list[int]:
        """TP degree of each replica, in order."""
        return [instance.tp for instance in self.instances for _ in range(instance.count)]


@dataclass(frozen=True, slots=True)
class PoliciesConfig:
    """The policies beside the router: `kind` (see `DEFAULT_KINDS`) and that policy's own fields."""

    admission: dict[str, Any] = field(default_factory=dict[str, Any])
    training: dict[str, Any] = field(default_factory=dict[str, Any])
    recovery: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class CostConfig:
    """What engine steps, training, publication and loading, and changes of the cluster take."""

    rollout: RolloutCostConfig = field(default_factory=RolloutCostConfig)
    train: TrainCostConfig = field(default_factory=TrainCostConfig)
    sync: SyncCostConfig = field(default_factory=SyncCostConfig)
    transition: TransitionCostConfig = field(default_factory=TransitionCostConfig)


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """See the module.

    hardware_config, model_arch_config: names in the catalogue (`libra/cost/catalogue`); a model may also be the path
    of a Hugging Face `config.json`, or of a folder with one, relative to the experiment file.
    train_gpus: the training pool; 0 = rollout only, nothing is trained. trainer: how these GPUs share the model; a
    layout that does not fit in their memory is refused. batch_size: trajectories of a train
    step. n_samples: trajectories of a prompt (GRPO group). max_head_offpolicyness: staleness bound of every trained
    token, in trainer versions. sync_interval: train steps between weight publications. partial_rollout: turns in
    flight go on over a weight load.
    """

    name: str
    workload: Annotated[WorkloadConfig, Field(discriminator="kind")]
    heterogeneous_rollout: HeterogeneousRolloutConfig
    description: str = ""
    seed: int = 0
    hardware_config: str = "A800"
    model_arch_config: str = "Qwen3-14B"
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    train_gpus: int = 0
    trainer: TrainerLayoutConfig = field(default_factory=TrainerLayoutConfig)
    total_steps: int = 100
    batch_size: int = 32
    n_samples: int = 4
    max_concurrent_rollouts: int = 64
    max_head_offpolicyness: int = 4
    sync_interval: int = 1
    partial_rollout: bool = True
    rollout_weight_reload_strategy: Literal["parallel", "serial"] = "parallel"
    policies: PoliciesConfig = field(default_factory=PoliciesConfig)
    cost: CostConfig = field(default_factory=CostConfig)

    def __post_init__(self) -> None:
        _at_least(self, 0, "seed", "train_gpus", "max_head_offpolicyness")
        _at_least(
            self, 1, "total_steps", "batch_size", "n_samples", "max_concurrent_rollouts", "sync_interval"
        )
        self._check_gpus()
        self._check_catalogue()
        if self.train_gpus == 0:
            return
        self.train_layout()
        if self.batch_size % self.n_samples:
            raise ValueError(
                f"batch_size ({self.batch_size}) must be a multiple of n_samples ({self.n_samples}): "
                "a step trains on whole groups"
            )
        if self.max_head_offpolicyness < self.sync_interval - 1:
            raise ValueError(
                f"max_head_offpolicyness ({self.max_head_offpolicyness}) must be at least sync_interval - 1 "
                f"({self.sync_interval - 1}), or the trainer waits for weights that it never publishes"
            )

    def _check_gpus(self) -> None:
        per_node = self.cluster.gpus_per_node
        instances = self.heterogeneous_rollout.instances
        for tp in (instance.tp for instance in instances):
            if tp > per_node or per_node % tp:
                raise ValueError(
                    f"heterogeneous_rollout.instances: tp {tp} does not divide a node of {per_node} GPUs; "
                    f"use a divisor of {per_node}"
                )
        rollout = sum(instance.tp * instance.count for instance in instances)
        if rollout + self.train_gpus > self.cluster.num_gpus:
            raise ValueError(
                f"cluster: {rollout} rollout GPUs + {self.train_gpus} train_gpus exceed its "
                f"{self.cluster.num_gpus} (num_nodes x gpus_per_node); take fewer or add nodes"
            )

    def _check_catalogue(self) -> None:
        """GPU and model are known, and the model fits on every TP degree."""
        rollout = self.heterogeneous_rollout
        for key, find in (("hardware_config", find_gpu), ("model_arch_config", find_model)):
            try:
                find(getattr(self, key))
            except UserError as error:
                raise ValueError(f"{key}: {error}") from None
        try:
            costs = self.rollout_costs()
        except UserError as error:
            where = "cost.rollout" if self.cost.rollout.calibrations else "heterogeneous_rollout.instances"
            raise ValueError(f"{where}: {error}") from None
        for tp, cost in costs.items():
            if cost.kv_capacity_tokens < rollout.engine.block_size:
                raise ValueError(
                    f"heterogeneous_rollout.engine.block_size: {rollout.engine.block_size} tokens exceed the KV "
                    f"cache of a replica of tp {tp} ({cost.kv_capacity_tokens:,} tokens); the usual size is 16"
                )

    def rollout_costs(self, config: RolloutCostConfig | None = None) -> dict[int, ReplicaCost]:
        """Cost of a replica by TP degree, from what `config` names in place of `cost.rollout`. Raises UserError."""
        rollout = self.heterogeneous_rollout
        costs = rollout_costs(
            self.hardware_config,
            self.model_arch_config,
            rollout.tp_list(),
            rollout.gpu_memory_utilization,
            self.cost.rollout if config is None else config,
        )
        engine = rollout.engine
        return {tp: cost.captured(engine.max_num_seqs, engine.enforce_eager) for tp, cost in costs.items()}

    def train_layout(self) -> TrainLayout:
        """How the training pool shares the model. Raises UserError where nothing that `trainer` allows fits."""
        pool = TrainerPool(
            find_gpu(self.hardware_config),
            self.train_gpus,
            self.cluster.gpus_per_node,
            self.heterogeneous_rollout.max_model_len,
        )
        place = "train_gpus" if self.trainer == TrainerLayoutConfig() else "trainer"
        return choose_layout(self.trainer, find_model(self.model_arch_config), pool, place)

    @property
    def training(self) -> bool:
        """Whether there is a trainer."""
        return self.train_gpus > 0


def _at_least(config: object, least: int, *names: str) -> None:
    for name in names:
        if getattr(config, name) < least:
            raise ValueError(f"{name} must be at least {least}, not {getattr(config, name)}")
