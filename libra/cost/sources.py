"""Readers of the two kinds of table that rollout coefficients are fitted to, and the fit of a whole folder.

Guarantees that `catalogue/rollout.yaml` can be made again from its sources by one call (`fit_folder`), and
that a measured grid wins over an estimate of the same (GPU, model, TP degree).
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from libra.cost.fit import TableEntry, entry_fields, grid_cost, oracle_costs, scale_allreduce
from libra.cost.hardware import find_gpu, find_model
from libra.errors import UserError

_ORACLE_SYSTEMS: Final = {"A100": "a100_sxm", "H100": "h100_sxm", "H200": "h200_sxm"}
_GRIDS: Final = (("Qwen3-4B", 1, "q4b_tp1"), ("Qwen3-14B", 1, "q14b_tp1"), ("Qwen3-14B", 2, "q14b_tp2"))
_DECODED_AT_MEASUREMENT: Final = 48
"""The grids decode 96 tokens, so the mean context is the prompt and half of them."""

_ORACLE_SOURCE: Final = "aiconfigurator-core 0.12.0 tables (vLLM {version}, bf16, static modes), own queries"
_GRID_SOURCE: Final = "measured: vLLM 0.26.0 on H200, bf16, CUDA graphs, max_num_batched_tokens 2048"


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows of a CSV file; `UserError` if it cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a CSV file") from error


Decode = list[tuple[float, float, float]]
Prefill = list[tuple[int, float]]


def read_grid(path: Path) -> tuple[Decode, Prefill]:
    """Decode rows (batch, context tokens in all, s) and prefill rows (tokens, s) of a measured grid.

    Decode rows of -1 (the batch never ran whole) are left out.
    """
    rows = read_rows(path)
    decode = [
        (float(r["batch"]), float(r["batch"]) * (float(r["prompt_tokens"]) + _DECODED_AT_MEASUREMENT), s)
        for r in rows
        if r["kind"] == "decode" and (s := float(r["value_s"])) > 0
    ]
    prefill = [(int(r["prompt_tokens"]), float(r["value_s"])) for r in rows if r["kind"] == "prefill"]
    return decode, prefill


def read_odd_batches(path: Path) -> Decode:
    """Decode rows of the mixed-step measurement: odd batches, equal and spread contexts."""
    return [
        (float(r["batch"]), float(r["batch"]) * (float(r["context_tokens"]) + float(r["param"]) / 2), s)
        for r in read_rows(path)
        if r["kind"] == "decode" and (s := float(r["value_s"])) > 0
    ]


def fit_folder(folder: Path) -> list[TableEntry]:
    """Every entry of the catalogue, from `aic_oracle.csv` and `h200/` in `folder`.

    A800 entries are those of the A100 with the all-reduce part on slower NVLink.
    """
    oracle = read_rows(folder / "aic_oracle.csv")
    a100, a800 = find_gpu("A100"), find_gpu("A800")
    found: dict[tuple[str, str, int], TableEntry] = {}
    for gpu_name, system in _ORACLE_SYSTEMS.items():
        source = _ORACLE_SOURCE.format(version="0.14.0" if gpu_name == "A100" else "0.24.0")
        for model_name in sorted({row["model"] for row in oracle}):
            model = find_model(model_name)
            rows = [row for row in oracle if row["system"] == system and row["model"] == model_name]
            for entry in oracle_costs(rows, find_gpu(gpu_name), model, source):
                found[(gpu_name, model_name, entry.tp)] = entry
                if gpu_name == "A100":
                    derived = f"{source}; A100 rows with all-reduce traffic on 200 instead of 300 GB/s NVLink"
                    slow = scale_allreduce(entry, model, a800, a100, derived)
                    found[("A800", model_name, entry.tp)] = slow
    for model_name, tp, stem in _GRIDS:
        decode, prefill = read_grid(folder / "h200" / f"grid_{stem}.csv")
        mixed = folder / "h200" / f"mixed_{stem}.csv"
        if mixed.exists():
            decode = decode + read_odd_batches(mixed)
        entry = grid_cost(find_gpu("H200"), find_model(model_name), tp, decode, prefill, _GRID_SOURCE)
        found[("H200", model_name, tp)] = entry
    return [found[key] for key in sorted(found)]


def to_yaml(entries: Sequence[TableEntry]) -> str:
    """The text of `catalogue/rollout.yaml`."""
    head = (
        "# Coefficients of libra.cost.rollout.ReplicaCost, in seconds; made by sources.fit_folder\n"
        "# *_mean_error: mean absolute relative error of the fit; a prefill error of 0: one point, met.\n"
    )
    return head + yaml.safe_dump(
        {"entries": [entry_fields(entry) for entry in entries]}, sort_keys=False, width=110
    )
