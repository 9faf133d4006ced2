"""`PromptSource`, `EnvironmentPort`, `TrainerPort` and `ClockPort`: how each action ends."""

import pytest

from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import FailureKind, NextStep, ToolStatus, TrajectoryId
from tests.contract import script


def arrived(world) -> list[int]:
    return [event.trajectory_id for event in world.of(ev.TrajectoryArrived)]


@pytest.mark.parametrize(("asked", "number"), [(1, 2), (2, 2), (3, 4), (6, 6), (99, 6)])
def test_fetch_brings_whole_groups_and_at_least_what_was_asked_for(world, asked, number):
    action_id = world.fetch(asked)
    fetched = world.end_of(action_id)
    assert fetched == ev.PromptsFetched(action_id, number, exhausted=number == script.NUM_TRAJECTORIES)
    assert arrived(world) == list(range(number))
    assert world.events[-1] is fetched  # after the arrivals


def test_fetches_go_on_where_the_last_one_ended_until_there_is_no_more(world):
    numbers = [world.end_of(world.fetch(2)).num_trajectories for _ in range(4)]
    assert numbers == [2, 2, 2, 0]
    assert world.of(ev.PromptsFetched)[-1].exhausted
    assert arrived(world) == list(range(6))


def test_members_of_a_group_arrive_side_by_side_and_know_its_size(world):
    world.end_of(world.fetch())
    events = world.of(ev.TrajectoryArrived)
    assert [(e.group_id, e.sample_index) for e in events] == [(i // 2, i % 2) for i in range(6)]
    assert {(e.group_size, e.prompt_tokens) for e in events} == {(2, script.FIRST_PROMPT)}


def test_pushed_trajectories_arrive_by_themselves_and_the_last_is_announced(pushing_world):
    world = pushing_world
    world.run_until(lambda: bool(world.of(ev.SourceExhausted)))
    assert arrived(world) == list(range(6))
    assert type(world.events[-1]) is ev.SourceExhausted


def test_fetch_is_refused_where_trajectories_arrive_by_themselves(pushing_world):
    ended = pushing_world.end_of(pushing_world.fetch())
    assert (type(ended), ended.kind) == (ev.ActionFailed, FailureKind.REFUSED)


def test_start_ends_when_the_environment_is_up(world):
    world.end_of(world.fetch())
    action_id = world.send(act.StartTrajectory(TrajectoryId(3), ""))
    assert world.end_of(action_id) == ev.TrajectoryStarted(action_id, 3)


def test_after_a_turn_with_a_tool_the_tool_returns(world):
    world.begin(0)
    turn = world.end_of(world.submit(0))
    assert turn.next_step is NextStep.TOOL
    returned = world.first(ev.ToolReturned, 0)
    assert (returned.turn, returned.status) == (0, ToolStatus.SUCCESS)
    assert returned.prompt_tokens == script.SECOND_PROMPT
    assert returned.payload_tokens == script.PAYLOAD
    assert returned.latency_s >= script.TOOL_LATENCY_S


def test_after_the_last_turn_the_trajectory_finishes(world):
    world.begin(0)
    world.end_of(world.submit(0))
    world.first(ev.ToolReturned, 0)
    assert world.end_of(world.submit(0, turn=1)).next_step is NextStep.END
    finished = world.first(ev.TrajectoryFinished, 0)
    assert (finished.num_turns, finished.reward) == (2, 1.0)
    assert len(world.of(ev.ToolReturned)) == 1


def test_a_tool_that_does_not_answer_ends_by_its_timeout(world):
    world.begin(script.HANGS)
    world.end_of(world.submit(script.HANGS))
    before = world.now_s()
    returned = world.first(ev.ToolReturned, script.HANGS)
    assert returned.status is ToolStatus.TIMEOUT
    assert world.now_s() - before == pytest.approx(script.TOOL_TIMEOUT_S, abs=1.0)


@pytest.mark.parametrize("when", ["waiting", "ready", "in tool", "in the last call", "finished"])
def test_nothing_is_heard_of_a_trajectory_that_was_dropped(world, when):
    world.begin(*([0] if when != "waiting" else [1]))
    if when in ("in tool", "in the last call", "finished"):
        world.end_of(world.submit(0))
    if when in ("in the last call", "finished"):
        world.first(ev.ToolReturned, 0)
        world.end_of(world.submit(0, turn=1))
    if when == "finished":
        world.first(ev.TrajectoryFinished, 0)
    before = len(world.events)
    world.drop(0)
    world.wait(30.0)
    assert world.events[before:] == []


def test_a_start_under_way_ends_also_where_its_trajectory_was_dropped(world):
    world.end_of(world.fetch())
    before = len(world.events)
    action_id = world.send(act.StartTrajectory(TrajectoryId(0), ""))
    world.drop(0)
    ended = world.end_of(action_id)
    assert type(ended) in (ev.TrajectoryStarted, ev.ActionFailed)
    world.wait(30.0)
    assert world.events[before:] == [ended]


def test_a_trajectory_may_be_dropped_in_answer_to_its_own_event(world):
    world.begin(0)
    world.react = lambda event: world.drop(0) if type(event) is ev.TurnFinished else None
    world.end_of(world.submit(0))
    world.wait(30.0)
    assert type(world.events[-1]) is ev.TurnFinished


def test_steps_make_one_version_each(world):
    first = world.end_of(world.train(0, 1))
    counts = (0, 0) if world.trains_what_has_finished else (4, 2000)
    assert (first.version, first.num_trajectories, first.num_tokens) == (1, *counts)
    assert first.started_s <= first.finished_s <= world.now_s()
    assert world.end_of(world.train(2)).version == 2


def test_publication_ends_with_the_version(world):
    world.end_of(world.train(0))
    published = world.end_of(world.publish())
    assert (type(published), published.version) == (ev.WeightsPublished, 1)
    assert published.started_s <= published.finished_s


def test_a_timer_fires_when_it_is_due_and_not_before(world):
    due = world.now_s() + 3.0
    action_id = world.send(act.SetTimer("tea", due, ""))
    assert world.closing(action_id) == []
    fired = world.end_of(action_id)
    assert fired == ev.TimerFired(action_id, "tea")
    assert world.now_s() >= due


def test_timers_fire_in_the_order_of_their_times(world):
    now = world.now_s()
    for key, later in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        world.send(act.SetTimer(key, now + later, ""))
    world.run_until(lambda: len(world.of(ev.TimerFired)) == 3)
    assert [event.key for event in world.of(ev.TimerFired)] == ["a", "b", "c"]


def test_a_timer_for_now_fires(world):
    assert type(world.end_of(world.send(act.SetTimer("now", world.now_s(), "")))) is ev.TimerFired


def test_a_timer_in_the_past_fails(world):
    world.wait(5.0 + world.timers_may_be_late_s)
    ended = world.end_of(world.send(act.SetTimer("late", 1.0, "")))
    assert (type(ended), ended.kind) == (ev.ActionFailed, FailureKind.REFUSED)
