"""What is in a trace, before a run is built on it.

A trace that cannot be played raises the `UserError` that a run would raise; one that can is summarised, with
every gap that a run would fill listed in `problems`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from libra.errors import UserError
from libra.workloads.csv_table import read_csv
from libra.workloads.describe import describe
from libra.workloads.parquet import RunSource, RunWorkload
from libra.workloads.recorded import RecordedSource, is_recorded_run
from libra.workloads.request_trace import TIME_COLUMNS, RequestTraceSource, RequestTraceWorkload
from libra.workloads.table import Chunk, WorkloadSource
from libra.workloads.turn_table import TurnTableSource, TurnTableWorkload


@dataclass(frozen=True)
class TraceSummary:
    """kind: how a configuration names it. figures: see `describe`. problems: gaps filled, one line each."""

    path: Path
    kind: Literal["turns", "requests", "run"]
    num_trajectories: int
    num_turns: int
    figures: dict[str, Any]
    problems: tuple[str, ...]


def check_trace(path: Path) -> TraceSummary:
    """Read a whole trace: a CSV (kind detected from its columns) or the directory of a run.

    Raises `UserError` for a trace that cannot be played.
    """
    where = Path(path)
    source: TurnTableSource | RequestTraceSource | RunSource | RecordedSource
    problems: list[str] = []
    if where.is_dir():
        if not list(where.glob("**/turns.parquet")):
            raise UserError(f"{where}: a directory without turns.parquet; name a CSV file or a finished run")
        kind: Literal["turns", "requests", "run"] = "run"
        if is_recorded_run(where):
            source = RecordedSource(where)
            problems = source.notes
        else:
            source = RunSource(RunWorkload(path=str(where)), base_dir=Path())
    else:
        kind = _kind(where)
        if kind == "turns":
            turns = TurnTableWorkload(path=str(where), repeat=1)
            source = TurnTableSource(turns, seed=0, n_samples=1, base_dir=Path())
        else:
            source = RequestTraceSource(RequestTraceWorkload(path=str(where)), base_dir=Path())
        problems = source.notes
    figures = describe(drain(source))
    return TraceSummary(
        path=where,
        kind=kind,
        num_trajectories=figures["num_trajectories"],
        num_turns=figures["num_turns"],
        figures=figures,
        problems=tuple(problems),
    )


def drain(source: WorkloadSource) -> list[Chunk]:
    """All chunks that are left in a source."""
    chunks: list[Chunk] = []
    while (chunk := source.next_chunk()) is not None:
        chunks.append(chunk)
    return chunks


def _kind(path: Path) -> Literal["turns", "requests"]:
    table = read_csv(path)
    if table.first_of("trajectory_id", "turn") is not None:
        return "turns"
    if table.first_of(*TIME_COLUMNS) is not None:
        return "requests"
    raise UserError(
        f"{path}, line 1: neither a turn table (trajectory_id, turn, prompt_tokens, output_tokens) nor a "
        f"request trace (t, prompt_tokens, output_tokens); rename the columns ({', '.join(table.columns)})"
    )
