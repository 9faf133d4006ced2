"""docs/executor.md is what the configuration classes say now, and explains every field."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location(
        "make_executor_reference", DOCS / "make_executor_reference.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_current(maker):
    assert maker.page() == maker.PAGE.read_text(), "run: PYTHONPATH=. python docs/make_executor_reference.py"


def test_every_field_is_explained(maker):
    rows = [line for line in maker.page().splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    unexplained = [row[0] for row in cells if row[2] != "see below" and (len(row) < 4 or not row[3])]
    assert unexplained == ["`kind`"], "say in the class's docstring what they mean, as `field: meaning`"


def test_a_docstring_is_cut_at_its_fields(maker):
    text = """Settings of a thing.

    alpha: how much. Or: how little. beta, gamma: two
    of them. delta 0: none.
    """
    about, meanings = maker.read_docstring(text, ["alpha", "beta", "gamma", "delta", "epsilon"])
    assert about == "Settings of a thing."
    assert meanings == {
        "alpha": "how much. Or: how little.",
        "beta": "two of them.",
        "gamma": "two of them.",
        "delta": "0: none.",
    }
