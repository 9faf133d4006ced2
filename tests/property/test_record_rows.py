"""Events and actions survive the record exactly, for every type and any value."""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from libra.record.rows import actions_to_rows, events_to_rows, rows_to_actions, rows_to_events
from libra.record.schema import ACTION_FIELDS, EVENT_FIELDS, FieldSpec

INTS = st.integers(-(2**63), 2**63 - 1)
BY_ARROW = {
    "int64": INTS,
    "double": st.floats(),
    "bool": st.booleans(),
    "dictionary<values=string, indices=int32, ordered=0>": st.text(max_size=8),
    "list<item: int64>": st.lists(INTS, max_size=4).map(tuple),
    "list<item: double>": st.lists(st.floats(), max_size=4).map(tuple),
}


def values_of(spec: FieldSpec):
    return st.sampled_from(list(spec.enum)) if spec.enum else BY_ARROW[str(spec.arrow)]


def strategy(fields):
    makers = [st.builds(cls, *map(values_of, specs)) for cls, specs in fields.items()]
    return st.lists(st.tuples(INTS, st.floats(allow_nan=False), st.one_of(makers)), max_size=30)


def key(value):
    """Equality that tells nan from null, 1 from 1.0 and an enumeration from its text."""
    if isinstance(value, tuple):
        return tuple(map(key, value))
    if isinstance(value, float) and math.isnan(value):
        return (float, "nan")
    return (type(value), value, math.copysign(1, value) if isinstance(value, float) else 0)


def flat(item, fields):
    return (type(item), *(key(getattr(item, spec.name)) for spec in fields[type(item)]))


@settings(max_examples=60, deadline=None)
@given(strategy(EVENT_FIELDS))
def test_events_round_trip(steps):
    seqs, times, events = map(list, zip(*steps, strict=True)) if steps else ([], [], [])
    back = rows_to_events(events_to_rows(seqs, times, events))
    assert [(s, t, flat(e, EVENT_FIELDS)) for s, t, e in back] == [
        (s, t, flat(e, EVENT_FIELDS)) for s, t, e in steps
    ]


@settings(max_examples=60, deadline=None)
@given(strategy(ACTION_FIELDS))
def test_actions_round_trip(steps):
    ids, times, actions = map(list, zip(*steps, strict=True)) if steps else ([], [], [])
    causes = list(range(len(ids)))
    back = rows_to_actions(actions_to_rows(ids, causes, times, actions))
    assert [(i, c, t, flat(a, ACTION_FIELDS)) for i, c, t, a in back] == [
        (i, c, t, flat(a, ACTION_FIELDS)) for c, (i, t, a) in enumerate(steps)
    ]


@pytest.mark.parametrize("fields", [EVENT_FIELDS, ACTION_FIELDS])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_type_round_trips_alone(fields, data):
    """One value of each type in one batch, so that no type is missed by chance."""
    items = [data.draw(st.builds(cls, *map(values_of, specs))) for cls, specs in fields.items()]
    count = list(range(len(items)))
    times = [0.5] * len(items)
    if fields is EVENT_FIELDS:
        back = [e for _, _, e in rows_to_events(events_to_rows(count, times, items))]
    else:
        back = [a for *_, a in rows_to_actions(actions_to_rows(count, count, times, items))]
    assert [flat(a, fields) for a in back] == [flat(b, fields) for b in items]
