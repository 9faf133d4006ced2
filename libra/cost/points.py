"""Measured points that rollout coefficients are fitted to, and the two CSV forms that hold them.

grid: kind, batch, prompt_tokens, output_tokens, value_s, aux1: `prefill` rows are the time to first token of one
prompt on an idle engine (value_s the median, aux1 the least), `decode` rows the steady seconds per output token of
`batch` equal requests (value_s; -1 where the batch never ran whole: the row is left out). mixed: kind, batch,
context_tokens, param, value_s: `prefill_alone` as prefill (param tokens), `decode` rows with param output tokens,
`mixed` rows the mean step time while `batch` requests decode at `context_tokens` and single prefills of `param`
tokens follow one another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from libra.errors import UserError
from libra.workloads.csv_table import CsvTable, read_csv

GRID_COLUMNS: Final = ("kind", "batch", "prompt_tokens", "output_tokens", "value_s", "aux1")
MIXED_COLUMNS: Final = ("kind", "batch", "context_tokens", "param", "value_s")
TRACE_COLUMNS: Final = (
    "trajectory_id",
    "turn",
    "submit_s",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "ttft_s",
    "latency_s",
    "tool_latency_s",
)
"""Of a recorded multi-turn trace: what `benchmarks.gpu` writes and `sim.traces` reads."""
NOISY_SHARE: Final = 1.15
"""A prefill whose median lies further than this above its least run was disturbed: its least run counts."""

UNMEASURED_S: Final = -1.0
"""What stands for a time that was not measured: such a row is left out."""


@dataclass(frozen=True, slots=True)
class Points:
    """decode: (batch, context tokens in all, s). prefill: (prompt tokens, s). mixed: (batch, context tokens of each,
    prefill tokens, s).
    """

    decode: list[tuple[int, float, float]] = field(default_factory=list[tuple[int, float, float]])
    prefill: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    mixed: list[tuple[int, int, int, float]] = field(default_factory=list[tuple[int, int, int, float]])

    def __add__(self, other: "Points") -> "Points":
        return Points(self.decode + other.decode, self.prefill + other.prefill, self.mixed + other.mixed)


def kind_of(columns: Mapping[str, Sequence[str]]) -> str:
    """`grid`, `mixed` or `other`, by the columns."""
    if set(GRID_COLUMNS) <= set(columns):
        return "grid"
    return "mixed" if set(MIXED_COLUMNS) <= set(columns) else "other"


def read_points(path: Path) -> Points:
    """Points of a file of either form. Raises UserError for anything else."""
    table = read_csv(path)
    kind = kind_of(table.columns)
    if kind == "other":
        raise UserError(
            f"{path}, line 1: neither a grid ({', '.join(GRID_COLUMNS)}) nor a mixed table "
            f"({', '.join(MIXED_COLUMNS)}); rename the columns"
        )
    return _grid(table) if kind == "grid" else _mixed(table)


def _grid(table: CsvTable) -> Points:
    _check_kinds(table, ("decode", "prefill", "prefill_batch"))
    kinds = table.text("kind")
    batch, prompt = table.ints("batch", minimum=1), table.ints("prompt_tokens", minimum=1)
    output = table.ints("output_tokens", minimum=1)
    value = table.floats("value_s", required=True, minimum=UNMEASURED_S)
    least = table.floats("aux1", required=False, minimum=UNMEASURED_S)
    points = Points()
    for row, kind in enumerate(kinds):
        count, tokens, seconds = int(batch[row]), int(prompt[row]), float(value[row])
        if not _is_measured(table, row, seconds):
            continue
        if kind == "decode":
            # Contexts grow while the tokens come: the mean is the prompt and half of them.
            points.decode.append((count, count * (tokens + float(output[row]) / 2), seconds))
        elif kind == "prefill":
            low = float(least[row])
            points.prefill.append((tokens, low if low > 0 and seconds > NOISY_SHARE * low else seconds))
    return points


def _check_kinds(table: CsvTable, known: tuple[str, ...]) -> None:
    """UserError at the first row whose kind is none of these (or begins with one that ends in `_`)."""
    for row, kind in enumerate(table.text("kind")):
        if not any(kind == each or (each.endswith("_") and kind.startswith(each)) for each in known):
            raise table.error(
                row, "kind", f"{kind!r} is none of {', '.join(known)}; correct it or remove the row"
            )


def _is_measured(table: CsvTable, row: int, seconds: float) -> bool:
    """Whether a row holds a time; UserError for what is neither a time nor `UNMEASURED_S`."""
    if seconds > 0:
        return True
    if seconds == UNMEASURED_S:
        return False
    raise table.error(row, "value_s", f"{seconds:g} is no time; give seconds above 0, or -1 for not measured")


def _mixed(table: CsvTable) -> Points:
    _check_kinds(table, ("decode", "prefill_alone", "mixed", "warm_prefix_"))
    kinds = table.text("kind")
    batch, param = table.ints("batch", minimum=1), table.ints("param")
    context = table.floats("context_tokens", required=True)
    value = table.floats("value_s", required=True, minimum=UNMEASURED_S)
    points = Points()
    for row, kind in enumerate(kinds):
        count, tokens, each, seconds = (
            int(batch[row]),
            int(param[row]),
            float(context[row]),
            float(value[row]),
        )
        if not _is_measured(table, row, seconds):
            continue
        if kind == "decode":
            points.decode.append((count, count * (each + tokens / 2), seconds))
        elif kind == "prefill_alone":
            points.prefill.append((tokens, seconds))
        elif kind == "mixed" and tokens:
            points.mixed.append((count, round(each), tokens, seconds))
        elif kind == "mixed":
            points.decode.append((count, count * each, seconds))
    return points
