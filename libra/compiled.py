"""Compiled modules in place of their sources, where there is a build and it was made of exactly these sources.

`make compiled` (`tools.compiling`) compiles the hot modules into `.compiled/`, apart from the sources, where Python's
own search never finds them. The finder below does, and only while every file that the build was made of has the bytes
that it had then: the modules themselves and all that they import, since types and constants of those are compiled in.
With one edited file all of the sources run, as if there were no build. So compiled code is never older than its
source, compiled and edited modules never mix, and which of the two runs is a matter of speed alone: results are equal
to the bit.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / ".compiled"
RECORD = "build.json"
"""In `BUILD`, written last. suffix: of extension modules of the Python that it is for; library: name of the module
that holds all code; modules: the compiled ones; sources: path to SHA-256 of every file that it was made of."""


class _Loader(ExtensionFileLoader):
    """Loads an extension module that names its source as its file, so that whoever looks for its text finds it."""

    def __init__(self, name: str, path: Path, source: Path) -> None:
        super().__init__(name, str(path))
        self._source = str(source)

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        super().exec_module(module)
        module.__file__ = self._source


class _Finder(MetaPathFinder):
    """Finds the modules of a build."""

    def __init__(self, build: Path, record: Mapping[str, Any]) -> None:
        self._build = build
        self._suffix: str = record["suffix"]
        self._library: str = record["library"]
        self._hashes: Mapping[str, str] = record["sources"]
        self._modules = frozenset[str](record["modules"])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `MetaPathFinder`. Raises ImportError for the reload of a module whose source has been edited."""
        if fullname == self._library:
            return spec_from_file_location(fullname, self._build / (fullname + self._suffix))
        if fullname not in self._modules:
            return None
        place = fullname.replace(".", "/")
        source = f"{place}.py"
        if target is not None and _sha256(ROOT / source) != self._hashes[source]:
            raise ImportError(
                f"{source} has changed since it was compiled; start Python again to run the source"
            )
        file = self._build / (place + self._suffix)
        return spec_from_file_location(fullname, file, loader=_Loader(fullname, file, ROOT / source))


def _sha256(path: Path) -> str:
    import hashlib  # where nothing is compiled, importing libra loads nothing more

    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _activate() -> tuple[bool, str]:
    """Install the finder if there is a build that may be used: whether it is, and why not where it is of no use."""
    if not (BUILD / RECORD).exists():
        return False, ""
    import json

    record = json.loads((BUILD / RECORD).read_text(encoding="utf-8"))
    if record["suffix"] != EXTENSION_SUFFIXES[0]:
        return False, "the compiled modules are for another Python"
    changed = [path for path, known in record["sources"].items() if _sha256(ROOT / path) != known]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return False, f"{changed[0]}{more} changed since modules were compiled"
    sys.meta_path.insert(0, _Finder(BUILD, record))
    return True, ""


in_use, _why_not = _activate()
"""in_use: whether this process runs compiled modules."""


def notice() -> str:
    """One line for a person who may think that compiled modules are in use while they are not, else ""."""
    return f"{_why_not}: the sources run; `make compiled` or `make uncompiled`" if _why_not else ""
