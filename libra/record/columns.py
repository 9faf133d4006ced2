"""Derived rows to columns: numpy arrays and lists named as in `libra.record.schema`.

One conversion for both uses, the Parquet tables and the summary, so a figure cannot depend on how much of
a run was kept. -1 stands for an unknown integer in nullable columns and `None` for an unknown text.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from libra.core.events import Event, TurnFinished
from libra.core.ids import Place
from libra.record.derive import Deriver
from libra.record.extract import Numbers
from libra.record.lives import DoneTurns, FailedRow, Life, StepLife
from libra.record.replica_lives import ReplicaLife, ReplicaUsage
from libra.record.schema import DERIVED

Columns = dict[str, Any]
"""Column name to values, all of one length: int64, float64 or object arrays."""

_EVENT_INTS = [
    "trajectory_id",
    "turn",
    "replica_id",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "recomputed_tokens",
    "num_preemptions",
    "version_first",
    "version_last",
    "version_token_sum",
]
_FINISHED_TIMES = ("submitted_s", "started_s", "first_token_s", "finished_s")
_SUMMARY_INTS = ("prompt_tokens", "output_tokens", "cached_tokens", "recomputed_tokens", "num_preemptions")
SUMMARY_FIELDS = (*_SUMMARY_INTS, *_FINISHED_TIMES)
"""Fields of a finished turn that a summary counts."""

_FAILED = Numbers((*_EVENT_INTS, "submitted_s", "failed_s"), ["int"] * len(_EVENT_INTS) + ["float"] * 2)
_SUMMARY = Numbers(SUMMARY_FIELDS, ["int"] * len(_SUMMARY_INTS) + ["float"] * len(_FINISHED_TIMES))


def _texts(values: Sequence[str | None]) -> Any:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def summary_turns(events: Sequence[Event]) -> Any:
    """The `SUMMARY_FIELDS` of the finished turns among some events, as a structured array."""
    return _SUMMARY.read([event for event in events if type(event) is TurnFinished])


class TurnBuffer:
    """The numbers of finished turns, until their tools have answered and their rows are complete."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._ready_s: list[Any] = []

    def add(self, numbers: Any, ready_s: Any) -> None:
        """Numbers of some `TurnFinished` events, in order (as `RowBuffer.add` gives them), and their ready_s."""
        self._kept.append(numbers)
        self._ready_s.append(ready_s)

    def take(self, deriver: Deriver) -> Columns:
        """Rows of the `turns` table that have become complete."""
        if not self._kept:
            return {}
        done, staying = deriver.take_turns()
        numbers, ready_s = np.concatenate(self._kept), np.concatenate(self._ready_s)
        rest = np.array(staying, dtype=np.int64)
        self._kept, self._ready_s = [numbers[rest]], [ready_s[rest]]
        return _finished_columns(done, numbers, ready_s) if done else {}


def take_failed_turns(deriver: Deriver) -> Columns:
    """Rows of the `turns` table for the attempts that have failed since the last call."""
    failed, deriver.failed = deriver.failed, []
    return _failed_columns(failed) if failed else {}


def joined(parts: Sequence[Columns]) -> Columns:
    """One set of columns out of several, in order; those without rows are left out."""
    parts = [part for part in parts if part]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


_DONE = np.dtype([(name, "<f8" if name.endswith("_s") else "<i8") for name in DoneTurns.FIELDS])


def _finished_columns(done: DoneTurns, kept: Any, ready_s: Any) -> Columns:
    own = np.frombuffer(b"".join(done.numbers), dtype=_DONE)
    numbers = kept[own["number"]]
    columns: Columns = {name: numbers[name] for name in (*_EVENT_INTS, *_FINISHED_TIMES)}
    columns["ready_s"] = ready_s[own["number"]]
    columns |= {name: own[name] for name in DoneTurns.FIELDS[1:]}
    columns["status"] = np.full(len(done), "finished", dtype=object)
    columns["tool_name"], columns["tool_status"] = _texts(done.tool_names), _texts(done.tool_statuses)
    return columns


def _failed_columns(rows: Sequence[FailedRow]) -> Columns:
    turns, seqs, attempts, tps, prefixes, ready_s = zip(*rows, strict=True)
    count = len(rows)
    numbers = _FAILED.read(turns)
    columns: Columns = {name: numbers[name] for name in (*_EVENT_INTS, "submitted_s")}
    own = {"seq": seqs, "attempt": attempts, "tp": tps, "prefix_tokens": prefixes}
    columns |= {name: np.array(values, dtype=np.int64) for name, values in own.items()}
    columns["ready_s"] = np.array(ready_s, dtype=np.float64)
    columns["finished_s"] = numbers["failed_s"]
    columns["started_s"] = columns["first_token_s"] = columns["tool_latency_s"] = np.full(count, np.nan)
    columns["status"] = _texts([turn.kind.value for turn in turns])
    columns["tool_name"] = columns["tool_status"] = np.full(count, None, dtype=object)
    columns["payload_tokens"] = np.full(count, -1, dtype=np.int64)
    return columns


_LIFE_INTS = [
    "num_turns",
    "output_tokens",
    "num_failed_turns",
    "num_preemptions",
    "recomputed_tokens",
    "version_first",
    "version_last",
    "train_step",
]
_ARRIVED_INTS = ["trajectory_id", "group_id", "prompt_id", "sample_index", "group_size", "prompt_tokens"]


_LIFE_FLOATS = ("arrival_s", "requested_s", "started_s", "finished_s", "reward", "version_token_mean")
_LIFE = Numbers(
    (*(f"arrived.{name}" for name in _ARRIVED_INTS), *_LIFE_INTS, *_LIFE_FLOATS),
    ["int"] * (len(_ARRIVED_INTS) + len(_LIFE_INTS)) + ["float"] * len(_LIFE_FLOATS),
)


def trajectory_columns(lives: Sequence[Life]) -> Columns:
    """Rows of the `trajectories` table."""
    numbers = _LIFE.read(lives)
    columns: Columns = {name.removeprefix("arrived."): numbers[name] for name in _LIFE.names}
    columns["start_latency_s"] = columns["started_s"] - columns.pop("requested_s")
    for position, name in enumerate(("staleness_min", "staleness_mean", "staleness_max")):
        columns[name] = np.array([life.staleness[position] for life in lives], dtype=np.float64)
    columns["place"] = _texts([life.place.value for life in lives])
    columns["drop_reason"] = _texts([life.drop_reason for life in lives])
    return columns


def _typed(name: str, rows: Sequence[dict[str, Any]]) -> Columns:
    kinds = {int: np.int64, float: np.float64, str: object}
    return {c.name: np.array([row[c.name] for row in rows], dtype=kinds[c.python]) for c in DERIVED[name]}


def train_step_columns(steps: Iterable[StepLife]) -> Columns:
    """Rows of the `train_steps` table."""
    names = [column.name for column in DERIVED["train_steps"]]
    return _typed("train_steps", [{name: getattr(step, name) for name in names} for step in steps])


def replica_columns(replicas: Iterable[tuple[ReplicaLife, ReplicaUsage | None]]) -> Columns:
    """Rows of the `replicas` table; the engine's own account wins over the derived one."""
    counters = ("num_turns", "output_tokens", "num_preemptions", "recomputed_tokens", "num_loads")
    rows: list[dict[str, Any]] = []
    for replica, usage in replicas:
        busy_s = replica.busy_s if usage is None else usage.busy_s
        paused_s = replica.paused_s if usage is None else usage.paused_s
        row: dict[str, Any] = {name: getattr(replica, name) for name in counters}
        for name in ("replica_id", "tp", "node_id", "kv_capacity_tokens"):
            row[name] = getattr(replica.ready, name)
        row |= {"ready_s": replica.ready_s, "end_s": replica.end_s, "busy_s": busy_s, "paused_s": paused_s}
        there_s, down_s = replica.end_s - replica.ready_s, replica.down_s
        if usage is not None and usage.up_s == usage.up_s:
            down_s = max(0.0, there_s - usage.up_s)
        row["down_s"], row["idle_s"] = down_s, max(0.0, there_s - down_s - busy_s - paused_s)
        row["usage_source"] = "events" if usage is None else "engine"
        row["num_steps"] = 0 if usage is None else usage.num_steps
        rows.append(row)
    return _typed("replicas", rows)


def take_trajectories(deriver: Deriver) -> Columns:
    """The trajectory rows that have become complete since the last call."""
    lives, deriver.trajectories = deriver.trajectories, []
    return trajectory_columns(lives) if lives else {}


FINISHED_PLACES = frozenset({Place.FINISHED.value, Place.TRAINING.value, Place.TRAINED.value})
"""Places of trajectories whose episode is over and was not given up."""
