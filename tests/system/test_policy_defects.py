"""A user's policy that is defective: one line on stderr, never status 0, nothing left; other cells go on."""

import json

import pytest

from sim.cli.main import main
from tests.system.tiny import files_below, write_experiment

POLICY = """
from dataclasses import dataclass
{top}

@dataclass(frozen=True)
class Config:
    x: int = 1
    def __post_init__(self):
        {check}

class Router:
    def __init__(self, config: {annotation}, rng):
        {init}

    def on_event(self, now, event, view):
        {body}
"""
RIGHT = {"top": "", "check": "pass", "annotation": "Config", "init": "pass", "body": "return ()"}

DEFECTS = {
    "raises": ({"body": "raise KeyError('x')"}, 1, "failed at seq 0, t=0s, on RunStarted: KeyError: 'x' ("),
    "exits": ({"body": "raise SystemExit(0)"}, 1, "SystemExit: 0 ("),
    "answers with nothing": ({"body": "return None"}, 1, "it answered with no iterable"),
    "breaks an invariant": (
        {
            "top": "from libra.core.actions import FetchPrompts",
            "body": "return [FetchPrompts(0, '')]",
        },
        1,
        "invariant I6: FetchPrompts",
    ),
    "raises in its constructor": (
        {"init": "1 / 0"},
        1,
        "Router failed when it was constructed: ZeroDivisionError",
    ),
    "exits in its constructor": ({"init": "raise SystemExit"}, 1, "constructed: SystemExit ("),
    "raises in its config": ({"check": "{}['x']"}, 2, "refuses its config: KeyError: 'x' ("),
    "exits in its config": ({"check": "raise SystemExit(0)"}, 2, "refuses its config: SystemExit: 0 ("),
    "raises when imported": ({"top": "1 / 0"}, 2, "importing {module} failed with ZeroDivisionError: "),
    "exits when imported": (
        {"top": "raise SystemExit(0)"},
        2,
        "importing {module} failed with SystemExit: 0 (",
    ),
    "is no Python": ({"top": "x = ("}, 2, "importing {module} failed with SyntaxError: '(' was never closed"),
    "has odd annotations": ({"annotation": "'1 / 0'"}, 2, "annotations cannot be read (ZeroDivisionError"),
}


@pytest.fixture
def defective(tmp_path, monkeypatch, request):
    """Writes a policy with a defect and an experiment that names it; gives the module's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(changes) -> str:
        # A name of its own for each test, because imported modules stay.
        module = "defect_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
        (tmp_path / f"{module}.py").write_text(POLICY.format(**RIGHT | changes), encoding="utf-8")
        scheduling = {"heterogeneous_rollout.scheduling": {"scheduler_type": f"{module}:Router"}}
        write_experiment(tmp_path, scheduling)
        axes = {"p": {"bad": {}, "good": {"heterogeneous_rollout.scheduling": {}}}}
        write_experiment(tmp_path, {**scheduling, "sweep": {"axes": axes}}, "sweep.yaml")
        return module

    return write


@pytest.mark.parametrize(("changes", "status", "expected"), DEFECTS.values(), ids=DEFECTS)
def test_a_run_says_it_in_one_line(defective, tmp_path, capsys, changes, status, expected):
    module = defective(changes)
    before = {name for name in files_below(tmp_path) if "__pycache__" not in name}
    assert main(["run", "tiny.yaml", "--out", "out"]) == status
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert expected.format(module=module) in line
    assert captured.out == ""
    assert {name for name in files_below(tmp_path) if "__pycache__" not in name} == before


@pytest.mark.parametrize("defect", ["raises", "raises when imported", "breaks an invariant"])
def test_a_traceback_is_shown_to_who_asks(defective, capsys, defect):
    changes, status, expected = DEFECTS[defect]
    module = defective(changes)
    assert main(["run", "tiny.yaml", "--out", "out", "--traceback"]) == status
    lines = capsys.readouterr().err.splitlines()
    assert "Traceback (most recent call last):" in lines
    assert expected.format(module=module) in lines[-1]


@pytest.mark.parametrize("defect", ["raises", "exits", "breaks an invariant", "exits in its constructor"])
def test_the_other_cells_of_a_sweep_go_on(defective, tmp_path, capsys, defect):
    changes, _, expected = DEFECTS[defect]
    defective(changes)
    assert main(["sweep", "sweep.yaml", "--out", "out", "--jobs", "1", "--no-report"]) == 1
    assert "1 cells done, 0 were finished before, 1 failed" in capsys.readouterr().err
    (note,) = (tmp_path / "out" / "failed").iterdir()
    assert expected in json.loads(note.read_text(encoding="utf-8"))["error"]
