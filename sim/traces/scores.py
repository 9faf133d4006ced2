"""Measured against simulated: the figures of a trace, and signed errors as fractions (simulated / measured - 1).

With a deadline (a trace that was cut) turns and tokens count that ended by it in either world. Where the simulated
engine is the faster one all recorded turns end in time and the counts are equal, so the makespan, the end of the last
recorded turn, stands beside them; throughput is the tokens over the time that they took, which does not saturate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from libra.workloads.table import Floats
from sim.traces.client import Played
from sim.traces.records import Trace

ERROR_KEYS: Final = (
    "output_tokens_per_s",
    "makespan_s",
    "mean_latency_s",
    "mean_ttft_s",
    "mean_tpot_s",
)
"""Figures whose signed errors `validate --json` promises."""

UNITS: Final[Mapping[str, str]] = {
    "makespan_s": "s",
    "output_tokens_per_s": "tokens/s",
    "mean_latency_s": "s",
    "p50_latency_s": "s",
    "p95_latency_s": "s",
    "mean_ttft_s": "s",
    "p50_ttft_s": "s",
    "mean_tpot_s": "s",
    "prefix_hit_tokens": "tokens",
    "turns_by_deadline": "turns",
    "tokens_by_deadline": "tokens",
}


@dataclass(frozen=True, slots=True)
class Score:
    """Figures of both worlds by name (nan where one does not apply)."""

    measured: Mapping[str, float]
    simulated: Mapping[str, float]

    def error(self, name: str) -> float:
        """Signed, a fraction; nan where the figure does not apply."""
        measured, simulated = self.measured.get(name, np.nan), self.simulated.get(name, np.nan)
        if measured == simulated:
            return 0.0
        return simulated / measured - 1.0 if measured else float("nan")


def score(trace: Trace, played: Played, deadline_s: float | None = None) -> Score:
    """Figures over all turns that ran in both worlds (all of them, unless the engine refused some)."""
    ran = np.isfinite(played.latency_s)
    hits = trace.cached_tokens[ran]
    measured = _figures(trace, trace.submit_s, trace.ttft_s, trace.latency_s, ran, deadline_s)
    simulated = _figures(trace, played.submit_s, played.ttft_s, played.latency_s, ran, deadline_s)
    if (hits >= 0).all():
        measured["prefix_hit_tokens"] = float(hits.sum())
        simulated["prefix_hit_tokens"] = float(played.cached_tokens[ran].sum())
    return Score(measured, simulated)


def _figures(
    trace: Trace,
    submit_s: Floats,
    ttft_s: Floats,
    latency_s: Floats,
    ran: np.ndarray,
    deadline_s: float | None,
) -> dict[str, float]:
    tokens = trace.output_tokens[ran]
    submit_s, ttft_s, latency_s = submit_s[ran], ttft_s[ran], latency_s[ran]
    if not len(tokens):
        return {}
    end_s = submit_s + latency_s
    span_s = float(end_s.max() - submit_s.min())
    several = tokens > 1
    tpot_s = (latency_s - ttft_s)[several] / (tokens[several] - 1)
    figures = {
        "makespan_s": span_s,
        "output_tokens_per_s": float(tokens.sum()) / span_s if span_s else float("nan"),
        "mean_latency_s": float(latency_s.mean()),
        "p50_latency_s": float(np.median(latency_s)),
        "p95_latency_s": float(np.quantile(latency_s, 0.95)),
        "mean_ttft_s": float(ttft_s.mean()),
        "p50_ttft_s": float(np.median(ttft_s)),
        "mean_tpot_s": float(tpot_s.mean()) if len(tpot_s) else float("nan"),
    }
    if deadline_s is not None:
        in_time = end_s - submit_s.min() <= deadline_s
        figures["turns_by_deadline"] = float(in_time.sum())
        figures["tokens_by_deadline"] = float(tokens[in_time].sum())
    return figures
