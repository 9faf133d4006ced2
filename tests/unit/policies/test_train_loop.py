"""Which groups a step takes, when it waits, when weights go out and what is given up."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import DropReason, FailureKind, Supply
from libra.policies.train_loop import TrainLoop, TrainLoopConfig
from tests.support.fake_world import ready, rng
from tests.unit.policies.board import NOTHING, Board, named


def loop(**settings) -> TrainLoop:
    usual = {"batch_size": 4, "n_samples": 2, "max_head_offpolicyness": 1, "total_steps": 9}
    return TrainLoop(TrainLoopConfig(**{**usual, **settings}), rng())


def groups_of(actions: list[act.Action]) -> list[tuple[int, ...]]:
    return [action.group_ids for action in actions if isinstance(action, act.StartTrainStep)]


def under_way(board: Board, group: int, version: int = 0) -> int:
    """A trajectory of a new group that generates under `version`."""
    (trajectory,) = board.arrive(group)
    board.begin(trajectory)
    board.state.replicas[0].weight_version = version
    board.submit(trajectory)
    return trajectory


def test_a_step_takes_as_many_whole_groups_as_make_a_batch():
    board, policy = Board(), loop()
    board.complete(0)
    assert board.ask(policy) == []
    board.complete(1)
    board.complete(2)
    (step,) = board.ask(policy)
    assert step == act.StartTrainStep((0, 1), 4, 4 * 110, "step 1")  # prompt 100, output 10 each


def test_the_oldest_go_first_and_equals_in_the_order_of_completion():
    board, policy = Board(bound=9), loop(max_head_offpolicyness=9)
    for group, version in ((5, 2), (4, 1), (3, 2), (2, 0), (1, 2)):
        board.complete(group, version=version)
    assert groups_of(board.ask(policy)) == [(2, 4)]
    board.happens(ev.TrainStepFinished(board.next_action - 1, 1, 4, 440, 0.0, 0.0))
    board.publish()
    assert groups_of(board.ask(policy)) == [(5, 3)]


@pytest.mark.parametrize(("bound", "step"), [(0, []), (1, [(0, 1)])])
def test_waits_for_what_the_step_would_make_too_old(bound, step):
    board, policy = Board(bound=bound), loop(max_head_offpolicyness=bound)
    trajectory = under_way(board, 9)
    board.complete(0)
    board.complete(1)
    assert groups_of(board.ask(policy)) == step
    if not step:
        board.finish_turn(trajectory, last=True)
        done = board.happens(ev.TrajectoryFinished(trajectory, 1, 1.0))
        policy_sees_it = loop(max_head_offpolicyness=bound, batch_size=6, min_group_size=1)
        assert groups_of(board.ask(policy_sees_it, done)) == [(0, 1, 9)]


def test_waits_as_if_those_under_way_went_on_at_the_replica_that_lags_most():
    board, policy = Board((1, 1), bound=1), loop(batch_size=2, partial_rollout=False)
    board.complete(0)
    board.train(0)
    board.publish()
    board.load(0)
    (trajectory,) = board.arrive(9)
    board.begin(trajectory)
    board.submit(trajectory, 0)
    board.complete(1, version=1)
    assert groups_of(board.ask(policy)) == []
    board.load(1)
    assert groups_of(board.ask(policy)) == [(1,)]


def test_nobody_is_waited_for_where_nobody_is_under_way():
    """More groups than the steps before their limit take. Admission's gate prevents that; others' need not."""
    board, policy = Board(bound=0), loop(max_head_offpolicyness=0, batch_size=2)
    board.complete(0)
    board.complete(1)
    assert groups_of(board.ask(policy)) == [(0,)]
    trained = board.happens(ev.TrainStepFinished(board.next_action - 1, 1, 2, 220, 0.0, 0.0))
    actions = board.ask(policy, trained)
    assert named(actions, act.DropTrajectory) == [2, 3]
    assert {a.drop_reason for a in actions if isinstance(a, act.DropTrajectory)} == {DropReason.STALE}


@pytest.mark.parametrize("on_stale", ["wait", "drop"])
def test_a_group_that_finishes_too_old_is_given_up(on_stale):
    """It was not when the last step ended; since then it has been served by weights that lag further than allowed."""
    board, policy = Board((1, 1), bound=1), loop(batch_size=2, on_stale=on_stale)
    for group in (0, 1):
        board.complete(group, version=group)
        board.train(group)
    board.complete(2, version=2)
    old, fresh = board.complete(3, version=0), board.complete(4, version=1)
    actions = board.ask(policy)
    assert named(actions, act.DropTrajectory) == [6, 7]
    assert old not in board.state.groups
    assert groups_of(actions) == []  # a publication is due first
    board.happens(ev.WeightsPublished(board.next_action - 3, 2, 0.0, 0.0))
    assert groups_of(board.ask(policy)) == [(fresh,)]


def test_on_stale_drop_does_not_wait():
    board, policy = Board(bound=0), loop(max_head_offpolicyness=0, on_stale="drop")
    under_way(board, 9)
    board.complete(0)
    board.complete(1)
    assert groups_of(board.ask(policy)) == [(0, 1)]


def test_one_step_at_a_time_none_beside_a_publication_none_after_the_last():
    board, policy = Board(bound=9), loop(total_steps=2, max_head_offpolicyness=9)
    for group in range(8):
        board.complete(group)
    assert groups_of(board.ask(policy)) == [(0, 1)]
    assert board.ask(policy) == []
    finished = board.happens(ev.TrainStepFinished(board.next_action - 1, 1, 4, 440, 0.0, 0.0))
    (publish,) = board.ask(policy, finished)
    assert publish == act.PublishWeights(1, "after step 1")
    assert board.ask(policy) == []
    published = board.happens(ev.WeightsPublished(board.next_action - 1, 1, 0.0, 0.0))
    load, step = board.ask(policy, published)
    assert load == act.LoadWeights(0, 1, "version 1")
    assert step.group_ids == (2, 3)
    assert (
        board.ask(policy, board.happens(ev.TrainStepFinished(board.next_action - 1, 2, 4, 440, 0.0, 0.0)))
        == []
    )


def test_a_last_shorter_step_when_nothing_else_can_come():
    board, policy = Board(), loop()
    board.complete(0)
    assert board.ask(policy) == []
    board.state.source_exhausted = True
    assert groups_of(board.ask(policy)) == [(0,)]


@pytest.mark.parametrize("left", ["backlog", "under way", "fetch"])
def test_no_short_step_while_something_may_still_come(left):
    board, policy = Board(), loop()
    board.complete(0)
    board.state.source_exhausted = True
    if left == "fetch":
        board.does(act.FetchPrompts(1, ""))
    elif left == "backlog":
        board.arrive(1)
    else:
        under_way(board, 1)
    assert board.ask(policy) == []


@pytest.mark.parametrize(("interval", "published"), [(1, [1, 2, 3]), (2, [2]), (3, [3]), (5, [])])
def test_publishes_after_every_so_many_steps_but_not_after_the_last(interval, published):
    board = Board(bound=9)
    policy = loop(total_steps=4, sync_interval=interval, max_head_offpolicyness=9)
    seen = []
    for step in range(4):
        board.complete(10 * step)
        finished = board.train(10 * step)
        for action in policy.on_event(0.0, finished, board.state):
            if isinstance(action, act.PublishWeights):
                seen.append(action.version)
                board.publish()
    assert seen == published


def test_a_publication_that_failed_stays_due():
    board, policy = Board(), loop()
    board.complete(0)
    (publish,) = board.ask(policy, board.train(0))
    publish_id = board.next_action - 1
    for group in (1, 2):
        board.complete(group)
    failed = board.happens(ev.ActionFailed(publish_id, FailureKind.TIMEOUT, "late"))
    (timer,) = board.ask(policy, failed)  # and no step, although there is a batch
    fired = board.happens(ev.TimerFired(board.next_action - 1, timer.key))
    assert board.ask(policy, fired) == [publish]


def published_board(tps=(1, 1, 1), **settings) -> tuple[Board, TrainLoop, ev.Event]:
    board, policy = Board(tps), loop(**settings)
    board.complete(0)
    board.train(0)
    return board, policy, board.publish()


def test_parallel_reload_asks_all_that_serve_at_once():
    board, policy, published = published_board()
    board.lose(1)
    assert named(board.ask(policy, published), act.LoadWeights) == [0, 2]
    assert board.ask(policy) == []


def test_serial_reload_asks_one_after_another():
    board, policy, event = published_board(rollout_weight_reload_strategy="serial")
    for replica in range(3):
        assert named(board.ask(policy, event), act.LoadWeights) == [replica]
        assert board.ask(policy) == []
        event = board.happens(ev.WeightsLoaded(board.next_action - 1, replica, 1, 0.0, 0.0))
    assert board.ask(policy, event) == []


def test_a_load_that_failed_is_asked_again():
    board, policy, published = published_board((1,))
    board.ask(policy, published)
    failed = board.happens(ev.ActionFailed(board.next_action - 1, FailureKind.TIMEOUT, "late"))
    (timer,) = board.ask(policy, failed)
    assert isinstance(timer, act.SetTimer)
    fired = board.happens(ev.TimerFired(board.next_action - 1, timer.key))
    assert named(board.ask(policy, fired), act.LoadWeights) == [0]


def test_without_partial_rollout_the_load_waits_for_silence():
    board, policy = Board((1, 1)), loop(partial_rollout=False)
    board.complete(0)
    trajectory = under_way(board, 9)
    board.train(0)
    assert board.ask(policy, board.publish()) == []
    board.finish_turn(trajectory, last=True)
    assert board.ask(policy) == []
    done = board.happens(ev.TrajectoryFinished(trajectory, 1, 1.0))
    assert named(board.ask(policy, done), act.LoadWeights) == [0, 1]


def test_a_replica_that_comes_up_late_loads_what_it_missed():
    board, policy, published = published_board((1,))
    board.ask(policy, published)
    board.happens(ev.WeightsLoaded(board.next_action - 1, 0, 1, 0.0, 0.0))
    assert named(board.ask(policy, board.happens(ready(1, 1))), act.LoadWeights) == [1]


def short_group(board: Board, group: int, finished: int, size: int) -> list[int]:
    ids = board.arrive(group, size)
    for trajectory in ids[finished:]:
        board.does(act.DropTrajectory(trajectory, DropReason.PROMPT_TOO_LONG, ""))
    for trajectory in ids[:finished]:
        board.finish(trajectory)
    return ids[:finished]


@pytest.mark.parametrize(("smallest", "dropped"), [(1, []), (2, [0]), (3, [0, 3, 4])])
def test_groups_with_too_few_finished_are_given_up(smallest, dropped):
    board, policy = Board(), loop(n_samples=3, batch_size=9, min_group_size=smallest)
    short_group(board, 0, 1, 3)
    short_group(board, 1, 2, 3)
    actions = board.ask(policy)
    assert named(actions, act.DropTrajectory) == dropped
    assert {a.drop_reason for a in actions} <= {DropReason.SHORT_GROUP}


def test_groups_of_one_are_not_too_short():
    board, policy = Board(), loop(n_samples=1, batch_size=1)
    board.complete(0, size=1)
    assert groups_of(board.ask(policy)) == [(0,)]


def test_a_group_with_a_dropped_member_trains_on_the_others():
    board, policy = Board(), loop(n_samples=3, batch_size=3)
    short_group(board, 0, 2, 3)
    (step,) = board.ask(policy)
    assert (step.group_ids, step.num_trajectories, step.num_tokens) == ((0,), 2, 220)


def test_what_became_too_old_is_given_up_wherever_it_is():
    board = Board((1,), bound=0)
    policy = loop(max_head_offpolicyness=0, on_stale="drop", n_samples=1, batch_size=1)
    generating, in_tool = under_way(board, 1), under_way(board, 2)
    board.finish_turn(in_tool, last=False)
    waiting = under_way(board, 3)
    board.finish_turn(waiting, last=False)
    board.answer(waiting, 200)
    board.complete(4, size=1)  # finished, not in the step
    backlog = board.arrive(6)  # has no token yet
    board.complete(5, size=1)
    actions = board.ask(policy, board.train(5))
    assert named(actions, act.AbortTurn) == [generating]
    assert sorted(named(actions, act.DropTrajectory)) == sorted([in_tool, waiting, 3])
    assert {a.drop_reason for a in actions if isinstance(a, act.DropTrajectory)} == {DropReason.STALE}
    assert board.state.trajectories.keys() == {generating, *backlog}
    # The abort ends the turn; only then can the trajectory be dropped.
    failed = board.fail_turn(generating, FailureKind.ABORTED)
    assert named(board.ask(policy, failed), act.DropTrajectory) == [generating]


def test_an_aborted_turn_that_finishes_all_the_same_ends_in_a_drop():
    board = Board((1,), bound=0)
    policy = loop(max_head_offpolicyness=0, on_stale="drop", n_samples=1, batch_size=1)
    first, second = under_way(board, 1), under_way(board, 2)
    board.complete(5, size=1)
    assert named(board.ask(policy, board.train(5)), act.AbortTurn) == [first, second]
    board.finish_turn(first, last=True)
    done = board.happens(ev.TrajectoryFinished(first, 1, 1.0))
    assert named(board.ask(policy, done), act.DropTrajectory) == [first]
    board.finish_turn(second, last=False)
    assert named(board.ask(policy, board.answer(second, 200)), act.DropTrajectory) == [second]


def test_a_stale_sibling_is_dropped_while_it_is_still_starting():
    board = Board((1,), bound=0)
    policy = loop(max_head_offpolicyness=0, on_stale="drop")
    first, second = board.arrive(1, 2)
    board.begin(first)
    board.submit(first)
    start = board.does(act.StartTrajectory(second, ""))
    board.complete(5)
    assert named(board.ask(policy, board.train(5)), act.DropTrajectory) == [second]
    board.happens(ev.TrajectoryStarted(start, second))
    assert board.state.num_pending == 2  # the turn of the first and the publication
    assert second not in board.state.trajectories


def test_on_stale_wait_drops_nothing():
    board, policy = Board(bound=0), loop(max_head_offpolicyness=0)
    under_way(board, 9)
    board.complete(0)
    assert named(board.ask(policy, board.train(0)), act.DropTrajectory) == []


def test_does_nothing_without_a_trainer():
    board, policy = Board(training=False), loop(training=False)
    board.complete(0)
    assert board.ask(policy, NOTHING) == []


def test_a_group_has_at_least_one_member():
    with pytest.raises(ValueError, match="min_group_size must be at least 1"):
        TrainLoopConfig(min_group_size=0)


def test_a_load_that_fails_is_tried_again_after_a_while_and_the_others_go_on():
    board, policy = Board(tps=(1, 1)), loop(sync_retry_s=7.0)
    board.state.begin(Supply.PULL, 3)  # as after a checkpoint, with replicas that are behind
    loads = board.ask(policy)
    assert [load.replica_id for load in loads] == [0, 1]
    refused = board.happens(ev.ActionFailed(board.next_action - 2, FailureKind.TIMEOUT, "late"))
    (timer,) = board.ask(policy, refused)
    assert timer.at_s == 7.0
    assert board.ask(policy) == []
    fired = board.happens(ev.TimerFired(board.next_action - 1, timer.key))
    assert [load.replica_id for load in board.ask(policy, fired)] == [0]


GROUPS = st.lists(
    st.tuples(st.integers(-1, 6), st.booleans()), max_size=12
)  # oldest version, whether complete


@given(GROUPS, st.integers(0, 6), st.integers(0, 6), st.integers(0, 3))
def test_the_quick_reason_to_wait_is_one_for_the_full_check(groups, trained, serving, bound):
    every = {
        i: SimpleNamespace(group_id=i, version_min=max(0, version) if complete else version, num_started=1)
        for i, (version, complete) in enumerate(groups)
    }
    complete = {i: group for i, group in every.items() if groups[i][1]}
    trainer = SimpleNamespace(version=trained)
    view = SimpleNamespace(groups=every, complete_groups=complete, serving_version=serving, trainer=trainer)
    policy = loop(max_head_offpolicyness=bound)
    batch = sorted(complete.values(), key=lambda group: group.version_min)[:2]
    if policy._awaits_old(view):
        assert not policy._rest_stays_fresh(batch, view)
