"""Rule E5, when an arrival becomes visible to the scheduler: numbers added up by hand, on both engines.

Costs (conftest): a decode step lasts 100 + context tokens, a step with prefill 50 + decoding context + 2 per
prefilled token. A request of 5 prompt tokens decodes from tick `start` + 60 on, in steps of 106, 107, ...
"""

from typing import Any

import pytest

from libra.core.ids import FailureKind
from sim.engine.base import CostTable, QueueOrder


def late(admission: int, lag: bool, max_num_seqs: int = 8) -> CostTable:
    """The plain cost of conftest, with arrivals seen late."""
    return CostTable([100] * (max_num_seqs + 1), [1] * (max_num_seqs + 1), 0, 50, 2, 0, 1, admission, lag)


def test_at_rest_it_starts_after_the_admission_delay(bench: Any) -> None:
    engine = bench.engine(late(7, lag=True))
    request = bench.submit(1000, 1, prompt=5, output=2)
    bench.run()
    assert (request.submitted_t, request.started_t, request.first_token_t) == (1000, 1007, 1067)
    assert engine.counters.idle_t == 1007


@pytest.mark.parametrize(
    ("submitted", "started"),
    [
        (159, 166),  # visible at 166, the boundary itself
        (160, 273),  # visible at 167: one boundary later
    ],
)
def test_without_lag_the_first_boundary_at_which_it_is_visible(
    bench: Any, submitted: int, started: int
) -> None:
    bench.engine(late(7, lag=False))
    bench.submit(-7 + 7, 1, prompt=5, output=9)  # starts at 7, decodes from 67, then boundaries 173, 280
    second = bench.submit(submitted + 7, 2, prompt=5, output=1)
    bench.run()
    assert second.started_t == started + 7


@pytest.mark.parametrize(
    ("submitted", "started"),
    [
        (60, 166),  # visible when the step from 60 to 166 starts
        (61, 273),  # that step had been scheduled: the one after it has been decided on, too
        (166, 273),
        (167, 381),
    ],
)
def test_with_lag_the_step_in_flight_and_the_next_are_decided(
    bench: Any, submitted: int, started: int
) -> None:
    bench.engine(late(0, lag=True))
    bench.submit(0, 1, prompt=5, output=9)
    second = bench.submit(submitted, 2, prompt=5, output=1)
    bench.run()
    assert second.started_t == started


def test_with_lag_an_engine_that_runs_dry_starts_at_once(bench: Any) -> None:
    bench.engine(late(0, lag=True))
    bench.submit(0, 1, prompt=5, output=2)  # ends at 166
    second = bench.submit(100, 2, prompt=5, output=1)
    bench.run()
    assert second.started_t == 166


def test_a_later_arrival_never_overtakes_but_by_its_priority(bench: Any) -> None:
    bench.engine(late(30, lag=True), max_num_seqs=1, queue_order=QueueOrder.PRIORITY)
    bench.submit(0, 1, prompt=5, output=2)
    low, high = (
        bench.submit(5, 2, prompt=5, output=1, priority=9),
        bench.submit(9, 3, prompt=5, output=1, priority=1),
    )
    bench.run()
    assert high.started_t < low.started_t


def test_an_unseen_request_can_be_aborted_and_is_counted_as_waiting(bench: Any) -> None:
    engine = bench.engine(late(50, lag=False))
    request = bench.submit(10, 1, prompt=5, output=1)
    seen: list[int] = []
    bench.at(20, lambda: (seen.append(engine.num_waiting), engine.abort(request)))
    bench.at(30, lambda: seen.append(engine.num_waiting))
    bench.run()
    assert bench.ended == [(20, 1, FailureKind.ABORTED)]
    assert seen == [1, 0]
    assert engine.counters.num_steps == 0


def test_drain_and_stop_count_the_unseen(bench: Any) -> None:
    engine = bench.engine(late(50, lag=False))
    drained: list[int] = []
    bench.submit(10, 1, prompt=5, output=1)
    bench.at(20, lambda: engine.drain(lambda: drained.append(bench.clock.now)))
    bench.submit(200, 2, prompt=5, output=1)
    bench.at(210, lambda: engine.stop(FailureKind.REPLICA_LOST))
    bench.run()
    assert drained == [120]
    assert bench.ended == [(120, 1, None), (210, 2, FailureKind.REPLICA_LOST)]
