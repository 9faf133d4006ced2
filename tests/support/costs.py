"""Made-up replica costs for tests: round coefficients, so that sums can be done by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from libra.cost.calibration import Calibration, EngineSettings, Stamp
from libra.cost.rollout import ReplicaCost

DATA = Path(__file__).parents[3] / "shared" / "data"

needs_data = [
    pytest.mark.data,
    pytest.mark.skipif(not DATA.is_dir(), reason="no development data in ../shared/data"),
]

ROUND = ReplicaCost(
    gpu="H200",
    model="Qwen3-4B",
    tp=1,
    decode_base_s=4e-3,
    decode_per_seq_s=1e-5,
    decode_per_context_token_s=3e-8,
    prefill_base_s=3e-3,
    prefill_per_token_s=1e-5,
    prefill_per_attention_s=1e-9,
    graph_host_s=7e-3,
    eager_host_s=17e-3,
    kv_capacity_tokens=100_000,
)


def round_cost(**changes: Any) -> ReplicaCost:
    """`ROUND` with changes."""
    return replace(ROUND, **changes)


SETTINGS = EngineSettings(
    max_num_seqs=128, max_num_batched_tokens=2048, block_size=16, kv_capacity_tokens=100_000
)

STAMP = Stamp(
    gpu="H200",
    model="Qwen3-4B",
    tp=1,
    dtype="bfloat16",
    engine="vllm",
    engine_version="0.26.0",
    method="measured",
    date="2026-11-30",
    data={"grid.csv": "0" * 64},
)


def calibration(cost: ReplicaCost = ROUND, fitted: tuple[str, ...] = (), **stamp: Any) -> Calibration:
    """A calibration of a made-up cost; `stamp` changes the stamp."""
    changes = {"gpu": cost.gpu, "model": cost.model, "tp": cost.tp, **stamp}
    settings = replace(SETTINGS, kv_capacity_tokens=cost.kv_capacity_tokens)
    return Calibration(
        stamp=replace(STAMP, **changes),
        settings=settings,
        cost=cost,
        fitted=fitted or ("decode_base_s", "decode_per_seq_s", "decode_per_context_token_s"),
        errors={"decode_mean": 0.01},
    )
