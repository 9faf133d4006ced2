"""`Controller.is_stalled`: nothing is under way, and nothing can come of itself."""

import pytest

from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import Supply, TrajectoryId
from tests.support.fake_world import FakeWorld, arrival, controller


class Answers:
    """The first event of a type is answered by these actions, the others by nothing."""

    def __init__(self, to: type, *actions):
        self.to, self.actions = to, list(actions)

    def on_event(self, now, event, view):
        if type(event) is self.to:
            actions, self.actions = self.actions, []
            return actions
        return ()


def started(policy, supply=Supply.PULL):
    world = FakeWorld(controller(policy))
    world.start((1,), supply)
    return world


def test_a_policy_that_asks_for_nothing_has_stalled_a_pulled_run_at_once():
    world = started(Answers(ev.RunStarted))
    assert world.controller.is_stalled()
    assert world.controller.end_reason() is None


@pytest.mark.parametrize("action", [act.FetchPrompts(1, ""), act.SetTimer("tea", 9.0, "")])
def test_not_while_something_is_under_way(action):
    assert not started(Answers(ev.RunStarted, action)).controller.is_stalled()


def test_a_pushed_run_waits_for_its_arrivals_and_for_nothing_after_the_last():
    world = started(Answers(ev.RunStarted), Supply.PUSH)
    assert not world.controller.is_stalled()
    world.send(arrival(0, 0, 1))
    assert not world.controller.is_stalled()
    world.send(ev.SourceExhausted())
    assert world.controller.is_stalled()


def test_a_pushed_run_is_not_stalled_after_its_last_arrival_while_work_is_under_way():
    start = act.StartTrajectory(TrajectoryId(0), "")
    world = started(Answers(ev.TrajectoryArrived, start), Supply.PUSH)
    world.send(arrival(0, 0, 1))
    world.send(ev.SourceExhausted())
    assert not world.controller.is_stalled()
    world.end(next(iter(world.pending)))
    assert world.controller.is_stalled()  # it is ready, and nobody serves it


def test_a_run_that_is_over_is_not_stalled():
    world = started(Answers(ev.RunStarted), Supply.PUSH)
    world.send(ev.SourceExhausted())
    assert not world.controller.is_stalled()
    assert world.controller.end_reason() is not None
