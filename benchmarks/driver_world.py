"""The executor's side of `benchmarks.driver`: what `executor.run` puts together for a real run, without a trainer.

Controller, policies, engines' port, environment, record and status line are the real ones; prompts, tool and
tokenizer are stand-ins that cost next to nothing.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np

from benchmarks.driver_load import GROUP_SIZE, VOCAB_SIZE, Load, Measured, timed
from executor.clock import WallClock, WallClockPort
from executor.driver import ExecutorDriver
from executor.engines.client import EngineClient
from executor.engines.config import EnginesConfig
from executor.engines.launch import ReplicaPlan, StaticLauncher
from executor.engines.rollout import VllmEngines
from executor.engines.serving import Surroundings
from executor.engines.transport import new_session
from executor.engines.turns import TurnOutcome
from executor.engines.weights import DiskUpdate, WeightUpdate
from executor.engines.wire import GenerateResult
from executor.environments.base import End, Observation, StepOutcome, Task, ToolCall, TurnRules
from executor.environments.chat import ChatTokens
from executor.episodes import EpisodeStore, SamplingConfig, TurnPrompt
from executor.progress import Progress
from executor.status import Status
from executor.tools.result import ToolResult
from executor.world.environment import RealEnvironment
from executor.world.source import TaskSource
from libra.config.schema import EngineConfig
from libra.controller import Controller, ControllerConfig
from libra.core import actions as act
from libra.core.ids import ActionId, EndReason, ReplicaId, Supply, ToolStatus, TrajectoryId, WeightVersion
from libra.core.step import Step
from libra.policies.admission import Admission, AdmissionConfig
from libra.policies.load_balance import LoadBalance, LoadBalanceConfig
from libra.policies.recovery import Recovery, RecoveryConfig
from libra.policies.train_loop import TrainLoop, TrainLoopConfig
from libra.ports import Ports
from libra.record.manifest import RunInfo
from libra.record.writer import RunWriter

METRICS_PERIOD_S: Final = 2.0


async def run_driver(load: Load, addresses: Sequence[str], folder: Path) -> Measured:
    """The executor's driver with its engines' port, environment, policies and record; rollout only."""
    measured = Measured()
    async with new_session() as session:
        world = _World(load, addresses, folder, session, measured)
        try:
            await world.engines.boot()
            with timed(measured):
                await world.run(folder / "run")
        finally:
            await world.engines.close()
            world.status_file.close()
    return measured


class _World:
    """What `executor.run` puts together for a real run, without a trainer."""

    def __init__(
        self,
        load: Load,
        addresses: Sequence[str],
        folder: Path,
        session: aiohttp.ClientSession,
        measured: Measured,
    ) -> None:
        self.load, self.measured = load, measured
        self.clock = WallClock()
        self.writer: RunWriter | None = None
        controller = _controller(load)
        self.driver = ExecutorDriver(controller, self.clock, self._record, self._on_step)
        self.status_file = (folder / "status.txt").open("w")
        self.status = Status(controller.view, 0, self.status_file)
        environment = _Environment(load)
        tokens = ChatTokens(_Tokenizer(), ())
        self.store = EpisodeStore(
            SamplingConfig(load.max_tokens), max_model_len=load.max_model_len, seed=0, stop_token_ids=()
        )
        progress = Progress()
        self.port = _Port(
            environment,
            tokens,
            self.store,
            progress,
            self.driver.emit,
            self.driver.spawn,
            self.clock,
            seed=0,
            tool_timeout_s=60.0,
        )
        self.port.load, self.port.measured = load, measured
        self.source = TaskSource(
            environment.tasks, load.order, GROUP_SIZE, self.store, progress, self.driver.emit, self.port.open
        )
        self.engines = VllmEngines(
            [ReplicaPlan(ReplicaId(i), 1) for i in range(len(addresses))],
            StaticLauncher(addresses, len(addresses)),
            _Weights(folder),
            self.port,
            config=EnginesConfig(),
            engine=EngineConfig(max_num_seqs=load.in_flight),
            partial_rollout=True,
            load_deadline_s=60.0,
            session=session,
            around=Surroundings(self.clock.now_s, self.driver.emit, self.status.say),
            fail=self.driver.fail,
        )

    async def run(self, folder: Path) -> None:
        """To the end, its record closed."""
        with RunWriter(folder, "full", training=False) as self.writer:
            self.clock.restart()
            self.driver.spawn(self._poll(), "poll of the engines")
            clock = WallClockPort(self.clock, self.driver.emit)
            ports = Ports(self.source, self.port, self.engines, _NoTrainer(), clock)
            reason = await self.driver.run(ports, Supply.PULL, WeightVersion(0))
            self.writer.close(RunInfo(world="executor", config={}, seed=0, exit_reason=reason))
        assert reason is EndReason.COMPLETED, reason

    async def _poll(self) -> None:
        while True:
            await self.engines.sample()
            await asyncio.sleep(METRICS_PERIOD_S)

    def _record(self, step: Step) -> None:
        assert self.writer is not None
        self.measured.num_events += 1
        self.writer.append(step)

    def _on_step(self, step: Step) -> None:
        self.status.on_step(step)


def _controller(load: Load) -> Controller:
    rng = np.random.default_rng(0)
    shared: dict[str, Any] = {"training": False, "batch_size": load.in_flight, "n_samples": GROUP_SIZE}
    policies = [
        Recovery(RecoveryConfig(), rng),
        TrainLoop(TrainLoopConfig(total_steps=1, **shared), rng),
        Admission(AdmissionConfig(max_concurrent_rollouts=load.in_flight, **shared), rng),
        LoadBalance(LoadBalanceConfig(max_queue_length=load.in_flight), rng),
    ]
    return Controller(ControllerConfig(False, 1, max_head_offpolicyness=1), policies)  # type: ignore[arg-type]


class _Port(RealEnvironment):
    """Turns of the drawn lengths."""

    load: Load
    measured: Measured

    def prompt_of(self, trajectory_id: TrajectoryId) -> TurnPrompt:
        prompt = super().prompt_of(trajectory_id)
        length = self.load.lengths[trajectory_id][self._store[trajectory_id].turn]
        return replace(prompt, max_tokens=length)

    def on_turn_end(self, trajectory_id: TrajectoryId, turn: int, result: GenerateResult) -> TurnOutcome:
        self.measured.count(result.token_ids)
        return super().on_turn_end(trajectory_id, turn, result)


@dataclass
class _Environment:
    """A tool that answers at once after every turn but the last."""

    load: Load
    tasks: Sequence[Task] = field(init=False)
    turn_rules: TurnRules = field(default_factory=TurnRules)

    def __post_init__(self) -> None:
        self.tasks = tuple(Task(i, "") for i in range(self.load.num_trajectories // GROUP_SIZE))

    def reset(self, task: Task, rng: np.random.Generator) -> "_Episode":
        return _Episode(self.load, task)


class _Episode:
    def __init__(self, load: Load, task: Task) -> None:
        self._load = load
        self._left = load.num_turns
        self.first_prompt = Observation(token_ids=load.prompt(task.prompt_id))

    def step(self, turn_text: str, turn_token_ids: Sequence[int]) -> StepOutcome:
        self._left -= 1
        return ToolCall("echo", self._call) if self._left else End(1.0)

    async def _call(self) -> ToolResult:
        return ToolResult(ToolStatus.SUCCESS, "", 0.0)

    def observe(self, result: ToolResult) -> Observation:
        return Observation(token_ids=self._load.payload)


class _Tokenizer:
    """Characters by number; the tokens' texts mean nothing here."""

    chat_template = None

    def __len__(self) -> int:
        return VOCAB_SIZE

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))


class _Weights:
    """One version, that the endpoints have."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "v0"
        self._path.mkdir(exist_ok=True)
        (self._path / "model.safetensors").touch()

    def launch_from(self) -> tuple[str, WeightVersion]:
        return str(self._path), WeightVersion(0)

    def published_version(self) -> WeightVersion:
        return WeightVersion(0)

    async def update(self, replica_id: ReplicaId, version: WeightVersion) -> WeightUpdate:
        return DiskUpdate(str(self._path))

    async def verify(self, replica_id: ReplicaId, version: WeightVersion, client: EngineClient) -> None:
        return


class _NoTrainer:
    def start_step(self, action_id: ActionId, action: act.StartTrainStep) -> None:
        raise AssertionError("rollout only")

    def publish(self, action_id: ActionId, action: act.PublishWeights) -> None:
        raise AssertionError("rollout only")
