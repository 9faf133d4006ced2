"""Files as a measurement would leave them, of an engine whose costs are known: it is simulated."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from libra.cost.analytic import analytic_cost
from libra.cost.calibration import EngineSettings
from libra.cost.hardware import find_gpu, find_model
from libra.cost.points import TRACE_COLUMNS
from libra.cost.rollout import ReplicaCost
from sim.engine.base import CostTable
from sim.traces.client import Played
from sim.traces.fitting import engine_spec, replay
from sim.traces.mixed import mixed_step_s
from sim.traces.records import REQUEST_COLUMNS, Trace

SETTINGS = EngineSettings(
    max_num_seqs=128, max_num_batched_tokens=2048, block_size=16, kv_capacity_tokens=500_000
)
FACTORS = {
    "decode_base_s": 1.15,
    "decode_per_seq_s": 0.8,
    "decode_per_context_token_s": 1.2,
    "prefill_base_s": 1.1,
    "prefill_per_token_s": 1.25,
    "graph_host_s": 1.2,
    "eager_host_s": 0.9,
    "host_per_seq_s": 1.5,
    "admission_per_seq_s": 1.6,
    "dispersed_kv_factor": 1.1,
}
"""The made-up engine against the analytic one, that every fit starts from."""

DECODE = [(1, 128), (4, 128), (16, 128), (64, 128), (128, 128), (1, 8192), (16, 2048), (64, 2048), (4, 16384)]
PREFILL = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
MIXED = [(32, 1024, 256), (32, 1024, 64), (64, 1024, 256)]


def known_cost(model: str = "Qwen3-4B", tp: int = 1, **changes: Any) -> ReplicaCost:
    """What made the files."""
    start = analytic_cost(find_gpu("H200"), find_model(model), tp, SETTINGS.kv_capacity_tokens)
    cost = replace(start, **{name: factor * getattr(start, name) for name, factor in FACTORS.items()})
    return replace(cost, **changes)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """A CSV file with a header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def write_grid(
    path: Path,
    cost: ReplicaCost,
    decode: Sequence[tuple[int, int]] = DECODE,
    prefill: Sequence[int] = PREFILL,
) -> Path:
    """A grid: single prompts, and equal requests of 96 tokens."""
    rows: list[Sequence[object]] = []
    for tokens in prefill:
        seconds = cost.prompt_s(tokens, SETTINGS.max_num_batched_tokens)
        rows.append(("prefill", 1, tokens, 1, seconds, seconds))
    for batch, tokens in decode:
        rows.append(("decode", batch, tokens, 96, cost.decode_s(batch, batch * (tokens + 48)), 1))
    return write_csv(path, ("kind", "batch", "prompt_tokens", "output_tokens", "value_s", "aux1"), rows)


def write_mixed(path: Path, cost: ReplicaCost, points: Sequence[tuple[int, int, int]] = MIXED) -> Path:
    """A mixed table of an engine whose KV blocks are freshly laid out."""
    table = CostTable.from_cost(replace(cost, dispersed_kv_factor=1.0), SETTINGS.max_num_seqs)
    spec = engine_spec(SETTINGS)
    rows = [
        ("mixed", batch, context, tokens, mixed_step_s(spec, table, batch, context, tokens))
        for batch, context, tokens in points
    ]
    return write_csv(path, ("kind", "batch", "context_tokens", "param", "value_s"), rows)


def trajectories(count: int, turns: int, seed: int = 0, wait_s: float = 0.05) -> Trace:
    """Multi-turn trajectories that start at 0, 10 ms, 20 ms, ...; nothing of it is measured yet."""
    rng = np.random.default_rng(seed)
    total = count * turns
    output = rng.integers(20, 300, total)
    prompt = np.zeros(total, dtype=np.int64)
    for turn in range(total):
        new = int(rng.integers(50, 1500))
        prompt[turn] = new if turn % turns == 0 else prompt[turn - 1] + output[turn - 1] + new // 4
    submit_s = np.zeros(total)
    submit_s[::turns] = 0.01 * np.arange(count)
    zeros = np.zeros(total)
    return Trace(
        path=Path("made-up.csv"),
        first_turn=np.arange(0, total + 1, turns),
        submit_s=submit_s,
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=np.zeros(total, dtype=np.int64),
        ttft_s=zeros,
        latency_s=zeros,
        wait_s=np.full(total, wait_s),
        open_loop=False,
    )


def requests(count: int, per_s: float, seed: int = 0) -> Trace:
    """Single requests in an open loop."""
    rng = np.random.default_rng(seed)
    made = trajectories(count, 1, seed)
    submit_s = np.cumsum(rng.exponential(1.0 / per_s, count))
    return replace(made, submit_s=submit_s - submit_s[0], wait_s=np.zeros(count), open_loop=True)


def write_trace(path: Path, trace: Trace, cost: ReplicaCost, concurrency: int) -> Played:
    """Simulate a trace and write it as a client would have recorded it: times to five decimals."""
    played = replay(trace, cost, SETTINGS, concurrency)
    rows: list[Sequence[object]] = []
    for trajectory in range(trace.num_trajectories):
        first, after = trace.first_turn[trajectory : trajectory + 2].tolist()
        for turn in range(first, after):
            rows.append(
                (
                    f"t{trajectory}",
                    turn - first,
                    round(float(played.submit_s[turn]), 5),
                    trace.prompt_tokens[turn],
                    trace.output_tokens[turn],
                    played.cached_tokens[turn],
                    round(float(played.ttft_s[turn]), 5),
                    round(float(played.latency_s[turn]), 5),
                    round(float(trace.wait_s[turn]), 5),
                )
            )
    write_csv(path, TRACE_COLUMNS, rows)
    return played


def write_requests(
    path: Path, trace: Trace, cost: ReplicaCost, settings: EngineSettings = SETTINGS
) -> Played:
    """Simulate single requests and write their log."""
    played = replay(trace, cost, settings, 1)
    first, last = played.submit_s + played.ttft_s, played.submit_s + played.latency_s
    rows = [
        (cost.gpu, cost.model, cost.tp, *row)
        for row in zip(
            trace.prompt_tokens.tolist(),
            trace.output_tokens.tolist(),
            *(np.round(times, 5).tolist() for times in (trace.submit_s, first, last)),
            strict=True,
        )
    ]
    write_csv(path, ("hw", "model", "tp", *REQUEST_COLUMNS), rows)
    return played


def write_facts(path: Path, model: str = "qwen3-4b", tp: int = 1, tokens: object = 500_000) -> Path:
    """Engine facts with a measured KV capacity."""
    rows = [
        ("qwen3-32b", 1, "kv_cache_tokens", 7),
        (model, tp, "kv_cache_tokens", tokens),
        (model, tp, "start", 30),
    ]
    return write_csv(path, ("model", "tp", "quantity", "value"), rows)
