"""Time in a simulated run: it scales exactly with all costs, and nothing is faster than the hardware.

Exact scaling needs durations that are whole ticks at both scales, so latencies are multiples of 1/64 s, the
trainer's times are rounded to that, and the attention term (which is rounded per step) is left out. Faults are
off: they are drawn in seconds.
"""

import dataclasses
import math

import pytest
from hypothesis import HealthCheck, given, settings

from benchmarks.engine_script import scaled as scaled_cost
from libra.core.events import MetricsSampled
from libra.core.ids import EndReason
from libra.core.step import Step
from sim.clock import TICKS_PER_S
from sim.driver import SimDriver, World
from sim.engine.base import CostTable
from sim.simulation import build_world
from sim.world.engines import ReplicaPlan
from tests.property.sim_experiments import GRAIN_S, Small, experiments, resolved_in, with_small_memory

FEW = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

TIMES = ("arrival_s", "t", "tool_latency_s")

counter = iter(range(10**9))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("time")


def slower(small: Small, factor: int) -> Small:
    """The experiment with all its own times multiplied."""
    header, *lines = (line.split(",") for line in small.trace.splitlines())
    timed = [i for i, name in enumerate(header) if name in TIMES]
    for line in lines:
        for i in timed:
            line[i] = str(factor * float(line[i]))
    trace = "\n".join(",".join(line) for line in [header, *lines]) + "\n"
    keys = ("metrics_period_s", "tool_timeout_s", "max_sim_s")
    times = {key: factor * small.tree["sim"][key] for key in keys}
    return dataclasses.replace(small.with_sim(**times), trace=trace)


def slower_table(table: CostTable, factor: int) -> CostTable:
    slow = scaled_cost(table, factor)
    slow.attention = 0  # it is quantised after the sum
    return slow


def slower_plan(plan: ReplicaPlan, factor: int) -> ReplicaPlan:
    cost = slower_table(plan.cost, factor)
    return dataclasses.replace(
        plan, cost=cost, slow_cost=cost, load_t=factor * plan.load_t, start_t=factor * plan.start_t
    )


def grained(seconds: float) -> float:
    return max(1, round(seconds / GRAIN_S)) * GRAIN_S


def play(folder, small: Small, factor: int) -> tuple[EndReason, list[Step], World]:
    """Every step of the run in a world that is `factor` times slower."""
    resolved = resolved_in(folder, slower(small, factor))
    world = with_small_memory(small, lambda: build_world(resolved))
    step_s = world.train_step_s
    world = dataclasses.replace(
        world,
        replicas=[slower_plan(plan, factor) for plan in world.replicas],
        train_step_s=lambda tokens, number: factor * grained(step_s(tokens, number)),
        publish_s=factor * grained(world.publish_s),
    )
    steps: list[Step] = []
    driver = SimDriver(resolved.build_controller(), world, resolved.private["sim"], steps.append)
    return driver.run(), steps, world


def scaled(item, factor: int):
    """An event or action with its times multiplied."""
    times = {
        field.name: factor * value
        for field in dataclasses.fields(item)
        if field.name.endswith("_s") and isinstance(value := getattr(item, field.name), float)
    }
    rewardless = {"reward": 0.0} if hasattr(item, "reward") else {}  # nan is unlike itself
    return dataclasses.replace(item, **times, **rewardless)


@FEW
@given(small=experiments(faulty=False))
def test_a_world_twice_as_slow_gives_the_same_run_in_twice_the_time(base, small):
    folder = base / str(next(counter))
    reason, steps, _ = play(folder, small, 1)
    reason_2, steps_2, _ = play(folder, small, 2)
    assert (reason, len(steps)) == (reason_2, len(steps_2))
    for step, step_2 in zip(steps, steps_2, strict=True):
        assert step_2.now_s == 2 * step.now_s
        assert scaled(step_2.event, 1) == scaled(step.event, 2)
        assert list(step_2.actions) == [scaled(action, 2) for action in step.actions]


@FEW
@given(small=experiments(faulty=False, training=False))
def test_nothing_is_faster_than_the_hardware(base, small):
    folder = base / str(next(counter))
    reason, steps, world = play(folder, small, 1)
    if reason is not EndReason.COMPLETED:
        return
    # A step with prefill whose host began early lasts no less than reading all weights takes the GPU.
    step_s = min(min(plan.cost.base[1], plan.cost.least) for plan in world.replicas) / TICKS_PER_S
    slots = sum(plan.spec.max_num_seqs for plan in world.replicas)
    begun: dict[int, float] = {}
    least: dict[int, float] = {}
    tokens = 0
    for step in steps:
        event = step.event
        name = type(event).__name__
        if name == "TrajectoryStarted":
            begun[event.trajectory_id], least[event.trajectory_id] = step.now_s, 0.0
        elif name == "TurnFinished":
            tokens += event.output_tokens
            least[event.trajectory_id] += event.output_tokens * step_s
            assert event.finished_s - event.first_token_s >= (event.output_tokens - 1) * step_s - 1e-9
        elif name == "ToolReturned":
            least[event.trajectory_id] += event.latency_s
        elif name == "TrajectoryFinished":
            assert step.now_s - begun[event.trajectory_id] >= least[event.trajectory_id] - 1e-9
    makespan_s = steps[-1].now_s
    assert makespan_s >= max(least.values(), default=0.0) - 1e-9
    assert makespan_s >= tokens * step_s / slots - 1e-9


@FEW
@given(small=experiments())
def test_polls_come_at_their_period_and_times_never_go_back(base, small):
    _, steps, _ = play(base / str(next(counter)), small, 1)
    times = [step.now_s for step in steps]
    assert times == sorted(times)
    period_s = small.tree["sim"]["metrics_period_s"]
    polls = [step.now_s for step in steps if isinstance(step.event, MetricsSampled)]
    if period_s:
        assert all(math.isclose(at, i * period_s, abs_tol=1e-9) for i, at in enumerate(polls))
    else:
        assert polls == []
