"""Whatever a policy forgets to ask for, a run ends by itself: it is done, or found stalled, or going in circles."""

from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, event, given, settings

from libra.controller import Controller, ControllerConfig
from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import EndReason, Supply
from libra.errors import PolicyError
from libra.workloads.table import Chunk
from sim.clock import Clock
from sim.config import SlowToolConfig
from sim.driver import SimDriver
from sim.simulation import build_world
from sim.world.faults import ToolFaults
from sim.world.source import SimSource
from tests.property.sim_experiments import Small, experiments, resolved_in, with_small_memory
from tests.support.defects import Forgetful

FORGOTTEN = [
    act.FetchPrompts,
    act.StartTrajectory,
    act.SubmitTurn,
    act.StartTrainStep,
    act.PublishWeights,
    act.LoadWeights,
    act.StartReplica,
    act.SetTimer,
    act.DropTrajectory,
    act.AbortTurn,
]


def end_of(folder, small: Small, lost, share: float, seed: int) -> EndReason:
    resolved = resolved_in(folder, small)
    experiment = resolved.experiment
    config = ControllerConfig(
        experiment.training, experiment.total_steps, experiment.max_head_offpolicyness, debug=True
    )
    policies = [Forgetful(policy, frozenset(lost), share, seed) for policy in resolved.build_policies()]
    driver = with_small_memory(
        small,
        lambda: SimDriver(
            Controller(config, policies), build_world(resolved), resolved.private["sim"], lambda step: None
        ),
    )
    return driver.run()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    small=experiments(),
    lost=st.sets(st.sampled_from(FORGOTTEN), min_size=1, max_size=3),
    share=st.sampled_from([0.3, 1.0]),
    seed=st.integers(0, 99),
)
def test_no_run_goes_on_to_its_time_limit_with_nothing_under_way(tmp_path_factory, small, lost, share, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.driver.MAX_EVENTS_AT_ONCE", 2_000)
        reason: EndReason | None = None
        with suppress(PolicyError):  # in circles
            reason = end_of(tmp_path_factory.mktemp("stall"), small, lost, share, seed)
    event(f"ended: {reason}")
    assert reason is not EndReason.TIME_LIMIT


class Empty:
    """A pushed workload without a trajectory."""

    supply = Supply.PUSH

    def next_chunk(self) -> Chunk | None:
        """Nothing."""
        return None


def test_a_pushed_workload_without_arrivals_says_that_it_is_over():
    events: list[ev.Event] = []
    source = SimSource(Clock(), Empty(), {}, 16, ToolFaults(SlowToolConfig(), 0), events.append)
    source.start_pushing()
    assert events == [ev.SourceExhausted()]
