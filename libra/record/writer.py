# pyarrow ships no types: what comes out of it is unknown to the type checker in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
"""Writes a run directory while the run goes on.

Guarantees: a directory under its final name is complete (everything is written to a sibling and renamed);
the same steps give the same bytes; memory is that of one chunk of steps plus what is in flight. `append` only
collects, so a driver's loop pays about a tenth of a microsecond; the work comes a chunk at a time.
"""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from libra.core.events import TurnFinished
from libra.core.step import Step
from libra.errors import UserError
from libra.record import columns as col
from libra.record.derive import Deriver
from libra.record.manifest import HostInfo, RunInfo, file_sha256, host, manifest, write_json
from libra.record.metrics import SummaryBuilder
from libra.record.replica_lives import ReplicaUsage
from libra.record.rows import RowBuffer, dictionary_array
from libra.record.schema import ACTIONS, DERIVED, EVENTS, Column, derived_schema

Level = Literal["full", "summary"]

CHUNK_STEPS: Final = 50_000
"""Steps per row group: large enough for columns to compress."""

DIGEST_STEPS: Final = 4_000
"""Steps that wait as objects. Few enough to be still in the processor's cache when they are read."""


def derived_batch(name: str, columns: col.Columns) -> Any:
    """A record batch of a derived table; unknown values of nullable columns become null."""
    schema = derived_schema(name)
    arrays = [_array(column, columns[column.name]) for column in DERIVED[name]]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(column: Column, values: Any) -> Any:
    if column.python is str:
        return dictionary_array(values.tolist())
    mask = values < 0 if column.nullable else None
    return pa.array(values, mask=mask, from_pandas=False)


_ENCODINGS: Final = {pa.int64(): "DELTA_BINARY_PACKED", pa.float64(): "BYTE_STREAM_SPLIT"}


class _Table:
    """One Parquet file. Dictionaries only for texts: the numbers hardly repeat.

    Measured on a scripted run's events: 27 bytes a row in 0.48 us, against 34 in 0.58 with plain numbers.
    """

    def __init__(self, path: Path, schema: Any, statistics: list[str]) -> None:
        texts = [field.name for field in schema if pa.types.is_dictionary(field.type)]
        encodings = {field.name: _ENCODINGS[field.type] for field in schema if field.type in _ENCODINGS}
        options: dict[str, Any] = {
            "use_dictionary": texts,
            "column_encoding": encodings,
            "write_statistics": statistics,
        }
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", **options)
        self.num_rows = 0

    def write(self, batch: Any) -> None:
        """Append a row group."""
        self._writer.write_batch(batch)
        self.num_rows += batch.num_rows

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


class RunWriter:
    """Records one run into `directory`; use as a context manager.

    Leaving the block without `close`, by an exception or not, removes what was written. level: `full` has
    all tables, `summary` only `manifest.json`, `host.json` and `summary.json`. training: whether a trainer
    consumes trajectories (if not, they are written and forgotten as they finish). `UserError` when the
    directory exists (unless `overwrite`) or cannot be made.
    """

    def __init__(
        self,
        directory: Path,
        level: Level = "full",
        *,
        training: bool = True,
        overwrite: bool = False,
        chunk_steps: int = CHUNK_STEPS,
    ) -> None:
        self._final = directory
        self._partial = directory.with_name(f".{directory.name}.partial")
        self._level: Level = level
        self._overwrite = overwrite
        self._chunk_steps = chunk_steps
        self._steps: list[Step] = []
        self._num_events = self._num_actions = 0
        self._events, self._actions = RowBuffer(EVENTS), RowBuffer(ACTIONS)
        self._turns = col.TurnBuffer()
        self._failed: list[col.Columns] = []
        self._trajectories: list[col.Columns] = []
        self._deriver = Deriver(training, keep_turns=level == "full")
        self._summary = SummaryBuilder()
        self._tables: dict[str, _Table] = {}
        self._open = True
        if directory.exists() and not overwrite:
            raise UserError(f"{directory}: exists already; remove it or give another directory")
        try:
            if self._partial.exists():
                shutil.rmtree(self._partial)
            self._partial.mkdir(parents=True)
        except OSError as error:
            raise UserError(
                f"{directory}: cannot be made ({error.strerror}); give a writable place"
            ) from error
        if level == "full":
            self._tables["events"] = _Table(self._partial / "events.parquet", EVENTS, ["seq", "t_s"])
            self._tables["actions"] = _Table(self._partial / "actions.parquet", ACTIONS, ["action_id", "t_s"])
            for name in DERIVED:
                self._tables[name] = _Table(self._partial / f"{name}.parquet", derived_schema(name), [])

    def append(self, step: Step) -> None:
        """Record a step. Steps come in order."""
        steps = self._steps
        steps.append(step)
        if len(steps) >= DIGEST_STEPS:
            self._digest()

    def _digest(self) -> None:
        """Read what is needed of the steps at hand and let go of them."""
        steps, self._steps = self._steps, []
        if not steps:
            return
        events = [step.event for step in steps]
        self._num_events += len(steps)
        self._deriver.feed(steps)
        ready_s = np.frombuffer(self._deriver.take_ready_s())
        if self._level == "summary":
            self._num_actions += sum([len(step.actions) for step in steps])
            self._summary.add_finished_turns(col.summary_turns(events), ready_s)
        else:
            seqs = np.array([step.seq for step in steps], np.int64)
            times = np.array([step.now_s for step in steps], np.float64)
            finished = self._events.add((seqs, times), events).get(TurnFinished)
            if finished is not None:
                self._turns.add(finished, ready_s)
                self._summary.add_finished_turns(finished, ready_s)
            self._digest_actions(steps)
        self._take_rows()
        if self._events.num_rows >= self._chunk_steps:
            self._write_chunk()

    def _digest_actions(self, steps: list[Step]) -> None:
        busy = [step for step in steps if step.actions]
        sizes = np.array([len(step.actions) for step in busy], np.int64)
        actions = [action for step in busy for action in step.actions]
        first = np.repeat(np.array([step.first_action_id for step in busy], np.int64), sizes)
        # Position inside the step: counts up from the step's own start.
        offset = np.arange(len(actions), dtype=np.int64) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        causes = np.repeat(np.array([step.seq for step in busy], np.int64), sizes)
        times = np.repeat(np.array([step.now_s for step in busy], np.float64), sizes)
        self._actions.add((first + offset, causes, times), actions)
        self._num_actions += len(actions)

    def _take_rows(self) -> None:
        """Count rows that are complete, and keep them for the tables where there are tables."""
        full = self._level == "full"
        failed = col.take_failed_turns(self._deriver)
        if failed:
            self._summary.add_failed_turns(failed)
            if full:
                self._failed.append(failed)
        trajectories = col.take_trajectories(self._deriver)
        if trajectories:
            self._summary.add_trajectories(trajectories)
            if full:
                self._trajectories.append(trajectories)

    def _write_chunk(self) -> None:
        """Make row groups of all that was kept."""
        for name, buffer in (("events", self._events), ("actions", self._actions)):
            if buffer.num_rows:
                self._tables[name].write(buffer.take())
        turns = col.joined([self._turns.take(self._deriver), *self._failed])
        trajectories = col.joined(self._trajectories)
        self._failed, self._trajectories = [], []
        for name, columns in (("turns", turns), ("trajectories", trajectories)):
            if columns:
                self._tables[name].write(derived_batch(name, columns))

    def close(
        self,
        info: RunInfo,
        host_info: HostInfo | None = None,
        usage: Mapping[int, ReplicaUsage] | None = None,
    ) -> dict[str, float]:
        """Write what is left, give the directory its name and return the summary.

        usage: the engines' own account of their time, by replica id.
        """
        self._digest()
        replicas = col.replica_columns(self._deriver.end(usage or {}))
        self._take_rows()
        train_steps = col.train_step_columns(self._deriver.steps.values())
        self._summary.add_train_steps(train_steps)
        self._summary.add_replicas(replicas)
        if self._level == "full":
            self._write_chunk()
            self._tables["train_steps"].write(derived_batch("train_steps", train_steps))
            self._tables["replicas"].write(derived_batch("replicas", replicas))
        figures = self._summary.result(self._deriver.now_s)
        counts = {"events": self._num_events, "actions": self._num_actions}
        for table in self._tables.values():
            table.close()
        counts |= {name: table.num_rows for name, table in self._tables.items()}
        files = {f"{name}.parquet": file_sha256(self._partial / f"{name}.parquet") for name in self._tables}
        horizon_s = self._deriver.now_s
        written = manifest(info, level=self._level, horizon_s=horizon_s, counts=counts, files=files)
        write_json(self._partial / "manifest.json", written)
        write_json(self._partial / "host.json", host(host_info or HostInfo()))
        write_json(self._partial / "summary.json", figures)
        if self._overwrite and self._final.exists():
            shutil.rmtree(self._final)
        self._partial.rename(self._final)
        self._open = False
        return figures

    def abort(self) -> None:
        """Remove what was written. Does nothing after `close`."""
        if self._open:
            self._open = False
            self._steps = []
            for table in self._tables.values():
                with suppress(OSError):
                    table.close()
            shutil.rmtree(self._partial, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
