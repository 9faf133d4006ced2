"""What takes a simulation to fit: coefficients that show only in how requests meet on an engine.

`libra.cost.fit` reads step times off points. Here the engine model is run on what was measured (mixed steps, one
development trace, a log of requests) and the few coefficients that it leaves open are moved until the outcome agrees.
Whole figures are compared, not single turns: after some seconds a closed loop is as sensitive to a microsecond as the
weather is to a butterfly, and the sum over its turns is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from scipy.optimize import (  # pyright: ignore[reportMissingTypeStubs]
    least_squares,  # pyright: ignore[reportUnknownVariableType]
    minimize,  # pyright: ignore[reportUnknownVariableType]
)

from libra.cost.calibration import EngineSettings
from libra.cost.fit import scaled
from libra.cost.rollout import ReplicaCost
from libra.errors import UserError
from libra.workloads.table import Floats
from sim.engine.base import CostTable, EngineSpec
from sim.traces.client import Played, play
from sim.traces.mixed import mixed_step_s
from sim.traces.records import Trace
from sim.traces.scores import score

HOST_SEQ_STEPS_S: Final = (2e-5, 1e-5, 5e-6)
"""host_per_seq_s is looked for on a grid of the first step up to `HOST_SEQ_MOST_S`, then between its points."""
HOST_SEQ_MOST_S: Final = 4e-4

TRACE_FIGURES: Final = {
    "makespan_s": 1.0,
    "mean_latency_s": 1.0,
    "p50_latency_s": 1.0,
    "p95_latency_s": 1.0,
    "mean_tpot_s": 1.0,
    "mean_ttft_s": 0.5,
    "p50_ttft_s": 0.5,
}
"""Figures that a development trace is fitted by, with the weight of their errors."""

KV_TRIES: Final = (0.9, 1.0, 1.1)
BUSY_TRIES: Final = (0.5, 1.0, 1.5, 2.0, 3.0)
"""Factors of the start that `fit_trace` looks at."""

REQUEST_COEFFICIENTS: Final = (
    "decode_base_s",
    "decode_per_seq_s",
    "decode_per_context_token_s",
    "prefill_base_s",
    "prefill_per_token_s",
    "eager_host_s",
    "admission_s",
)
MIN_REQUESTS: Final = 20


def engine_spec(settings: EngineSettings) -> EngineSpec:
    """The simulated engine with the settings of a calibration."""
    return EngineSpec(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        block_size=settings.block_size,
        num_blocks=settings.kv_capacity_tokens // settings.block_size,
        enable_prefix_caching=settings.enable_prefix_caching,
    )


def replay(trace: Trace, cost: ReplicaCost, settings: EngineSettings, concurrency: int) -> Played:
    """Simulate a trace on an engine with these settings. Raises UserError for a turn that the engine would refuse."""
    spec = engine_spec(settings)
    longest = spec.longest_request
    tokens = trace.prompt_tokens + trace.output_tokens
    if (tokens > longest).any():
        turn = int(np.argmax(tokens > longest))
        raise UserError(
            f"{trace.path}: turn {turn + 1} in order of trajectories has {tokens[turn]:,} tokens, more than the "
            f"{longest:,} that the calibrated engine takes; calibrate with its max_model_len and KV capacity"
        )
    table = CostTable.from_cost(cost, settings.max_num_seqs)
    return play(trace, spec, table, concurrency)


def fit_host(
    rows: Sequence[tuple[int, int, int, float]], cost: ReplicaCost, settings: EngineSettings
) -> tuple[ReplicaCost, float]:
    """host_per_seq_s from mixed steps (batch, context, prefill tokens, s), and the mean absolute error it leaves."""
    for _, context, tokens, _ in rows:
        if max(context, tokens) + 1 >= settings.max_model_len:
            raise UserError(
                f"a mixed row of {max(context, tokens):,} tokens exceeds max_model_len {settings.max_model_len:,}; "
                "give the engine's own (--max-model-len)"
            )
    spec = engine_spec(settings)
    # Windows measure an engine that has just been filled: its KV blocks are not dispersed yet.
    fresh = replace(cost, dispersed_kv_factor=1.0)

    def errors(per_seq_s: float) -> Floats:
        table = CostTable.from_cost(replace(fresh, host_per_seq_s=per_seq_s), settings.max_num_seqs)
        predicted = [mixed_step_s(spec, table, batch, context, tokens) for batch, context, tokens, _ in rows]
        return np.array(predicted) / np.array([row[3] for row in rows]) - 1.0

    coarse, *finer = HOST_SEQ_STEPS_S
    tried = {per_seq_s: errors(per_seq_s) for per_seq_s in np.arange(0.0, HOST_SEQ_MOST_S, coarse).tolist()}

    def best() -> float:
        return min(tried, key=lambda per_seq_s: float((tried[per_seq_s] ** 2).sum()))

    for step in finer:
        for per_seq_s in (best() - step, best() + step):
            if per_seq_s >= 0.0:
                tried[per_seq_s] = errors(per_seq_s)
    return replace(cost, host_per_seq_s=best()), float(np.abs(tried[best()]).mean())


@dataclass(frozen=True, slots=True)
class TraceFit:
    """A cost fitted to a trace and the signed errors that remain, by figure."""

    cost: ReplicaCost
    errors: dict[str, float]


def fit_trace(trace: Trace, cost: ReplicaCost, settings: EngineSettings, concurrency: int) -> TraceFit:
    """dispersed_kv_factor and admission_per_seq_s from one development trace: what no point on a fresh engine
    shows.
    """
    names = ("dispersed_kv_factor", "admission_per_seq_s")

    def errors(factors: Floats) -> dict[str, float]:
        candidate = scaled(cost, names, np.maximum(factors, 0.0))
        scored = score(trace, replay(trace, candidate, settings, concurrency))
        return {name: scored.error(name) for name in TRACE_FIGURES}

    def loss(factors: Floats) -> float:
        seen = errors(factors)
        return sum((weight * seen[name]) ** 2 for name, weight in TRACE_FIGURES.items())

    # The loss is rough: look around first, then descend from the best.
    first = min(((kv, busy) for kv in KV_TRIES for busy in BUSY_TRIES), key=lambda at: loss(np.array(at)))
    simplex = [first, (first[0] * 1.05, first[1]), (first[0], first[1] * 1.25)]
    found: Any = minimize(
        loss, first, method="Nelder-Mead", options={"initial_simplex": simplex, "maxfev": 70}
    )
    factors = np.maximum(found.x, 0.0)
    return TraceFit(scaled(cost, names, factors), errors(factors))


def fit_requests(
    trace: Trace,
    cost: ReplicaCost,
    settings: EngineSettings,
    use: Callable[[int], bool] = lambda index: True,
) -> TraceFit:
    """Step times from a log of requests whose steps nobody measured, those of index `use(index)`.

    All requests are simulated, since all of them load the engine; the latencies of the used ones are compared.
    Raises UserError for fewer than `MIN_REQUESTS`.
    """
    chosen = np.array([use(index) for index in range(len(trace.submit_s))])
    if chosen.sum() < MIN_REQUESTS:
        raise UserError(
            f"{trace.path}: {chosen.sum()} requests are too few to fit to ({MIN_REQUESTS} at least)"
        )

    def residuals(factors: Floats) -> Floats:
        played = replay(trace, scaled(cost, REQUEST_COEFFICIENTS, factors), settings, 1)
        latency = np.log(played.latency_s / trace.latency_s)
        ttft = np.log(np.maximum(played.ttft_s, 1e-3) / np.maximum(trace.ttft_s, 1e-3))
        return np.concatenate([latency[chosen], 0.3 * ttft[chosen], 0.5 * (factors - 1.0)])

    solved: Any = least_squares(
        residuals,
        np.ones(len(REQUEST_COEFFICIENTS)),
        bounds=(0.1, 10.0),
        diff_step=0.03,
        loss="soft_l1",
        max_nfev=25,
    )
    fitted = scaled(cost, REQUEST_COEFFICIENTS, solved.x)
    played = replay(trace, fitted, settings, 1)
    scored = score(trace, played)
    errors = {name: scored.error(name) for name in TRACE_FIGURES}
    if not chosen.all():
        rest = ~chosen
        errors["held_out_mean_latency_s"] = _mean_error(played.latency_s[rest], trace.latency_s[rest])
        errors["held_out_mean_ttft_s"] = _mean_error(played.ttft_s[rest], trace.ttft_s[rest])
    return TraceFit(fitted, errors)


def _mean_error(simulated: Floats, measured: Floats) -> float:
    return float(simulated.mean() / measured.mean()) - 1.0
