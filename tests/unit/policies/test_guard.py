"""Under `debug` a policy that writes to what it may only look at is named, with what it changed (I10)."""

import pytest

from libra.controller import Controller, ControllerConfig
from libra.core import events as ev
from libra.core.actions import FetchPrompts, StartTrajectory
from libra.core.ids import Place, Supply
from libra.core.invariants import InvariantViolation
from tests.support.fake_world import FakeWorld, arrival, policies, ready


def put(view):
    view.trajectories[99] = view.trajectories[0]


def take(view):
    view.backlog.pop(1)


def set_attribute(view):
    view.trajectories[0].turn = 5


def set_group(view):
    view.groups[0].num_finished += 1


def set_member(view):
    del view.groups[0].live[1]


def set_replica(view):
    view.replicas[0].num_turns = 3


def set_trainer(view):
    view.trainer.version = 7


def set_scalar(view):
    view.fetching = True


def set_count(view):
    view.counts[Place.READY] = 3


WRITES = {
    put: r"view.trajectories\[99\], which it put in",
    take: r"view.backlog from \(0, 1\) to \(0,\)",
    set_attribute: r"view.trajectories\[0\].turn from 0 to 5",
    set_group: r"view.groups\[0\].num_finished from 0 to 1",
    set_member: r"view.members\[0\] from \(0, 1\) to \(0,\)",
    set_replica: r"view.replicas\[0\].num_turns from 0 to 3",
    set_trainer: "view.trainer.version from 0 to 7",
    set_scalar: "view.fetching from False to True",
    set_count: "view.counts from ",
}


class Writer:
    """Writes to the view when trajectory 1 has arrived: in its code, between two actions, or after the last."""

    def __init__(self, write, when):
        self.write, self.when = write, when

    def on_event(self, now, event, view):
        if not (isinstance(event, ev.TrajectoryArrived) and event.trajectory_id == 1):
            return ()
        if self.when == "answers a list":
            self.write(view)
            return [FetchPrompts(1, "")]
        return self.generate(view)

    def generate(self, view):
        yield FetchPrompts(1, "")
        if self.when == "between actions":
            self.write(view)
        yield StartTrajectory(0, "")
        if self.when == "after the last action":
            self.write(view)


def hear(policy, debug=True):
    config = ControllerConfig(training=True, total_steps=9, max_head_offpolicyness=1, debug=debug)
    world = FakeWorld(Controller(config, [policy]))
    world.send(ev.RunStarted(Supply.PUSH))
    world.send(ready(0, 1))
    world.send(arrival(0, 0, 2, 0))
    return world.send(arrival(1, 0, 2, 1))


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_a_write_is_named_with_its_policy(write):
    with pytest.raises(InvariantViolation, match=f"^I10: policy .*test_guard:Writer changed {WRITES[write]}"):
        hear(Writer(write, "answers a list"))


@pytest.mark.parametrize("when", ["between actions", "after the last action"])
def test_it_is_found_whenever_it_happens(when):
    with pytest.raises(InvariantViolation, match=r"Writer changed view\.replicas"):
        hear(Writer(set_replica, when))


def test_an_event_is_for_looking_too():
    class Rewriter:
        def on_event(self, now, event, view):
            if isinstance(event, ev.TrajectoryArrived):
                event.prompt_tokens = 1
            return ()

    with pytest.raises(InvariantViolation, match=r"Rewriter changed the event from .*=100.* to .*=1"):
        hear(Rewriter())


def test_without_debug_nobody_looks():
    assert len(hear(Writer(set_attribute, "answers a list"), debug=False)) == 1


def test_policies_that_only_look_run_to_the_end():
    config = ControllerConfig(training=True, total_steps=3, max_head_offpolicyness=4, debug=True)
    world = FakeWorld(Controller(config, policies()), num_groups=32)
    world.start()
    assert world.run_to_end() is not None
