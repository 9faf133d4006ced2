"""The serving engines as the controller meets them: the `RolloutEngines` port over `sim.engine`.

It turns actions into requests and ended requests into events, and owns the life of each replica. What happens
inside a replica is `sim.engine`'s business.
"""

from collections.abc import Callable
from operator import truediv

from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import NO_ACTION, ActionId, FailureKind, ReplicaId, WeightVersion
from libra.ports import Emit, turn_unserved
from sim.clock import Clock, to_seconds
from sim.engine import make_engine
from sim.engine.base import Engine, Request
from sim.world.episodes import Episode, Forks
from sim.world.plan import ReplicaPlan
from sim.world.turn_request import TurnRequest, failed_event, finished_event
from sim.world.unnoticed import Unnoticed, went_down


class Replica:
    """A replica over its lives."""

    __slots__ = ("engine", "plan", "ready_s", "slow", "starting", "totals", "unnoticed")

    def __init__(self, plan: ReplicaPlan) -> None:
        self.plan = plan
        self.engine: Engine | None = None  # None while down
        self.unnoticed: Unnoticed | None = None  # from its death until that is known
        self.slow = False
        self.starting = False
        self.totals: list[tuple[float, float, Engine]] = []  # (ready, gone, engine) of each life
        self.ready_s = 0.0


class SimEngines:
    """The port. `after_turn(episode, turn)` is called when a turn has finished and been reported."""

    def __init__(
        self,
        clock: Clock,
        kind: str,
        plans: list[ReplicaPlan],
        episodes: dict[int, Episode],
        emit: Emit,
        after_turn: Callable[[Episode, int], None],
        published_version: Callable[[], WeightVersion],
    ) -> None:
        self._clock = clock
        self._kind = kind
        self._episodes = episodes
        self._emit = emit
        self._after_turn = after_turn
        self._published_version = published_version
        self._forks = Forks()
        self._requests: dict[ActionId, TurnRequest] = {}
        self._pending: dict[ReplicaId, set[ActionId]] = {plan.replica_id: set() for plan in plans}
        self.num_ended = 0  # turns that ended, well or not
        self.replicas = {plan.replica_id: Replica(plan) for plan in plans}

    # -- port ---------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """The replicas that are there when the run begins."""
        for replica in self.replicas.values():
            self._bring_up(replica, NO_ACTION)

    def submit(self, action_id: ActionId, action: act.SubmitTurn) -> None:
        """See `RolloutEngines`."""
        replica = self.replicas[action.replica_id]
        engine = replica.engine
        if engine is None:  # it died while the action was under way
            now_s = to_seconds(self._clock.now)
            if replica.unnoticed is not None:
                replica.unnoticed.never_begun.append((action_id, action, now_s))
            else:
                self._emit(turn_unserved(action_id, action, FailureKind.REPLICA_LOST, now_s, now_s))
            return
        episode, turn = self._episodes[action.trajectory_id], action.turn
        generated = episode.num_generated
        if turn and not generated:
            self._forks.enter_turn(episode, turn, replica.plan.spec.block_size)
        output_tokens = episode.columns.output_tokens[episode.row + turn] - generated
        request = TurnRequest(action_id, action.prompt_tokens, output_tokens, episode.path, action.priority)
        request.action_id = action_id
        request.episode = episode
        request.replica_id = action.replica_id
        request.turn = turn
        self._requests[action_id] = request
        engine.submit(request)

    def abort(self, action: act.AbortTurn) -> None:
        """See `RolloutEngines`. A turn that has ended already is left alone, and a dead replica answers nothing."""
        request = self._requests.get(action.submit_id)
        if request is not None:
            engine = self.replicas[request.replica_id].engine
            if engine is not None:
                engine.abort(request)

    def load_weights(self, action_id: ActionId, action: act.LoadWeights) -> None:
        """See `RolloutEngines`."""
        replica = self.replicas[action.replica_id]
        engine = replica.engine
        if engine is None:
            self._cannot(replica, action_id)
            return
        pending = self._pending[action.replica_id]
        pending.add(action_id)

        def on_loaded(start_t: int) -> None:
            pending.discard(action_id)
            self._emit(
                ev.WeightsLoaded(
                    action_id,
                    action.replica_id,
                    action.version,
                    to_seconds(start_t),
                    to_seconds(self._clock.now),
                )
            )

        engine.load_weights(action.version, replica.plan.load_t, on_loaded)

    def start(self, action_id: ActionId, action: act.StartReplica) -> None:
        """See `RolloutEngines`. The replica comes up where its plan says, with the published weights."""
        replica = self.replicas.get(action.replica_id)
        if replica is None or replica.engine or replica.starting or replica.unnoticed:
            message = "no such replica in this cluster" if replica is None else "it is running or starting"
            self._emit(ev.ActionFailed(action_id, FailureKind.REFUSED, message))
            return
        replica.starting = True
        self._clock.call_later(replica.plan.start_t, lambda: self._bring_up(replica, action_id))

    def drain(self, action_id: ActionId, action: act.DrainReplica) -> None:
        """See `RolloutEngines`."""
        replica = self.replicas[action.replica_id]
        engine = replica.engine
        if engine is None:
            self._cannot(replica, action_id)
            return
        pending = self._pending[action.replica_id]
        pending.add(action_id)

        def on_drained() -> None:
            if action_id not in pending:  # it went down, and with it its last turn
                return
            pending.discard(action_id)
            self._emit(ev.ReplicaDrained(action_id, action.replica_id))

        engine.drain(on_drained)

    def stop(self, action_id: ActionId, action: act.StopReplica) -> None:
        """See `RolloutEngines`."""
        replica = self.replicas[action.replica_id]
        engine = replica.engine
        if engine is None:
            self._cannot(replica, action_id)
            return
        replica.engine = None
        for pending_id in self._take_down(replica, engine, FailureKind.ABORTED):
            self._emit(went_down(pending_id, FailureKind.ABORTED))
        self._emit(ev.ReplicaStopped(action_id, action.replica_id))

    # -- faults and polling -------------------------------------------------------------------------------

    def lose(self, replica_id: ReplicaId, notice_t: int) -> bool:
        """The replica dies now, which is known `notice_t` ticks later. False if it was down already."""
        replica = self.replicas[replica_id]
        engine = replica.engine
        if engine is None:
            return False
        replica.engine = None
        unnoticed = replica.unnoticed = Unnoticed()
        unnoticed.actions += self._take_down(replica, engine, FailureKind.REPLICA_LOST)
        if notice_t:
            self._clock.call_later(notice_t, lambda: self._notice(replica, unnoticed))
        else:
            self._notice(replica, unnoticed)
        return True

    def _notice(self, replica: Replica, unnoticed: Unnoticed) -> None:
        """A health check finds the replica dead."""
        replica.unnoticed = None  # before anybody hears of it: the answer may be to start it again
        unnoticed.notice(replica.plan.replica_id, self._clock.now, self._emit)

    def set_slow(self, replica_id: ReplicaId, slow: bool) -> None:
        """Make the replica a straggler, or no longer."""
        replica = self.replicas[replica_id]
        replica.slow = slow
        if replica.engine is not None:
            replica.engine.set_cost(replica.plan.slow_cost if slow else replica.plan.cost)

    def sample(self) -> ev.MetricsSampled:
        """Poll every replica that is up."""
        up = [(r, r.engine) for r in self.replicas.values() if r.engine is not None]
        return ev.MetricsSampled(
            tuple(r.plan.replica_id for r, _ in up),
            tuple(engine.num_running for _, engine in up),
            tuple(engine.num_waiting for _, engine in up),
            tuple(truediv(engine.used_blocks(), r.plan.spec.num_blocks) for r, engine in up),
        )

    def close(self) -> None:
        """The run is over: settle the counters of what still runs."""
        for replica in self.replicas.values():
            if replica.engine is not None:
                replica.engine.settle()
                replica.totals.append((replica.ready_s, to_seconds(self._clock.now), replica.engine))
                replica.engine = None

    # -- inside -------------------------------------------------------------------------------------------

    def _bring_up(self, replica: Replica, action_id: ActionId) -> None:
        plan = replica.plan
        replica.starting = False
        version = self._published_version()
        replica.engine = make_engine(
            self._kind,
            self._clock,
            plan.replica_id,
            plan.spec,
            plan.slow_cost if replica.slow else plan.cost,
            self._on_end,
            version,
        )
        replica.ready_s = to_seconds(self._clock.now)
        self._emit(
            ev.ReplicaReady(
                action_id,
                plan.replica_id,
                plan.tp,
                plan.node_id,
                version,
                plan.spec.num_blocks * plan.spec.block_size,
                plan.spec.max_num_seqs,
                plan.spec.max_model_len,
            )
        )

    def _cannot(self, replica: Replica, action_id: ActionId) -> None:
        """The replica is down: the action fails, as soon as that is known."""
        if replica.unnoticed is not None:
            replica.unnoticed.actions.append(action_id)
        else:
            self._emit(ev.ActionFailed(action_id, FailureKind.REPLICA_LOST, "replica is down"))

    def _take_down(self, replica: Replica, engine: Engine, kind: FailureKind) -> list[ActionId]:
        """End the engine and its turns; what else was pending on it is the caller's to end."""
        engine.settle()
        replica.totals.append((replica.ready_s, to_seconds(self._clock.now), engine))
        pending = self._pending[replica.plan.replica_id]
        unfinished = sorted(pending)
        pending.clear()
        engine.stop(kind)
        return unfinished

    def _on_end(self, request: Request, failure: FailureKind | None) -> None:
        assert isinstance(request, TurnRequest)
        del self._requests[request.action_id]
        self.num_ended += 1
        if failure is None:
            self._emit(finished_event(request))
            self._after_turn(request.episode, request.turn)
            return
        unnoticed = self.replicas[request.replica_id].unnoticed
        if unnoticed is not None:
            unnoticed.turns.append(request)
        else:
            self._emit(failed_event(request, failure))
