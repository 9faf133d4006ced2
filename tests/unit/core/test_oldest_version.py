"""`version_min`: the oldest weight version among a trajectory's tokens and those that a turn in flight may make."""

import pytest

from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import DropReason, FailureKind
from libra.core.invariants import InvariantViolation
from tests.unit.policies.board import Board

NEW, OLD = 0, 1
"""Replicas: weights of version 1, and of version 0."""


@pytest.fixture
def board() -> Board:
    board = Board((1, 1), bound=9)
    board.complete(0, size=1)
    board.train(0)
    board.publish()
    board.load(NEW)
    return board


def oldest(board: Board, trajectory: int) -> tuple[int, int]:
    """Of the trajectory, and of its group."""
    known = board.state.trajectories[trajectory]
    board.state.recount()
    return known.version_min, known.group.version_min


def begun(board: Board, replica: int, group: int = 1, size: int = 1) -> list[int]:
    """The members of a new group; the first has finished a turn on `replica` and may submit its next."""
    first, *others = board.arrive(group, size)
    board.begin(first)
    board.submit(first, replica)
    board.finish_turn(first, last=False)
    board.answer(first, 200)
    return [first, *others]


def test_a_trajectory_without_a_token_has_none(board):
    (trajectory,) = board.arrive(1)
    assert oldest(board, trajectory) == (-1, -1)
    board.begin(trajectory)
    assert oldest(board, trajectory) == (-1, -1)
    board.submit(trajectory, OLD)
    assert oldest(board, trajectory) == (0, 0)
    board.fail_turn(trajectory, FailureKind.TIMEOUT)
    assert oldest(board, trajectory) == (-1, -1)
    board.submit(trajectory, NEW)
    assert oldest(board, trajectory) == (1, 1)


def test_it_falls_when_a_later_turn_goes_to_older_weights_and_stays_there_with_its_tokens(board):
    (trajectory,) = begun(board, NEW)
    assert oldest(board, trajectory) == (1, 1)
    board.submit(trajectory, OLD)
    assert oldest(board, trajectory) == (0, 0)
    board.finish_turn(trajectory, last=False)
    board.answer(trajectory, 300)
    board.submit(trajectory, NEW)
    board.finish_turn(trajectory, last=True)
    assert oldest(board, trajectory) == (0, 0)


def test_it_rises_again_if_the_older_weights_made_no_token(board):
    (trajectory,) = begun(board, NEW)
    board.submit(trajectory, OLD)
    board.fail_turn(trajectory, FailureKind.REPLICA_LOST)
    assert oldest(board, trajectory) == (1, 1)


def test_it_rises_again_if_a_load_came_before_the_first_token(board):
    (trajectory,) = begun(board, NEW)
    board.submit(trajectory, OLD)
    board.load(OLD)
    assert oldest(board, trajectory) == (0, 0)  # nobody knows before the turn ends
    board.finish_turn(trajectory, last=True)
    assert oldest(board, trajectory) == (1, 1)


def test_tokens_of_a_turn_that_failed_count(board):
    (trajectory,) = begun(board, NEW)
    submitted = board.submit(trajectory, OLD)
    failed = ev.TurnFailed(
        submitted, trajectory, 1, OLD, FailureKind.ABORTED, 200, 3, 0, 0, 0, 0, 1, 2, 0.0, 0.0
    )
    board.happens(failed)
    assert oldest(board, trajectory) == (0, 0)


def test_newer_turns_change_nothing(board):
    (trajectory,) = begun(board, OLD)
    board.submit(trajectory, NEW)
    assert oldest(board, trajectory) == (0, 0)
    board.finish_turn(trajectory, last=True)
    assert oldest(board, trajectory) == (0, 0)


def test_a_group_is_as_old_as_its_oldest_live_member(board):
    first, second = begun(board, NEW, size=2)
    board.begin(second)
    board.submit(second, OLD)
    assert (oldest(board, first), oldest(board, second)) == ((1, 0), (0, 0))
    board.finish_turn(second, last=False)
    board.does(act.DropTrajectory(second, DropReason.STALE, ""))
    assert oldest(board, first) == (1, 1)


def test_a_group_without_a_token_has_none_that_is_too_old(board):
    (trajectory,) = board.arrive(1)
    board.begin(trajectory)
    board.submit(trajectory, NEW)
    board.finish_turn(trajectory, last=True, output_tokens=0)
    board.happens(ev.TrajectoryFinished(trajectory, 1, 1.0))
    board.complete(2, size=1, version=1)
    board.state.max_head_offpolicyness = 0
    board.train(2)
    board.train(1)


def test_a_recount_finds_a_version_that_is_off(board):
    (trajectory,) = begun(board, NEW)
    board.state.trajectories[trajectory].version_min = 0
    board.state.groups[1].version_min = 0
    with pytest.raises(InvariantViolation, match=r"^I5: a trajectory's oldest version is off"):
        board.state.recount()
