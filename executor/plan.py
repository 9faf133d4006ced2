"""What a run needs, found out and checked before anything starts: `check` prints it, `run` builds from it.

Guarantees that what `check` accepts is what `run` starts: both come from here, and whatever is refused is refused in
one line that names the key, before a process exists.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executor.config import ExecutorConfig
from executor.engines.command import Device, Installed, check_engines, find_vllm
from executor.engines.launch import ReplicaPlan
from executor.environments.base import Environment
from executor.environments.registry import find_environment
from executor.episodes import SamplingConfig
from executor.trainer.shape import ModelShape, read_shape
from executor.trainer.spec import MemoryEstimate, TrainerConfig, check_trainer, estimate_memory
from libra.config.document import Document
from libra.config.resolve import Resolved, resolve
from libra.core.ids import NodeId, ReplicaId
from libra.cost.train_choice import TrainerLayoutConfig
from libra.errors import UserError
from libra.workloads.environment import EnvironmentWorkload

TOKENIZER_FILES: Final = ("tokenizer.json", "vocab.json", "tokenizer.model")
"""A model's folder has at least one of them."""


@dataclass(frozen=True)
class RunPlan:
    """See the module.

    environment: the one that the run plays; `environment_kind` names it as the experiment does. trainer: with
    train_dp_size filled in. installed: None for engines started by others.
    """

    resolved: Resolved
    config: ExecutorConfig
    workload: EnvironmentWorkload
    environment: Environment
    environment_kind: str
    model_path: Path
    shape: ModelShape
    trainer: TrainerConfig
    memory: MemoryEstimate
    replicas: tuple[ReplicaPlan, ...]
    installed: Installed | None

    @property
    def device(self) -> Device:
        """What engines compute on; with engines of others, what the trainer would."""
        return self.installed.device if self.installed is not None else Device.CPU

    @property
    def engine_dtype(self) -> str:
        """Of the engines' weights. `auto` is never float32: vLLM serves a model of float32 in half precision."""
        return "float32" if self.config.engines.dtype == "float32" else "bfloat16"


def resolve_for_executor(document: Document) -> Resolved:
    """Validate an experiment with its `executor:` block. Raises UserError.

    Where weight_sync.mode is `none`, engines keep their first weights, so no step may wait for newer ones: the
    staleness bound and the sync interval then lie beyond the run, whatever the file says.
    """
    resolved = resolve(document, {"executor": ExecutorConfig})
    config: ExecutorConfig = resolved.private["executor"]
    if config.weight_sync.mode != "none":
        return resolved
    steps = resolved.experiment.total_steps
    for key, value in (("sync_interval", steps + 1), ("max_head_offpolicyness", steps)):
        document.tree[key] = value
        document.origins[(key,)] = "executor.weight_sync.mode none"
    return resolve(document, {"executor": ExecutorConfig})


def make_plan(resolved: Resolved) -> RunPlan:
    """Find out and check everything. Raises UserError."""
    experiment = resolved.experiment
    config: ExecutorConfig = resolved.private["executor"]
    workload = experiment.workload
    if not isinstance(workload, EnvironmentWorkload):
        raise UserError(
            f"workload.kind: {workload.kind} gives lengths without texts, which only the simulator plays; "
            "for a real run take kind: environment"
        )
    if not experiment.training:
        raise UserError(
            "train_gpus: 0; a real run trains, so give the trainer at least one GPU (or CPU process)"
        )
    _check_sampling(config.sampling)
    model_path = _model_path(resolved, config)
    shape = read_shape(model_path)
    _check_tokenizer(model_path)
    rollout = experiment.heterogeneous_rollout
    longest = rollout.max_model_len
    own = _with_shared_sizes(config.trainer, experiment.trainer)
    check_trainer(
        own,
        experiment.train_gpus,
        shape,
        num_trajectories=experiment.batch_size,
        group_size=experiment.n_samples,
        max_length_tokens=longest,
    )
    trainer = own.with_dp(experiment.train_gpus)
    trainer = dataclasses.replace(trainer, seed=experiment.seed)
    for tp in sorted(set(rollout.tp_list())):
        if shape.num_kv_heads % tp and tp % shape.num_kv_heads:
            raise UserError(
                f"heterogeneous_rollout.instances: tp {tp} fits not the {shape.num_kv_heads} KV heads of "
                f"{model_path}; take a divisor"
            )
    installed = None if config.launcher == "static" else find_vllm(config.engines.python)
    if installed is not None:
        check_engines(config.engines, rollout.engine, installed.device)
    environment = find_environment(workload.environment, resolved.document)
    return RunPlan(
        resolved=resolved,
        config=config,
        workload=workload,
        environment=environment.make(),
        environment_kind=environment.kind,
        model_path=model_path,
        shape=shape,
        trainer=trainer,
        memory=estimate_memory(trainer, shape),
        replicas=_replicas(rollout.tp_list(), experiment.train_gpus, installed),
        installed=installed,
    )


def _with_shared_sizes(own: TrainerConfig, shared: TrainerLayoutConfig) -> TrainerConfig:
    """The experiment's `trainer` section is for both worlds: sizes that it gives need not stand here as well."""
    for name, what in (("train_cp_size", "context"), ("train_ep_size", "expert")):
        if getattr(shared, name) > 1:
            raise UserError(f"trainer.{name}: the executor's trainer has no {what} parallelism; set 1")
    unset = TrainerConfig()
    for name in ("train_tp_size", "train_pp_size", "train_dp_size"):
        wanted, given = getattr(shared, name), getattr(own, name)
        if wanted and given not in (wanted, getattr(unset, name)):
            raise UserError(f"executor.trainer.{name}: {given}, but trainer.{name} is {wanted}; give it once")
        if wanted:
            own = dataclasses.replace(own, **{name: wanted})
    return own


def _check_sampling(sampling: SamplingConfig) -> None:
    """A real run always trains, and the loss knows one distribution only."""
    if sampling.temperature == 0:
        raise UserError(
            "executor.sampling.temperature: 0 makes all samples of a group equal, so there is nothing to learn; set 1"
        )
    for name in ("temperature", "top_p"):
        value = getattr(sampling, name)
        if value != 1:
            raise UserError(
                f"executor.sampling.{name}: {value:g} samples from another distribution than the loss takes "
                "log-probs of (temperature 1, the whole vocabulary); set 1"
            )


def _check_tokenizer(model_path: Path) -> None:
    """Without these files transformers makes a tokenizer that knows no token, and says nothing."""
    if not any((model_path / name).is_file() for name in TOKENIZER_FILES):
        raise UserError(
            f"model {model_path}: has no tokenizer ({', '.join(TOKENIZER_FILES)}); "
            "copy the tokenizer's files of this model into it"
        )


def _model_path(resolved: Resolved, config: ExecutorConfig) -> Path:
    if not config.model_path:
        raise UserError(
            "executor.model_path: is missing; name a folder of a Hugging Face model "
            "(`python -m executor.tiny_model FOLDER` makes a tiny one)"
        )
    folder = resolved.document.folder_of(("executor", "model_path"))
    return (folder / config.model_path).resolve()


def _replicas(tp_list: list[int], train_gpus: int, installed: Installed | None) -> tuple[ReplicaPlan, ...]:
    """Device indices: the trainer's come first, then replica by replica; none on a CPU."""
    plans: list[ReplicaPlan] = []
    first = train_gpus
    for i, tp in enumerate(tp_list):
        on_gpu = installed is not None and installed.device is Device.CUDA
        gpus = tuple(range(first, first + tp)) if on_gpu else ()
        plans.append(ReplicaPlan(ReplicaId(i), tp, NodeId(0), gpus))
        first += tp
    return tuple(plans)
