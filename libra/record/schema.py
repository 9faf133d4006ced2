# pyarrow ships no types: what comes out of it is unknown to the type checker in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
"""Tables of a run directory, declared once.

Guarantees that an event or action is one row and comes back from it unchanged. The wide tables `events` and
`actions` are built from the dataclasses themselves, so a new event type needs no change here; fields of the
same name share a column and must have the same type. The derived tables are lists of `Column`.

Column `type` of the wide tables is the class name. (`kind` is taken: it is a field of `TurnFailed`.)
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import pyarrow as pa

from libra.core.actions import Action
from libra.core.events import Event

SCHEMA_VERSION: Final = 2

EVENT_TYPES: Final[tuple[type, ...]] = get_args(Event)
ACTION_TYPES: Final[tuple[type, ...]] = get_args(Action)

DICTIONARY: Final = pa.dictionary(pa.int32(), pa.string())
_SCALARS: Final[dict[Any, pa.DataType]] = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: DICTIONARY,
}


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of an event or action: its column, Arrow type and, for a vocabulary, the enumeration."""

    name: str
    arrow: Any
    enum: type[StrEnum] | None = None


def plain_type(hint: Any) -> Any:
    """The run-time type behind a NewType, else the hint itself."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    return hint


def field_spec(name: str, hint: Any) -> FieldSpec:
    """The column of a field. TypeError for a type that the record has no column for."""
    hint = plain_type(hint)
    if get_origin(hint) is tuple:
        item, rest = get_args(hint)
        if rest is ... and plain_type(item) in (int, float):
            return FieldSpec(name, pa.list_(_SCALARS[plain_type(item)]))
    elif hint in _SCALARS:
        return FieldSpec(name, _SCALARS[hint])
    elif isinstance(hint, type) and issubclass(hint, StrEnum):
        return FieldSpec(name, DICTIONARY, hint)
    raise TypeError(f"field {name}: {hint} has no column type; events and actions are flat")


def fields_of(cls: type) -> tuple[FieldSpec, ...]:
    """The fields of an event or action type in order of declaration."""
    return tuple(field_spec(name, hint) for name, hint in get_type_hints(cls).items())


EVENT_FIELDS: Final = {cls: fields_of(cls) for cls in EVENT_TYPES}
ACTION_FIELDS: Final = {cls: fields_of(cls) for cls in ACTION_TYPES}


def union_schema(head: list[tuple[str, Any]], fields: dict[type, tuple[FieldSpec, ...]]) -> pa.Schema:
    """Head columns, then every field of every type once. TypeError where two types disagree on a name."""
    columns: dict[str, pa.DataType] = dict(head)
    seen: dict[str, FieldSpec] = {}
    for cls, specs in fields.items():
        for spec in specs:
            if spec.name in columns and seen.get(spec.name) != spec:
                raise TypeError(f"{cls.__name__}.{spec.name} clashes with a column of another type")
            columns[spec.name] = spec.arrow
            seen[spec.name] = spec
    return pa.schema(list(columns.items()))


_ROW_HEAD: Final = [("type", DICTIONARY), ("digest", pa.uint64())]

EVENTS: Final = union_schema([("seq", pa.int64()), ("t_s", pa.float64()), *_ROW_HEAD], EVENT_FIELDS)
"""seq: position in the run. t_s: when the controller handled it. digest: `libra.record.digest` of the row."""

ACTIONS: Final = union_schema(
    [("action_id", pa.int64()), ("cause", pa.int64()), ("t_s", pa.float64()), *_ROW_HEAD],
    ACTION_FIELDS,
)
"""cause: `seq` of the event that led to the action. t_s: when it was issued."""

Origin = Literal["exogenous", "endogenous"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a derived table.

    origin: exogenous columns are the world's own (the same for every policy); endogenous ones follow from
    decisions. Integers and strings may be null where `nullable`; unknown times are nan.
    """

    name: str
    python: type
    origin: Origin
    nullable: bool = False

    def arrow(self) -> Any:
        """The Arrow field, tagged with the origin."""
        kind = _SCALARS[self.python]
        return pa.field(self.name, kind, nullable=self.nullable, metadata={"origin": self.origin})


def _columns(origin: Origin, python: type, names: str, nullable: bool = False) -> tuple[Column, ...]:
    return tuple(Column(name, python, origin, nullable) for name in names.split())


TURNS: Final = (
    *_columns("exogenous", int, "trajectory_id turn"),
    *_columns("endogenous", int, "attempt seq replica_id tp"),
    *_columns("exogenous", int, "prompt_tokens output_tokens"),
    *_columns("exogenous", int, "prefix_tokens", nullable=True),
    *_columns("endogenous", int, "cached_tokens recomputed_tokens num_preemptions"),
    *_columns("endogenous", int, "version_first version_last version_token_sum"),
    *_columns("endogenous", float, "ready_s submitted_s started_s first_token_s finished_s"),
    *_columns("endogenous", str, "status"),
    *_columns("exogenous", str, "tool_name tool_status", nullable=True),
    *_columns("exogenous", float, "tool_latency_s"),
    *_columns("exogenous", int, "payload_tokens", nullable=True),
)
"""One row per turn and attempt, in the order in which its tool answered (failed attempts: in which it ended).

attempt: failed attempts of the same turn before it; a resumed turn's prompt holds their tokens. seq: of the
event that ended it. ready_s: when the turn could first have been submitted: the tool's return; for a first turn
the start of the trajectory, or its arrival where requests push themselves; between it and submitted_s the
router lets it wait (and before a pushed first turn, admission and start). prefix_tokens: known (prompt and
output of the previous turn) where this prompt is longer than those by exactly the tool's payload, else null.
status: `finished` or the failure. The last turn's tool_latency_s is the time to the end of the episode and it has
no tool_status."""

TRAJECTORIES: Final = (
    *_columns("exogenous", int, "trajectory_id group_id prompt_id sample_index group_size prompt_tokens"),
    *_columns("exogenous", float, "arrival_s start_latency_s"),
    *_columns("endogenous", float, "started_s finished_s"),
    *_columns("exogenous", int, "num_turns output_tokens"),
    *_columns("exogenous", float, "reward"),
    *_columns("endogenous", int, "num_failed_turns num_preemptions recomputed_tokens"),
    *_columns("endogenous", str, "place"),
    *_columns("endogenous", str, "drop_reason", nullable=True),
    *_columns("endogenous", int, "version_first version_last", nullable=True),
    *_columns("endogenous", float, "version_token_mean"),
    *_columns("endogenous", int, "train_step", nullable=True),
    *_columns("endogenous", float, "staleness_min staleness_mean staleness_max"),
)
"""One row per trajectory that arrived, in the order in which it left the run.

train_step: version that the step made. Staleness: trainer version when the step began (train_step - 1) minus
the version that generated a token; nan unless trained."""

TRAIN_STEPS: Final = (
    *_columns("endogenous", int, "version num_groups num_trajectories num_tokens"),
    *_columns("endogenous", float, "requested_s started_s finished_s rollout_wait_s"),
    *_columns("endogenous", float, "publish_started_s publish_finished_s load_first_s load_last_s"),
    *_columns("endogenous", int, "num_loads"),
    *_columns("endogenous", float, "staleness_min staleness_mean staleness_max"),
)
"""One row per optimizer step. rollout_wait_s: from the end of the step before (or the run's start) to this
one's start, the publication in between included (`libra.record.metrics.publication_s` tells it apart).
load_first_s: first start, load_last_s: last finish of loads of this version."""

REPLICAS: Final = (
    *_columns("endogenous", int, "replica_id tp node_id kv_capacity_tokens"),
    *_columns("endogenous", float, "ready_s end_s busy_s paused_s idle_s down_s"),
    *_columns("endogenous", str, "usage_source"),
    *_columns(
        "endogenous", int, "num_turns output_tokens num_preemptions recomputed_tokens num_loads num_steps"
    ),
)
"""One row per replica, from its first ready to its last end. down_s: between two lives, and from a loss without
return to the end of the run, which is then end_s; it is neither busy nor idle. A loss counts from when it was
noticed, or from when it happened where usage_source is `engine`.
busy + paused + idle + down = end - ready. usage_source: `engine` for the engine's own
counters, `events` where it was derived: busy from a turn's submission to the end of the last one on it,
paused while it loads weights. num_steps is 0 where the engine did not tell."""

DERIVED: Final[dict[str, tuple[Column, ...]]] = {
    "turns": TURNS,
    "trajectories": TRAJECTORIES,
    "train_steps": TRAIN_STEPS,
    "replicas": REPLICAS,
}


def derived_schema(name: str) -> pa.Schema:
    """Arrow schema of a derived table, with the version in its metadata."""
    return pa.schema([column.arrow() for column in DERIVED[name]], metadata={"schema": str(SCHEMA_VERSION)})
