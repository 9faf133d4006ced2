"""From files of measurements to a stamped calibration: what `python -m sim calibrate` does.

Steps, each on what the one before left open:

    1. grids and mixed tables   step times of a fresh engine          libra.cost.fit
    2. mixed steps              what the host needs per sequence      sim.traces.fitting.fit_host
    3. one development trace    dispersed KV, the busy front end      sim.traces.fitting.fit_trace
    or a log of requests        step times, through their latencies   sim.traces.fitting.fit_requests

A model that has no mixed table or trace of its own takes the engine-wide coefficients (host, front end, dispersed KV)
from another calibration of the same engine on the same GPU (`engine_from`). Another GPU is reached only on demand
(`transfer`), by the analytic ratio of every coefficient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from libra.cost.analytic import SHARES, analytic_cost
from libra.cost.calibration import COEFFICIENTS, Calibration, EngineSettings, Stamp
from libra.cost.fit import fit_points
from libra.cost.hardware import Model, find_gpu, find_model, kv_capacity_tokens, require_tp
from libra.cost.points import TRACE_COLUMNS, Points, kind_of, read_points
from libra.cost.rollout import ReplicaCost, captured_tokens
from libra.errors import UserError
from libra.record.manifest import file_sha256
from libra.workloads.csv_table import read_csv
from sim.traces.fitting import REQUEST_COEFFICIENTS, fit_host, fit_requests, fit_trace
from sim.traces.records import REQUEST_COLUMNS, read_request_log, read_turn_trace

ENGINE_WIDE: Final = ("host_per_seq_s", "admission_s", "admission_per_seq_s", "dispersed_kv_factor")
"""Coefficients of engine, host and GPU rather than of the model."""

MAX_ROUNDS: Final = 3
"""Mixed steps and trace are fitted in turn at most so often."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a calibration is to be of. kv_capacity_tokens 0: from the analytic model of memory."""

    gpu: str
    model: str
    tp: int
    engine: str
    engine_version: str
    date: str
    dtype: str = "bfloat16"
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    max_model_len: int = 40960
    capture_tokens: int = 0
    async_scheduling: bool = True
    kv_capacity_tokens: int = 0


@dataclass(slots=True)
class _Files:
    """The measurements, by kind."""

    points: Points = field(default_factory=Points)
    traces: list[Path] = field(default_factory=list[Path])
    requests: list[Path] = field(default_factory=list[Path])
    kv_capacity_tokens: int = 0


def calibrate(
    files: Sequence[Path],
    target: Target,
    *,
    concurrency: int = 0,
    engine_from: Calibration | None = None,
    use: Callable[[int], bool] = lambda index: True,
) -> Calibration:
    """Fit what the files hold. `concurrency`: of the development trace. `use`: which requests of a log are fitted.

    Raises UserError: unknown or mixed files, more than one trace, too few points, an engine_from of another engine.
    """
    found = _sorted(files, target)
    model = find_model(target.model)
    require_tp(model, target.tp)
    settings = _settings(target, found.kv_capacity_tokens)
    start = analytic_cost(find_gpu(target.gpu), model, target.tp, settings.kv_capacity_tokens)
    start = replace(start, capture_tokens=settings.capture_tokens, async_scheduling=settings.async_scheduling)
    notes = ["prefill_per_attention_s: from FLOPs and the share of peak that attention reaches, not fitted"]
    if engine_from is not None:
        engine_from.require(
            gpu=target.gpu, engine=target.engine, engine_version=target.engine_version, dtype=target.dtype
        )
        start = _engine_wide(start, engine_from.cost, model)
    if found.requests:
        cost, fitted, errors = _from_requests(found, target, start, settings, use)
    else:
        cost, fitted, errors = _from_points(found, start, settings, concurrency)
    if engine_from is not None:
        wide = [
            name for name in ENGINE_WIDE if name not in fitted and getattr(cost, name) == getattr(start, name)
        ]
        notes.append(f"{', '.join(wide)}: from the calibration of {engine_from.stamp}")
    if target.kv_capacity_tokens == found.kv_capacity_tokens == 0:
        notes.append("kv_capacity_tokens: computed, not measured")
    stamp = Stamp(
        gpu=target.gpu,
        model=target.model,
        tp=target.tp,
        dtype=target.dtype,
        engine=target.engine,
        engine_version=target.engine_version,
        method="measured",
        date=target.date,
        data={path.name: file_sha256(path) for path in files},
        development_trace=found.traces[0].name if found.traces else "",
        engine_from=str(engine_from.stamp) if engine_from else "",
    )
    return Calibration(stamp, settings, replace(cost, source=str(stamp)), fitted, errors, tuple(notes))


def transfer(calibration: Calibration, gpu: str, date: str) -> Calibration:
    """The same model and engine on another GPU: every coefficient times the ratio that the analytic model gives
    it.
    """
    source = calibration.stamp
    if gpu == source.gpu:
        raise UserError(f"{calibration.path}: is of {gpu} already; give another --gpu")
    model, other = find_model(source.model), find_gpu(gpu)
    capacity = kv_capacity_tokens(other, model, source.tp)
    old = analytic_cost(find_gpu(source.gpu), model, source.tp, calibration.settings.kv_capacity_tokens)
    new = analytic_cost(other, model, source.tp, capacity)
    ratio = {name: _ratio(getattr(new, name), getattr(old, name)) for name in COEFFICIENTS}
    cost = replace(
        calibration.cost,
        gpu=gpu,
        kv_capacity_tokens=capacity,
        **{name: getattr(calibration.cost, name) * ratio[name] for name in COEFFICIENTS},
    )
    stamp = replace(source, gpu=gpu, method="transferred", date=date)
    return Calibration(
        stamp,
        replace(calibration.settings, kv_capacity_tokens=capacity),
        replace(cost, source=str(stamp)),
        calibration.fitted,
        {},
        (f"transferred from {source} by the analytic ratio of each coefficient; no data of {gpu}",),
    )


def _ratio(new: float, old: float) -> float:
    return new / old if old else 1.0


def _sorted(files: Sequence[Path], target: Target) -> _Files:
    """Tell the files apart by their columns."""
    found = _Files()
    for path in files:
        if [other.name for other in files].count(path.name) > 1:
            raise UserError(f"{path}: two files of this name; rename one, the stamp tells them apart by it")
        columns = read_csv(path).columns
        if kind_of(columns) != "other":
            found.points = found.points + read_points(path)
        elif set(TRACE_COLUMNS) <= set(columns):
            found.traces.append(path)
        elif set(REQUEST_COLUMNS) <= set(columns):
            found.requests.append(path)
        elif {"model", "tp", "quantity", "value"} <= set(columns):
            found.kv_capacity_tokens = _kv_capacity(path, target) or found.kv_capacity_tokens
        else:
            raise UserError(
                f"{path}, line 1: neither points, a trace, a log of requests nor engine facts (columns: "
                f"{', '.join(columns)}); docs/fidelity.md has the forms"
            )
    if len(found.traces) > 1:
        raise UserError(
            f"{found.traces[1]}: a second trace; fit to one and keep the others to validate on (sim validate --trace)"
        )
    if found.requests and (found.traces or found.points != Points() or len(found.requests) > 1):
        raise UserError(
            f"{found.requests[0]}: a log of requests is fitted by itself; leave the other files out"
        )
    if not found.requests and not found.points.decode:
        raise UserError("no decode points among the files; give a grid, or a log of requests")
    return found


def _kv_capacity(path: Path, target: Target) -> int:
    """`kv_cache_tokens` of the engine facts; 0 where they have none of this model and TP degree."""
    table = read_csv(path)
    rows = zip(
        table.text("model"), table.columns["tp"], table.text("quantity"), table.text("value"), strict=True
    )
    for row, (model, tp, quantity, value) in enumerate(rows):
        if (model.lower(), tp, quantity) == (target.model.lower(), str(target.tp), "kv_cache_tokens"):
            if not value.isdecimal():
                raise table.error(row, "value", f"{value!r} is no number of tokens; correct it")
            return int(value)
    return 0


def _settings(target: Target, measured_tokens: int) -> EngineSettings:
    capacity = target.kv_capacity_tokens or measured_tokens
    if not capacity:
        capacity = kv_capacity_tokens(find_gpu(target.gpu), find_model(target.model), target.tp)
    if capacity < target.block_size or target.max_num_batched_tokens < target.max_num_seqs:
        raise UserError(
            f"{capacity} KV tokens in blocks of {target.block_size}, {target.max_num_batched_tokens} batched tokens "
            f"for {target.max_num_seqs} sequences: no engine runs so; correct --kv-capacity-tokens, --block-size or "
            "--max-num-batched-tokens"
        )
    return EngineSettings(
        max_num_seqs=target.max_num_seqs,
        max_num_batched_tokens=target.max_num_batched_tokens,
        block_size=target.block_size,
        kv_capacity_tokens=capacity,
        max_model_len=target.max_model_len,
        capture_tokens=target.capture_tokens or captured_tokens(target.max_num_seqs),
        async_scheduling=target.async_scheduling,
    )


def _engine_wide(start: ReplicaCost, known: ReplicaCost, model: Model) -> ReplicaCost:
    """Start from another model's engine: its host's levels grow with the layers."""
    layers = model.num_layers / find_model(known.model).num_layers
    felt = SHARES.process_share(start.tp) / SHARES.process_share(known.tp)
    return replace(
        start,
        graph_host_s=known.graph_host_s * layers,
        eager_host_s=known.eager_host_s * layers,
        **{name: getattr(known, name) * (felt if name == "host_per_seq_s" else 1.0) for name in ENGINE_WIDE},
    )


def _from_points(
    found: _Files, start: ReplicaCost, settings: EngineSettings, concurrency: int
) -> tuple[ReplicaCost, tuple[str, ...], dict[str, float]]:
    fit = fit_points(found.points, start, settings.max_num_batched_tokens)
    cost, fitted, errors = fit.cost, fit.fitted, dict(fit.errors)
    if found.points.mixed:
        cost, errors["mixed_mean"] = fit_host(found.points.mixed, cost, settings)
        fitted = (*fitted, "host_per_seq_s")
    if found.traces:
        if concurrency < 1:
            raise UserError(f"{found.traces[0]}: how many trajectories ran at once? give --concurrency")
        trace = read_turn_trace(found.traces[0])
        trace_fit = fit_trace(trace, cost, settings, concurrency)
        # The mixed steps were fitted with a front end that the trace has now corrected; look again until they agree.
        for _ in range(MAX_ROUNDS if found.points.mixed else 0):
            cost, errors["mixed_mean"] = fit_host(found.points.mixed, trace_fit.cost, settings)
            if cost.host_per_seq_s == trace_fit.cost.host_per_seq_s:
                break
            trace_fit = fit_trace(trace, cost, settings, concurrency)
        cost = trace_fit.cost
        fitted = (*fitted, "admission_per_seq_s", "dispersed_kv_factor")
        errors |= {f"trace_{name}": error for name, error in trace_fit.errors.items()}
    return cost, fitted, errors


def _from_requests(
    found: _Files, target: Target, start: ReplicaCost, settings: EngineSettings, use: Callable[[int], bool]
) -> tuple[ReplicaCost, tuple[str, ...], dict[str, float]]:
    trace = read_request_log(found.requests[0], target.gpu, target.model, target.tp)
    # Single requests leave and come too fast for their blocks to be told from a fresh engine's.
    fit = fit_requests(trace, replace(start, dispersed_kv_factor=1.0, admission_per_seq_s=0.0), settings, use)
    return fit.cost, REQUEST_COEFFICIENTS, {f"requests_{name}": error for name, error in fit.errors.items()}
