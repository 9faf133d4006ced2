"""What is compiled, what that is made of, and what is refused because compiled code would behave otherwise."""

from pathlib import Path

import pytest

from libra.compiled import ROOT
from tools.compiling import SOURCES, made_of, refusals

REFUSED = {
    "raise ValueError('a') from error": "`raise ... from` loses the cause",
    "raise error from None": "`raise ... from` loses the cause",
    "total = sum(x for x in xs)": "`sum` over a generator; give it a list",
    "total = sum((x for x in xs), 0.0)": "`sum` over a generator",
    "def f():\n    if True:\n        from sim import clock": "an import inside a function",
    "@dataclass(slots=True, frozen=True)\nclass A:\n    x: int": "a frozen dataclass",
}
FINE = [
    "raise ValueError('a')",
    "raise",
    "total = sum([x for x in xs])",
    "every = all(x for x in xs)",
    "@dataclass(slots=True)\nclass A:\n    x: int",
]


@pytest.mark.parametrize(("text", "why"), REFUSED.items())
def test_what_mypyc_would_change_is_refused_with_its_line(text, why):
    (line,) = refusals(f"\n{text}\n")
    assert line.startswith("2: ")
    assert why in line


@pytest.mark.parametrize("text", FINE)
def test_the_rest_is_not(text):
    assert list(refusals(text)) == []


@pytest.mark.parametrize("path", SOURCES)
def test_the_compiled_sources_hold_nothing_of_the_kind(path):
    assert list(refusals((ROOT / path).read_text(encoding="utf-8"))) == []


def test_a_build_is_made_of_what_the_modules_import_at_whatever_remove(tmp_path, monkeypatch):
    files = {
        "sim/__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sim import shown\n",
        "sim/hot.py": "from libra.core import events as ev\nfrom sim.near import A\nimport numpy\n",
        "sim/near.py": "import libra.far\n\ndef late():\n    from sim import later\n",
        "libra/__init__.py": "",
        "libra/far.py": "if True:\n    from sim import inner\n",
        "libra/core/__init__.py": "",
        "libra/core/events.py": "",
        "sim/inner.py": "",
        "sim/shown.py": "",
        "sim/later.py": "",
        "sim/other.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    assert made_of(["sim/hot.py"]) == files.keys() - {"sim/shown.py", "sim/later.py", "sim/other.py"}


def test_events_and_what_vocabularies_they_use_are_among_what_a_build_is_made_of(monkeypatch):
    monkeypatch.chdir(ROOT)
    found = made_of(SOURCES)
    assert {*SOURCES, "libra/core/events.py", "libra/core/ids.py", "sim/engine/spec.py"} <= found
    assert not [path for path in found if Path(path).parts[:2] == ("sim", "report")]
