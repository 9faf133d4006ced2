"""Events, actions and views: the rules that their modules state."""

import dataclasses
import subprocess
import sys
from typing import get_args

import pytest

from libra.core import views
from libra.core.actions import CLOSING_EVENTS, AbortTurn, Action, DropTrajectory
from libra.core.events import ActionFailed, Event, TurnFailed
from libra.core.ids import Place
from libra.core.invariants import MOVES
from libra.workloads.table import Chunk

SEEN_WHEN_THEY_HAPPEN = {
    "trajectory_id",
    "group_id",
    "prompt_id",
    "sample_index",
    "group_size",
    "prompt_tokens",
}


def test_every_action_lists_how_it_ends():
    assert set(CLOSING_EVENTS) == set(get_args(Action))
    for action, endings in CLOSING_EVENTS.items():
        if action in (AbortTurn, DropTrajectory):
            assert endings == ()
            continue
        _, failure = endings
        assert failure in (ActionFailed, TurnFailed)
        for event in endings:
            assert event in get_args(Event)
            assert "closes" in event.__annotations__, event


def test_every_event_that_can_close_is_listed_by_an_action():
    closing = {event for endings in CLOSING_EVENTS.values() for event in endings}
    with_closes = {event for event in get_args(Event) if "closes" in event.__annotations__}
    assert closing == with_closes


def test_values_are_slotted_and_compare_by_content():
    for cls in (*get_args(Event), *get_args(Action)):
        assert dataclasses.is_dataclass(cls)
        assert "__slots__" in cls.__dict__, cls
    assert AbortTurn(1, 2, "x") == AbortTurn(1, 2, "x") != AbortTurn(1, 3, "x")


@pytest.mark.slow
def test_the_type_checker_refuses_to_change_a_value(tmp_path):
    snippet = tmp_path / "snippet.py"
    snippet.write_text(
        "from libra.core.actions import AbortTurn\n"
        "from libra.core.views import TrajectoryView\n"
        "def f(action: AbortTurn, view: TrajectoryView) -> None:\n"
        "    action.reason = 'other'\n"
        "    view.turn = 3\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(snippet)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert ":4:" in done.stdout
    assert ":5:" in done.stdout


def test_views_tell_nothing_of_the_future():
    """I9: no view has a field named like a column of the workload, but those that an event has told by then."""
    exogenous = {field.name for field in dataclasses.fields(Chunk)} - SEEN_WHEN_THEY_HAPPEN
    exogenous -= {"output_tokens"}  # TrajectoryView.output_tokens counts what has been generated
    for name in views.__dict__:
        view = getattr(views, name)
        if isinstance(view, type) and name.endswith("View"):
            offered = {attribute for attribute in dir(view) if not attribute.startswith("_")}
            assert not offered & exogenous, (name, offered & exogenous)


def test_no_trajectory_comes_back_from_its_end():
    assert MOVES[Place.TRAINED] == MOVES[Place.DROPPED] == frozenset()
    assert set(MOVES) == set(Place)
