"""Coefficients from tables of operator-level estimates (aiconfigurator-core): `catalogue/rollout.yaml`.

The tables hold queried step times of the static modes: no queueing, no scheduling, no host. Their prefill row and the
host's part come from `libra.cost.analytic`, their decode rows are fitted. The catalogue can be made again from its
source by one call (`fit_tables`).
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from libra.cost.analytic import attention_s
from libra.cost.fit import Fit, fit_relative
from libra.cost.hardware import BF16_BYTES, Gpu, Model, find_gpu, find_model
from libra.errors import UserError

_SYSTEMS: Final = {"A100": "a100_sxm", "H100": "h100_sxm", "H200": "h200_sxm"}
_SOURCE: Final = "aiconfigurator-core 0.12.0 tables (vLLM {version}, bf16, static modes), own queries"


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One row of the catalogue: coefficients in seconds, residual of the decode fit, source."""

    gpu: str
    model: str
    tp: int
    decode_base_s: float
    decode_per_seq_s: float
    decode_per_context_token_s: float
    prefill_base_s: float
    prefill_per_token_s: float
    prefill_per_attention_s: float
    experts_s: float
    decode_mean_error: float
    source: str


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows of a CSV file; `UserError` if it cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a CSV file") from error


def oracle_costs(rows: Sequence[Mapping[str, str]], gpu: Gpu, model: Model, source: str) -> list[TableEntry]:
    """Fit the rows of one GPU and model, one entry per TP degree they cover.

    Columns used: tp, mode (`static_gen`, `static_ctx`), ctx, batch, tpot_ms, ttft_ms. The single prefill row is met
    exactly: attention from its FLOPs, the base from the decode fit, the rest per token.
    """
    entries: list[TableEntry] = []
    for tp in sorted({int(row["tp"]) for row in rows}):
        mine = [row for row in rows if int(row["tp"]) == tp]
        decode = _fit_decode([row for row in mine if row["mode"] == "static_gen"], model)
        prompt = next(row for row in mine if row["mode"] == "static_ctx")
        base_s, per_seq_s, per_context_s, experts_s = decode.coefficients
        tokens = float(prompt["ctx"])
        attended_s = attention_s(gpu, model, tp) * tokens * tokens / 2
        rest_s = float(prompt["ttft_ms"]) / 1e3 - base_s - experts_s - attended_s
        if rest_s <= 0:
            raise UserError(f"{gpu.name} {model.name} tp {tp}: prefill row is below its attention alone")
        entries.append(
            TableEntry(
                gpu=gpu.name,
                model=model.name,
                tp=tp,
                decode_base_s=_rounded(base_s),
                decode_per_seq_s=_rounded(per_seq_s),
                decode_per_context_token_s=_rounded(per_context_s),
                prefill_base_s=_rounded(base_s),
                prefill_per_token_s=_rounded(rest_s / tokens),
                prefill_per_attention_s=_rounded(attention_s(gpu, model, tp)),
                experts_s=_rounded(experts_s),
                decode_mean_error=round(decode.mean_error, 4),
                source=source,
            )
        )
    return entries


def _fit_decode(rows: Sequence[Mapping[str, str]], model: Model) -> Fit:
    """Coefficients base, per sequence, per context token, and reading all experts (0 for a dense model)."""
    batch = np.array([float(row["batch"]) for row in rows])
    context = batch * np.array([float(row["ctx"]) for row in rows])
    columns = [np.ones(len(rows)), batch, context]
    if model.num_experts:
        columns.append(1.0 - (1.0 - model.experts_per_token / model.num_experts) ** batch)
    fit = fit_relative(np.column_stack(columns), np.array([float(row["tpot_ms"]) / 1e3 for row in rows]))
    return fit if model.num_experts else Fit((*fit.coefficients, 0.0), fit.errors)


def scale_allreduce(entry: TableEntry, model: Model, slower: Gpu, faster: Gpu, source: str) -> TableEntry:
    """The same GPU with other NVLink: adds the ring all-reduce's extra transfer time.

    Two all-reduces a layer move 2 (tp - 1) / tp * hidden * 2 bytes per token over each link (NCCL's bus bandwidth
    definition). Latency is unchanged, so the base stays.
    """
    moved = model.num_layers * 2 * 2 * (entry.tp - 1) / entry.tp * model.hidden * BF16_BYTES
    extra_s = moved * (1 / slower.nvlink_bytes_per_s - 1 / faster.nvlink_bytes_per_s)
    return replace(
        entry,
        gpu=slower.name,
        decode_per_seq_s=_rounded(entry.decode_per_seq_s + extra_s),
        prefill_per_token_s=_rounded(entry.prefill_per_token_s + extra_s),
        source=source,
    )


def fit_tables(path: Path) -> list[TableEntry]:
    """Every entry of the catalogue, from the queried rows. A800: the A100's with all-reduces on slower NVLink."""
    rows = read_rows(path)
    a100, a800 = find_gpu("A100"), find_gpu("A800")
    found: dict[tuple[str, str, int], TableEntry] = {}
    for gpu_name, system in _SYSTEMS.items():
        source = _SOURCE.format(version="0.14.0" if gpu_name == "A100" else "0.24.0")
        for model_name in sorted({row["model"] for row in rows}):
            model = find_model(model_name)
            mine = [row for row in rows if row["system"] == system and row["model"] == model_name]
            for entry in oracle_costs(mine, find_gpu(gpu_name), model, source):
                found[(gpu_name, model_name, entry.tp)] = entry
                if gpu_name == "A100":
                    derived = f"{source}; A100 rows with all-reduce traffic on 200 instead of 300 GB/s NVLink"
                    found[("A800", model_name, entry.tp)] = scale_allreduce(entry, model, a800, a100, derived)
    return [found[key] for key in sorted(found)]


def to_yaml(entries: Sequence[TableEntry]) -> str:
    """The text of `catalogue/rollout.yaml`."""
    head = (
        "# Coefficients of libra.cost.rollout.ReplicaCost, in seconds; made by libra.cost.oracle.fit_tables\n"
        "# decode_mean_error: mean absolute relative error of the decode fit; the one prefill row is met.\n"
    )
    return head + yaml.safe_dump(
        {"entries": [_fields(entry) for entry in entries]}, sort_keys=False, width=110
    )


def _fields(entry: TableEntry) -> dict[str, Any]:
    """A dense model has no experts to speak of; every other figure is given, also where it was fitted to 0."""
    known = {each.name: getattr(entry, each.name) for each in fields(entry)}
    return known if entry.experts_s else {name: known[name] for name in known if name != "experts_s"}


def _rounded(seconds: float) -> float:
    """Five digits: finer than any of the sources."""
    return float(f"{seconds:.5g}")
