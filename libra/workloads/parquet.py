# pyarrow ships no types: what comes out of it is unknown to the type checker in this file.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Workloads as Parquet: the exogenous columns of a run, written by one world and played by either.

`write_chunks` then `RunSource` gives equal chunks: same values (nan included), same boundaries (a row group a
chunk), same tool names. Columns are named as the fields of `Chunk`. A reader asks for those by name, so a
table may carry more columns. Files hold no times, so equal workloads are equal bytes.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from libra.core.ids import Supply
from libra.errors import UserError
from libra.workloads.table import Chunk, Prefix

TRAJECTORY_COLUMNS = (
    "trajectory_id",
    "group_id",
    "prompt_id",
    "sample_index",
    "group_size",
    "arrival_s",
    "start_latency_s",
    "reward",
    "source_id",
    "prefix",
    "first_turn",
)
TURN_COLUMNS = (
    "prompt_tokens",
    "output_tokens",
    "prefix_tokens",
    "tool",
    "tool_latency_s",
    "tool_status",
    "payload_tokens",
)
_FLOATS = {"arrival_s", "start_latency_s", "reward", "tool_latency_s"}
_METADATA_KEY = b"libra.workload"


@dataclass(frozen=True)
class RunWorkload:
    """The workload of an earlier run. path: its directory, relative to the configuration's directory."""

    kind: Literal["run"] = "run"
    path: str = ""

    def __post_init__(self) -> None:
        """Raise `UserError` for a missing path."""
        if not self.path:
            raise UserError("workload.path: missing; name the directory of a run")


def write_chunks(chunks: Iterable[Chunk], directory: Path, *, supply: Supply = Supply.PULL) -> None:
    """Write `turns.parquet` and `trajectories.parquet` into `directory` (made where absent).

    Both appear whole or not at all. Holds one chunk at a time. Raises `ValueError` where chunks disagree on
    `tool_names`, for those are written once.
    """
    directory.mkdir(parents=True, exist_ok=True)
    finals = [directory / "trajectories.parquet", directory / "turns.parquet"]
    drafts = [path.with_suffix(".parquet.tmp") for path in finals]
    writers: list[Any] = []
    tool_names: tuple[str, ...] | None = None
    try:
        for chunk in chunks:
            if tool_names is None:
                tool_names = chunk.tool_names
                writers = _open(drafts, tool_names, supply)
            elif chunk.tool_names != tool_names:
                raise ValueError("all chunks of a workload must have the same tool_names")
            for writer, columns in zip(writers, (TRAJECTORY_COLUMNS, TURN_COLUMNS), strict=True):
                rows = chunk.num_trajectories if columns is TRAJECTORY_COLUMNS else chunk.num_turns
                writer.write_table(_table(chunk, columns, writer.schema), row_group_size=max(1, rows))
        writers = writers or _open(drafts, (), supply)
        for writer in writers:
            writer.close()
        for draft, final in zip(drafts, finals, strict=True):
            draft.replace(final)
    finally:
        for writer in writers:
            writer.close()
        for draft in drafts:
            draft.unlink(missing_ok=True)


class RunSource:
    """Plays the workload in `path` (or in its `workload` folder) as it was written."""

    def __init__(self, config: RunWorkload, *, base_dir: Path) -> None:
        root = base_dir / config.path
        inner = root / "workload"
        self._directory = inner if inner.is_dir() else root
        self._trajectories = self._file("trajectories.parquet", TRAJECTORY_COLUMNS)
        self._turns = self._file("turns.parquet", TURN_COLUMNS)
        raw = (self._turns.schema_arrow.metadata or {}).get(_METADATA_KEY)
        if raw is None:
            raise UserError(f"{self._directory}/turns.parquet: holds no workload; name a run of this project")
        facts = json.loads(raw)
        self._tool_names = tuple(facts["tool_names"])
        self.supply = Supply(facts["supply"])
        if self._turns.num_row_groups != self._trajectories.num_row_groups:
            raise UserError(
                f"{self._directory}: turns.parquet and trajectories.parquet are of different runs; "
                "copy both from one"
            )
        self._next = 0

    def next_chunk(self) -> Chunk | None:
        """The next chunk as written, or `None` at the end."""
        if self._next == self._turns.num_row_groups:
            return None
        fields: dict[str, Any] = {}
        for file, names in ((self._trajectories, TRAJECTORY_COLUMNS), (self._turns, TURN_COLUMNS)):
            table = file.read_row_group(self._next, columns=list(names))
            for name in names:
                fields[name] = _values(name, table.column(name))
        num_turns = len(fields["prompt_tokens"])
        fields["first_turn"] = np.append(fields["first_turn"], num_turns)
        self._next += 1
        return Chunk(**fields, tool_names=self._tool_names)

    def _file(self, name: str, columns: tuple[str, ...]) -> Any:
        path = self._directory / name
        if not path.is_file():
            raise UserError(f"{path}: no such file; name the directory of a finished run")
        try:
            file = pq.ParquetFile(path)
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path}: not a Parquet file ({reason}); write the run again") from None
        present = set(file.schema_arrow.names)
        for column in columns:
            if column not in present:
                raise UserError(f"{path}, column {column}: missing; the run was not written by this project")
        return file


def _schema(columns: tuple[str, ...], tool_names: tuple[str, ...], supply: Supply) -> Any:
    link = pa.struct([("chain", pa.int64()), ("tokens", pa.int64())])
    types = {"source_id": pa.string(), "prefix": pa.list_(link)}
    fields = [(name, types.get(name, pa.float64() if name in _FLOATS else pa.int64())) for name in columns]
    facts = json.dumps({"supply": supply.value, "tool_names": list(tool_names)}, sort_keys=True)
    return pa.schema(fields, metadata={_METADATA_KEY: facts.encode()})


def _open(paths: list[Path], tool_names: tuple[str, ...], supply: Supply) -> list[Any]:
    schemas = [_schema(columns, tool_names, supply) for columns in (TRAJECTORY_COLUMNS, TURN_COLUMNS)]
    return [
        pq.ParquetWriter(path, schema, compression="zstd")
        for path, schema in zip(paths, schemas, strict=True)
    ]


def _table(chunk: Chunk, columns: tuple[str, ...], schema: Any) -> Any:
    arrays: list[Any] = []
    for name in columns:
        value: Any = getattr(chunk, name)
        if name == "prefix":
            value = [[{"chain": chain, "tokens": n} for chain, n in prefix] for prefix in chunk.prefix]
        elif name == "first_turn":
            value = chunk.first_turn[:-1]
        arrays.append(pa.array(value, type=schema.field(name).type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _values(name: str, column: Any) -> Any:
    if name == "source_id":
        return tuple(column.to_pylist())
    if name == "prefix":
        return tuple(_prefix(links) for links in column.to_pylist())
    return column.to_numpy().copy()


def _prefix(links: list[dict[str, int]]) -> Prefix:
    return tuple((link["chain"], link["tokens"]) for link in links)
