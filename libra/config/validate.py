"""Trees into frozen dataclasses, and pydantic's complaints into one line each.

Validation is strict (a number in quotes is not a number) and knows every key: an unknown one is an error that
names the nearest known key. It reads the tree as JSON, so lists become tuples and names become enums as the
annotations say.
"""

import dataclasses
import difflib
import json
import types
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from libra.config.document import Document, KeyPath
from libra.errors import UserError

T = TypeVar("T")

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

_MESSAGES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "missing": "is required",
    "dict_type": "must be a mapping of keys to values",
    "dataclass_type": "must be a mapping of keys to values",
    "finite_number": "must be a finite number",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
}


def validate(target: type[T], tree: Any, document: Document, place: KeyPath = ()) -> T:
    """`tree`, found at `place` of the document, as an instance of the dataclass `target`.

    Raises UserError for the first thing that does not fit.
    """
    model = _model_of(target)
    try:
        text = json.dumps({"root": tree})
    except TypeError as error:
        raise UserError(f"{document.origin(place)}: {_dotted(place)}: {error}") from error
    try:
        return cast(T, model.model_validate_json(text).root)  # type: ignore[attr-defined]
    except ValidationError as error:
        raise UserError(_explain(target, error.errors(include_url=False), document, place)) from None
    except UserError as error:  # from a dataclass's own checks; it starts with the key path
        path = tuple(str(error).partition(":")[0].split("."))
        raise UserError(f"{document.origin(path)}: {error}") from None


@cache
def _model_of(target: type[Any]) -> type[BaseModel]:
    """The validating model of a dataclass: made once, for making it costs far more than using it."""
    return create_model("Root", __config__=_STRICT, root=(target, ...))


def _explain(target: Any, errors: Sequence[ErrorDetails], document: Document, place: KeyPath) -> str:
    # An unknown key often brings a "required" error for the one it was meant to be: name the typo.
    unknown = [e for e in errors if e["type"] == "unexpected_keyword_argument"]
    first = (unknown or list(errors))[0]
    loc = tuple(first["loc"][1:])
    inner, shown = _walk(target, loc)
    path = (*place, *shown)
    origin = document.origin(path)
    if first["type"] == "unexpected_keyword_argument":
        return f"{origin}: {_dotted(path)}: unknown key{_nearest(str(loc[-1]), inner)}"
    if first["type"] == "value_error":
        return _explain_check(first["msg"].removeprefix("Value error, "), document, path)
    if first["type"] == "union_tag_invalid":
        context = first.get("ctx", {})
        tag, known = str(context.get("tag")), str(context.get("expected_tags"))
        return f"{origin}: {_dotted(path)}: no kind {tag!r}; known: {known}"
    if first["type"] == "union_tag_not_found":
        return f"{origin}: {_dotted(path)}: needs a key `kind`"
    message = _MESSAGES.get(first["type"], first["msg"][:1].lower() + first["msg"][1:])
    given = "" if first["type"] == "missing" else f", not {_short(first['input'])}"
    return f"{origin}: {_dotted(path)}: {message}{given}"


def _explain_check(message: str, document: Document, path: KeyPath) -> str:
    """A dataclass's own complaint. Where it begins with the name of a field, that field's line is the place."""
    named = message.partition(" ")[0]
    full = (*path, *named.rstrip(":").split("."))
    if full in document.origins:
        return f"{document.origins[full]}: {'.'.join(map(str, path))}{'.' if path else ''}{message}"
    at = f"{_dotted(path)}: " if path else ""
    return f"{document.origin(path)}: {at}{message}"


def nearest_hint(key: str, known: Sequence[str]) -> str:
    """`; did you mean x?` or the list of known keys."""
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f"; known keys: {', '.join(known)}"


def _nearest(key: str, container: Any) -> str:
    if dataclasses.is_dataclass(container):
        return nearest_hint(key, [field.name for field in dataclasses.fields(container)])
    return ""


_UNION_LABELS = frozenset({"int", "float", "str", "bool", "none"})
"""What pydantic puts into a path for a member of a union of plain types."""


def _walk(target: Any, loc: KeyPath) -> tuple[Any, KeyPath]:
    """The type that holds the last key of `loc`, and `loc` without the tags that pydantic puts in for unions."""
    shown: list[str | int] = []
    current = _plain(target)
    container = current
    for key in loc:
        members = _members(current)
        if members and isinstance(key, str):
            tagged = [m for m in members if _tag_matches(m, key)]
            if tagged and key not in shown:
                current = tagged[0]
                container = current
                continue
            if key in _UNION_LABELS or key.startswith(("tuple[", "list[", "dict[")):
                continue
        shown.append(key)
        container = current
        current = _child(current, key)
    return container, tuple(shown)


def _plain(target: Any) -> Any:
    while get_origin(target) is Annotated:
        target = get_args(target)[0]
    return target


def _members(target: Any) -> tuple[Any, ...]:
    if get_origin(target) in (Union, types.UnionType):
        return tuple(_plain(m) for m in get_args(target))
    return ()


def _tag_matches(member: Any, tag: str) -> bool:
    if not dataclasses.is_dataclass(member):
        return False
    hints = get_type_hints(member)
    return any(tag in get_args(hints.get(name)) for name in ("kind", "scheduler_type"))


def _child(target: Any, key: str | int) -> Any:
    members = [m for m in _members(target) if m is not type(None)]
    if len(members) == 1:
        target = members[0]
    if dataclasses.is_dataclass(target) and isinstance(key, str):
        return _plain(get_type_hints(target, include_extras=True).get(key))
    arguments = get_args(target)
    if get_origin(target) in (tuple, list) and arguments:
        return _plain(arguments[0])
    if get_origin(target) is dict and len(arguments) == 2:
        return _plain(arguments[1])
    return None


def _dotted(path: KeyPath) -> str:
    return ".".join(str(part) for part in path)


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."
