"""The turns of synthetic trajectories: split of the output, tool calls, contexts, and the cut at the cap.

Guarantees: the output tokens of a trajectory sum to what was asked (give or take one token a turn, and less
where the context cap cuts), each prompt is the previous prompt plus its output and payload, and no prompt plus
output exceeds the cap.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from libra.workloads.preset import Preset
from libra.workloads.table import TOOL_STATUS_CODES, Floats, Ints

_SUCCESS, _FAILURE, _TIMEOUT = (TOOL_STATUS_CODES.index(name) for name in ("success", "failure", "timeout"))


@dataclass(frozen=True)
class Turns:
    """Columns of `Chunk` that have one entry a turn, and `first_turn`."""

    first_turn: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    prefix_tokens: Ints
    tool: Ints
    tool_latency_s: Floats
    tool_status: Ints
    payload_tokens: Ints


def draw_turns(
    preset: Preset,
    rng: np.random.Generator,
    *,
    num_turns: Ints,
    first_prompt: Ints,
    output: Ints,
    payload_latent: Floats,
    failure_lengthens: float,
    max_context_tokens: int,
) -> Turns:
    """Turns of n trajectories; all arguments with a trajectory axis have shape [n].

    output: output tokens of the whole trajectory. payload_latent: standard normal, what a trajectory's
    payloads have in common. The number and order of draws depend on `num_turns` only.
    """
    first = np.concatenate([[0], np.cumsum(num_turns)])
    owner = np.repeat(np.arange(len(num_turns)), num_turns)
    last = first[1:] - 1
    end_tool = len(preset.tools) - 1
    mix = np.cumsum([tool.mix for tool in preset.tools[:-1]])
    tool = np.minimum(np.searchsorted(mix, rng.random(len(owner)), side="right"), end_tool - 1)
    tool[last] = end_tool
    output_tokens, remaining = _split(preset, rng, tool, output, first, owner)
    status = _statuses(preset, rng, tool, remaining, failure_lengthens)
    r = preset.payload_correlation
    payload_z = math.sqrt(r) * payload_latent[owner] + math.sqrt(1 - r) * rng.standard_normal(len(owner))
    latency_z = rng.standard_normal(len(owner))
    latency, payload = np.empty(len(owner)), np.empty(len(owner), dtype=np.int64)
    for index, spec in enumerate(preset.tools):
        rows = np.flatnonzero(tool == index)
        payload[rows] = np.rint(spec.payload_tokens.at(payload_z[rows]))
        timed_out = status[rows] == _TIMEOUT
        latency[rows] = np.where(timed_out, spec.timeout_s, spec.latency_s.at(latency_z[rows]))
    grown = np.cumsum(output_tokens + payload) - (output_tokens + payload)
    prompt = first_prompt[owner] + grown - grown[first[:-1]][owner]
    turns = Turns(first, prompt, output_tokens, prompt, tool, latency, status, payload)
    return _finish(_cut(turns, max_context_tokens))


def _split(
    preset: Preset, rng: np.random.Generator, tool: Ints, output: Ints, first: Ints, owner: Ints
) -> tuple[Ints, Ints]:
    """Output tokens of each turn, and what its trajectory still generates after it."""
    sigma = np.array([spec.output_sigma for spec in preset.tools])
    scale = np.array([spec.output_median_weight for spec in preset.tools])
    weight = scale[tool] * np.exp(sigma[tool] * rng.standard_normal(len(tool)))
    running = np.cumsum(weight)
    before = (running - weight)[first[:-1]]
    total = running[first[1:] - 1] - before
    done = np.rint(output[owner] * ((running - before[owner]) / total[owner])).astype(np.int64)
    tokens = np.diff(done, prepend=0)
    tokens[first[:-1]] = done[first[:-1]]
    return np.maximum(tokens, 1), np.maximum(output[owner] - done, 0)


def _statuses(
    preset: Preset, rng: np.random.Generator, tool: Ints, remaining: Ints, failure_lengthens: float
) -> Ints:
    """Outcome of each call.

    A failure goes with longer remaining output: the log odds of failing rise with x = log remaining tokens at
    slope log(1 + failure_lengthens) / var(x), which puts the mean of x after a failure that much above the mean
    after a success (two normal classes of equal variance: linear discriminant). The intercept is widened by
    the logistic-normal factor sqrt(1 + 0.346 slope^2 var) to keep each tool's own rate.
    """
    bad = np.array([spec.failure + spec.timeout for spec in preset.tools])
    timeout_share = np.array([spec.timeout for spec in preset.tools]) / np.maximum(bad, 1e-300)
    u_bad, u_kind = rng.random(len(tool)), rng.random(len(tool))
    chance = bad[tool]
    open_ended = np.flatnonzero(remaining > 0)
    x = np.log(remaining[open_ended])
    variance = float(x.var()) if len(x) else 0.0
    if failure_lengthens and variance > 0:
        slope = math.log1p(failure_lengthens) / variance
        p = np.clip(chance[open_ended], 1e-12, 1 - 1e-12)
        intercept = np.log(p / (1 - p)) * math.sqrt(1 + 0.346 * slope * slope * variance)
        tilted = 1 / (1 + np.exp(-(intercept + slope * (x - x.mean()))))
        certain = (chance[open_ended] == 0) | (chance[open_ended] == 1)
        chance[open_ended] = np.where(certain, chance[open_ended], tilted)
    failed = np.where(u_kind < timeout_share[tool], _TIMEOUT, _FAILURE)
    return np.where(u_bad < chance, failed, _SUCCESS).astype(np.int64)


def _cut(turns: Turns, max_context_tokens: int) -> Turns:
    """End each trajectory where its context would exceed the cap; the last call is then the episode's end."""
    fits: npt.NDArray[np.bool_] = turns.prompt_tokens + turns.output_tokens <= max_context_tokens
    if fits.all():
        return turns
    first = turns.first_turn
    output = np.where(fits, turns.output_tokens, max_context_tokens - turns.prompt_tokens)
    keep = output >= 1
    kept = np.add.reduceat(keep.astype(np.int64), first[:-1])
    # Contexts grow along a trajectory, so the kept turns lead it and the call of the old last turn moves up.
    old_last, new_last = first[1:] - 1, first[:-1] + kept - 1
    call = np.arange(len(keep))
    call[new_last] = old_last
    call = call[keep]
    new_first = np.concatenate([[0], np.cumsum(kept)])
    prompt = turns.prompt_tokens[keep]
    return Turns(
        first_turn=new_first,
        prompt_tokens=prompt,
        output_tokens=output[keep],
        prefix_tokens=prompt,
        tool=turns.tool[call],
        tool_latency_s=turns.tool_latency_s[call],
        tool_status=turns.tool_status[call],
        payload_tokens=turns.payload_tokens[call],
    )


def _finish(turns: Turns) -> Turns:
    """With `prefix_tokens`: the whole first prompt (shared in the group), then the previous context."""
    prefix = np.empty_like(turns.prompt_tokens)
    prefix[1:] = (turns.prompt_tokens + turns.output_tokens)[:-1]
    starts = turns.first_turn[:-1]
    prefix[starts] = turns.prompt_tokens[starts]
    return Turns(
        first_turn=turns.first_turn,
        prompt_tokens=turns.prompt_tokens,
        output_tokens=turns.output_tokens,
        prefix_tokens=prefix,
        tool=turns.tool,
        tool_latency_s=turns.tool_latency_s,
        tool_status=turns.tool_status,
        payload_tokens=turns.payload_tokens,
    )
