# pyarrow ships no types: what comes out of it is unknown to the type checker in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
"""Events and actions to rows of the wide tables and back, exactly.

Guarantees `rows_to_events(events_to_rows(...))` gives equal values of equal types, nan included, and that
equal input gives equal bytes. Conversion is by column and type, not by row, because a run has hundreds of
thousands of rows.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from libra.core.actions import Action
from libra.core.events import Event
from libra.core.ids import ActionId, EventSeq
from libra.record import digest
from libra.record.extract import Codes, Numbers, codes_of, grouped
from libra.record.schema import (
    ACTION_FIELDS,
    ACTIONS,
    DICTIONARY,
    EVENT_FIELDS,
    EVENTS,
    FieldSpec,
)

Values = Iterable[Any]
Ints = Sequence[int] | npt.NDArray[np.int64]
Floats = Sequence[float] | npt.NDArray[np.float64]


def dictionary_array(values: Sequence[str | None]) -> Any:
    """A dictionary-encoded string column; `None` is null. The dictionary is in order of appearance."""
    codes, texts = codes_of(values)
    if None in texts:
        null = texts.index(None)
        codes = np.where(codes == null, -1, np.where(codes > null, codes - 1, codes))
        texts.remove(None)
    return _from_codes(codes, texts)


def _from_codes(codes: Any, texts: list[str]) -> Any:
    """-1 is null."""
    indices = pa.array(codes.astype(np.int32), mask=codes < 0, from_pandas=False)
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()))


class _Reader:
    """How to read the fields of one type: numbers in one pass, the rest by field."""

    def __init__(self, specs: tuple[FieldSpec, ...]) -> None:
        numbers = [spec for spec in specs if spec.arrow in _NUMBERS]
        self.numbers = Numbers([s.name for s in numbers], [_NUMBERS[s.arrow] for s in numbers])
        # A member of a vocabulary is read by its value: hashing the member itself is slow.
        self.texts = {
            spec.name: attrgetter(f"{spec.name}._value_" if spec.enum else spec.name)
            for spec in specs
            if spec.arrow == DICTIONARY
        }
        self.lists = {s.name: attrgetter(s.name) for s in specs if pa.types.is_list(s.arrow)}


_NUMBERS: Final = {pa.int64(): "int", pa.float64(): "float", pa.bool_(): "bool"}
_READERS: Final = {cls: _Reader(specs) for cls, specs in (EVENT_FIELDS | ACTION_FIELDS).items()}

Part = tuple[Any, Any]
"""Row numbers and their values."""


def _validity(num_rows: int, parts: list[Part]) -> Any:
    """Arrow's bitmap (least bit first) of the rows that have a value."""
    valid = np.zeros(num_rows, dtype=np.bool_)
    for rows, _ in parts:
        valid[rows] = True
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _scatter(arrow: Any, num_rows: int, parts: list[Part], valid: Any, texts: list[str]) -> Any:
    """One column from the rows and values of each type that has it; null elsewhere.

    valid: the bitmap of `_validity`, shared by the columns that the same types have. texts: of a text column,
    whose values are codes.
    """
    if not parts:
        return pa.nulls(num_rows, arrow)
    if pa.types.is_dictionary(arrow):
        codes = np.full(num_rows, -1, dtype=np.int32)
        for rows, values in parts:
            codes[rows] = values
        return _from_codes(codes, texts)
    if pa.types.is_list(arrow):
        lists: list[Any] = [None] * num_rows
        for rows, values in parts:
            for row, item in zip(rows.tolist(), values, strict=True):
                lists[row] = item
        return pa.array(lists, arrow, from_pandas=False)
    column: Any = np.zeros(num_rows, dtype=arrow.to_pandas_dtype())
    for rows, values in parts:
        column[rows] = values
    if pa.types.is_boolean(arrow):
        column = np.packbits(column, bitorder="little")
    return pa.Array.from_buffers(arrow, num_rows, [valid, pa.py_buffer(column)])


class _Kept:
    """What is kept of the objects of one type until the batch is made."""

    __slots__ = ("lists", "numbers", "rows", "texts", "type_name")

    def __init__(self, type_name: str, reader: _Reader) -> None:
        self.type_name = type_name
        self.rows: list[Any] = []
        self.numbers: list[Any] = []
        self.texts: dict[str, list[Any]] = {name: [] for name in reader.texts}
        self.lists: dict[str, list[Any]] = {name: [] for name in reader.lists}


class RowBuffer:
    """Collects objects for a record batch in two stages.

    `add` reads the fields of a few thousand objects while they are still in the processor's cache and lets
    go of them; `take` makes a batch that is large enough to compress well out of all that was added.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._reset()

    def _reset(self) -> None:
        self._kept: dict[type, _Kept] = {}
        self._codes: dict[str, Codes] = {}
        self._head: list[list[Any]] = []
        self.num_rows = 0

    def add(self, head: Sequence[Any], objects: Sequence[Any]) -> dict[type, Any]:
        """`head`: numpy arrays of the columns before `type`. Returns the numbers of each type, as read."""
        found: dict[type, Any] = {}
        for cls, rows, items in grouped(objects):
            reader = _READERS[cls]
            kept = self._kept.get(cls)
            if kept is None:
                kept = self._kept[cls] = _Kept(cls.__name__, reader)
            kept.rows.append(rows + self.num_rows)
            found[cls] = reader.numbers.read(items)
            kept.numbers.append(found[cls])
            for name, get in reader.texts.items():
                codes = map(self._codes.setdefault(name, Codes()).__getitem__, map(get, items))
                kept.texts[name].append(np.fromiter(codes, np.int32, len(items)))
            for name, get in reader.lists.items():
                kept.lists[name].extend(map(get, items))
        self._head.append(list(head))
        self.num_rows += len(objects)
        return found

    def take(self) -> Any:
        """A record batch of all that was added since the last call, in order."""
        num_rows = self.num_rows
        types = np.full(num_rows, -1, dtype=np.int32)
        head = [np.concatenate(column) for column in zip(*self._head, strict=True)]
        digests = np.zeros(num_rows, dtype=np.uint64)
        parts: dict[str, list[Part]] = {}
        for code, kept in enumerate(self._kept.values()):
            rows = np.concatenate(kept.rows)
            types[rows] = code
            numbers = np.concatenate(kept.numbers)
            columns: dict[str, Any] = {name: numbers[name] for name in numbers.dtype.names or ()}
            columns |= {name: np.concatenate(codes) for name, codes in kept.texts.items()}
            columns |= kept.lists
            for name, values in columns.items():
                parts.setdefault(name, []).append((rows, values))
            own_head = {name: column[rows] for name, column in zip(self._schema.names, head, strict=False)}
            digests[rows] = self._digests(kept, own_head, numbers, columns)
        arrays = [pa.array(column, from_pandas=False) for column in head]
        arrays.append(_from_codes(types, [cls.__name__ for cls in self._kept]))
        arrays.append(pa.array(digests))
        bitmaps: dict[tuple[int, ...], Any] = {}
        for field in list(self._schema)[len(arrays) :]:
            mine = parts.get(field.name, [])
            # Rows of one type are one array object, so their identities name the combination of types.
            key = tuple(id(rows) for rows, _ in mine)
            if key not in bitmaps:
                bitmaps[key] = _validity(num_rows, mine)
            texts = list(self._codes.get(field.name, ()))
            arrays.append(_scatter(field.type, num_rows, mine, bitmaps[key], texts))
        self._reset()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _digests(self, kept: _Kept, head: dict[str, Any], numbers: Any, columns: dict[str, Any]) -> Any:
        digests = digest.table_sums(numbers) + np.uint64(digest.text_word(kept.type_name))
        for name, values in head.items():
            digests += digest.number_words(values) * digest.weight(name)
        for name in kept.texts:
            words = digest.text_words(columns[name], list(self._codes[name]))
            digests += words * digest.weight(name)
        for name, values in kept.lists.items():
            digests += digest.list_words(values) * digest.weight(name)
        return digests


def events_to_rows(seqs: Ints, times_s: Floats, events: Sequence[Event]) -> Any:
    """A record batch of the `events` table."""
    buffer = RowBuffer(EVENTS)
    buffer.add((np.array(seqs, np.int64), np.array(times_s, np.float64)), events)
    return buffer.take()


def actions_to_rows(action_ids: Ints, causes: Ints, times_s: Floats, actions: Sequence[Action]) -> Any:
    """A record batch of the `actions` table."""
    buffer = RowBuffer(ACTIONS)
    head = (np.array(action_ids, np.int64), np.array(causes, np.int64), np.array(times_s, np.float64))
    buffer.add(head, actions)
    return buffer.take()


def _column_values(batch: Any, spec: FieldSpec, rows: Any) -> Values:
    values: list[Any] = batch.column(spec.name).take(rows).to_pylist()
    if spec.enum is not None:
        members = {member.value: member for member in spec.enum}
        return [members[value] for value in values]
    if pa.types.is_list(spec.arrow):
        return map(tuple, values)
    return values


def _from_rows(batch: Any, fields: dict[type, tuple[FieldSpec, ...]]) -> list[Any]:
    type_column = batch.column("type")
    names: list[str] = type_column.dictionary.to_pylist()
    codes = type_column.indices.to_numpy(zero_copy_only=False)
    classes = {cls.__name__: cls for cls in fields}
    result: list[Any] = [None] * batch.num_rows
    for code, name in enumerate(names):
        rows = np.flatnonzero(codes == code)
        cls = classes[name]
        columns = [_column_values(batch, spec, pa.array(rows)) for spec in fields[cls]]
        made = map(cls, *columns) if columns else (cls() for _ in repeat(None, len(rows)))
        for row, item in zip(rows.tolist(), made, strict=True):
            result[row] = item
    return result


def rows_to_events(batch: Any) -> list[tuple[EventSeq, float, Event]]:
    """The events of a record batch, as (seq, handling time in s, event), in row order."""
    seqs: list[EventSeq] = batch.column("seq").to_pylist()
    times: list[float] = batch.column("t_s").to_pylist()
    return list(zip(seqs, times, cast(list[Event], _from_rows(batch, EVENT_FIELDS)), strict=True))


def rows_to_actions(batch: Any) -> list[tuple[ActionId, EventSeq, float, Action]]:
    """The actions of a record batch, as (action id, cause, time of issue in s, action), in row order."""
    ids: list[ActionId] = batch.column("action_id").to_pylist()
    causes: list[EventSeq] = batch.column("cause").to_pylist()
    times: list[float] = batch.column("t_s").to_pylist()
    actions = cast(list[Action], _from_rows(batch, ACTION_FIELDS))
    return list(zip(ids, causes, times, actions, strict=True))
