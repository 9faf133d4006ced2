"""Experiment files as trees whose every value knows where it came from.

A file may name another as `base_config` (relative to itself); mappings merge, the child wins, lists and other
values are replaced. Overrides (`--set a.b=c`, a sweep's axis) come last. `null` over a section (a mapping or a
list) of the base drops it: what stays is as if nobody had given it, so a sweep may inherit an axis without one of
its points. Nothing is validated here but the YAML itself; `Document.origin` lets the validation name file and line
of what it refuses.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import yaml

from libra.errors import UserError

KeyPath: TypeAlias = tuple[str | int, ...]
Tree: TypeAlias = dict[str, Any]

BASE_KEY = "base_config"

_FILE_AND_LINE = re.compile(r"(.*?):\d+(?=:|$)")


@dataclass(slots=True)
class Document:
    """A merged tree. `origins` maps the path of each mapping entry to `file:line` or the override's name.

    source: the file, for what no line of it is to blame for (a key that is missing).
    """

    tree: Tree = field(default_factory=dict[str, Any])
    origins: dict[KeyPath, str] = field(default_factory=dict[KeyPath, str])
    directory: Path = field(default_factory=Path)
    source: str = "the experiment"

    def origin(self, path: KeyPath) -> str:
        """Where the value at `path`, or the nearest part of the tree that holds it, came from."""
        for end in range(len(path), 0, -1):
            found = self.origins.get(path[:end])
            if found is not None:
                return found
        return self.source

    def folder_of(self, path: KeyPath) -> Path:
        """What a relative file name at `path` is relative to: the folder of the file that gives it.

        A name given on the command line is relative to the current folder.
        """
        origin = self.origin(path)
        if origin.startswith("--set"):
            return Path()
        at = _FILE_AND_LINE.match(origin)
        return Path(at[1]).parent if at else self.directory

    def copy(self) -> "Document":
        """An independent copy."""
        return Document(_copy(self.tree), dict(self.origins), self.directory, self.source)

    def replace(self, dotted: str, value: Any, origin: str) -> None:
        """Set the value at `a.b.c`, replacing what was there, mappings included; None drops a section."""
        path = tuple(_split(dotted, origin))
        node = self.tree
        for i, key in enumerate(path[:-1]):
            child: Any = node.setdefault(key, {})
            if not isinstance(child, dict):
                place = ".".join(path[: i + 1])
                raise UserError(f"{origin}: {dotted}: {place} is a value, not a section; set {place} itself")
            node = cast(Tree, child)
        _put(node, path[-1], value)
        self.claim(path, origin)

    def claim(self, path: KeyPath, origin: str) -> None:
        """Note that all that stands at `path`, or is missing there, comes from `origin`."""
        for known in [p for p in self.origins if p[: len(path)] == path]:
            del self.origins[known]
        self.origins[path] = origin


def load_document(path: Path) -> Document:
    """Read an experiment file with the files it builds on. Raises UserError for anything unreadable."""
    document = _load(path, ())
    document.directory = path.parent
    document.source = str(path)
    return document


def apply_sets(document: Document, assignments: Iterable[str]) -> None:
    """Apply `a.b=value` assignments in order; the value is read as YAML."""
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        if not equals or not dotted.strip():
            raise UserError(f"--set {assignment}: write it as key.path=value")
        try:
            node = cast(yaml.Node | None, yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
        except yaml.YAMLError as error:
            raise UserError(f"--set {assignment}: the value is not YAML ({_first_line(error)})") from error
        origin = f"--set {dotted.strip()}"
        value = None if node is None else _Builder(Path(origin), {}).build(node, ())
        document.replace(dotted.strip(), value, origin)


def apply_overrides(document: Document, overrides: Mapping[str, Any], origin: str) -> None:
    """Apply a mapping of dotted paths to values."""
    for dotted, value in overrides.items():
        document.replace(dotted, _copy(value), origin)


def _load(path: Path, seen: tuple[Path, ...]) -> Document:
    resolved = path.resolve()
    if resolved in seen:
        chain = " -> ".join(p.name for p in (*seen, resolved))
        raise UserError(f"{path}: {BASE_KEY} goes in a circle: {chain}")
    document = _parse(path)
    base = document.tree.pop(BASE_KEY, None)
    base_origin = document.origins.pop((BASE_KEY,), str(path))
    if base is None:
        return document
    if not isinstance(base, str):
        raise UserError(f"{base_origin}: {BASE_KEY} must be the path of one file")
    if not (path.parent / base).is_file():
        raise UserError(f"{base_origin}: {BASE_KEY}: there is no file {path.parent / base}")
    merged = _load(path.parent / base, (*seen, resolved))
    for dropped in _merge(merged.tree, document.tree, ()):
        merged.claim(dropped, document.origin(dropped))
    merged.origins.update(document.origins)
    return merged


def _parse(path: Path) -> Document:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: this is a folder; name an experiment file (*.yaml)") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        node = cast(yaml.Node | None, yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML ({_first_line(error)})") from error
    if node is None:
        raise UserError(f"{path}: the file is empty")
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{path}: an experiment is a mapping of keys to values")
    document = Document()
    document.tree = _Builder(path, document.origins).build(node, ())
    return document


class _Builder:
    """Nodes of one file into plain values, noting the line of each.

    Keys are the text that the file shows: YAML 1.1 reads `on` as true and `4` as a number, and a point of an
    axis may be called either.
    """

    def __init__(self, path: Path, origins: dict[KeyPath, str]) -> None:
        self._path = path
        self._origins = origins
        self._open: list[yaml.Node] = []

    def build(self, node: yaml.Node, place: KeyPath) -> Any:
        """The value of a node that stands at `place`."""
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if any(node is outer for outer in self._open):
            raise UserError(f"{self._at(node)}: an alias holds itself; write the value out")
        self._open.append(node)
        value = self._mapping(node, place) if isinstance(node, yaml.MappingNode) else self._list(node, place)
        self._open.pop()
        return value

    def _at(self, node: yaml.Node) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"

    def _mapping(self, node: yaml.MappingNode, place: KeyPath) -> Tree:
        tree: Tree = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise UserError(f"{self._at(key_node)}: a key is a word or a number, not a list or a mapping")
            key = str(key_node.value)
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise UserError(f"{self._at(key_node)}: merge keys (<<) are not read; use {BASE_KEY}")
            if key in tree:
                raise UserError(f"{self._at(key_node)}: {key} is given twice; keep one")
            self._origins[(*place, key)] = self._at(key_node)
            tree[key] = self.build(value_node, (*place, key))
        return tree

    def _list(self, node: yaml.Node, place: KeyPath) -> list[Any]:
        items: list[Any] = []
        for i, item in enumerate(node.value):
            self._origins[(*place, i)] = self._at(item)
            items.append(self.build(item, (*place, i)))
        return items

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        try:
            value = cast(Any, yaml.SafeLoader("").construct_object(node, deep=True))  # pyright: ignore[reportUnknownMemberType]
        except (yaml.YAMLError, ValueError):
            raise UserError(
                f"{self._at(node)}: {node.tag} {node.value!r} cannot be read; remove the tag"
            ) from None
        if isinstance(value, str) and node.tag == "tag:yaml.org,2002:str":
            return _number_like_yaml_1_2(value, node.style)
        if value is not None and not isinstance(value, (str, bool, int, float)):
            raise UserError(
                f"{self._at(node)}: {node.value} reads as a {type(value).__name__}; put it in quotes"
            )
        return value


def _number_like_yaml_1_2(text: str, style: str | None) -> Any:
    """YAML 1.1 reads `1e6` as text; everybody means the number."""
    if style is None and "e" in text.lower():
        try:
            return float(text)
        except ValueError:
            return text
    return text


def _merge(base: Tree, child: Tree, place: KeyPath) -> list[KeyPath]:
    """Merge `child`, which stands at `place`, into `base`; the sections of the base that it drops."""
    dropped: list[KeyPath] = []
    for key, value in child.items():
        below = base.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            dropped += _merge(below, value, (*place, key))  # type: ignore[arg-type]
        elif not _put(base, key, value):
            dropped.append((*place, key))
    return dropped


def _put(tree: Tree, key: str, value: Any) -> bool:
    """Set a key, or drop it where that is what the value means; whether the key is there now."""
    if value is None and isinstance(tree.get(key), (dict, list)):
        del tree[key]
        return False
    tree[key] = value
    return True


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}  # type: ignore[misc]
    if isinstance(value, list):
        return [_copy(item) for item in value]  # type: ignore[misc]
    return value


def _split(dotted: str, origin: str) -> list[str]:
    keys = dotted.split(".")
    if not all(keys):
        raise UserError(f"{origin}: {dotted!r} is not a key path such as a.b.c")
    return keys


def _first_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark is not None else str(problem)
