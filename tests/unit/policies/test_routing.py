"""Both routers: which replica, in which order, how many on each, and who waits."""

import pytest

from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import DropReason, FailureKind
from libra.policies.length_aware import (
    LengthAware,
    LengthAwareConfig,
    LengthThresholds,
    RoutingRule,
    RoutingRules,
)
from libra.policies.load_balance import LoadBalance, LoadBalanceConfig
from tests.support.fake_world import ready, rng
from tests.unit.policies.board import Board


def balance(strategy: str = "least_connections", **settings) -> LoadBalance:
    return LoadBalance(LoadBalanceConfig(load_balance_strategy=strategy, **settings), rng())


def by_length(**settings) -> LengthAware:
    return LengthAware(LengthAwareConfig(**settings), rng())


def place(board: Board, router, count: int = 1, tokens: int = 100) -> list[int | None]:
    """Start `count` trajectories; the replica of each first turn, `None` for one that waits."""
    chosen: list[int | None] = []
    for _ in range(count):
        (trajectory,) = board.arrive(1000 + board.next_trajectory, 1, tokens)
        actions = board.ask(router, board.begin(trajectory))
        chosen.append(actions[0].replica_id if actions else None)
    return chosen


def next_turn(board: Board, router, trajectory: int, tokens: int = 200) -> int | None:
    """End the turn of one and let its tool return; the replica of the turn that follows."""
    board.ask(router, board.finish_turn(trajectory, last=False))
    actions = board.ask(router, board.answer(trajectory, tokens))
    return actions[0].replica_id if actions else None


def end(board: Board, router, trajectory: int) -> list[tuple[int, int]]:
    """End a trajectory; what is placed thereupon, as (trajectory, replica)."""
    actions = board.ask(router, board.finish_turn(trajectory, last=True))
    actions += board.ask(router, board.happens(ev.TrajectoryFinished(trajectory, 1, 1.0)))
    return [(action.trajectory_id, action.replica_id) for action in actions]


def test_a_turn_is_submitted_as_it_is():
    board, router = Board(), balance()
    (trajectory,) = board.arrive(0, 1, 321)
    (action,) = board.ask(router, board.begin(trajectory))
    assert action == act.SubmitTurn(trajectory, 0, 0, 321, 0, "least loaded")


def test_least_connections_spreads_evenly():
    board = Board((1, 2, 4))
    assert place(board, balance(), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_least_connections_counts_trajectories_in_their_tools():
    board, router = Board((1, 1)), balance()
    place(board, router, 3)  # 0 and 2 on replica 0, 1 on replica 1
    board.finish_turn(0, last=False)
    board.finish_turn(2, last=False)
    assert place(board, router) == [1]


def test_a_sticky_trajectory_stays_though_its_replica_is_fuller():
    board, router = Board((1, 1)), balance()
    place(board, router, 4)
    end(board, router, 1)
    end(board, router, 3)
    assert next_turn(board, router, 0) == 0


def test_without_sticky_each_turn_goes_where_fewest_turns_are():
    board, router = Board((1, 1)), balance(sticky=False)
    assert place(board, router, 3) == [0, 1, 0]
    board.ask(router, board.finish_turn(1, last=False))
    board.ask(router, board.finish_turn(0, last=False))
    assert [a.replica_id for a in board.ask(router, board.answer(0, 200))] == [1]


def test_round_robin_goes_round():
    board = Board((1, 2, 4))
    assert place(board, balance("round_robin"), 5) == [0, 1, 2, 0, 1]


def test_round_robin_passes_over_the_lost_and_the_full():
    board, router = Board((1, 1, 1)), balance("round_robin", max_queue_length=2)
    board.lose(1)
    assert place(board, router, 5) == [0, 2, 0, 2, None]


def test_weighted_fills_by_tp_degree():
    board = Board((1, 4))
    chosen = place(board, balance("weighted"), 10)
    assert [chosen.count(replica) for replica in (0, 1)] == [2, 8]
    assert chosen[:4] == [1, 1, 1, 0]  # (n + 1) / weight: 1/4, 2/4, 3/4, then 1/1 before 4/4


def test_weighted_takes_the_weights_that_it_is_given():
    board = Board((1, 4))
    chosen = place(board, balance("weighted", weights={1: 3.0, 4: 1.0}), 8)
    assert [chosen.count(replica) for replica in (0, 1)] == [6, 2]


def test_weighted_goes_on_where_there_is_room():
    board = Board((1, 4))
    assert place(board, balance("weighted", max_queue_length=2), 5) == [1, 1, 0, 0, None]


@pytest.mark.parametrize("strategy", ["least_connections", "round_robin", "weighted"])
@pytest.mark.parametrize("sticky", [True, False])
def test_the_cap_holds_and_whoever_waits_is_next(strategy, sticky):
    board, router = Board((1, 1)), balance(strategy, sticky=sticky, max_queue_length=2)
    assert place(board, router, 6) == [0, 1, 0, 1, None, None]
    assert [trajectory for trajectory, _ in end(board, router, 0)] == [4]
    assert [trajectory for trajectory, _ in end(board, router, 1)] == [5]


def test_one_that_is_under_way_goes_before_those_that_wait():
    board, router = Board(), balance(max_queue_length=1)
    assert place(board, router, 3) == [0, None, None]
    assert next_turn(board, router, 0) == 0
    assert end(board, router, 0) == [(1, 0)]


def test_one_that_was_dropped_while_it_waited_is_passed_over():
    board, router = Board(), balance(max_queue_length=1)
    place(board, router, 3)
    board.does(act.DropTrajectory(1, DropReason.SURPLUS, ""))
    assert end(board, router, 0) == [(2, 0)]


@pytest.mark.parametrize("make", [balance, by_length])
def test_the_room_of_one_that_is_dropped_after_a_failed_turn_is_used(make):
    board, router = Board(), make(max_queue_length=1)
    assert place(board, router, 2) == [0, None]
    failed = board.fail_turn(0, FailureKind.PROMPT_TOO_LONG)
    board.does(act.DropTrajectory(0, DropReason.PROMPT_TOO_LONG, ""))  # as the recovery policy does, before
    assert [action.trajectory_id for action in board.ask(router, failed)] == [1]


@pytest.mark.parametrize("sticky", [True, False])
def test_a_turn_that_failed_leaves_its_room_to_the_first_that_waits(sticky):
    board, router = Board((1, 1)), balance(max_queue_length=1, sticky=sticky)
    assert place(board, router, 3) == [0, 1, None]
    board.lose(0)
    assert board.ask(router, board.fail_turn(0, FailureKind.REPLICA_LOST)) == []
    placed = board.ask(router, board.happens(ready(0, 1)))
    assert [action.trajectory_id for action in placed] == [2]


def test_one_that_was_dropped_by_an_earlier_policy_is_not_placed():
    board, router = Board(), balance()
    (trajectory,) = board.arrive(0)
    started = board.begin(trajectory)
    board.does(act.DropTrajectory(trajectory, DropReason.SURPLUS, ""))
    assert board.ask(router, started) == []


def test_a_turn_lost_with_its_replica_goes_to_another():
    board, router = Board((1, 1)), balance()
    place(board, router, 2)
    board.lose(0)
    failed = board.fail_turn(0, FailureKind.REPLICA_LOST)
    assert [action.replica_id for action in board.ask(router, failed)] == [1]


def test_with_no_replica_turns_wait_for_one():
    board, router = Board(()), balance()
    assert place(board, router, 2) == [None, None]
    assert [a.trajectory_id for a in board.ask(router, board.happens(ready(0, 1)))] == [0, 1]


def test_categories_at_their_thresholds():
    board = Board((1, 2, 4, 8))
    rules = RoutingRules(RoutingRule((1,)), RoutingRule((2,)), RoutingRule((4,)), RoutingRule((8,)))
    router = by_length(length_thresholds=LengthThresholds(10, 20, 30), routing_rules=rules)
    chosen = [place(board, router, 1, tokens)[0] for tokens in (1, 10, 11, 20, 21, 30, 31, 99)]
    assert chosen == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_least_loaded_of_the_preferred_degrees():
    board = Board((1, 2, 4, 8))
    assert place(board, by_length(), 4, tokens=100) == [0, 1, 0, 1]
    assert place(board, by_length(), 2, tokens=20_000) == [3, 2]  # (8, 4) in the order of the rule


def test_falls_back_when_the_preferred_are_full_and_then_to_anything():
    rules = RoutingRules(short=RoutingRule((1,), (2,)))
    router = by_length(routing_rules=rules, max_queue_length=1)
    assert place(Board((8, 2, 1)), router, 4) == [2, 1, 0, None]


def test_falls_back_where_no_preferred_degree_exists():
    rules = RoutingRules(short=RoutingRule((1,), (4,)))
    assert place(Board((2, 4)), by_length(routing_rules=rules), 1) == [1]
    assert place(Board((2,)), by_length(routing_rules=rules, enable_fallback=False), 1) == [0]


def test_without_fallback_a_trajectory_waits_for_a_preferred_degree_that_exists():
    rules = RoutingRules(short=RoutingRule((1,), (2,)))
    board = Board((1, 2))
    router = by_length(routing_rules=rules, max_queue_length=1, enable_fallback=False)
    assert place(board, router, 2) == [0, None]
    assert end(board, router, 0) == [(1, 0)]


@pytest.mark.parametrize(("reroute", "expected"), [("on_category_change", 1), ("never", 0)])
def test_a_longer_context_moves_to_a_larger_degree_if_it_may(reroute, expected):
    board = Board((1, 8))
    router = by_length(reroute=reroute)
    assert place(board, router) == [0]
    assert next_turn(board, router, 0, 4_000) == 0
    assert next_turn(board, router, 0, 20_000) == expected


def test_stays_where_its_new_category_is_served_as_well():
    board = Board((2, 4))
    router = by_length()
    assert place(board, router) == [0]
    assert next_turn(board, router, 0, 7_000) == 0  # medium prefers 2 and 4


def test_stays_where_the_larger_degrees_have_no_room():
    board = Board((1, 8))
    router = by_length(max_queue_length=1)
    assert place(board, router, 1, 20_000) == [1]
    assert place(board, router, 1) == [0]
    board.ask(router, board.finish_turn(1, last=False))
    (action,) = board.ask(router, board.answer(1, 20_000))
    assert (action.replica_id, action.reason) == (0, "extra_long, no room")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LoadBalanceConfig(max_queue_length=0), "max_queue_length must be at least 1"),
        (lambda: LoadBalanceConfig(weights={1: 0.0}), "weights must be positive"),
        (lambda: LengthAwareConfig(max_queue_length=0), "max_queue_length must be at least 1"),
        (lambda: LengthThresholds(5, 5, 9), "must rise"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
