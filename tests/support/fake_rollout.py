"""Rollout engines over stand-in servers on the test's own event loop, with what the port needs around it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from executor.engines.config import EnginesConfig
from executor.engines.fake_engine import FakeConfig
from executor.engines.launch import ReplicaPlan
from executor.engines.rollout import VllmEngines
from executor.engines.serving import Surroundings
from executor.engines.transport import new_session
from libra.config.schema import EngineConfig
from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import NO_ACTION, ActionId, ReplicaId, TrajectoryId, WeightVersion
from tests.support.fake_parts import FakeLauncher, FakeStore, FakeWeights

TIMEOUT_S = 20.0


class Rollout:
    """The port and what it reported."""

    def __init__(self, engines_of: Callable[["Rollout"], VllmEngines]) -> None:
        self.events: list[ev.Event] = []
        self.notes: list[str] = []
        self.errors: list[BaseException] = []
        self.react: Callable[[ev.Event], None] = lambda event: None
        self._heard = asyncio.Event()
        self._next = 0
        self.engines = engines_of(self)

    def emit(self, event: ev.Event) -> None:
        self.events.append(event)
        self.react(event)
        self._heard.set()

    def fail(self, error: BaseException) -> None:
        self.errors.append(error)
        self._heard.set()

    def number(self) -> ActionId:
        self._next += 1
        return ActionId(self._next - 1)

    def submit(self, trajectory: int, replica: int = 0, turn: int = 0, priority: int = 0) -> ActionId:
        number = self.number()
        action = act.SubmitTurn(TrajectoryId(trajectory), turn, ReplicaId(replica), 100, priority, "")
        self.engines.submit(number, action)
        return number

    def abort(self, trajectory: int, submit_id: ActionId) -> None:
        self.engines.abort(act.AbortTurn(TrajectoryId(trajectory), submit_id, ""))

    def load(self, replica: int = 0, version: int = 1) -> ActionId:
        number = self.number()
        self.engines.load_weights(number, act.LoadWeights(ReplicaId(replica), WeightVersion(version), ""))
        return number

    def start(self, replica: int = 0, tp: int = 1) -> ActionId:
        number = self.number()
        self.engines.start(number, act.StartReplica(ReplicaId(replica), tp, 0, ""))
        return number

    def drain(self, replica: int = 0) -> ActionId:
        number = self.number()
        self.engines.drain(number, act.DrainReplica(ReplicaId(replica), ""))
        return number

    def stop(self, replica: int = 0) -> ActionId:
        number = self.number()
        self.engines.stop(number, act.StopReplica(ReplicaId(replica), ""))
        return number

    def closing(self, action_id: ActionId) -> list[ev.Event]:
        return [event for event in self.events if getattr(event, "closes", NO_ACTION) == action_id]

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Wait for an event that makes it true."""
        async with asyncio.timeout(TIMEOUT_S):
            while not predicate():
                assert not self.errors, self.errors
                self._heard.clear()
                await self._heard.wait()

    async def end_of(self, action_id: ActionId) -> ev.Event:
        await self.until(lambda: bool(self.closing(action_id)))
        (event,) = self.closing(action_id)
        return event


async def spin(predicate: Callable[[], bool]) -> None:
    """Let the loop run until it holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not predicate():
            await asyncio.sleep(0)


@dataclass
class FakeRollout:
    """What a test holds."""

    rollout: Rollout
    launcher: FakeLauncher
    weights: FakeWeights
    store: FakeStore


@contextlib.asynccontextmanager
async def fake_rollout(
    folder,
    *,
    num_replicas: int = 2,
    fake: FakeConfig | None = None,
    engine: EngineConfig | None = None,
    direct: bool = False,
    partial_rollout: bool = True,
    load_deadline_s: float = 5.0,
    boot: bool = True,
    **config: object,
) -> AsyncIterator[FakeRollout]:
    """Replicas 0.. are up. At the end nothing may be left, and no defect may have shown."""
    launcher = FakeLauncher(fake or FakeConfig(max_model_len=1000, stream_interval_tokens=10))
    weights, store = FakeWeights(folder, direct), FakeStore()
    loop = asyncio.get_running_loop()
    zero = loop.time()
    settings = {"health_period_s": 0.01, "stop_grace_s": 0.0} | config
    async with new_session() as session:

        def engines_of(rollout: Rollout) -> VllmEngines:
            return VllmEngines(
                [ReplicaPlan(ReplicaId(i), 1) for i in range(num_replicas)],
                launcher,
                weights,
                store,
                config=EnginesConfig(**settings),
                engine=engine or EngineConfig(max_num_seqs=4),
                partial_rollout=partial_rollout,
                load_deadline_s=load_deadline_s,
                session=session,
                around=Surroundings(lambda: loop.time() - zero, rollout.emit, rollout.notes.append),
                fail=rollout.fail,
            )

        world = FakeRollout(Rollout(engines_of), launcher, weights, store)
        weights.publish(0)
        try:
            if boot:
                await world.rollout.engines.boot()
            yield world
        finally:
            await world.rollout.engines.close()
            for _, _, running in launcher.launched:
                await running.server.stop()
    assert not world.rollout.errors, world.rollout.errors


def run(test: Awaitable[None]) -> None:
    """Run a test's coroutine, with a limit."""

    async def limited() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await test

    asyncio.run(limited())
