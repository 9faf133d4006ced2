"""Writes the reference in docs/executor.md out of the dataclasses: `python docs/make_executor_reference.py`.

What stands above the marker is written by hand and kept. A field's meaning is what its class's docstring says after
`field:`; a default that depends on the machine is told in words.
"""

import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from executor.config import ExecutorConfig
from executor.environments.registry import BUILT_IN
from libra.workloads.environment import EnvironmentWorkload

PAGE = Path(__file__).with_name("executor.md")
MARKER = "<!-- below: written by docs/make_executor_reference.py from the dataclasses -->"
_IN_WORDS = {sys.executable: "the interpreter that runs"}


def page() -> str:
    """The whole document, with the reference as the code is now."""
    above, marker, _ = PAGE.read_text(encoding="utf-8").partition(MARKER)
    if not marker:
        raise SystemExit(f"{PAGE}: has no line {MARKER!r}; put it where the reference begins")
    return "\n".join([above.rstrip(), "", MARKER, "", *_reference()]).rstrip() + "\n"


def _reference() -> Iterator[str]:
    yield from _block(ExecutorConfig, "executor")
    yield from _block(EnvironmentWorkload, "workload")
    for kind, environment in BUILT_IN.items():
        config = get_type_hints(environment.__init__)["config"]
        yield from _block(config, "workload.environment", f" (`kind: {kind}`)")


def _block(config: type[Any], path: str, remark: str = "", given: Any = None) -> Iterator[str]:
    """A heading, the class's own sentence, a table; then the blocks inside it. given: their values by default."""
    hints, given = get_type_hints(config), given if given is not None else config()
    fields = dataclasses.fields(config)
    about, meanings = read_docstring(config.__doc__ or "", [field.name for field in fields])
    yield from (f"## `{path}`{remark}", "")
    if about:
        yield from (about, "")
    yield from ("| key | type | default | meaning |", "|---|---|---|---|")
    inner: list[tuple[type[Any], str, Any]] = []
    for field in fields:
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            inner.append((kind, f"{path}.{field.name}", getattr(given, field.name)))
            kind_text, default = "block", "see below"
        else:
            kind_text, default = _type(kind), _default(getattr(given, field.name))
        cells = (f"`{field.name}`", kind_text, default, meanings.get(field.name, ""))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""
    for kind, below, value in inner:
        yield from _block(kind, below, remark, value)


def read_docstring(text: str, names: list[str]) -> tuple[str, dict[str, str]]:
    """What it says of the class, and of each field: what follows `name:`, or `name, other:`, or `name 0:`."""
    text = " ".join(text.split())
    one = f"`?(?:{'|'.join(names)})`?"
    heads = list(re.finditer(rf"(?:^|(?<=\. ))({one}(?:, {one})*)((?: \w+)?): ", text))
    about = text[: heads[0].start()] if heads else text
    meanings: dict[str, str] = {}
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        meaning = text[head.end() : following.start() if following else len(text)].strip()
        if head[2]:
            meaning = f"{head[2].strip()}: {meaning}"
        for name in re.findall(r"\w+", head[1]):
            meanings[name] = meaning
    return about.strip(), meanings


def _type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is tuple:
        return f"list of {_type(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return "block"
    if type(None) in get_args(kind):
        return " or ".join("null" if each is type(None) else _type(each) for each in get_args(kind))
    return {str: "text", int: "integer", float: "number", bool: "true or false"}.get(kind, str(kind))


def _default(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{key}: {item}" for key, item in value.items())
        return f"`{{{inside}}}`"
    if isinstance(value, str) and value in _IN_WORDS:
        return _IN_WORDS[value]
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 1 << 20:
        return f"{value:_}"
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    return "empty" if value == () else f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
