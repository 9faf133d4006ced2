"""When compiled modules take the place of their sources: only while every byte that they were made of is the same.

No compiler is needed: an extension module of the standard library stands for a compiled one, in a project of its own
that consists of `libra`'s outermost files.
"""

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from libra.compiled import ROOT

NAMES = ("_heapq", "_bisect", "_json", "_struct")
SHOW = """
import libra
from libra import {name} as module
print(libra.compiled.in_use, hasattr(module, "OF_THE_SOURCE"), module.__file__)
print(libra.compiled.notice())
"""


@pytest.fixture(scope="module")
def extension():
    """(name, file) of an extension module."""
    for name in NAMES:
        spec = importlib.util.find_spec(name)
        if spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES)):
            return name, spec.origin
    pytest.skip("this Python has its standard library's extension modules built in")


@pytest.fixture
def project(tmp_path, extension):
    """A function that makes the build; the project's folder is its `root`, the module's source `source`."""
    name, file = extension
    (tmp_path / "libra").mkdir()
    for path in ("__init__.py", "compiled.py"):
        shutil.copy(ROOT / "libra" / path, tmp_path / "libra" / path)
    source, used = tmp_path / "libra" / f"{name}.py", tmp_path / "libra" / "used.py"
    source.write_text("OF_THE_SOURCE = True\n")
    used.write_text("A_CONSTANT = 1\n")

    def compile_it(suffix=EXTENSION_SUFFIXES[0]):
        folder = tmp_path / ".compiled"
        (folder / "libra").mkdir(parents=True)
        shutil.copy(file, folder / "libra" / (name + EXTENSION_SUFFIXES[0]))
        sources = {f"libra/{p.name}": hashlib.sha256(p.read_bytes()).hexdigest() for p in (source, used)}
        record = {"suffix": suffix, "library": "no_such", "modules": [f"libra.{name}"], "sources": sources}
        (folder / "build.json").write_text(json.dumps(record))

    compile_it.root, compile_it.source, compile_it.used = tmp_path, source, used
    return compile_it


def python(root, code):
    """(status, lines of its output, its last line of error) of some code in the project."""
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines(), (done.stderr.splitlines() or [""])[-1]


@pytest.fixture
def shown(project, extension):
    """What a Python says that imports the module: (whether the source ran, the notice)."""

    def show():
        status, lines, error = python(project.root, SHOW.format(name=extension[0]))
        assert status == 0, error
        in_use, of_the_source, file = lines[0].split(maxsplit=2)
        assert (in_use == "True") != (of_the_source == "True")
        assert file == str(project.source)  # of a compiled module, too: who wants its text finds it
        return of_the_source == "True", lines[1]

    return show


def test_without_a_build_the_source_runs(shown):
    assert shown() == (True, "")


def test_a_build_of_these_sources_runs_in_their_place(project, shown):
    project()
    assert shown() == (False, "")


@pytest.mark.parametrize("which", ["source", "used"])
def test_an_edited_file_runs_and_a_notice_names_it(project, shown, which):
    project()
    path = getattr(project, which)
    path.write_text(path.read_text() + "# edited\n")
    of_the_source, notice = shown()
    assert of_the_source
    assert notice.startswith(
        f"libra/{path.name} changed since modules were compiled: the sources run; `make "
    )
    path.write_text(path.read_text().removesuffix("# edited\n"))
    assert shown() == (False, "")


def test_a_removed_file_counts_as_edited(project, shown):
    project()
    project.used.unlink()
    assert shown()[0]


def test_a_build_for_another_python_is_left_alone(project, shown):
    project(suffix=".cpython-27.so")
    of_the_source, notice = shown()
    assert of_the_source
    assert notice.startswith("the compiled modules are for another Python")


def test_reloading_an_edited_module_is_refused(project, extension):
    project()
    name = extension[0]
    code = f"""
import importlib
from libra import {name} as module
importlib.reload(module)
with open(module.__file__, "a") as file:
    file.write("# edited")
importlib.reload(module)
"""
    status, _, error = python(project.root, code)
    assert status == 1
    assert error == (
        f"ImportError: libra/{name}.py has changed since it was compiled; start Python again to run the source"
    )
