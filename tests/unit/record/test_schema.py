"""The tables are what the types say."""

from typing import get_args, get_type_hints

import pyarrow as pa
import pytest

from libra.core.actions import Action
from libra.core.events import Event
from libra.record.schema import (
    ACTION_FIELDS,
    ACTIONS,
    DERIVED,
    EVENT_FIELDS,
    EVENTS,
    derived_schema,
    field_spec,
    fields_of,
    plain_type,
    union_schema,
)


@pytest.mark.parametrize("union", [Event, Action])
def test_equal_names_have_equal_types(union):
    seen = {}
    for cls in get_args(union):
        for name, hint in get_type_hints(cls).items():
            assert seen.setdefault(name, plain_type(hint)) == plain_type(hint), (cls, name)


@pytest.mark.parametrize(
    ("schema", "fields", "union"), [(EVENTS, EVENT_FIELDS, Event), (ACTIONS, ACTION_FIELDS, Action)]
)
def test_every_field_of_every_type_has_a_column(schema, fields, union):
    assert set(fields) == set(get_args(union))
    for cls, specs in fields.items():
        assert [spec.name for spec in specs] == list(cls.__slots__)
        assert {spec.name for spec in specs} <= set(schema.names)
    assert len(schema.names) == len(set(schema.names))


def test_heads_of_the_wide_tables():
    assert EVENTS.names[:3] == ["seq", "t_s", "type"]
    assert ACTIONS.names[:4] == ["action_id", "cause", "t_s", "type"]
    assert EVENTS.field("group_size").type == pa.int64()
    assert ACTIONS.field("group_ids").type == pa.list_(pa.int64())


def test_a_field_that_is_not_flat_is_refused():
    class Nested:
        table: dict[str, int]

    with pytest.raises(TypeError, match=r"field table: .* has no column type"):
        fields_of(Nested)


def test_a_clash_of_names_is_refused():
    class Left:
        size: int

    class Right:
        size: float

    fields = {Left: (field_spec("size", int),), Right: (field_spec("size", float),)}
    with pytest.raises(TypeError, match=r"Right\.size clashes"):
        union_schema([("seq", pa.int64())], fields)


def test_a_field_named_like_a_head_column_is_refused():
    class Timed:
        seq: int

    with pytest.raises(TypeError, match=r"Timed\.seq clashes"):
        union_schema([("seq", pa.int64())], {Timed: (field_spec("seq", int),)})


@pytest.mark.parametrize("name", list(DERIVED))
def test_every_derived_column_says_where_it_comes_from(name):
    schema = derived_schema(name)
    assert all(field.metadata[b"origin"] in (b"exogenous", b"endogenous") for field in schema)


def test_origins_of_turns():
    origin = {column.name: column.origin for column in DERIVED["turns"]}
    exogenous = {name for name, kind in origin.items() if kind == "exogenous"}
    assert exogenous == {
        *("trajectory_id", "turn", "prompt_tokens", "output_tokens", "prefix_tokens"),
        *("tool_name", "tool_status", "tool_latency_s", "payload_tokens"),
    }
