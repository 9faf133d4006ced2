# pandas ships no types: what comes out of it is unknown to the type checker in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
"""One run as a trace for ui.perfetto.dev or chrome://tracing.

Follows the JSON object form of Google's Trace Event Format: complete events (`X`) for what one track does
alone, async pairs (`b`, `e`) for the turns of a replica, which overlap, counters (`C`) for running turns, and
metadata (`M`) for names. Times are microseconds. Events are sorted by time, so equal runs give equal files.
"""

import json
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any, Final

import pandas as pd

from libra.record.frames import Frame, Tables

TRAINER_PID: Final = 1
FIRST_REPLICA_PID: Final = 10

Entry = dict[str, Any]
_ENDS_FIRST: Final = {"M": 0, "e": 1, "C": 3}
"""At the same time an interval ends before the next begins, and a counter shows the outcome."""


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _span(name: str, pid: int, tid: int, start_s: float, end_s: float, args: Entry) -> Iterator[Entry]:
    if not (isnan(start_s) or isnan(end_s)):
        yield {
            "ph": "X",
            "cat": "trainer",
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": _us(start_s),
            "dur": max(0.0, _us(end_s) - _us(start_s)),
            "args": args,
        }


def _name(pid: int, name: str, order: int) -> Iterator[Entry]:
    for kind, args in (("process_name", {"name": name}), ("process_sort_index", {"sort_index": order})):
        yield {"ph": "M", "name": kind, "pid": pid, "tid": 0, "ts": 0.0, "args": args}


def _turns(turns: Frame) -> Iterator[Entry]:
    columns = ["trajectory_id", "turn", "attempt", "replica_id", "prompt_tokens", "output_tokens"]
    columns += ["cached_tokens", "submitted_s", "finished_s", "status"]
    for number, row in enumerate(turns[columns].itertuples(index=False)):
        shared = {
            "cat": "turn",
            "name": f"trajectory {row.trajectory_id} turn {row.turn}",
            "id": str(number),
            "pid": FIRST_REPLICA_PID + int(row.replica_id),
            "tid": 1,
        }
        args: Entry = {
            name: int(getattr(row, name))
            for name in ("attempt", "prompt_tokens", "output_tokens", "cached_tokens")
        }
        yield {**shared, "ph": "b", "ts": _us(row.submitted_s), "args": {**args, "status": str(row.status)}}
        yield {**shared, "ph": "e", "ts": _us(row.finished_s)}


def _running(turns: Frame) -> Iterator[Entry]:
    for replica_id, group in turns.groupby("replica_id"):
        changes: Frame = pd.concat(
            [pd.Series(1, index=group["submitted_s"]), pd.Series(-1, index=group["finished_s"])]
        )
        levels = changes.groupby(level=0).sum().sort_index().cumsum()
        for time_s, level in levels.items():
            yield {
                "ph": "C",
                "name": "turns on the replica",
                "pid": FIRST_REPLICA_PID + int(replica_id),
                "tid": 0,
                "ts": _us(time_s),
                "args": {"turns": int(level)},
            }


def _trainer(steps: Frame) -> Iterator[Entry]:
    for row in steps.itertuples(index=False):
        args = {"version": int(row.version), "num_tokens": int(row.num_tokens)}
        title = f"step {row.version}"
        yield from _span(title, TRAINER_PID, 1, row.started_s, row.finished_s, args)
        published = f"publish {row.version}"
        yield from _span(published, TRAINER_PID, 2, row.publish_started_s, row.publish_finished_s, args)


def _loads(events: Frame) -> Iterator[Entry]:
    loads = events[events["type"] == "WeightsLoaded"]
    for row in loads[["replica_id", "version", "started_s", "finished_s"]].itertuples(index=False):
        pid = FIRST_REPLICA_PID + int(row.replica_id)
        yield from _span(
            f"load {row.version}", pid, 2, row.started_s, row.finished_s, {"version": int(row.version)}
        )


def trace(tables: Tables, events: Frame) -> dict[str, Any]:
    """The trace object of a run: one process per replica, one for the trainer.

    `events` (the wide table) gives the weight loads of each replica, which no derived table holds singly.
    """
    entries = list(_name(TRAINER_PID, "trainer", 0))
    for row in tables.replicas.itertuples(index=False):
        pid = FIRST_REPLICA_PID + int(row.replica_id)
        entries += _name(pid, f"replica {row.replica_id} (TP {row.tp}, node {row.node_id})", pid)
    entries += _trainer(tables.train_steps)
    entries += _loads(events)
    entries += _turns(tables.turns)
    entries += _running(tables.turns)
    entries.sort(key=lambda entry: (entry["ts"], _ENDS_FIRST.get(entry["ph"], 2)))
    return {"displayTimeUnit": "ms", "traceEvents": entries}


def write_trace(tables: Tables, events: Frame, path: Path) -> None:
    """Write `trace` as JSON."""
    path.write_text(json.dumps(trace(tables, events), allow_nan=False) + "\n", encoding="utf-8")
