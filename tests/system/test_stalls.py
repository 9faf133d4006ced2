"""Runs that nobody moves on end by themselves, whether replicas are polled or not."""

from collections.abc import Callable

import pytest

from libra.config.document import load_document
from libra.config.resolve import resolve
from libra.controller import Controller, ControllerConfig
from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import DropReason, EndReason, Place
from libra.errors import PolicyError
from libra.policies.base import Policy
from sim.config import SimConfig
from sim.driver import SimDriver
from sim.simulation import build_world
from tests.support.defects import Forgetful
from tests.system.tiny import write_experiment


@pytest.fixture
def ending(tmp_path):
    """Simulates the tiny experiment with changed policies: why it ended, and at what time."""

    def call(change: Callable[[list[Policy]], list[Policy]], **settings) -> tuple[EndReason, float]:
        changes = {key.replace("__", "."): value for key, value in settings.items()}
        resolved = resolve(load_document(write_experiment(tmp_path, changes)), {"sim": SimConfig})
        config = ControllerConfig(
            resolved.experiment.training, resolved.experiment.total_steps, 1, debug=True
        )
        steps = []
        driver = SimDriver(
            Controller(config, change(resolved.build_policies())),
            build_world(resolved),
            resolved.private["sim"],
            steps.append,
        )
        return driver.run(), steps[-1].now_s

    return call


def forgets(*lost: type) -> Callable[[list[Policy]], list[Policy]]:
    return lambda policies: [Forgetful(policy, frozenset(lost), 1.0, 0) for policy in policies]


@pytest.mark.parametrize("period_s", [0.0, 5.0])
@pytest.mark.parametrize(
    "lost",
    [
        act.FetchPrompts,
        act.StartTrajectory,
        act.SubmitTurn,
        act.StartTrainStep,
        act.PublishWeights,
        act.LoadWeights,
    ],
)
def test_a_run_whose_policies_forget_to_ask_is_stalled_and_does_not_wait_for_its_limit(
    ending, lost, period_s
):
    reason, at_s = ending(
        forgets(lost), sim__metrics_period_s=period_s, total_steps=9, max_head_offpolicyness=0
    )
    assert reason is EndReason.STALLED
    assert at_s < 100


class AtPolls:
    """The policies below, and a router that serves what is ready when replicas are polled."""

    def on_event(self, now, event, view):
        if isinstance(event, ev.MetricsSampled):
            for trajectory in list(view.trajectories.values()):
                if trajectory.place is Place.READY:
                    yield act.SubmitTurn(
                        trajectory.trajectory_id, trajectory.turn, 0, trajectory.prompt_tokens, 0, "poll"
                    )


def test_a_router_that_waits_for_the_next_poll_has_not_stalled(ending):
    reason, _ = ending(lambda policies: [*policies[:-1], AtPolls()], sim__metrics_period_s=0.5)
    assert reason is EndReason.STEPS_DONE


def test_without_polls_it_has(ending):
    reason, at_s = ending(lambda policies: [*policies[:-1], AtPolls()], sim__metrics_period_s=0.0)
    assert (reason, at_s) == (EndReason.STALLED, 0.0)


class Impatient:
    """Drops every trajectory after its first turn."""

    def on_event(self, now, event, view):
        if isinstance(event, ev.TurnFinished):
            yield act.DropTrajectory(event.trajectory_id, DropReason.SURPLUS, "enough")


class Again:
    """Sets a timer for now, for ever."""

    def on_event(self, now, event, view):
        if isinstance(event, ev.RunStarted | ev.TimerFired):
            yield act.SetTimer("again", now, "")


@pytest.mark.parametrize(
    ("change", "last"),
    [
        (forgets(act.DropTrajectory), "TurnFailed"),
        (lambda policies: [*policies, Again()], "TimerFired"),
    ],
    ids=["a turn that is too long", "a timer for now"],
)
def test_policies_that_go_in_circles_are_told_so(ending, monkeypatch, change, last):
    monkeypatch.setattr("sim.driver.MAX_EVENTS_AT_ONCE", 1_000)
    with pytest.raises(PolicyError, match=rf"^1,000 events at t=.*s without time passing, the next {last}"):
        ending(change, heterogeneous_rollout__max_model_len=600)


def test_a_trajectory_that_is_dropped_at_its_last_tool_call_ends_the_run(ending):
    """With nobody polling, too: the end is looked for after every event, not only after those that often bring it."""
    reason, at_s = ending(
        lambda policies: [*policies, Impatient()],
        sim__metrics_period_s=0.0,
        train_gpus=0,
        max_concurrent_rollouts=8,
    )
    assert reason is EndReason.COMPLETED
    assert at_s < 100


def test_room_that_a_policy_makes_on_the_side_is_filled_at_the_next_poll(ending):
    """The admission gate is not asked when a turn finishes; whoever drops then is not left waiting for ever."""
    reason, _ = ending(lambda policies: [*policies, Impatient()], sim__metrics_period_s=0.5, train_gpus=0)
    assert reason is EndReason.COMPLETED
