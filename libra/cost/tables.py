"""Rollout costs by name: the committed coefficients of (GPU, model, TP degree) plus the KV capacity.

Guarantees that no cost is made up: a combination without data is a `UserError`, never a guess from a
neighbour. `catalogue/rollout.yaml` holds coefficients only; `libra.cost.fit` says how they were fitted and
each entry carries its source and residual. `catalogue/rollout_cpu.yaml` is for engines without a GPU.
"""

from functools import cache

from libra.cost.hardware import catalogue, find_gpu, find_model, kv_capacity_tokens
from libra.cost.rollout import ReplicaCost
from libra.errors import UserError


@cache
def _entries() -> dict[tuple[str, str, int], dict[str, float | str]]:
    rows: list[dict[str, float | str]] = [
        row for name in ("rollout", "rollout_cpu") for row in catalogue(name)["entries"]
    ]
    return {(str(row["gpu"]), str(row["model"]), int(row["tp"])): row for row in rows}


def tp_degrees(gpu: str, model: str) -> list[int]:
    """TP degrees for which the catalogue has coefficients, increasing; memory is not considered."""
    return sorted(tp for g, m, tp in _entries() if (g, m) == (gpu, model))


def rollout_cost(gpu: str, model: str, tp: int, gpu_memory_utilization: float = 0.9) -> ReplicaCost:
    """Coefficients in seconds and KV capacity in tokens of a replica of `tp` GPUs.

    `UserError`: unknown GPU or model, a TP degree without data, or a model that does not fit.
    """
    the_gpu, the_model = find_gpu(gpu), find_model(model)
    capacity = kv_capacity_tokens(the_gpu, the_model, tp, gpu_memory_utilization)
    row = _entries().get((gpu, model, tp))
    if row is None:
        have = ", ".join(str(degree) for degree in tp_degrees(gpu, model)) or "none"
        raise UserError(f"no cost coefficients for {model} on {gpu} at tp {tp}; tp degrees with data: {have}")
    base_s = float(row["decode_base_s"])
    return ReplicaCost(
        gpu=gpu,
        model=model,
        tp=tp,
        decode_base_s=base_s,
        decode_per_seq_s=float(row["decode_per_seq_s"]),
        decode_per_context_token_s=float(row["decode_per_context_token_s"]),
        # A step that prefills reads the weights once as well: same base as a decode step.
        prefill_base_s=base_s,
        prefill_per_token_s=float(row["prefill_per_token_s"]),
        prefill_per_attention_s=float(row["prefill_per_attention_s"]),
        prefill_floor_s=float(row["prefill_floor_s"]),
        kv_capacity_tokens=capacity,
        source=str(row["source"]),
    )
