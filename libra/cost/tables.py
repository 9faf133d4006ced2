"""Rollout costs by name: which of several sources prices the replicas of a simulation.

    1. calibration files that the caller names, stamped with what they were measured on
    2. the committed calibrations (`calibrations/*.yaml`)
    3. the committed tables of operator-level estimates (`catalogue/rollout.yaml`; `rollout_cpu.yaml` without a GPU)
    4. the analytic model

Guarantees that the replicas of one simulation are priced by one source, the first that has every TP degree among
them: the difference between two sources would pass for a difference between degrees. A calibration that the caller
names must fit (GPU, model, engine and version alike, every degree there), or it is an error; `allow_mixed` fills
what is missing from below, and the sources say so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import yaml

from libra.cost.analytic import SHARES, analytic_cost
from libra.cost.calibration import Calibration, load_calibration, parse_calibration
from libra.cost.hardware import Gpu, Model, catalogue, find_gpu, find_model, kv_capacity_tokens
from libra.cost.rollout import ReplicaCost
from libra.errors import UserError

DEFAULT_UTILIZATION: Final = 0.9


@dataclass(frozen=True, slots=True)
class RolloutCostConfig:
    """What prices the engines' steps.

    calibrations: files made by `python -m sim calibrate`, relative to the experiment file; none: the committed ones.
    allow_mixed: let replicas be priced by calibrations of different engines, versions or GPUs, and by estimates
        where a TP degree has no calibration.
    """

    calibrations: tuple[str, ...] = ()
    allow_mixed: bool = False


@cache
def committed_calibrations() -> tuple[Calibration, ...]:
    """All of `libra/cost/calibrations`."""
    folder = files("libra.cost").joinpath("calibrations")
    found: list[Calibration] = []
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.name.endswith(".yaml"):
            content = yaml.safe_load(entry.read_text(encoding="utf-8"))
            found.append(parse_calibration(content, f"calibrations/{entry.name}"))
    return tuple(found)


def rollout_costs(
    gpu: str,
    model: str,
    degrees: Sequence[int],
    gpu_memory_utilization: float = DEFAULT_UTILIZATION,
    config: RolloutCostConfig | None = None,
) -> dict[int, ReplicaCost]:
    """Cost of a replica of each TP degree; see the module.

    `UserError`: unknown GPU or model, a model that does not fit, calibrations that do not belong together.
    """
    config = config or RolloutCostConfig()
    the_gpu, the_model = find_gpu(gpu), find_model(model)
    wanted = sorted(set(degrees))
    capacity = {tp: kv_capacity_tokens(the_gpu, the_model, tp, gpu_memory_utilization) for tp in wanted}
    named = [load_calibration(Path(path)) for path in config.calibrations]
    if named:
        return _named(named, the_gpu, the_model, wanted, capacity, gpu_memory_utilization, config)
    found = _by_method(the_gpu, the_model, capacity, gpu_memory_utilization)
    if gpu == "CPU" and not set(wanted) <= set(found["table"]):
        degrees = [tp for name, priced, tp in _entries() if (name, priced) == (gpu, the_model.name)]
        have = ", ".join(map(str, sorted(degrees))) or "none"
        raise UserError(
            f"no cost coefficients for {model} on {gpu} at tp {wanted[-1]}; tp degrees with data: {have}"
        )
    method = next(method for method, costs in found.items() if set(wanted) <= set(costs))
    return {tp: found[method][tp] for tp in wanted}


def _by_method(
    gpu: Gpu, model: Model, capacity: Mapping[int, int], utilization: float
) -> dict[str, dict[int, ReplicaCost]]:
    """Costs by source, the best first; the last has all degrees of `capacity`."""
    measured: dict[int, ReplicaCost] = {}
    for each in committed_calibrations():
        stamp = each.stamp
        if (stamp.gpu, stamp.model) == (gpu.name, model.name) and stamp.tp in capacity:
            measured[stamp.tp] = _at(each, gpu, capacity[stamp.tp], utilization)
    return {
        "measured": measured,
        "table": {tp: cost for tp in capacity if (cost := _tabled(gpu, model, tp, capacity[tp])) is not None},
        "analytic": {tp: analytic_cost(gpu, model, tp, tokens) for tp, tokens in capacity.items()},
    }


def _named(
    named: Sequence[Calibration],
    gpu: Gpu,
    model: Model,
    wanted: Sequence[int],
    capacity: Mapping[int, int],
    utilization: float,
    config: RolloutCostConfig,
) -> dict[int, ReplicaCost]:
    first = named[0]
    costs: dict[int, ReplicaCost] = {}
    for each in named:
        each.require(model=model.name)
        if not config.allow_mixed:
            each.require(gpu=gpu.name)
            if each.stamp.engine_key != first.stamp.engine_key:
                raise UserError(
                    f"{each.path}: of {each.stamp}, beside {first.path} of {first.stamp}; different "
                    "engines cannot be compared (cost.rollout.allow_mixed lets them)"
                )
        if each.stamp.tp in costs:
            raise UserError(
                f"{each.path}: a second calibration of tp {each.stamp.tp}; give one per TP degree"
            )
        if each.stamp.tp in capacity:
            costs[each.stamp.tp] = _at(each, gpu, capacity[each.stamp.tp], utilization)
    missing = [tp for tp in wanted if tp not in costs]
    if missing and not config.allow_mixed:
        raise UserError(
            f"{first.path}: no calibration of {model.name} on {gpu.name} at tp {missing[0]} among those given; add "
            "one, or let estimates fill in (cost.rollout.allow_mixed)"
        )
    for tp in missing:
        costs[tp] = next(
            found[tp] for found in _by_method(gpu, model, capacity, utilization).values() if tp in found
        )
    return costs


def _at(calibration: Calibration, gpu: Gpu, capacity_tokens: int, utilization: float) -> ReplicaCost:
    """The cost, with the measured KV capacity where memory is used as in the measurement."""
    if (calibration.stamp.gpu, utilization) == (gpu.name, DEFAULT_UTILIZATION):
        return calibration.cost
    return replace(calibration.cost, kv_capacity_tokens=capacity_tokens)


@cache
def _entries() -> dict[tuple[str, str, int], dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        row for name in ("rollout", "rollout_cpu") for row in catalogue(name)["entries"]
    ]
    return {(str(row["gpu"]), str(row["model"]), int(row["tp"])): row for row in rows}


def _tabled(gpu: Gpu, model: Model, tp: int, capacity_tokens: int) -> ReplicaCost | None:
    """A row of the tables; they know no host, whose times are the analytic ones unless the row has its own."""
    row = _entries().get((gpu.name, model.name, tp))
    if row is None:
        return None
    host: dict[str, Any] = {
        "graph_host_s": model.num_layers * SHARES.graph_layer_s,
        "eager_host_s": model.num_layers * SHARES.eager_layer_s,
        "host_per_seq_s": SHARES.host_per_seq_s(tp),
        "admission_s": SHARES.admission_s,
        "admission_per_seq_s": SHARES.admission_seq_s,
        "dispersed_kv_factor": SHARES.dispersed_kv_factor,
    }
    coefficients = {
        key: value
        for key, value in row.items()
        if key.endswith(("_s", "_factor", "_scheduling", "capture_tokens"))
    }
    return ReplicaCost(
        gpu=gpu.name,
        model=model.name,
        tp=tp,
        kv_capacity_tokens=capacity_tokens,
        num_experts=model.num_experts,
        experts_per_token=model.experts_per_token,
        source=str(row["source"]),
        **(host | coefficients),
    )
