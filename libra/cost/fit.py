"""From measured or estimated step times to `ReplicaCost` coefficients.

Guarantees coefficients >= 0 and least squares of the RELATIVE error, so that a 3 ms step counts as much as a
50 ms one. The fit is over the model of `libra.cost.rollout`; where that model is too poor for the data (the
experts of a mixture, the two levels of the engine's prefill floor) the residual says so, and it is stored
with the coefficients.

`oracle_costs` and `grid_cost` made the committed `catalogue/rollout.yaml`; the tests repeat it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls  # pyright: ignore[reportUnknownVariableType, reportMissingTypeStubs]

from libra.cost.hardware import BF16_BYTES, Gpu, Model
from libra.errors import UserError

ATTENTION_EFFICIENCY: Final = 0.63
"""Share of peak that prefill attention reaches: mean of 0.675, 0.638 and 0.584 fitted to the measured H200
grids (vLLM 0.26.0, FLASH_ATTN). The oracle has one prefill length, too few to tell it from the rest."""

FLOOR_S_PER_LAYER: Final = 9.1e-3 / 36
"""A step with prefill runs outside full CUDA graphs: 9.1 ms for 64 to 256 tokens on Qwen3-4B (36 layers)
measured on one H200. Host work grows with layers, and 40 layers at TP 2 took 10.0 ms (this gives 10.1).
Under those engine settings steps of 257 to 1,024 tokens took 19 ms on Qwen3-4B; one floor cannot say that."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """Non-negative coefficients and the relative errors that they leave: predicted / seen - 1."""

    coefficients: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def mean_error(self) -> float:
        """Mean absolute relative error."""
        return float(np.abs(self.errors).mean())


def fit_relative(features: Floats, seconds: Floats, known_s: Floats | None = None) -> Fit:
    """Minimise sum((features @ x + known_s - seconds)^2 / seconds^2) over x >= 0.

    features: (n, k); seconds: (n,), positive; known_s: (n,), the part that is already known.
    Raises `UserError` when there are fewer points than coefficients or a time is not positive.
    """
    if len(seconds) < features.shape[1]:
        raise UserError(f"{len(seconds)} points cannot fix {features.shape[1]} coefficients; measure more")
    if not np.all(seconds > 0):
        raise UserError("a step time is zero, negative or nan; leave that row out of the fit")
    known = np.zeros_like(seconds) if known_s is None else known_s
    rows = features / seconds[:, None]
    scale = rows.max(axis=0)
    scale[scale == 0.0] = 1.0
    solved: tuple[Floats, float] = nnls(rows / scale, 1.0 - known / seconds)  # pyright: ignore[reportUnknownVariableType]
    coefficients = solved[0] / scale
    errors = rows @ coefficients + known / seconds - 1.0
    return Fit(tuple(coefficients.tolist()), tuple(errors.tolist()))


def fit_decode(batch: Sequence[float], context_tokens: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Coefficients (base, per sequence, per context token) of a pure decode step."""
    features = np.column_stack([np.ones(len(batch)), batch, context_tokens]).astype(np.float64)
    return fit_relative(features, np.asarray(seconds, dtype=np.float64))


def fit_prefill(tokens: Sequence[int], seconds: Sequence[float], base_s: float, chunk_tokens: int) -> Fit:
    """Coefficients (per token, per attention pair) of prompts prefilled alone from an empty cache.

    Each chunk of `chunk_tokens` is one step and pays `base_s`; attention pairs over all chunks are n^2 / 2.
    """
    counts = np.asarray(tokens, dtype=np.float64)
    steps = np.array([ceil(n / chunk_tokens) for n in tokens], dtype=np.float64)
    features = np.column_stack([counts, counts * counts / 2])
    return fit_relative(features, np.asarray(seconds, dtype=np.float64), steps * base_s)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One row of `catalogue/rollout.yaml`: coefficients in seconds, residuals, source."""

    gpu: str
    model: str
    tp: int
    decode_base_s: float
    decode_per_seq_s: float
    decode_per_context_token_s: float
    prefill_per_token_s: float
    prefill_per_attention_s: float
    prefill_floor_s: float
    decode_mean_error: float
    prefill_mean_error: float
    source: str


def grid_cost(
    gpu: Gpu,
    model: Model,
    tp: int,
    decode: Sequence[tuple[float, float, float]],
    prefill: Sequence[tuple[int, float]],
    source: str,
    chunk_tokens: int = 2048,
) -> TableEntry:
    """Fit a measured grid: rows (batch, context tokens in all, s) and (prompt tokens, s).

    Prompts shorter than a chunk are left out: they lie on or near the engine's floor.
    """
    fit = fit_decode(*zip(*decode, strict=True))
    long = [row for row in prefill if row[0] >= chunk_tokens]
    fit_long = fit_prefill([n for n, _ in long], [s for _, s in long], fit.coefficients[0], chunk_tokens)
    return _entry(gpu, model, tp, fit, fit_long.coefficients, fit_long.mean_error, source)


def oracle_costs(rows: Sequence[dict[str, str]], gpu: Gpu, model: Model, source: str) -> list[TableEntry]:
    """Fit the rows of one GPU and model of an operator-level table, one entry per TP degree it covers.

    Columns used: tp, mode (`static_gen`, `static_ctx`), ctx, batch, tpot_ms, ttft_ms. The single prefill row
    is met exactly: attention from its FLOPs, the base from the decode fit, the rest per token.
    """
    entries: list[TableEntry] = []
    for tp in sorted({int(row["tp"]) for row in rows}):
        mine = [row for row in rows if int(row["tp"]) == tp]
        gen = [row for row in mine if row["mode"] == "static_gen"]
        ctx = next(row for row in mine if row["mode"] == "static_ctx")
        batch = [float(row["batch"]) for row in gen]
        context = [float(row["batch"]) * float(row["ctx"]) for row in gen]
        fit = fit_decode(batch, context, [float(row["tpot_ms"]) / 1e3 for row in gen])
        attention_s = model.attention_flops / (tp * gpu.peak_bf16_flops * ATTENTION_EFFICIENCY)
        tokens = float(ctx["ctx"])
        rest_s = float(ctx["ttft_ms"]) / 1e3 - fit.coefficients[0] - attention_s * tokens * tokens / 2
        if rest_s <= 0:
            raise UserError(f"{gpu.name} {model.name} tp {tp}: prefill row is below its attention alone")
        entries.append(_entry(gpu, model, tp, fit, (rest_s / tokens, attention_s), 0.0, source))
    return entries


def scale_allreduce(entry: TableEntry, model: Model, slower: Gpu, faster: Gpu, source: str) -> TableEntry:
    """The same GPU with other NVLink: adds the ring all-reduce's extra transfer time.

    Two all-reduces a layer move 2 (tp - 1) / tp * hidden * 2 bytes per token over each link (NCCL's bus
    bandwidth definition). Latency is unchanged, so the base stays.
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


def _rounded(seconds: float) -> float:
    """Five digits: finer than any of the sources."""
    return float(f"{seconds:.5g}")


def _entry(
    gpu: Gpu, model: Model, tp: int, decode: Fit, prefill: Sequence[float], prefill_error: float, source: str
) -> TableEntry:
    base, per_seq, per_context = (_rounded(x) for x in decode.coefficients)
    per_token, per_attention = (_rounded(x) for x in prefill)
    return TableEntry(
        gpu=gpu.name,
        model=model.name,
        tp=tp,
        decode_base_s=base,
        decode_per_seq_s=per_seq,
        decode_per_context_token_s=per_context,
        prefill_per_token_s=per_token,
        prefill_per_attention_s=per_attention,
        prefill_floor_s=_rounded(max(base, model.num_layers * FLOOR_S_PER_LAYER)),
        decode_mean_error=round(decode.mean_error, 4),
        prefill_mean_error=round(prefill_error, 4),
        source=source,
    )


def entry_fields(entry: TableEntry) -> dict[str, Any]:
    """Plain fields of an entry, in the order in which the catalogue holds them."""
    return {name: getattr(entry, name) for name in TableEntry.__dataclass_fields__}
