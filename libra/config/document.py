"""Experiment files as trees whose every value knows where it came from.

A file may name another as `base_config` (relative to itself); mappings merge, the child wins, lists and other
values are replaced. Overrides (`--set a.b=c`, a sweep's axis) come last. Nothing is validated here but the
YAML itself; `Document.origin` lets the validation name file and line of what it refuses.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import yaml

from libra.errors import UserError

KeyPath: TypeAlias = tuple[str | int, ...]
Tree: TypeAlias = dict[str, Any]

BASE_KEY = "base_config"


@dataclass(slots=True)
class Document:
    """A merged tree. `origins` maps the path of each mapping entry to `file:line` or the override's name."""

    tree: Tree = field(default_factory=dict[str, Any])
    origins: dict[KeyPath, str] = field(default_factory=dict[KeyPath, str])
    directory: Path = field(default_factory=Path)

    def origin(self, path: KeyPath) -> str:
        """Where the value at `path`, or the nearest part of the tree that holds it, came from."""
        for end in range(len(path), 0, -1):
            found = self.origins.get(path[:end])
            if found is not None:
                return found
        return "the experiment"

    def folder_of(self, path: KeyPath) -> Path:
        """What a relative file name at `path` is relative to: the folder of the file that gives it.

        A name given on the command line is relative to the current folder.
        """
        origin = self.origin(path)
        if origin.startswith("--set") or ":" not in origin:
            return Path() if origin.startswith("--set") else self.directory
        return Path(origin.partition(":")[0]).parent

    def copy(self) -> "Document":
        """An independent copy."""
        return Document(_copy(self.tree), dict(self.origins), self.directory)

    def replace(self, dotted: str, value: Any, origin: str) -> None:
        """Set the value at `a.b.c`, replacing what was there, mappings included."""
        path = tuple(_split(dotted, origin))
        node = self.tree
        for i, key in enumerate(path[:-1]):
            child: Any = node.setdefault(key, {})
            if not isinstance(child, dict):
                place = ".".join(path[: i + 1])
                raise UserError(f"{origin}: {dotted}: {place} is a value, not a section; set {place} itself")
            node = cast(Tree, child)
        node[path[-1]] = value
        for known in [p for p in self.origins if p[: len(path)] == path]:
            del self.origins[known]
        self.origins[path] = origin


def load_document(path: Path) -> Document:
    """Read an experiment file with the files it builds on. Raises UserError for anything unreadable."""
    document = _load(path, ())
    document.directory = path.parent
    return document


def apply_sets(document: Document, assignments: Iterable[str]) -> None:
    """Apply `a.b=value` assignments in order; the value is read as YAML."""
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        if not equals or not dotted.strip():
            raise UserError(f"--set {assignment}: write it as key.path=value")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(f"--set {assignment}: the value is not YAML ({_first_line(error)})") from error
        document.replace(dotted.strip(), value, f"--set {dotted.strip()}")


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
    _merge(merged.tree, document.tree)
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
    document.tree = _build(node, (), path, document.origins)
    return document


def _build(node: yaml.Node, place: KeyPath, path: Path, origins: dict[KeyPath, str]) -> Any:
    if isinstance(node, yaml.MappingNode):
        tree: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = _scalar(key_node)
            origin = f"{path}:{key_node.start_mark.line + 1}"
            if key in tree:
                raise UserError(f"{origin}: {key} is given twice; keep one")
            origins[(*place, key)] = origin
            tree[key] = _build(value_node, (*place, key), path, origins)
        return tree
    if isinstance(node, yaml.SequenceNode):
        items: list[Any] = []
        for i, item in enumerate(node.value):
            origins[(*place, i)] = f"{path}:{item.start_mark.line + 1}"
            items.append(_build(item, (*place, i), path, origins))
        return items
    return _scalar(node)


def _scalar(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    value = cast(Any, loader.construct_object(node, deep=True))  # pyright: ignore[reportUnknownMemberType]
    if isinstance(value, str) and node.tag == "tag:yaml.org,2002:str":
        return _number_like_yaml_1_2(value, getattr(node, "style", None))
    return value


def _number_like_yaml_1_2(text: str, style: str | None) -> Any:
    """YAML 1.1 reads `1e6` as text; everybody means the number."""
    if style is None and "e" in text.lower():
        try:
            return float(text)
        except ValueError:
            return text
    return text


def _merge(base: Tree, child: Tree) -> None:
    for key, value in child.items():
        below = base.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            _merge(below, value)  # type: ignore[arg-type]
        else:
            base[key] = value


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
