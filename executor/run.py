"""One real run, from a plan to a finished folder.

Order of a start: the trainer first (a resumed run takes its weights from the checkpoint, and the engines theirs
from the trainer), the engines beside it where they can; the run's clock begins when all are there. Order of an end,
however it comes: the record is closed, then engines and trainer are stopped; nothing is left behind.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from executor.checkpoints import Checkpoints
from executor.clock import WallClock, WallClockPort
from executor.driver import ExecutorDriver
from executor.engines.launch import EngineLauncher, LocalLauncher, StaticLauncher, Transfer
from executor.engines.rollout import VllmEngines
from executor.engines.serving import Surroundings
from executor.engines.transport import new_session
from executor.environments.chat import ChatTokens
from executor.episodes import EpisodeStore
from executor.plan import RunPlan
from executor.run_folder import RunFolder
from executor.status import Status
from executor.trainer.client import TrainerClient
from executor.trainer.processes import TrainerProcesses
from executor.world.environment import RealEnvironment
from executor.world.source import TaskOrder, TaskSource
from executor.world.trainer import RealTrainer, StepLog, TrainerHooks
from executor.world.weights import MAX_PROBE_ERROR, PublishedWeights
from libra.controller import Controller
from libra.core import events as ev
from libra.core.actions import LoadWeights, PublishWeights
from libra.core.ids import EndReason, FailureKind, ReplicaId, WeightVersion
from libra.core.step import Step
from libra.errors import UserError
from libra.ports import Ports
from libra.record.manifest import HostInfo, RunInfo
from libra.record.writer import RunWriter

NUM_PROBES = 2


@dataclass(frozen=True)
class Outcome:
    """How a run ended. figures: of its record's summary."""

    reason: EndReason
    figures: dict[str, float]
    attempt: Path
    error: BaseException | None = None


@dataclass(frozen=True)
class Host:
    """What the outermost layer knows: `info(reason, notes)` for the manifest, `shape()` for host.json."""

    info: Callable[[EndReason, tuple[str, ...]], RunInfo]
    shape: Callable[[], HostInfo]


async def execute(
    plan: RunPlan,
    folder: RunFolder,
    host: Host,
    say: Callable[[str], None],
    on_driver: Callable[[ExecutorDriver], None],
) -> Outcome:
    """Run to the end. `on_driver` gets the driver as soon as there is one, to stop it on a signal.

    Raises UserError where the run could not begin; what breaks it later is `Outcome.error`, and its record is kept.
    """
    experiment, config = plan.resolved.experiment, plan.config
    checkpoints = Checkpoints(
        folder.root / "checkpoints",
        interval_steps=config.checkpoint.interval_steps,
        keep=config.checkpoint.keep,
        last_step=experiment.total_steps,
    )
    folder.resume(checkpoints)
    start_version = folder.progress.version
    if folder.checkpoint is not None:
        say(f"going on after step {start_version}, from {folder.checkpoint}")
    async with AsyncExitStack() as stack:
        trainer = await stack.enter_async_context(_trainer(plan, folder))
        session = await stack.enter_async_context(new_session())
        weights = PublishedWeights(
            trainer,
            mode=config.weight_sync.mode,
            folder=folder.weights,
            start_path=plan.model_path,
            start_version=0,
            keep_versions=config.weight_sync.keep_versions,
            tp_of={replica.replica_id: replica.tp for replica in plan.replicas}.__getitem__,
            vocab_size=plan.shape.vocab_size,
            num_probes=NUM_PROBES if config.weight_sync.verify_after_sync else 0,
            tolerance=MAX_PROBE_ERROR[plan.trainer.dtype],
            backend="nccl" if plan.replicas[0].gpus else "gloo",
        )
        world = _World(plan, folder, trainer, weights, checkpoints, session, say)
        stack.push_async_callback(world.engines.close)
        await world.start(start_version)
        on_driver(world.driver)
        return await world.run(host, WeightVersion(start_version))


class _World:
    """Everything behind the ports, and the driver."""

    def __init__(
        self,
        plan: RunPlan,
        folder: RunFolder,
        trainer: TrainerClient,
        weights: PublishedWeights,
        checkpoints: Checkpoints,
        session: aiohttp.ClientSession,
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._folder, self._trainer, self._weights = plan, folder, trainer, weights
        self._checkpoints = checkpoints
        experiment, config = plan.resolved.experiment, plan.config
        self._attempt = folder.next_attempt()
        self._writer: RunWriter | None = None
        self.clock = WallClock()
        self.controller: Controller = plan.resolved.build_controller(debug=config.debug)
        self.driver = ExecutorDriver(self.controller, self.clock, self._record, self._on_step)
        self.status = Status(self.controller.view, experiment.total_steps)
        self._say = self.status.say if say is None else say
        self.environment = plan.environment.make()
        tokens = ChatTokens.load(plan.model_path)
        rules = self.environment.turn_rules
        self.store = EpisodeStore(
            config.sampling.bounded(rules.max_tokens),
            max_model_len=experiment.heterogeneous_rollout.max_model_len,
            seed=experiment.seed,
            stop_token_ids=tokens.stop_token_ids,
        )
        self.port = RealEnvironment(
            self.environment,
            tokens,
            self.store,
            folder.progress,
            self.driver.emit,
            self.driver.spawn,
            self.clock,
            seed=experiment.seed,
            tool_timeout_s=config.tool_timeout_s,
        )
        self.engines = VllmEngines(
            plan.replicas,
            self._launcher(),
            weights,
            self.port,
            config=config.engines,
            engine=experiment.heterogeneous_rollout.engine,
            partial_rollout=experiment.partial_rollout,
            load_deadline_s=config.weight_sync.deadline_s,
            session=session,
            around=Surroundings(self.clock.now_s, self.driver.emit, self.status.say),
            fail=self.driver.fail,
        )

    def _launcher(self) -> EngineLauncher:
        plan, config = self._plan, self._plan.config
        rollout = plan.resolved.experiment.heterogeneous_rollout
        if plan.installed is None:
            return StaticLauncher(config.engines.endpoints, len(plan.replicas))
        return LocalLauncher(
            plan.installed,
            config.engines,
            rollout.engine,
            max_model_len=rollout.max_model_len,
            gpu_memory_utilization=rollout.gpu_memory_utilization,
            transfer=Transfer.DIRECT if config.weight_sync.mode == "direct" else Transfer.DISK,
            log_folder=self._folder.logs,
            seed=plan.resolved.experiment.seed,
        )

    async def start(self, start_version: int) -> None:
        """Bring trainer and engines up. Raises UserError."""
        config = self._plan.config
        # The engines' events carry the run's clock, which is set to zero once they are there.
        if start_version and config.weight_sync.mode != "none":
            await self._trainer.wait_ready(config.engines.startup_timeout_s)
            await self._weights.publish(start_version)
            await self.engines.boot()
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._trainer.wait_ready(config.engines.startup_timeout_s))
                group.create_task(self.engines.boot())

    async def run(self, host: Host, version: WeightVersion) -> Outcome:
        """The run itself, with its record."""
        experiment, config = self._plan.resolved.experiment, self._plan.config
        error: BaseException | None = None
        with RunWriter(self._attempt, "full", training=True) as writer:
            self._writer = writer
            self.clock.restart()
            self.driver.spawn(self._poll(), "poll of the engines")
            try:
                reason = await self.driver.run(
                    self._ports(), TaskSource.supply, version, max_run_s=config.max_run_s or float("inf")
                )
            except Exception as raised:
                error, reason = raised, EndReason.FAILED
            finally:
                self.status.close()
            figures = writer.close(host.info(reason, self._trainer.notes), host.shape())
        self._folder.finish(reason)
        assert experiment.training
        return Outcome(reason, figures, self._attempt, error)

    def _ports(self) -> Ports:
        plan, experiment = self._plan, self._plan.resolved.experiment
        order = TaskOrder(len(self.environment.tasks), experiment.seed, plan.workload.max_prompts or None)
        source = TaskSource(
            self.environment.tasks,
            order,
            experiment.n_samples,
            self.store,
            self._folder.progress,
            self.driver.emit,
            self.port.open,
        )
        trainer = RealTrainer(
            self._trainer,
            self.store,
            self._folder.progress,
            self.clock,
            self.driver.emit,
            self.driver.spawn,
            TrainerHooks(self._checkpoint, self._logged),
            self._weights.publish,
            max_empty_batches=plan.trainer.grpo.max_empty_batches,
        )
        return Ports(source, self.port, self.engines, trainer, WallClockPort(self.clock, self.driver.emit))

    async def _poll(self) -> None:
        while True:
            await self.engines.sample()
            await asyncio.sleep(self._plan.config.metrics_period_s)

    async def _checkpoint(self, version: int, progress: Any) -> None:
        if self._checkpoints.is_due(version):
            await self._checkpoints.save(progress, self._trainer.save)

    def _logged(self, log: StepLog) -> None:
        self._folder.log_step(dataclasses.asdict(log))
        self.status.on_train_step(log)

    def _record(self, step: Step) -> None:
        assert self._writer is not None
        self._writer.append(step)

    def _on_step(self, step: Step) -> None:
        event = step.event
        if isinstance(event, ev.ActionFailed) and event.kind is not FailureKind.REPLICA_LOST:
            closed = self.controller.view.closed
            if isinstance(closed, LoadWeights | PublishWeights):
                self._sync_failed(event.message)
        self.status.on_step(step)

    def _sync_failed(self, message: str) -> None:
        if self._plan.config.weight_sync.required:
            self.driver.fail(UserError(f"weight sync failed, and weight_sync.required is true: {message}"))
        else:
            self.status.say(f"weight sync failed; the version served before goes on: {message}")


@asynccontextmanager
async def _trainer(plan: RunPlan, folder: RunFolder) -> AsyncIterator[TrainerClient]:
    """The trainer's processes and their client; both are gone afterwards."""
    processes = await TrainerProcesses.start(
        plan.trainer,
        plan.model_path,
        folder.logs,
        start_version=folder.progress.version,
        checkpoint=folder.checkpoint / "trainer" if folder.checkpoint is not None else "",
        devices=range(plan.resolved.experiment.train_gpus) if plan.replicas[0].gpus else (),
    )
    try:
        async with TrainerClient(processes.base_url, processes.died) as client:
            yield client
            with contextlib.suppress(UserError, TimeoutError):
                await asyncio.wait_for(client.stop(), 10.0)
    finally:
        await processes.stop()


__all__ = ["Host", "Outcome", "ReplicaId", "execute"]
