"""Percentiles of a workload: the figures of its data card, from any chunks."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from libra.workloads.preset import NO_TOOL
from libra.workloads.table import TOOL_STATUS_CODES, Chunk

PERCENTILES = (10, 50, 90, 95, 99)


def describe(chunks: Iterable[Chunk]) -> dict[str, Any]:
    """Counts, and for each quantity its mean, maximum and percentiles 10/50/90/95/99.

    Per trajectory: `turns`, `trajectory_output_tokens`, `first_prompt_tokens`, `final_context_tokens` (last
    prompt + output). Per turn: `turn_output_tokens`, `payload_tokens`, `tool_latency_s` (last calls
    included). Rates over calls of a tool: `tool_ok`, `tool_timeout`. `longest_tenth_share`: part of all output
    tokens that the tenth of the trajectories with most output generates. `reward`: mean, nan without rewards.
    Needs the columns of all chunks in memory: 8 bytes a value.
    """
    per_chunk = [_columns(chunk) for chunk in chunks]
    if not per_chunk:
        return {"num_trajectories": 0, "num_turns": 0}
    data = {name: np.concatenate([columns[name] for columns in per_chunk]) for name in per_chunk[0]}
    called, status, reward = data.pop("called"), data.pop("status"), data.pop("reward")
    groups = data.pop("group_id")
    result: dict[str, Any] = {
        "num_groups": len(np.unique(groups)),
        "num_trajectories": len(groups),
        "num_turns": len(status),
    }
    result.update({name: _figures(values) for name, values in data.items()})
    calls = max(1, int(called.sum()))
    result["tool_ok"] = float((called & (status == TOOL_STATUS_CODES.index("success"))).sum() / calls)
    result["tool_timeout"] = float((called & (status == TOOL_STATUS_CODES.index("timeout"))).sum() / calls)
    output = np.sort(data["trajectory_output_tokens"])
    tenth = max(1, len(output) // 10)
    result["longest_tenth_share"] = float(output[-tenth:].sum() / max(1, output.sum()))
    known = reward[~np.isnan(reward)]
    result["reward"] = float(known.mean()) if len(known) else float("nan")
    return result


def _columns(chunk: Chunk) -> dict[str, npt.NDArray[Any]]:
    starts, last = chunk.first_turn[:-1], chunk.first_turn[1:] - 1
    no_tool = chunk.tool_names.index(NO_TOOL) if NO_TOOL in chunk.tool_names else -1
    return {
        "group_id": chunk.group_id,
        "reward": chunk.reward,
        "turns": np.diff(chunk.first_turn),
        "trajectory_output_tokens": np.add.reduceat(chunk.output_tokens, starts),
        "first_prompt_tokens": chunk.prompt_tokens[starts],
        "final_context_tokens": chunk.prompt_tokens[last] + chunk.output_tokens[last],
        "turn_output_tokens": chunk.output_tokens,
        "payload_tokens": chunk.payload_tokens,
        "tool_latency_s": chunk.tool_latency_s,
        "called": chunk.tool != no_tool,
        "status": chunk.tool_status,
    }


def _figures(values: npt.NDArray[Any]) -> dict[str, float]:
    figures = {
        f"p{p}": float(value)
        for p, value in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)
    }
    return {"mean": float(values.mean()), **figures, "max": float(values.max())}
