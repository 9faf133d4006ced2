"""Presets: what is known of a family of agent workloads, read from the package's data files.

A preset holds distributions and rates only. Every entry of a file carries a `source`; loading fails where one
is missing, so a number without an origin cannot slip in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, cast

import yaml

from libra.errors import UserError
from libra.workloads.distributions import Distribution

NO_TOOL = "none"
"""Tool name of a turn that called no tool (a reply that the harness could not parse)."""


@dataclass(frozen=True)
class ToolSpec:
    """One tool. mix: share of the turns that are not an episode's last.

    output_median_weight, output_sigma: log-normal weight by which a turn calling this tool takes its part of
    the trajectory's output tokens. failure, timeout: rates (the rest succeeds). latency_s: of calls that do
    not time out; a timeout takes `timeout_s`.
    """

    name: str
    mix: float
    output_median_weight: float
    output_sigma: float
    failure: float
    timeout: float
    timeout_s: float
    latency_s: Distribution
    payload_tokens: Distribution


@dataclass(frozen=True)
class Preset:
    """A family of trajectories.

    `tools[-1]` ends the episode. group_correlation: share of a latent's variance that the samples of a prompt
    have in common. payload_correlation: share of the payload latent that a trajectory's calls have in common.
    turns_output_correlation: of the latents of turns and output tokens of a trajectory. failure_lengthens:
    typical remaining output after a failed call over that after a success, minus 1, among calls of one tool
    that do not end the episode. published_drift: mean output tokens of a trajectory at the start and end of
    a run, where the source states it.
    """

    name: str
    description: str
    turns: Distribution
    first_prompt_tokens: Distribution
    trajectory_output_tokens: Distribution
    turns_output_correlation: float
    group_correlation: float
    payload_correlation: float
    failure_lengthens: float
    reward_probability: float
    start_latency_s: Distribution
    max_context_tokens: int
    tools: tuple[ToolSpec, ...]
    published_drift: tuple[float, float] | None


def preset_names() -> tuple[str, ...]:
    """Names of the presets that come with the package, sorted."""
    files = resources.files("libra.workloads.presets").iterdir()
    return tuple(sorted(entry.name[: -len(".yaml")] for entry in files if entry.name.endswith(".yaml")))


@cache
def load_preset(name: str) -> Preset:
    """The preset called `name`. Raises `UserError` for an unknown name."""
    if name not in preset_names():
        raise UserError(f"workload.preset: no preset {name!r}; choose one of {', '.join(preset_names())}")
    text = resources.files("libra.workloads.presets").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return parse_preset(name, cast("Mapping[str, Any]", yaml.safe_load(text)))


def parse_preset(name: str, data: Mapping[str, Any]) -> Preset:
    """A preset from the mapping of its file. Raises `ValueError` naming the entry at fault."""
    tools = tuple(_tool(f"tools[{i}]", entry) for i, entry in enumerate(data["tools"]))
    end = _tool("end", {**data["end"], "mix": 0.0})
    if abs(sum(tool.mix for tool in tools) - 1.0) > 0.002:
        raise ValueError(f"{name}: the mix of the tools must sum to 1")
    drift = data.get("drift")
    if drift is not None:
        _source("drift", drift)
    return Preset(
        name=name,
        description=str(data["description"]),
        turns=_distribution("turns", data["turns"]),
        first_prompt_tokens=_distribution("first_prompt_tokens", data["first_prompt_tokens"]),
        trajectory_output_tokens=_distribution("trajectory_output_tokens", data["trajectory_output_tokens"]),
        turns_output_correlation=_value("turns_output_correlation", data),
        group_correlation=_value("group_correlation", data),
        payload_correlation=_value("payload_correlation", data),
        failure_lengthens=_value("failure_lengthens", data),
        reward_probability=_value("reward_probability", data),
        start_latency_s=_distribution("start_latency_s", data["start_latency_s"]),
        max_context_tokens=int(_value("max_context_tokens", data)),
        tools=(*tools, end),
        published_drift=None
        if drift is None
        else (float(drift["from_mean_tokens"]), float(drift["to_mean_tokens"])),
    )


def _source(place: str, entry: Mapping[str, Any]) -> None:
    if not str(entry.get("source", "")).strip():
        raise ValueError(f"{place}: no source")


def _value(key: str, data: Mapping[str, Any]) -> float:
    _source(key, data[key])
    return float(data[key]["value"])


def _distribution(place: str, entry: Mapping[str, Any]) -> Distribution:
    _source(place, entry)
    bounds = {"minimum": float(entry["min"]), "maximum": float(entry["max"])}
    if "quantiles" in entry:
        quantiles = {float(p): float(value) for p, value in entry["quantiles"].items()}
        return Distribution.from_quantiles(quantiles, **bounds)
    return Distribution.lognormal(float(entry["median"]), float(entry["sigma"]), **bounds)


def _tool(place: str, entry: Mapping[str, Any]) -> ToolSpec:
    _source(place, entry)
    failure, timeout = float(entry["failure"]), float(entry["timeout"])
    if failure < 0 or timeout < 0 or failure + timeout > 1:
        raise ValueError(f"{place}: failure and timeout rates must lie in [0, 1] and sum to at most 1")
    return ToolSpec(
        name=str(entry["name"]),
        mix=float(entry["mix"]),
        output_median_weight=float(entry["output"]["median_weight"]),
        output_sigma=float(entry["output"]["sigma"]),
        failure=failure,
        timeout=timeout,
        timeout_s=float(entry["timeout_s"]),
        latency_s=_distribution(f"{place}.latency_s", entry["latency_s"]),
        payload_tokens=_distribution(f"{place}.payload_tokens", entry["payload_tokens"]),
    )
