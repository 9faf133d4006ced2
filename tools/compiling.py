"""Compile the hot modules with mypyc: `make compiled`.

    python -m tools.compiling

What is compiled was measured, module by module. What is not, and why: policies, the driver and the record gain one or
two per cent; events and actions are looked into (annotations, fields), which compiled classes do not allow; the
controller tells a failing policy by its frames. The build lies in `.compiled/`, and `libra.compiled` says when it
is used.

Compiled code must behave as its source, to the bit. Where mypyc does not see to that, the source is refused:

- `/` of two integers becomes a division of two floats, off by a bit where one is above 2^53.
- `sum` over a generator adds floats one by one, where Python from 3.12 on compensates.
- `raise ... from` loses the cause.
- A frozen dataclass cannot be unpickled.
- Whatever mypyc warns of.

And the C compiler may not contract a * b + c into one rounding, as it would on ARM.
"""

import ast
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Final

from libra.compiled import BUILD, RECORD, ROOT, in_use

SOURCES: Final = (
    "sim/clock.py",
    "sim/engine/admission.py",
    "sim/engine/base.py",
    "sim/engine/blocks.py",
    "sim/engine/cost.py",
    "sim/engine/flight.py",
    "sim/engine/holds.py",
    "sim/engine/queue.py",
    "sim/engine/reference.py",
    "sim/engine/reference_admission.py",
    "sim/engine/reference_blocks.py",
    "sim/engine/reference_sequence.py",
    "sim/engine/segment.py",
    "sim/engine/shell.py",
    "sim/engine/skip.py",
    "sim/engine/skip_sequence.py",
    "sim/world/engines.py",
    "sim/world/environment.py",
    "sim/world/episodes.py",
    "sim/world/turn_request.py",
    "sim/world/unnoticed.py",
    "libra/core/apply.py",
    "libra/core/entities.py",
    "libra/core/load_index.py",
    "libra/core/reduce.py",
    "libra/core/state.py",
)
PACKAGES: Final = ("libra", "sim")
WORK: Final = ROOT / "build" / "compiled"


def main() -> int:
    """Compile, check, and put the build in its place."""
    if in_use:
        print("the compiled modules are of these sources already", file=sys.stderr)
        return 0
    os.chdir(ROOT)
    files = sorted({"tools/compiling.py", *made_of(SOURCES)})
    hashes = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in files}
    shutil.rmtree(WORK, ignore_errors=True)
    modules = WORK / "modules"
    extensions, wrong = translated(WORK / "c")
    for path in SOURCES:
        wrong += [f"{path}:{text}" for text in refusals(Path(path).read_text(encoding="utf-8"))]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    build(extensions, modules)
    record = {
        "suffix": EXTENSION_SUFFIXES[0],
        "library": next(each.name for each in extensions if each.name.endswith("__mypyc")),
        "modules": [path.removesuffix(".py").replace("/", ".") for path in SOURCES],
        "sources": hashes,
    }
    (modules / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(BUILD, ignore_errors=True)
    modules.rename(BUILD)
    code = (
        f"import libra.compiled, {', '.join(record['modules'])}; raise SystemExit(not libra.compiled.in_use)"
    )
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


def translated(folder: Path) -> tuple[list[Any], list[str]]:
    """C of the modules, as extensions to build; and what is wrong with it, a line each."""
    from mypyc.build import mypycify  # here: the list above is read where it is not installed

    options = ["--follow-imports=silent", "--ignore-missing-imports", f"--cache-dir={WORK / 'mypy'}"]
    with redirect_stdout(io.StringIO()) as said:
        try:
            extensions = mypycify(
                [*options, *SOURCES], opt_level="2", debug_level="0", target_dir=str(folder)
            )
        finally:
            print(said.getvalue(), file=sys.stderr)
    wrong = [line for line in said.getvalue().splitlines() if ": warning:" in line]
    for path in sorted(folder.rglob("*.c")):
        function = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            begins = re.match(r"\w.*\bCPyDef_(\w+)\(.*\) \{", line)
            function = begins[1].replace("___", ".") if begins else function
            if "CPyTagged_TrueDivide(" in line:
                wrong.append(f"{function}: `/` of two integers; use `operator.truediv`")
    return extensions, wrong


def refusals(text: str) -> Iterator[str]:
    """What a source must not hold because compiled code would behave otherwise: line number and what to write."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef() if any(
                isinstance(each, ast.Import | ast.ImportFrom) for each in ast.walk(node)
            ):
                yield f"{node.lineno}: an import inside a function; import at the top, where `made_of` looks"
            case ast.Raise(cause=ast.expr()):
                yield f"{node.lineno}: `raise ... from` loses the cause; raise it in a module that is not compiled"
            case ast.Call(func=ast.Name(id="dataclass"), keywords=options) if _are_frozen(options):
                yield f"{node.lineno}: a frozen dataclass can be pickled no more; define it in a module of its own"
            case ast.Call(func=ast.Name(id="sum"), args=[ast.GeneratorExp(), *_]):
                yield f"{node.lineno}: `sum` over a generator; give it a list"
            case _:
                pass


def _are_frozen(options: list[ast.keyword]) -> bool:
    return any(option.arg == "frozen" for option in options)


def build(extensions: list[Any], folder: Path) -> None:
    """Run the C compiler."""
    from setuptools import Distribution

    for extension in extensions:
        flags = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
        extension.extra_compile_args = [*flags, "-ffp-contract=off"]
    command: Any = Distribution({"name": "compiled", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder), str(WORK / "objects")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()


def made_of(paths: Iterable[str]) -> set[str]:
    """The files themselves and all files of the project that they import, at whatever remove."""
    found: set[str] = set()
    left = list(paths)
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += imports_of(path)
    return found


def imports_of(path: str) -> Iterator[str]:
    """Files of the project that a file imports when it is imported, those of the packages around them included."""
    for node in _at_import(ast.parse(Path(path).read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            if parts[0] in PACKAGES:
                for end in range(1, len(parts) + 1):
                    place = "/".join(parts[:end])
                    yield from (
                        file for file in (f"{place}.py", f"{place}/__init__.py") if Path(file).exists()
                    )


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What runs on import: not the bodies of functions, nor what is for type checkers."""
    for child in ast.iter_child_nodes(node):
        checked = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not checked and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child
            yield from _at_import(child)


if __name__ == "__main__":
    sys.exit(main())
