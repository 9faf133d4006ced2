"""The controller under any order of events: invariants hold after each, and every run can come to its end."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import EndReason, FailureKind, Place, ToolStatus
from libra.policies.admission import AdmissionConfig
from libra.policies.length_aware import LengthAware, LengthAwareConfig
from libra.policies.load_balance import LoadBalance, LoadBalanceConfig
from libra.policies.recovery import RecoveryConfig
from libra.policies.train_loop import TrainLoopConfig
from tests.support.defects import Dropper
from tests.support.fake_world import FakeWorld, controller, policies, rng

ROUTERS = {
    "least": lambda: LoadBalance(LoadBalanceConfig(), rng()),
    "least_turns": lambda: LoadBalance(LoadBalanceConfig(sticky=False), rng()),
    "round_robin": lambda: LoadBalance(
        LoadBalanceConfig(load_balance_strategy="round_robin", max_queue_length=2), rng()
    ),
    "weighted": lambda: LoadBalance(
        LoadBalanceConfig(load_balance_strategy="weighted", max_queue_length=3), rng()
    ),
    "length_aware": lambda: LengthAware(LengthAwareConfig(max_queue_length=2), rng()),
}


class ControllerMachine(RuleBasedStateMachine):
    """Random worlds against the usual policies; the controller recounts its state after every event."""

    @initialize(
        router=st.sampled_from(sorted(ROUTERS)),
        bound=st.integers(0, 3),
        samples=st.integers(1, 3),
        groups=st.integers(1, 8),
        groups_per_step=st.integers(1, 3),
        concurrent=st.integers(1, 8),
        partial=st.booleans(),
        on_stale=st.sampled_from(["wait", "drop"]),
        reload=st.sampled_from(["parallel", "serial"]),
        sync=st.integers(1, 3),
        steps=st.integers(1, 6),
        training=st.booleans(),
        turns=st.integers(1, 3),
        early_tokens=st.booleans(),
    )
    def begin(
        self,
        router,
        bound,
        samples,
        groups,
        groups_per_step,
        concurrent,
        partial,
        on_stale,
        reload,
        sync,
        steps,
        training,
        turns,
        early_tokens,
    ) -> None:
        self.bound = max(bound, sync - 1)
        self.concurrent = concurrent
        shared = {
            "training": training,
            "batch_size": samples * groups_per_step,
            "n_samples": samples,
            "max_head_offpolicyness": self.bound,
            "partial_rollout": partial,
        }
        parts = policies(
            ROUTERS[router](),
            AdmissionConfig(max_concurrent_rollouts=concurrent, prefetch_trajectories=2, **shared),
            TrainLoopConfig(
                on_stale=on_stale,
                total_steps=steps,
                sync_interval=sync,
                rollout_weight_reload_strategy=reload,
                **shared,
            ),
            RecoveryConfig(max_restarts=1000),
        )
        self.dropper = Dropper()
        core = controller(self.dropper, *parts, training=training, total_steps=steps, bound=self.bound)
        self.world = FakeWorld(
            core, num_groups=groups, group_size=samples, turns=turns, early_tokens=early_tokens
        )
        self.world.start((1, 2, 4))

    def over(self) -> bool:
        return self.world.controller.end_reason() is not None

    @precondition(lambda self: self.world.pending and not self.over())
    @rule(data=st.data())
    def end_something(self, data) -> None:
        self.world.end(data.draw(st.sampled_from(sorted(self.world.pending))))

    @precondition(lambda self: self.world.in_tool and not self.over())
    @rule(data=st.data(), status=st.sampled_from(ToolStatus))
    def return_from_tool(self, data, status) -> None:
        self.world.return_tool(data.draw(st.sampled_from(sorted(self.world.in_tool))), status)

    @precondition(lambda self: self.world.of(act.SubmitTurn) and not self.over())
    @rule(data=st.data(), kind=st.sampled_from(FailureKind), tokens=st.integers(0, 5))
    def fail_a_turn(self, data, kind, tokens) -> None:
        action_id, _ = data.draw(st.sampled_from(self.world.of(act.SubmitTurn)))
        self.world.fail_turn(action_id, kind, tokens)

    @precondition(lambda self: not self.over())
    @rule(data=st.data())
    def fail_an_action(self, data) -> None:
        able = [
            i
            for kind in (
                act.StartTrainStep,
                act.PublishWeights,
                act.LoadWeights,
                act.StartReplica,
                act.StartTrajectory,
            )
            for i, _ in self.world.of(kind)
        ]
        if able:
            self.world.send(ev.ActionFailed(data.draw(st.sampled_from(able)), FailureKind.TIMEOUT, "late"))

    @precondition(lambda self: not self.over())
    @rule(replica=st.integers(0, 2))
    def lose_a_replica(self, replica) -> None:
        starting = [a for _, a in self.world.of(act.StartReplica) if a.replica_id == replica]
        if replica not in self.world.down and not starting:
            self.world.lose(replica)

    @precondition(lambda self: self.world.controller.view.trajectories and not self.over())
    @rule(data=st.data(), starting=st.booleans())
    def drop_something(self, data, starting) -> None:
        """As a policy of somebody's may, at a poll. Starts under way are rare, so half of the drops aim at one."""
        live = self.world.controller.view.trajectories
        able = [i for i in live if live[i].place is Place.STARTING] if starting else []
        self.dropper.told.append(data.draw(st.sampled_from(sorted(able or live))))
        self.world.send(ev.MetricsSampled((), (), (), ()))

    @precondition(lambda self: not self.over())
    @rule(later=st.floats(0, 10))
    def time_passes(self, later) -> None:
        self.world.now += later
        self.world.send(ev.MetricsSampled((), (), (), ()))

    @rule()
    def wait(self) -> None:
        """Nothing happens; there is always something that a machine may do."""

    @invariant()
    def gates_hold(self) -> None:
        if hasattr(self, "world"):
            assert self.world.controller.view.num_active <= self.concurrent

    @invariant()
    def no_trained_token_is_too_old(self) -> None:
        """I5 by the world's own account of what made each token."""
        if hasattr(self, "world"):
            assert max(self.world.lags, default=0) <= self.bound

    def teardown(self) -> None:
        """From wherever the machine stopped, a world that works again brings the run to its end."""
        if not hasattr(self, "world"):
            return
        view = self.world.controller.view
        reason = self.world.run_to_end()
        self.no_trained_token_is_too_old()
        assert reason in (EndReason.COMPLETED, EndReason.STEPS_DONE), {p: view.count(p) for p in Place}
        if reason is EndReason.COMPLETED:
            arrived = self.world.next_group * self.world.group_size
            assert view.count(Place.TRAINED) + view.count(Place.DROPPED) == arrived


ControllerMachine.TestCase.settings = settings(
    max_examples=400, stateful_step_count=60, deadline=None, report_multiple_bugs=False
)
TestController = ControllerMachine.TestCase
