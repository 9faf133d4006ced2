# pyarrow and pandas ship no types: what comes out of them is unknown to the type checker in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
"""Reads a run directory: lazy tables as pandas frames, exact steps for a replay.

Guarantees that a directory of another schema version, an incomplete one or a damaged file is a `UserError`
that names the file, and never a frame with columns that mean something else.
"""

import json
from collections.abc import Iterator
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from libra.core.actions import Action
from libra.core.events import Event
from libra.core.ids import ActionId, EventSeq
from libra.core.step import Step
from libra.errors import UserError
from libra.record.manifest import config_sha256, file_sha256
from libra.record.rows import actions_to_rows, events_to_rows, rows_to_actions, rows_to_events
from libra.record.schema import ACTIONS, DERIVED, EVENTS, SCHEMA_VERSION, derived_schema

_NULLABLE = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}


REQUIRED_KEYS: Final = (
    "level",
    "config",
    "config_sha256",
    "policies",
    "files",
    "counts",
    "exit_reason",
    "horizon_s",
)
"""What the reader itself takes from a manifest."""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: missing; give a run directory that the recorder has finished") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged ({error}); run it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds no object; run it again")
    return content


class Run:
    """A finished run. Tables are read when first asked for and then kept."""

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.directory = directory
        self.manifest = manifest

    @classmethod
    def open(cls, directory: Path | str) -> "Run":
        """Check the manifest and open the directory; `UserError` if it is no run of this schema version."""
        path = Path(directory)
        if not path.is_dir():
            raise UserError(f"{path}: no such directory; give the directory of a run")
        manifest = _read_json(path / "manifest.json")
        version = manifest.get("schema_version")
        missing = [key for key in REQUIRED_KEYS if key not in manifest]
        if version == SCHEMA_VERSION and missing:
            raise UserError(f"{path / 'manifest.json'}: lacks {missing[0]!r}; run it again")
        if version != SCHEMA_VERSION:
            raise UserError(
                f"{path / 'manifest.json'}: schema_version {version}, this program reads {SCHEMA_VERSION}; "
                "run it again or use the program that wrote it"
            )
        return cls(path, manifest)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration that the run was made with."""
        return self.manifest["config"]

    @property
    def policies(self) -> dict[str, str]:
        """Source hash of each policy, by role."""
        return self.manifest["policies"]

    @property
    def end_s(self) -> float:
        """When the run ended, in seconds since its start."""
        return float(self.manifest["horizon_s"])

    def verify(self) -> str:
        """Empty if configuration and tables are as they were written, else what was changed, in one line."""
        if config_sha256(self.config) != self.manifest["config_sha256"]:
            return f"{self.directory / 'manifest.json'}: the configuration was changed after the run"
        for name, digest in self.manifest["files"].items():
            path = self.directory / name
            if not path.is_file():
                return f"{path}: missing"
            if file_sha256(path) != digest:
                return self._changed_row() or f"{path}: was changed after the run"
        return ""

    def _changed_row(self) -> str:
        """The first row of events or actions that is not as it was written, in one line, or nothing."""
        events, actions = self._parquet("events", EVENTS), self._parquet("actions", ACTIONS)
        expected = 0
        for batch in events.iter_batches():
            rows = rows_to_events(batch)
            again = events_to_rows(*zip(*rows, strict=True)).column("digest")
            for (seq, _, _), old, new in zip(rows, batch.column("digest"), again, strict=True):
                if seq != expected:
                    return f"seq {expected}: the event is missing or out of its place"
                if old != new:
                    return f"seq {seq}: the event was changed after the run"
                expected += 1
        if expected != self.manifest["counts"]["events"]:
            return f"seq {expected}: the events from here on are missing"
        expected = before = 0
        for batch in actions.iter_batches():
            rows = rows_to_actions(batch)
            again = actions_to_rows(*zip(*rows, strict=True)).column("digest")
            for (action_id, cause, _, _), old, new in zip(rows, batch.column("digest"), again, strict=True):
                if action_id != expected:
                    return _displaced(actions, expected, before, cause)
                if old != new:
                    return f"seq {cause}: action {action_id} was changed after the run"
                expected += 1
                before = cause
        if expected != self.manifest["counts"]["actions"]:
            return f"action {expected} and those after it are missing"
        return ""

    @cached_property
    def host(self) -> dict[str, Any]:
        """Wall times and host shape."""
        return _read_json(self.directory / "host.json")

    @cached_property
    def summary(self) -> dict[str, float]:
        """The figures computed when the run was recorded (`libra.record.metrics.METRICS`)."""
        content = _read_json(self.directory / "summary.json")
        return {name: nan if value is None else float(value) for name, value in content.items()}

    @cached_property
    def events(self) -> pd.DataFrame:
        """The wide table of events; integers are nullable."""
        return self._wide("events", EVENTS)

    @cached_property
    def actions(self) -> pd.DataFrame:
        """The wide table of actions; integers are nullable."""
        return self._wide("actions", ACTIONS)

    @cached_property
    def turns(self) -> pd.DataFrame:
        """One row per turn and attempt (`libra.record.schema.TURNS`)."""
        return self._derived("turns")

    @cached_property
    def trajectories(self) -> pd.DataFrame:
        """One row per trajectory (`libra.record.schema.TRAJECTORIES`)."""
        return self._derived("trajectories")

    @cached_property
    def train_steps(self) -> pd.DataFrame:
        """One row per optimizer step (`libra.record.schema.TRAIN_STEPS`)."""
        return self._derived("train_steps")

    @cached_property
    def replicas(self) -> pd.DataFrame:
        """One row per replica (`libra.record.schema.REPLICAS`)."""
        return self._derived("replicas")

    def event_batches(self) -> Iterator[list[tuple[EventSeq, float, Event]]]:
        """The recorded events, exact and in order, a bounded number at a time: (seq, handling time, event)."""
        file = self._parquet("events", EVENTS)
        for batch in file.iter_batches():
            yield rows_to_events(batch)

    def steps(self) -> Iterator[Step]:
        """The recorded steps, exact and in order: what a decision replay compares with."""
        actions = (
            row for b in self._parquet("actions", ACTIONS).iter_batches() for row in rows_to_actions(b)
        )
        pending = next(actions, None)
        next_id = 0
        for batch in self.event_batches():
            for seq, now_s, event in batch:
                taken: list[Action] = []
                first = next_id
                while pending is not None and pending[1] == seq:
                    taken.append(pending[3])
                    next_id = pending[0] + 1
                    pending = next(actions, None)
                yield Step(seq, now_s, event, ActionId(first), taken)

    def _parquet(self, name: str, schema: Any) -> Any:
        path = self.directory / f"{name}.parquet"
        if self.manifest.get("level") != "full":
            raise UserError(f"{path}: not recorded, the run has only its summary; record with level full")
        try:
            file = pq.ParquetFile(path)
        except FileNotFoundError as error:
            raise UserError(f"{path}: missing; run it again") from error
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path}: damaged ({str(error).splitlines()[0]}); run it again") from error
        if file.schema_arrow.names != schema.names:
            raise UserError(f"{path}: columns differ from schema_version {SCHEMA_VERSION}; run it again")
        return file

    def _table(self, name: str, schema: Any) -> Any:
        file = self._parquet(name, schema)
        try:
            return file.read()
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(
                f"{self.directory / name}.parquet: damaged ({str(error).splitlines()[0]}); run it again"
            ) from error

    def _wide(self, name: str, schema: Any) -> pd.DataFrame:
        return self._table(name, schema).to_pandas(types_mapper=_NULLABLE.get)

    def _derived(self, name: str) -> pd.DataFrame:
        frame = self._table(name, derived_schema(name)).to_pandas()
        nullable = [c.name for c in DERIVED[name] if c.nullable and c.python is int]
        return frame.astype(dict.fromkeys(nullable, "Int64"))


def _displaced(actions: Any, action_id: int, before: int, after: int) -> str:
    """What became of an action that is not where it belongs, between those that `before` and `after` caused."""
    rows = actions.read(columns=["action_id", "cause"]).to_pydict()
    if action_id not in rows["action_id"]:
        return f"seq {before} to seq {after}: action {action_id} is missing"
    cause = rows["cause"][rows["action_id"].index(action_id)]
    return f"seq {cause}: action {action_id} is out of its place"
