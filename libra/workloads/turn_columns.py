"""The turns of a turn table: checked, in order, with what is missing filled in and counted.

See `libra.workloads.turn_table` for the rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from libra.workloads.csv_table import CsvTable
from libra.workloads.preset import NO_TOOL
from libra.workloads.table import TOOL_STATUS_CODES, Floats, Ints

_SUCCESS, _FAILURE, _TIMEOUT = (TOOL_STATUS_CODES.index(name) for name in ("success", "failure", "timeout"))
_ROUNDING_TOKENS = 2
"""Three counts estimated as characters / 4 and rounded each are together at most this far off."""


@dataclass(frozen=True)
class TurnColumns:
    """All turns, trajectory by trajectory in order of first appearance, turns in order.

    names [n]: trajectory ids of the file. first_turn [n + 1]. rows [m]: row of the file that each turn came
    from. The other columns [m] are those of `Chunk`; `prefix_tokens` of first turns is 0. filled: how often
    each rule was used.
    """

    names: tuple[str, ...]
    first_turn: Ints
    rows: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    prefix_tokens: Ints
    tool: Ints
    tool_latency_s: Floats
    tool_status: Ints
    payload_tokens: Ints
    tool_names: tuple[str, ...]
    notes: tuple[str, ...]


def read_columns(table: CsvTable, *, tool_timeout_s: float | None) -> TurnColumns:
    """Turns of `table`. Raises `UserError` for a cell, a duplicate or a hole that no rule covers."""
    table.require("trajectory_id", "turn", "prompt_tokens", "output_tokens")
    names, first_turn, rows = _order(table)
    notes: list[str] = []
    prompt = table.ints("prompt_tokens", minimum=1)[rows]
    output = table.ints("output_tokens")[rows]
    _note(notes, int((output == 0).sum()), "turns with 0 output tokens count as 1")
    output = np.maximum(output, 1)
    starts = first_turn[:-1]
    is_first = np.zeros(len(rows), dtype=np.bool_)
    is_first[starts] = True
    tool_column = table.first_of("tool_name", "tool_class", "tool")
    tool_names, tool = ("tool",), np.zeros(len(rows), dtype=np.int64)
    if tool_column is not None:
        tool_names, tool = _codes(table.columns[tool_column], rows)
    latency = _optional(table, "tool_latency_s", rows)
    _note(notes, int(np.isnan(latency).sum()), "turns without tool_latency_s: 0 s")
    return TurnColumns(
        names=names,
        first_turn=first_turn,
        rows=rows,
        prompt_tokens=prompt,
        output_tokens=output,
        prefix_tokens=_prefixes(prompt, output, first_turn, is_first, notes),
        tool=tool,
        tool_latency_s=np.nan_to_num(latency, nan=0.0),
        tool_status=_statuses(table, rows, latency, tool_timeout_s, notes),
        payload_tokens=_payloads(table, rows, prompt, output, is_first, notes),
        tool_names=tool_names,
        notes=tuple(notes),
    )


def _order(table: CsvTable) -> tuple[tuple[str, ...], Ints, Ints]:
    """Trajectory names, first turns, and file rows sorted by trajectory and turn."""
    names, owner = _codes(table.text("trajectory_id"), np.arange(table.num_rows))
    turn = table.ints("turn")
    rows = np.lexsort((turn, owner))
    owner, turn = owner[rows], turn[rows]
    first_turn = np.searchsorted(owner, np.arange(len(names) + 1))
    same = np.diff(owner) == 0
    repeated = np.flatnonzero(same & (np.diff(turn) == 0))
    if len(repeated):
        row, before = int(rows[repeated[0] + 1]), int(rows[repeated[0]])
        raise table.error(
            row,
            "turn",
            f"trajectory {names[owner[repeated[0]]]} has turn {turn[repeated[0]]} already on line "
            f"{table.lines[before]}; remove or renumber one",
        )
    base = int(turn.min())
    if base > 1:
        row = int(rows[np.argmin(turn)])
        raise table.error(row, "turn", f"the lowest turn is {base}; number turns from 0 (or from 1)")
    expected = np.arange(len(rows)) - first_turn[owner] + base
    holes = np.flatnonzero(turn != expected)
    if len(holes):
        at = int(holes[0])
        raise table.error(
            int(rows[at]),
            "turn",
            f"trajectory {names[owner[at]]} has no turn {expected[at]} before turn {turn[at]}; "
            "add the missing turn or renumber",
        )
    return names, first_turn.astype(np.int64), rows


def _prefixes(
    prompt: Ints, output: Ints, first_turn: Ints, is_first: npt.NDArray[np.bool_], notes: list[str]
) -> Ints:
    """Leading tokens shared with the context of the previous turn (0 for first turns)."""
    previous = np.concatenate([[0], prompt[:-1]])
    context = np.concatenate([[0], (prompt + output)[:-1]])
    opening = np.repeat(prompt[first_turn[:-1]], np.diff(first_turn))
    missing = context - prompt
    rewritten = ~is_first & (missing > _ROUNDING_TOKENS)
    dropped = rewritten & (prompt >= previous)
    prefix = np.minimum(context, prompt)
    prefix[dropped] = previous[dropped]
    compacted = rewritten & ~dropped
    prefix[compacted] = np.minimum(opening, prompt)[compacted]
    prefix[is_first] = 0
    _note(
        notes, int(dropped.sum()), "turns whose prompt leaves out the output before: previous prompt shared"
    )
    _note(notes, int(compacted.sum()), "turns whose prompt was compacted: first prompt shared")
    return prefix


def _statuses(
    table: CsvTable, rows: Ints, latency: Floats, tool_timeout_s: float | None, notes: list[str]
) -> Ints:
    ok = table.flags("tool_ok")[rows] if "tool_ok" in table.columns else np.full(len(rows), np.nan)
    _note(notes, int(np.isnan(ok).sum()), "turns without tool_ok: success")
    status = np.where(ok == 0.0, _FAILURE, _SUCCESS)
    marked = np.zeros(len(rows), dtype=np.bool_)
    if "timeout" in table.columns:
        marked |= table.flags("timeout")[rows] == 1.0
    if "tool_timeout_s" in table.columns:
        limit = table.floats("tool_timeout_s", required=False)[rows]
        marked |= (limit > 0) & (latency >= limit)
    if tool_timeout_s is not None:
        marked |= latency >= tool_timeout_s
    return np.where(marked, _TIMEOUT, status).astype(np.int64)


def _payloads(
    table: CsvTable,
    rows: Ints,
    prompt: Ints,
    output: Ints,
    is_first: npt.NDArray[np.bool_],
    notes: list[str],
) -> Ints:
    """Recorded payload tokens (characters / 4), else the growth of the next prompt (0 after a last turn)."""
    growth = np.concatenate([prompt[1:] - (prompt + output)[:-1], [0]])
    growth[:-1][is_first[1:]] = 0
    grown = np.maximum(growth, 0).astype(np.float64)
    recorded = np.full(len(rows), np.nan)
    if "payload_tokens" in table.columns:
        recorded = _optional(table, "payload_tokens", rows)
    elif "payload_chars" in table.columns:
        recorded = np.floor(_optional(table, "payload_chars", rows) / 4 + 0.5)
    missing = np.isnan(recorded)
    _note(notes, int(missing.sum()), "turns without payload: growth of the next prompt")
    return np.rint(np.where(missing, grown, recorded)).astype(np.int64)


def _optional(table: CsvTable, name: str, rows: Ints) -> Floats:
    if name not in table.columns:
        return np.full(len(rows), np.nan)
    return table.floats(name, required=False)[rows]


def _codes(cells: Sequence[str], rows: Ints) -> tuple[tuple[str, ...], Ints]:
    """Distinct texts in order of first appearance in the file (empty: "none"), and the index of each row's."""
    index: dict[str, int] = {}
    codes = np.array([index.setdefault(cell or NO_TOOL, len(index)) for cell in cells], dtype=np.int64)
    return tuple(index), codes[rows]


def _note(notes: list[str], count: int, what: str) -> None:
    if count:
        notes.append(f"{count} {what}")
