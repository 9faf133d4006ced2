"""What is tried again, how often, and what is let go."""

import pytest

from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import DropReason, FailureKind, Supply
from libra.policies.recovery import Recovery, RecoveryConfig
from tests.support.fake_world import ready, rng
from tests.unit.policies.board import Board


def recovery(**settings) -> Recovery:
    return Recovery(RecoveryConfig(**settings), rng())


def generating(board: Board) -> int:
    (trajectory,) = board.arrive(0)
    board.begin(trajectory)
    board.submit(trajectory)
    return trajectory


def failures(board: Board, policy: Recovery, trajectory: int, *kinds: FailureKind) -> list[act.Action]:
    """Fail turn after turn, resubmitting in between, up to the first answer."""
    for kind in kinds:
        if trajectory not in board.state.trajectories:
            break
        actions = board.ask(policy, board.fail_turn(trajectory, kind))
        if actions:
            return actions
        board.submit(trajectory)
    return []


ERROR, LOST, ABORTED = FailureKind.ENGINE_ERROR, FailureKind.REPLICA_LOST, FailureKind.ABORTED


def test_a_prompt_that_is_too_long_ends_its_trajectory_at_once():
    board, policy = Board(), recovery()
    trajectory = generating(board)
    (drop,) = failures(board, policy, trajectory, FailureKind.PROMPT_TOO_LONG)
    assert drop == act.DropTrajectory(trajectory, DropReason.PROMPT_TOO_LONG, "turn 0: prompt_too_long")


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_so_many_failures_in_a_row_end_a_trajectory(limit):
    board, policy = Board(), recovery(max_turn_failures=limit)
    trajectory = generating(board)
    assert failures(board, policy, trajectory, *[ERROR] * (limit - 1)) == []
    (drop,) = failures(board, policy, trajectory, LOST)
    assert drop.drop_reason is DropReason.TOO_MANY_FAILURES


def test_a_turn_that_finishes_starts_the_count_again():
    board, policy = Board(), recovery(max_turn_failures=2)
    trajectory = generating(board)
    assert failures(board, policy, trajectory, ERROR) == []
    board.finish_turn(trajectory, last=False)
    board.answer(trajectory, 200)
    board.submit(trajectory)
    assert failures(board, policy, trajectory, ERROR) == []
    assert failures(board, policy, trajectory, ERROR) != []


def test_aborts_do_not_count():
    board, policy = Board(), recovery(max_turn_failures=2)
    trajectory = generating(board)
    assert failures(board, policy, trajectory, ABORTED, ABORTED, ABORTED, ERROR) == []
    assert failures(board, policy, trajectory, ERROR) != []


def test_an_environment_that_does_not_start_ends_its_trajectory():
    board, policy = Board(), recovery()
    (trajectory,) = board.arrive(0)
    action_id = board.does(act.StartTrajectory(trajectory, ""))
    failed = board.happens(ev.ActionFailed(action_id, FailureKind.TIMEOUT, "no container"))
    (drop,) = board.ask(policy, failed)
    assert drop == act.DropTrajectory(trajectory, DropReason.START_FAILED, "no container")


@pytest.mark.parametrize("kind", [act.FetchPrompts, act.SetTimer])
def test_other_failures_are_not_its_business(kind):
    board, policy = Board(), recovery()
    action = act.FetchPrompts(1, "") if kind is act.FetchPrompts else act.SetTimer("mine", 9.0, "")
    failed = board.happens(ev.ActionFailed(board.does(action), FailureKind.REFUSED, "no"))
    assert board.ask(policy, failed) == []


def fire(board: Board, policy: Recovery, timer: act.SetTimer) -> list[act.Action]:
    board.state.now = timer.at_s
    return board.ask(policy, board.happens(ev.TimerFired(board.next_action - 1, timer.key)))


def test_a_lost_replica_is_started_again_where_it_was_after_the_delay():
    board, policy = Board((1, 4)), recovery(restart_delay_s=7.5)
    board.state.now = 100.0
    (timer,) = board.ask(policy, board.lose(1))
    assert (timer.at_s, timer.reason) == (107.5, "restart 1")
    assert fire(board, policy, timer) == [act.StartReplica(1, 4, 0, "restart")]


def test_a_restart_that_fails_is_tried_again_and_the_limit_is_of_each_replica():
    board, policy = Board((1, 1)), recovery(max_restarts=2)
    (timer,) = board.ask(policy, board.lose(0))
    for attempt in (2, 3):
        fire(board, policy, timer)
        failed = board.happens(ev.ActionFailed(board.next_action - 1, FailureKind.TIMEOUT, "no GPU"))
        actions = board.ask(policy, failed)
        if attempt == 3:
            assert actions == []
        else:
            (timer,) = actions
            assert timer.reason == "restart 2"
    assert len(board.ask(policy, board.lose(1))) == 1


def test_the_limit_holds_over_the_whole_run():
    board, policy = Board((1,)), recovery(max_restarts=1)
    (timer,) = board.ask(policy, board.lose(0))
    fire(board, policy, timer)
    board.happens(ready(0, 1, board.next_action - 1))
    assert board.ask(policy, board.lose(0)) == []


def test_a_timer_for_a_replica_that_is_up_again_does_nothing():
    board, policy = Board((1,)), recovery()
    (timer,) = board.ask(policy, board.lose(0))
    timer_id = board.next_action - 1
    start = board.does(act.StartReplica(0, 1, 0, "somebody else"))
    board.happens(ready(0, 1, start))
    assert board.ask(policy, board.happens(ev.TimerFired(timer_id, timer.key))) == []


def test_timers_of_others_are_left_alone():
    board, policy = Board((1,)), recovery()
    timer = board.does(act.SetTimer("plan:0", 1.0, ""))
    assert board.ask(policy, board.happens(ev.TimerFired(timer, "plan:0"))) == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_turn_failures": 0}, "max_turn_failures must be at least 1"),
        ({"restart_delay_s": -1.0}, "restart_delay_s must not be negative"),
        ({"max_restarts": -1}, "max_restarts must not be negative"),
    ],
)
def test_settings_that_mean_nothing_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        RecoveryConfig(**setting)


def late(board: Board, policy: Recovery) -> list[act.Action]:
    """The newest timer fires."""
    timers = [(i, a) for i, a in board.state.pending.items() if isinstance(a, act.SetTimer)]
    action_id, timer = timers[-1]
    board.state.now = timer.at_s
    return board.ask(policy, board.happens(ev.TimerFired(action_id, timer.key)))


def watched(**settings) -> tuple[Board, Recovery]:
    board, policy = Board(), recovery(batch_collection_timeout_s=300.0, **settings)
    board.ask(policy, board.happens(ev.RunStarted(Supply.PULL)))
    return board, policy


def test_a_batch_that_is_late_is_tried_again_and_what_has_finished_stays():
    board, policy = watched(batch_collection_max_retries=1)
    board.complete(7)
    running = generating(board)
    timer, abort = late(board, policy)
    assert (timer.at_s, abort.trajectory_id) == (600.0, running)
    assert board.ask(policy, board.fail_turn(running, ABORTED)) == []  # the router's, with its tokens
    board.submit(running)
    assert late(board, policy)[1].trajectory_id == running
    (drop,) = board.ask(policy, board.fail_turn(running, ABORTED))
    assert (drop.trajectory_id, drop.drop_reason) == (running, DropReason.COLLECTION_TIMEOUT)
    assert list(board.state.complete_groups) == [7]


def test_who_sits_in_a_tool_is_given_up_with_the_last_retry_and_a_step_starts_the_count_anew():
    board, policy = watched(batch_collection_max_retries=1)
    in_tool = generating(board)
    board.finish_turn(in_tool, last=False)
    assert [type(a) for a in late(board, policy)] == [act.SetTimer]
    board.complete(7)
    board.ask(policy, board.train(7))
    assert [type(a) for a in late(board, policy)] == [act.SetTimer]
    assert [type(a) for a in late(board, policy)] == [act.SetTimer, act.DropTrajectory]


def test_no_limit_sets_no_timer():
    board, policy = Board(), recovery()
    assert board.ask(policy, board.happens(ev.RunStarted(Supply.PULL))) == []


def test_where_nothing_moves_no_further_timer_hides_the_stall():
    board, policy = watched()
    (trajectory,) = board.arrive(0)
    board.begin(trajectory)  # ready, and no replica takes it
    assert late(board, policy) == []
    assert board.state.num_timers == 0
