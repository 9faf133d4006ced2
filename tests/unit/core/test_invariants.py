"""Each numbered invariant has a story that breaks it."""

import dataclasses

import pytest

from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import (
    ActionId,
    DropReason,
    FailureKind,
    GroupId,
    NextStep,
    Place,
    ReplicaId,
    TrajectoryId,
    WeightVersion,
)
from libra.core.invariants import InvariantViolation
from libra.policies.recovery import Recovery, RecoveryConfig
from tests.support.fake_world import FakeWorld, arrival, controller, policies, rng
from tests.unit.policies.board import Board


class Scripted:
    """A policy that returns the next of a list of answers."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def on_event(self, now, event, view):
        return self.answers.pop(0) if self.answers else ()


def breaks(number):
    return pytest.raises(InvariantViolation, match=f"^I{number}:")


def world_of(*answers, **config):
    return FakeWorld(controller(Scripted(*answers), **config))


def test_i1_a_trajectory_arrives_once():
    world = world_of()
    world.send(arrival(0, 0, 2))
    with breaks(1):
        world.send(arrival(0, 0, 2))


def test_i2_only_listed_moves():
    world = world_of(
        (), [act.StartTrajectory(TrajectoryId(0), "")], [act.StartTrajectory(TrajectoryId(0), "")]
    )
    world.send(arrival(0, 0, 2))
    world.send(arrival(1, 0, 2))
    with breaks(2):
        world.send(ev.MetricsSampled((), (), (), ()))


def test_i3_time_does_not_go_back():
    world = world_of()
    world.now = 2.0
    world.start()
    world.now = 1.0
    with breaks(3):
        world.send(ev.MetricsSampled((), (), (), ()))


def test_i4_nothing_unpublished_is_loaded():
    world = world_of((), (), (), [act.LoadWeights(ReplicaId(0), WeightVersion(1), "")])
    world.start((1, 1))
    with breaks(4):
        world.send(ev.MetricsSampled((), (), (), ()))


def test_i4_one_publication_at_a_time():
    board = Board()
    board.complete(0)
    board.complete(1)
    board.train(0)
    publish = board.does(act.PublishWeights(WeightVersion(1), ""))
    board.train(1)
    with breaks(6):
        board.does(act.PublishWeights(WeightVersion(2), "while another is under way"))
    board.happens(ev.WeightsPublished(publish, WeightVersion(1), 0.0, 0.0))
    with breaks(4):
        board.does(act.PublishWeights(WeightVersion(1), "again"))
    board.does(act.PublishWeights(WeightVersion(2), ""))


def test_i4_the_trainer_counts_by_one():
    world = FakeWorld(controller(), num_groups=16)
    world.start()
    while not world.of(act.StartTrainStep):
        world.end(next(iter(world.pending))) if world.pending else world.return_tool(
            next(iter(world.in_tool))
        )
    action_id, step = world.of(act.StartTrainStep)[0]
    with breaks(4):
        world.send(
            ev.TrainStepFinished(
                action_id, WeightVersion(7), step.num_trajectories, step.num_tokens, 0.0, 0.0
            )
        )


def test_i5_too_old_a_group_is_not_trained_on():
    """The controller's bound is tighter than the policies': it does not rely on them."""
    world = FakeWorld(controller(*policies(), bound=0), num_groups=64)
    world.start()
    with breaks(5):
        world.run_to_end()


def test_i5_counts_every_token_not_the_first_alone():
    """The second turn goes to the replica that has not loaded yet."""
    board = Board((1, 1), bound=1)
    board.complete(0)
    board.train(0)
    board.publish()
    board.load(0)
    (moved,) = board.arrive(1)
    board.begin(moved)
    board.submit(moved, 0)
    board.finish_turn(moved, last=False)
    board.answer(moved, 200)
    board.submit(moved, 1)
    board.finish_turn(moved, last=True)
    board.happens(ev.TrajectoryFinished(moved, 2, 1.0))
    board.complete(2, version=1)
    board.train(2)
    with breaks(5):
        board.train(1)


def finished(submitted, *made):
    return ev.TurnFinished(submitted, 0, 0, 0, 100, 5, 0, 0, 0, *made, 0.0, 0.0, 0.0, 0.0, NextStep.END, "")


def failed(submitted, *made):
    return ev.TurnFailed(submitted, 0, 0, 0, FailureKind.ABORTED, 100, 5, 0, 0, 0, *made, 0.0, 0.0)


@pytest.mark.parametrize("ended", [finished, failed])
def test_i4_the_versions_of_a_turn_do_not_fall(ended):
    board = Board()
    board.begin(*board.arrive(0))
    submitted = board.submit(0)
    with breaks(4):
        board.happens(ended(submitted, 1, 0, 3))


def test_i6_an_event_closes_what_is_pending_and_lists_it():
    world = world_of()
    world.start()
    with breaks(6):
        world.send(ev.PromptsFetched(ActionId(5), 0, True))
    world = world_of([act.FetchPrompts(1, "")])
    with breaks(6):
        world.send(arrival(0, 0, 1))
        world.send(ev.TrajectoryStarted(ActionId(0), TrajectoryId(0)))


def test_i6_a_start_ends_as_the_start_that_it_is():
    board = Board()
    first, second = board.arrive(0, 2)
    start = board.does(act.StartTrajectory(first, ""))
    with breaks(6):
        board.happens(ev.TrajectoryStarted(start, second))


@pytest.mark.parametrize("late", ["started", "failed"])
def test_a_start_that_ends_after_its_trajectory_was_dropped_changes_nothing_else(late):
    board = Board()
    first, second = board.arrive(0, 2)
    start = board.does(act.StartTrajectory(first, ""))
    board.does(act.DropTrajectory(first, DropReason.SURPLUS, ""))
    assert board.state.num_pending == 1
    recovery = Recovery(RecoveryConfig(), rng())
    ended = (
        ev.TrajectoryStarted(start, first)
        if late == "started"
        else ev.ActionFailed(start, FailureKind.ABORTED, "dropped")
    )
    assert board.ask(recovery, board.happens(ended)) == []
    assert board.state.num_pending == board.state.num_started_work == 0
    assert board.state.trajectories.keys() == {second}
    board.state.recount()


def test_i7_turns_go_to_ready_replicas_only():
    submit = act.SubmitTurn(TrajectoryId(0), 0, ReplicaId(0), 100, 0, "")
    world = world_of((), (), [act.StartTrajectory(TrajectoryId(0), "")], (), (), [submit])
    world.start((1,))
    world.send(arrival(0, 0, 1))
    world.end(ActionId(0))
    world.send(ev.ReplicaLost(ReplicaId(0)))
    with breaks(7):
        world.send(ev.MetricsSampled((), (), (), ()))


def test_i7_the_turn_is_the_next_one():
    submit = act.SubmitTurn(TrajectoryId(0), 1, ReplicaId(0), 100, 0, "")
    world = world_of((), (), [act.StartTrajectory(TrajectoryId(0), "")], [submit])
    world.start((1,))
    world.send(arrival(0, 0, 1))
    with breaks(7):
        world.end(ActionId(0))


def test_i8_a_turn_lies_in_the_past():
    world = FakeWorld(controller())
    world.start()
    while not world.of(act.SubmitTurn):
        world.end(next(iter(world.pending)))
    action_id, action = world.of(act.SubmitTurn)[0]
    world.finish_turn(action_id, action)
    action_id, action = world.of(act.SubmitTurn)[0] if world.of(act.SubmitTurn) else (None, None)
    while action is None:
        world.end(next(iter(world.pending)))
        action_id, action = world.of(act.SubmitTurn)[0] if world.of(act.SubmitTurn) else (None, None)
    good = next(s.event for s in world.steps if isinstance(s.event, ev.TurnFinished))
    late = dataclasses.replace(
        good, closes=action_id, trajectory_id=action.trajectory_id, turn=action.turn, finished_s=1e9
    )
    with breaks(8):
        world.send(late)


def test_a_failed_step_gives_its_groups_back():
    world = FakeWorld(controller(), num_groups=16)
    world.start()
    while not world.of(act.StartTrainStep):
        world.end(next(iter(world.pending))) if world.pending else world.return_tool(
            next(iter(world.in_tool))
        )
    action_id, step = world.of(act.StartTrainStep)[0]
    assert isinstance(step, act.StartTrainStep)
    again = world.send(ev.ActionFailed(action_id, FailureKind.TIMEOUT, "late"))
    assert [a.group_ids for a in again if isinstance(a, act.StartTrainStep)] == [step.group_ids]
    assert world.controller.view.count(Place.TRAINING) == step.num_trajectories


def test_an_event_about_an_unknown_trajectory_is_refused():
    world = world_of()
    with breaks(6):
        world.send(ev.TrajectoryFinished(TrajectoryId(3), 1, 0.0))
    assert GroupId(0) not in world.controller.view.groups
