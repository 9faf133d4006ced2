"""Readers of recorded traces: multi-turn trajectories in a closed loop, and single requests in an open one.

Both give the same `Trace`, whose turns are sorted by trajectory (in the order of first submission) and turn. A trace
with holes, or with times that run backwards, is refused: its waits would be made up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from libra.cost.points import TRACE_COLUMNS
from libra.errors import UserError
from libra.workloads.csv_table import CsvTable, read_csv
from libra.workloads.table import Floats, Ints

REQUEST_COLUMNS = ("prompt_tokens", "output_tokens", "queued_s", "first_token_s", "last_token_s")
_CLOCK_SLACK_S = 0.001
"""Times are recorded to five decimals by different tasks of a client: backwards by less than this is rounding."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Turns of one engine; arrays of one entry a turn.

    first_turn [n + 1]: where each of the n trajectories begins. cached_tokens: found in the prefix cache, -1 where
    not recorded. ttft_s and latency_s count from `submit_s` to the first token and to the last. wait_s: what the
    client waited after the turn before it went on (its tool, and its own delay). open_loop: trajectories are
    submitted at their `submit_s` whatever the engine does; else as soon as one of the client's slots is free.
    """

    path: Path
    first_turn: Ints
    submit_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    ttft_s: Floats
    latency_s: Floats
    wait_s: Floats
    open_loop: bool

    @property
    def num_trajectories(self) -> int:
        """Number of trajectories."""
        return len(self.first_turn) - 1

    @property
    def end_s(self) -> Floats:
        """When each turn ended."""
        return self.submit_s + self.latency_s


def read_turn_trace(path: Path) -> Trace:
    """Multi-turn trajectories with the columns `TRACE_COLUMNS`. Raises UserError.

    The wait after a turn is the time from its end to the next submission: tool and client as they were. After a
    trajectory's last turn it is the tool's latency and the median of what the client added elsewhere.
    """
    table = read_csv(path)
    table.require(*TRACE_COLUMNS)
    names, turn = table.text("trajectory_id"), table.ints("turn")
    submit = table.floats("submit_s", required=True)
    order, first_turn = _order(table, names, turn, submit)
    latency = _after(table, "latency_s", table.floats("ttft_s", required=True), "ttft_s")[order]
    tool = table.floats("tool_latency_s", required=True)[order]
    submit = submit[order]
    wait = np.full(len(order), np.nan)
    wait[:-1] = submit[1:] - (submit + latency)[:-1]
    last = first_turn[1:] - 1
    wait[last] = np.nan
    early = wait < -_CLOCK_SLACK_S
    if early.any():
        row = int(order[int(np.argmax(early)) + 1])
        raise table.error(
            row, "submit_s", "before the end of the trajectory's turn before it; correct the times"
        )
    own = np.nanmedian(wait - tool) if np.isfinite(wait).any() else 0.0
    wait[last] = tool[last] + max(0.0, float(own))
    return Trace(
        path=path,
        first_turn=first_turn,
        submit_s=submit,
        prompt_tokens=table.ints("prompt_tokens", minimum=1)[order],
        output_tokens=table.ints("output_tokens", minimum=1)[order],
        cached_tokens=table.ints("cached_tokens")[order],
        ttft_s=table.floats("ttft_s", required=True)[order],
        latency_s=latency,
        wait_s=np.maximum(wait, 0.0),
        open_loop=False,
    )


def read_request_log(path: Path, gpu: str, model: str, tp: int) -> Trace:
    """Single requests with the columns `REQUEST_COLUMNS`; those of one engine where the log holds several.

    Optional columns `hw`, `model` and `tp` say whose a row is. `queued_s` is the submission. Raises UserError.
    """
    table = read_csv(path)
    table.require(*REQUEST_COLUMNS)
    chosen = np.ones(table.num_rows, dtype=np.bool_)
    for column, wanted in (("hw", gpu), ("model", model), ("tp", str(tp))):
        if column in table.columns:
            cells = table.text(column)
            chosen &= np.array([cell == wanted for cell in cells])
    if not chosen.any():
        engines = sorted({_engine_of(table, row) for row in range(table.num_rows)})
        raise UserError(f"{path}: no request of {model} on {gpu} at tp {tp}; it holds {', '.join(engines)}")
    submit = table.floats("queued_s", required=True)
    first = _after(table, "first_token_s", submit, "queued_s")
    last = _after(table, "last_token_s", first, "first_token_s")
    rows = np.flatnonzero(chosen)
    backwards = np.diff(submit[rows]) < 0
    if backwards.any():
        row = int(rows[int(np.argmax(backwards)) + 1])
        raise table.error(row, "queued_s", "earlier than the request before it; sort the log by queued_s")
    count = len(rows)
    return Trace(
        path=path,
        first_turn=np.arange(count + 1),
        submit_s=submit[rows],
        prompt_tokens=table.ints("prompt_tokens", minimum=1)[rows],
        output_tokens=table.ints("output_tokens", minimum=1)[rows],
        cached_tokens=np.full(count, -1),
        ttft_s=(first - submit)[rows],
        latency_s=(last - submit)[rows],
        wait_s=np.zeros(count),
        open_loop=True,
    )


def _order(table: CsvTable, names: Sequence[str], turn: Ints, submit_s: Floats) -> tuple[Ints, Ints]:
    """Rows by (first submission of their trajectory, turn), and where trajectories begin."""
    starts: dict[str, float] = {}
    for name, at in zip(names, submit_s.tolist(), strict=True):
        starts[name] = min(at, starts.get(name, at))
    rank = {name: place for place, name in enumerate(sorted(starts, key=lambda name: (starts[name], name)))}
    places = np.array([rank[name] for name in names])
    order = np.lexsort((turn, places))
    counts = np.bincount(places)
    first_turn = np.concatenate([[0], np.cumsum(counts)])
    expected = np.arange(len(order)) - np.repeat(first_turn[:-1], counts)
    wrong = turn[order] != expected
    if wrong.any():
        at = int(np.argmax(wrong))
        row = int(order[at])
        raise table.error(
            row,
            "turn",
            f"{turn[row]} where turn {expected[at]} of {names[row]!r} belongs; the trace has a hole or a double",
        )
    return order, first_turn


def _after(table: CsvTable, name: str, earlier: Floats, earlier_name: str) -> Floats:
    """A column of times that are not before those of another."""
    values = table.floats(name, required=True)
    wrong = values < earlier - 1e-9
    if wrong.any():
        row = int(np.argmax(wrong))
        raise table.error(
            row, name, f"{values[row]:g} is before {earlier_name} {earlier[row]:g}; correct the times"
        )
    return values


def _engine_of(table: CsvTable, row: int) -> str:
    cells = {name: table.columns[name][row] for name in ("model", "hw", "tp") if name in table.columns}
    return f"{cells.get('model', '?')} on {cells.get('hw', '?')} at tp {cells.get('tp', '?')}"
