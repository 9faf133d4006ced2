"""The executor put to the contract: its ports over stand-in engines and a stand-in trainer, without controller and
driver, on a loop whose time jumps."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from executor.clock import WallClockPort
from executor.engines.config import EnginesConfig
from executor.engines.fake_engine import FakeConfig
from executor.engines.launch import ReplicaPlan
from executor.engines.rollout import VllmEngines
from executor.engines.serving import Surroundings
from executor.engines.transport import new_session
from executor.environments.base import End, Observation, StepOutcome, Task, ToolCall, TurnRules
from executor.environments.chat import ChatTokens
from executor.episodes import Episode, EpisodeStore, SamplingConfig
from executor.progress import Progress
from executor.tools.result import ToolResult
from executor.world.environment import RealEnvironment
from executor.world.source import TaskOrder, TaskSource
from executor.world.trainer import RealTrainer, TrainerHooks
from libra.config.schema import EngineConfig
from libra.core import actions as act
from libra.core.ids import ActionId, ReplicaId, Supply, ToolStatus
from libra.ports import Ports
from tests.contract import script
from tests.contract.harness import World
from tests.contract.sim_world import LOAD_S, PUBLISH_S, TRAIN_S
from tests.support.fake_parts import FakeLauncher, FakeRunning, FakeWeights
from tests.support.fake_run import ByteTokenizer, FakeTrainer
from tests.support.virtual_time import VirtualLoop

NEVER_S = 10_000.0


class ScriptStore(EpisodeStore):
    """Ends each turn where the script does; a real one only knows the bounds of all turns."""

    def room_tokens(self, episode: Episode) -> int:
        wanted = (script.FIRST_OUTPUT, script.SECOND_OUTPUT)[episode.turn]
        if episode.turn and episode.trajectory_id == script.TOO_LONG:
            wanted = script.MAX_MODEL_LEN
        return min(
            wanted - len(episode.turn_tokens),
            super().room_tokens(episode),
        )


class ScriptEnvironment:
    """The script as an environment; its tasks are the three groups."""

    tasks = tuple(Task(i, "") for i in range(script.NUM_TRAJECTORIES // script.GROUP_SIZE))
    turn_rules = TurnRules()

    def reset(self, task: Task, rng: Any) -> "ScriptEpisode":
        return ScriptEpisode(task)


class ScriptEpisode:
    """Of one trajectory; which one, the world tells it."""

    def __init__(self, task: Task) -> None:
        self.first_prompt = Observation(token_ids=(task.prompt_id,) * script.FIRST_PROMPT)
        self.hangs = False
        self.turn = 0

    def step(self, turn_text: str, turn_token_ids: Any) -> StepOutcome:
        self.turn += 1
        return ToolCall("shell", self._call) if self.turn == 1 else End(1.0)

    async def _call(self) -> ToolResult:
        await asyncio.sleep(100 * script.TOOL_TIMEOUT_S if self.hangs else script.TOOL_LATENCY_S)
        return ToolResult(ToolStatus.SUCCESS, "", script.TOOL_LATENCY_S)

    def observe(self, result: ToolResult) -> Observation:
        return Observation(token_ids=(7,) * script.PAYLOAD)


class SlowLauncher(FakeLauncher):
    """Its engines take `LOAD_S` to load new weights."""

    async def launch(self, plan: ReplicaPlan, model_path: str) -> FakeRunning:
        running = await super().launch(plan, model_path)
        running.server.faults.slow["/collective_rpc"] = LOAD_S
        return running


class ExecutorWorld(World):
    """A token takes 10 ms here too."""

    knows_lengths = False
    trains_what_has_finished = True
    stops_the_dead = True
    timers_may_be_late_s = 60.0

    def __init__(self) -> None:
        super().__init__()
        self._loop = VirtualLoop()
        self._heard = asyncio.Event()
        self._defects: list[BaseException] = []
        self._folder = tempfile.TemporaryDirectory()
        self.launcher = SlowLauncher(
            FakeConfig(
                max_model_len=script.MAX_MODEL_LEN,
                max_num_seqs=script.MAX_NUM_SEQS,
                tokens_per_s=100.0,
                stream_interval_tokens=10,
            )
        )
        self._loop.run_until_complete(self._open())

    async def _open(self) -> None:
        clock: Any = SimpleNamespace(now_s=self._loop.time)
        weights = FakeWeights(Path(self._folder.name))
        weights.publish(0)
        store = ScriptStore(
            SamplingConfig(max_new_tokens=script.MAX_MODEL_LEN),
            max_model_len=script.MAX_MODEL_LEN,
            seed=0,
            stop_token_ids=(),
        )
        environment = RealEnvironment(
            ScriptEnvironment(),
            ChatTokens(ByteTokenizer(), ()),
            store,
            Progress(),
            self.emit,
            self._spawn,
            clock,
            seed=0,
            tool_timeout_s=script.TOOL_TIMEOUT_S,
        )

        def first_prompt(episode: Episode) -> None:
            environment.open(episode)
            episode.state.hangs = episode.trajectory_id == script.HANGS

        tasks = ScriptEnvironment.tasks
        source = TaskSource(
            tasks,
            TaskOrder(len(tasks), 0, len(tasks)),
            script.GROUP_SIZE,
            store,
            Progress(),
            self.emit,
            first_prompt,
        )

        async def publish(version: int) -> None:
            await asyncio.sleep(PUBLISH_S)
            weights.publish(version)

        async def no_checkpoint(version: int, progress: Progress) -> None:
            pass

        trainer = RealTrainer(
            FakeTrainer(step_s=TRAIN_S),
            store,
            Progress(),
            clock,
            self.emit,
            self._spawn,
            TrainerHooks(no_checkpoint, lambda row: None),
            publish,
            max_empty_batches=5,
        )
        self._session = new_session()
        self.engines = VllmEngines(
            [ReplicaPlan(ReplicaId(i), 1) for i in range(2)],
            self.launcher,
            weights,
            environment,
            config=EnginesConfig(stop_grace_s=0.0),
            engine=EngineConfig(max_num_seqs=script.MAX_NUM_SEQS),
            partial_rollout=True,
            load_deadline_s=300.0,
            session=self._session,
            around=Surroundings(self._loop.time, self.emit, lambda line: None),
            fail=self._defects.append,
        )
        self.ports = Ports(source, environment, self.engines, trainer, WallClockPort(clock, self.emit))
        await self.engines.boot()

    def _spawn(self, work: Any, name: str) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._defects.append(error)

    def emit(self, event: Any) -> None:
        super().emit(event)
        self._heard.set()

    def send(self, action: act.Action) -> ActionId:
        """From a reaction to an event the loop runs already."""
        if self._loop.is_running():
            return super().send(action)

        async def sent() -> ActionId:
            return super(ExecutorWorld, self).send(action)

        return self._loop.run_until_complete(sent())

    def run_until(self, predicate: Callable[[], bool]) -> None:
        async def until() -> None:
            async with asyncio.timeout(NEVER_S):
                while not predicate():
                    self._heard.clear()
                    await self._heard.wait()

        try:
            self._loop.run_until_complete(until())
        except TimeoutError:
            raise AssertionError(f"never; so far {self.events}") from None

    def wait(self, seconds: float) -> None:
        self._loop.run_until_complete(asyncio.sleep(max(0.0, seconds)))

    def now_s(self) -> float:
        return self._loop.time()

    def die(self, replica_id: int) -> None:
        """It hangs: a process that ends is noticed at once."""
        server = self.launcher.server(replica_id)
        server.faults.hang = True
        server.engine.set_paused(True)

    def close(self) -> None:
        async def end() -> None:
            await self.engines.close()
            for _, _, running in self.launcher.launched:
                await running.server.stop()
            await self._session.close()
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        self._loop.run_until_complete(end())
        self._loop.close()
        self._folder.cleanup()
        assert not self._defects, self._defects


def make(supply: Supply) -> ExecutorWorld:
    """The world. It only pulls: its prompts come from a data set."""
    assert supply is Supply.PULL
    return ExecutorWorld()
