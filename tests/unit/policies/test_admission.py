"""The two gates in numbers, and when prompts are fetched."""

import pytest

from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import ActionId, DropReason, Supply
from libra.policies.admission import Admission, AdmissionConfig
from tests.support.fake_world import rng
from tests.unit.policies.board import Board, named


def gate(**settings) -> Admission:
    wide = {"batch_size": 2, "n_samples": 2, "max_concurrent_rollouts": 100, "max_head_offpolicyness": 0}
    return Admission(AdmissionConfig(**{**wide, "prefetch_trajectories": 1, **settings}), rng())


def exhausted(board: Board) -> Board:
    board.state.source_exhausted = True
    return board


def test_no_more_than_max_concurrent_rollouts_are_under_way():
    board, policy = exhausted(Board()), gate(max_concurrent_rollouts=5, max_head_offpolicyness=9)
    for group in range(4):
        board.arrive(group, 2)
    assert named(board.ask(policy), act.StartTrajectory) == [0, 1, 2, 3, 4]
    assert board.ask(policy) == []


def test_each_one_that_finishes_lets_one_in():
    board, policy = exhausted(Board()), gate(max_concurrent_rollouts=2, max_head_offpolicyness=9)
    for group in range(2):
        board.arrive(group, 2)
    first = board.arrive(2, 1)[0]
    finished = board.finish(first)
    assert named(board.ask(policy, finished), act.StartTrajectory) == [0, 1]


def test_one_that_is_dropped_when_its_tool_returns_lets_one_in():
    """Its turn had been aborted, and finished all the same. No other event may follow."""
    board, policy = exhausted(Board()), gate(batch_size=1, n_samples=1)
    board.arrive(0)
    board.arrive(1)
    board.begin(0)
    board.submit(0)
    board.finish_turn(0, last=False)
    returned = board.answer(0, 200)
    assert ev.ToolReturned not in policy.ignores
    assert board.ask(policy, returned) == []
    board.does(act.DropTrajectory(0, DropReason.STALE, ""))
    assert named(board.ask(policy, returned), act.StartTrajectory) == [1]


@pytest.mark.parametrize(("bound", "groups"), [(0, 2), (1, 4), (3, 8)])
def test_at_version_0_one_more_batch_than_the_bound_may_start(bound, groups):
    board, policy = exhausted(Board()), gate(batch_size=4, max_head_offpolicyness=bound)
    for group in range(10):
        board.arrive(group, 2)
    assert named(board.ask(policy), act.StartTrajectory) == list(range(2 * groups))


def test_the_gate_opens_when_the_last_replica_serves_the_new_weights():
    board, policy = exhausted(Board((1, 1))), gate()
    board.complete(0)
    for group in range(1, 4):
        board.arrive(group, 2)
    assert board.ask(policy) == []
    assert board.ask(policy, board.train(0)) == []
    assert board.ask(policy, board.publish()) == []
    assert board.ask(policy, board.load(0)) == []
    assert named(board.ask(policy, board.load(1)), act.StartTrajectory) == [2, 3]


def test_a_group_that_has_begun_is_completed_whatever_the_gate_says():
    board, policy = exhausted(Board()), gate(max_concurrent_rollouts=3, n_samples=4, batch_size=4)
    ids = board.arrive(0, 4)
    board.arrive(1, 4)
    assert named(board.ask(policy), act.StartTrajectory) == [0, 1, 2]
    # One ends: the last of the group follows, and none of the next group, which the bound forbids.
    pending = next(i for i, a in board.state.pending.items() if a.trajectory_id == ids[0])
    board.happens(ev.TrajectoryStarted(pending, ids[0]))
    board.submit(ids[0])
    board.finish_turn(ids[0], last=True)
    assert named(
        board.ask(policy, board.happens(ev.TrajectoryFinished(ids[0], 1, 1.0))), act.StartTrajectory
    ) == [3]


def test_a_discarded_group_gives_its_place_back():
    board, policy = exhausted(Board()), gate()
    ids = board.arrive(0, 2)
    board.arrive(1, 2)
    for trajectory in ids:
        board.begin(trajectory)
    assert board.ask(policy) == []
    for trajectory in ids:
        board.does(act.DropTrajectory(trajectory, DropReason.STALE, ""))
    assert named(board.ask(policy), act.StartTrajectory) == [2, 3]


def test_without_a_trainer_only_concurrency_counts():
    board, policy = exhausted(Board(training=False)), gate(training=False)
    for group in range(5):
        board.arrive(group, 2)
    assert named(board.ask(policy), act.StartTrajectory) == list(range(10))


def test_a_batch_smaller_than_a_group_counts_as_one_group():
    board, policy = exhausted(Board(training=False)), gate(batch_size=1, n_samples=4)
    for group in range(3):
        board.arrive(group, 4)
    assert named(board.ask(policy), act.StartTrajectory) == [0, 1, 2, 3]


def test_without_partial_rollout_nothing_starts_between_publication_and_last_load():
    board, policy = exhausted(Board((1, 1))), gate(partial_rollout=False, max_head_offpolicyness=5)
    board.complete(0)
    board.train(0)
    board.arrive(1, 2)
    published = board.publish()
    assert board.ask(policy, published) == []
    assert board.ask(policy, board.load(0)) == []
    assert named(board.ask(policy, board.load(1)), act.StartTrajectory) == [2, 3]


@pytest.mark.parametrize(("prefetch", "concurrent", "wanted"), [(4, 2, 4), (4, 30, 30)])
def test_fetches_enough_for_backlog_and_room(prefetch, concurrent, wanted):
    board = Board()
    policy = gate(prefetch_trajectories=prefetch, max_concurrent_rollouts=concurrent)
    (fetch,) = board.ask(policy)
    assert fetch == act.FetchPrompts(wanted, "backlog 0")
    assert board.ask(policy) == []  # one at a time


def test_does_not_fetch_with_a_backlog_that_is_long_enough():
    board, policy = Board(), gate(prefetch_trajectories=2, max_concurrent_rollouts=1)
    board.arrive(0, 3)
    assert [type(action) for action in board.ask(policy)] == [act.StartTrajectory]


def test_does_not_fetch_from_a_source_that_pushes_or_has_no_more():
    board, policy = Board(), gate()
    board.state.supply = Supply.PUSH
    assert board.ask(policy) == []
    board.state.supply = Supply.PULL
    action_id = board.does(act.FetchPrompts(1, ""))
    assert board.ask(policy, board.happens(ev.PromptsFetched(ActionId(action_id), 0, True))) == []


def test_pulled_arrivals_wait_for_the_end_of_the_fetch_pushed_ones_do_not():
    board, policy = exhausted(Board()), gate()
    board.arrive(0, 1)
    arrived = ev.TrajectoryArrived(0, 0, 0, 0, 1, 100)
    assert board.ask(policy, arrived) == []
    board.state.supply = Supply.PUSH
    assert named(board.ask(policy, arrived), act.StartTrajectory) == [0]


@pytest.mark.parametrize("name", ["prefetch_trajectories", "max_concurrent_rollouts"])
def test_settings_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        AdmissionConfig(**{name: 0})
