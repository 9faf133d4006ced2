"""The serving engines as the controller meets them: the `RolloutEngines` port over real ones.

Guarantees: every method returns at once and what it started ends as exactly one event; a turn that was aborted or
lost hands over the tokens that had arrived; a replica is down before anybody hears of it, so that the answer to its
loss may be to start it again. Everything happens on one event loop.
"""

import asyncio
from collections.abc import Callable, Sequence

import aiohttp

from executor.engines.client import EngineClient, ModelInfo
from executor.engines.config import EnginesConfig
from executor.engines.errors import EngineStartError, LoadFailed
from executor.engines.launch import EngineLauncher, ReplicaPlan
from executor.engines.lives import Life
from executor.engines.replica import RealReplica
from executor.engines.serving import Surroundings, TurnServer
from executor.engines.sync import VersionBringer
from executor.engines.tasks import Tasks
from executor.engines.turns import TurnStore
from executor.engines.weights import WeightSource
from libra.config.schema import EngineConfig
from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import NO_ACTION, ActionId, FailureKind, ReplicaId
from libra.errors import UserError


class VllmEngines:
    """See the module.

    load_deadline_s: of one weight refresh, all stages. fail: called with a defect (an exception that is nobody's
    input); it must end the run.
    """

    def __init__(
        self,
        plans: Sequence[ReplicaPlan],
        launcher: EngineLauncher,
        weights: WeightSource,
        turns: TurnStore,
        *,
        config: EnginesConfig,
        engine: EngineConfig,
        partial_rollout: bool,
        load_deadline_s: float,
        session: aiohttp.ClientSession,
        around: Surroundings,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._lives = {plan.replica_id: Life(plan, engine.max_num_seqs) for plan in plans}
        self._launcher = launcher
        self._weights = weights
        self._config = config
        self._engine = engine
        self._partial_rollout = partial_rollout
        self._bring_version = VersionBringer(weights, load_deadline_s, engine.keep_prefix_cache_on_load)
        self._session = session
        self._now = around.now
        self._emit = around.emit
        self._note = around.note
        self._tasks = Tasks(fail)
        self._server = TurnServer(
            turns,
            around,
            self._tasks,
            timeout_s=config.request_timeout_s,
            by_priority=engine.scheduling_policy == "priority",
            after_end=self._check_drained,
        )

    async def boot(self) -> None:
        """Start the replicas that are there when the run begins, all at once, and report them in their order.

        Raises EngineStartError (a UserError) for the first that fails; the others are stopped then.
        """
        lives = list(self._lives.values())
        tasks = [asyncio.create_task(self._bring_up(life)) for life in lives]
        try:
            models = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.close()
            raise
        for life, (replica, model) in zip(lives, models, strict=True):
            self._serve(life, replica, model, NO_ACTION)

    def client(self, replica_id: ReplicaId) -> EngineClient | None:
        """The client of a replica that is up; None while it is down."""
        replica = self._lives[replica_id].replica
        return replica.client if replica is not None else None

    # -- port ---------------------------------------------------------------------------------------------

    def submit(self, action_id: ActionId, action: act.SubmitTurn) -> None:
        """See `RolloutEngines`."""
        self._server.submit(self._lives[action.replica_id], action_id, action)

    def abort(self, action: act.AbortTurn) -> None:
        """See `RolloutEngines`. A turn that has ended already is left alone."""
        self._server.abort(action)

    def load_weights(self, action_id: ActionId, action: act.LoadWeights) -> None:
        """See `RolloutEngines`. A second load waits for the first."""
        life = self._lives[action.replica_id]
        if life.replica is None:
            self._emit(_down(action_id))
            return
        life.pending.add(action_id)
        life.add_task(self._tasks.spawn(self._load(life, life.replica, action_id, action)))

    async def _load(
        self, life: Life, replica: RealReplica, action_id: ActionId, action: act.LoadWeights
    ) -> None:
        keep = self._engine.keep_prefix_cache_on_load

        def on_paused() -> None:
            for key, turn in life.turns.items():
                turn.note_load(action.version, recomputed=not keep and life.slots.has_started(key))

        async with life.loading:
            if not self._partial_rollout and life.turns:
                life.pending.discard(action_id)
                message = f"{replica.name}: {len(life.turns)} turns in flight, and partial_rollout is off"
                self._emit(ev.ActionFailed(action_id, FailureKind.REFUSED, message))
                return
            try:
                started_s = await self._bring_version(replica, action.version, on_paused)
            except LoadFailed as error:
                self._note(str(error))
                life.pending.discard(action_id)
                if error.torn:  # it has no whole version, or not the one it should have: it must not serve
                    self._lose(life, replica, str(error))
                kind = FailureKind.TIMEOUT if error.late else FailureKind.ENGINE_ERROR
                self._emit(ev.ActionFailed(action_id, kind, str(error)))
                return
        life.pending.discard(action_id)
        self._emit(ev.WeightsLoaded(action_id, action.replica_id, action.version, started_s, self._now()))

    # -- port: life of a replica --------------------------------------------------------------------------

    def start(self, action_id: ActionId, action: act.StartReplica) -> None:
        """See `RolloutEngines`. The replica comes up where its plan says, with the published weights."""
        life = self._lives.get(action.replica_id)
        message = "no such replica in this cluster" if life is None else life.refusal(action.tp)
        if life is None or message:
            self._emit(ev.ActionFailed(action_id, FailureKind.REFUSED, message))
            return
        life.starting = True
        self._tasks.spawn(self._start(life, action_id))

    async def _start(self, life: Life, action_id: ActionId) -> None:
        try:
            await life.wait_gone()
            replica, model = await self._bring_up(life)
        except UserError as error:
            life.starting = False
            self._note(str(error))
            self._emit(ev.ActionFailed(action_id, FailureKind.ENGINE_ERROR, str(error).splitlines()[0]))
            return
        life.starting = False
        self._serve(life, replica, model, action_id)

    async def _bring_up(self, life: Life) -> tuple[RealReplica, ModelInfo]:
        """A healthy engine with the newest published weights, also if they were published meanwhile."""
        replica = RealReplica(life.plan, self._launcher, self._session, self._config, self._now)
        path, version = self._weights.launch_from()
        model = await replica.start(path, version)
        try:
            if not self._launcher.loads_model:
                await self._bring_version.from_folder(replica, path, version)
            while (newest := self._weights.published_version()) > replica.version:
                await self._bring_version(replica, newest)
        except BaseException as error:
            await replica.stop(0.0)
            if isinstance(error, LoadFailed):
                raise EngineStartError(str(error)) from None
            raise
        return replica, model

    def _serve(self, life: Life, replica: RealReplica, model: ModelInfo, action_id: ActionId) -> None:
        life.begin(replica, model)
        life.add_task(self._tasks.spawn(self._watch(life, replica)))
        self._emit(life.ready_event(action_id))

    async def _watch(self, life: Life, replica: RealReplica) -> None:
        why = await replica.watch()
        self._note(why)
        self._lose(life, replica, why.splitlines()[0])

    def drain(self, action_id: ActionId, action: act.DrainReplica) -> None:
        """See `RolloutEngines`."""
        life = self._lives[action.replica_id]
        if life.replica is None:
            self._emit(_down(action_id))
            return
        life.pending.add(action_id)
        life.drains.append(action_id)
        self._check_drained(life)

    def _check_drained(self, life: Life) -> None:
        while life.drains and not life.turns:
            action_id = life.drains.pop(0)
            life.pending.discard(action_id)
            self._emit(ev.ReplicaDrained(action_id, life.plan.replica_id))

    def stop(self, action_id: ActionId, action: act.StopReplica) -> None:
        """See `RolloutEngines`."""
        life = self._lives[action.replica_id]
        replica = life.replica
        if replica is None:
            self._emit(_down(action_id))
            return
        life.replica = None
        life.going = self._tasks.spawn(replica.stop())
        self._take_down(life, FailureKind.ABORTED, "the replica was stopped")
        self._tasks.spawn(self._stopped(life, action_id))

    async def _stopped(self, life: Life, action_id: ActionId) -> None:
        await life.wait_gone()
        self._emit(ev.ReplicaStopped(action_id, life.plan.replica_id))

    def lose(self, replica_id: ReplicaId) -> bool:
        """Kill a replica now, as a fault would. False if it was down already."""
        life = self._lives[replica_id]
        if life.replica is None:
            return False
        self._lose(life, life.replica, "it was killed")
        return True

    def _lose(self, life: Life, replica: RealReplica, message: str) -> None:
        if life.replica is not replica:
            return
        life.replica = None
        life.going = self._tasks.spawn(replica.stop(0.0))
        self._emit(ev.ReplicaLost(life.plan.replica_id))
        self._take_down(life, FailureKind.REPLICA_LOST, message)

    def _take_down(self, life: Life, kind: FailureKind, message: str) -> None:
        """End all that the replica was about. It is down already: an answer may start it again meanwhile."""
        turns, pending = life.end()
        self._server.take_down(turns, kind)
        for action_id in pending:
            self._emit(ev.ActionFailed(action_id, kind, message))

    # -- polling and the end ------------------------------------------------------------------------------

    async def sample(self) -> None:
        """Poll every replica that is up; ends as one `MetricsSampled` of those that answered."""
        up = [
            (life.plan.replica_id, life.replica) for life in self._lives.values() if life.replica is not None
        ]
        answers = await asyncio.gather(
            *(replica.client.metrics() for _, replica in up), return_exceptions=True
        )
        polled = [
            (replica_id, answer)
            for (replica_id, replica), answer in zip(up, answers, strict=True)
            if not isinstance(answer, BaseException) and self._lives[replica_id].replica is replica
        ]
        if polled:
            self._emit(
                ev.MetricsSampled(
                    tuple(replica_id for replica_id, _ in polled),
                    tuple(metrics.num_running for _, metrics in polled),
                    tuple(metrics.num_waiting for _, metrics in polled),
                    tuple(metrics.kv_used_fraction for _, metrics in polled),
                )
            )

    async def close(self) -> None:
        """The run is over: end all turns and engines without an event; returns when nothing is left."""
        gone = [life.going for life in self._lives.values() if life.going is not None]
        replicas = [life.replica for life in self._lives.values() if life.replica is not None]
        for life in self._lives.values():
            life.replica = None
        self._tasks.cancel(but=gone)
        await asyncio.gather(*(replica.stop() for replica in replicas), *gone, return_exceptions=True)
        await self._tasks.all_ended()


def _down(action_id: ActionId) -> ev.ActionFailed:
    return ev.ActionFailed(action_id, FailureKind.REPLICA_LOST, "replica is down")
