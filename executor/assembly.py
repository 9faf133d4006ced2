"""The parts of a real run put together: what stands behind the ports, the driver, and the record.

Guarantees that the record is closed however the run ends, and that it holds every step that the controller took.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from executor.checkpoints import Checkpoints
from executor.clock import WallClock, WallClockPort
from executor.driver import ExecutorDriver
from executor.engines.launch import EngineLauncher, LocalLauncher, StaticLauncher, Transfer
from executor.engines.rollout import VllmEngines
from executor.engines.serving import Surroundings
from executor.environments.chat import ChatTokens
from executor.episodes import EpisodeStore
from executor.giving_up import GivingUp
from executor.plan import RunPlan
from executor.progress import Progress
from executor.run_folder import RunFolder
from executor.status import Status
from executor.trainer.client import TrainerClient
from executor.world.environment import RealEnvironment
from executor.world.source import TaskOrder, TaskSource
from executor.world.trainer import RealTrainer, StepLog, TrainerHooks
from executor.world.weights import PublishedWeights
from libra.controller import Controller
from libra.core import events as ev
from libra.core.actions import DropTrajectory, LoadWeights, PublishWeights
from libra.core.ids import EndReason, FailureKind, WeightVersion
from libra.core.step import Step
from libra.errors import UserError
from libra.ports import Ports
from libra.record.manifest import HostInfo, RunInfo
from libra.record.writer import RunWriter


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


class RealWorld:
    """Everything behind the ports, and the driver."""

    def __init__(
        self,
        plan: RunPlan,
        folder: RunFolder,
        trainer: TrainerClient,
        weights: PublishedWeights,
        checkpoints: Checkpoints,
        session: aiohttp.ClientSession,
        tokens: ChatTokens,
    ) -> None:
        self._plan, self._folder, self._trainer, self._weights = plan, folder, trainer, weights
        self._checkpoints = checkpoints
        experiment, config = plan.resolved.experiment, plan.config
        self._attempt = folder.next_attempt()
        self._writer: RunWriter | None = None
        self._record_is_whole = True
        self._drops: Counter[str] = Counter()
        self.clock = WallClock()
        self.controller: Controller = plan.resolved.build_controller(debug=config.debug)
        self.driver = ExecutorDriver(self.controller, self.clock, self._record, self._on_step)
        self._giving_up = GivingUp(max(64, 4 * experiment.batch_size))
        self.status = Status(self.controller.view, experiment.total_steps)
        environment = plan.environment
        rules = environment.turn_rules
        self.store = EpisodeStore(
            config.sampling.bounded(rules.max_tokens),
            max_model_len=experiment.heterogeneous_rollout.max_model_len,
            seed=experiment.seed,
            stop_token_ids=tokens.stop_token_ids,
        )
        self.port = RealEnvironment(
            environment,
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
        if start_version:
            await self._trainer.wait_ready(config.engines.startup_timeout_s)
            await self._weights.publish(start_version)
            await self.engines.boot()
        else:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._trainer.wait_ready(config.engines.startup_timeout_s))
                    group.create_task(self.engines.boot())
            except BaseExceptionGroup as group:
                raise _for_a_person(group) from group

    async def run(self, host: Host, version: WeightVersion) -> Outcome:
        """The run itself, with its record."""
        config = self._plan.config
        error: BaseException | None = None
        with RunWriter(self._attempt, "full", training=True) as writer:
            self._writer = writer
            self.clock.restart()
            self.driver.spawn(self._poll(), "poll of the engines")
            self.driver.spawn(self._trainer.watch(), "watch of the trainer")
            try:
                reason = await self.driver.run(
                    self._ports(), TaskSource.supply, version, max_run_s=config.max_run_s or float("inf")
                )
            except Exception as raised:
                error, reason = raised, EndReason.FAILED
            finally:
                self.status.close()
            if reason is EndReason.COMPLETED and not self.controller.view.trainer.version:
                error = UserError(nothing_trained(self._drops))
            if error is not None and not self._record_is_whole:
                raise error
            figures = writer.close(host.info(reason, self._trainer.notes), host.shape())
        if (
            reason is EndReason.COMPLETED and error is None
        ):  # before the step whose checkpoint is always written
            await self._checkpoint(self._folder.progress.version, self._folder.progress, due=True)
        self._folder.finish(reason, failed=error is not None)
        return Outcome(reason, figures, self._attempt, error)

    def _ports(self) -> Ports:
        plan, experiment = self._plan, self._plan.resolved.experiment
        tasks = plan.environment.tasks
        order = TaskOrder(len(tasks), experiment.seed, plan.workload.max_prompts or None)
        source = TaskSource(
            tasks,
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

    async def _checkpoint(self, version: int, progress: Progress, due: bool = False) -> None:
        if (due or self._checkpoints.is_due(version)) and not self._checkpoints.has(version):
            await self._checkpoints.save(progress, self._trainer.save)

    def _logged(self, log: StepLog) -> None:
        self._folder.log_step(dataclasses.asdict(log))
        self.status.on_train_step(log)

    def _record(self, step: Step) -> None:
        assert self._writer is not None
        self._record_is_whole = False
        self._writer.append(step)
        self._record_is_whole = True

    def _on_step(self, step: Step) -> None:
        event = step.event
        self._drops.update(a.drop_reason.value for a in step.actions if isinstance(a, DropTrajectory))
        if isinstance(event, ev.ActionFailed) and event.kind is not FailureKind.REPLICA_LOST:
            closed = self.controller.view.closed
            if isinstance(closed, LoadWeights | PublishWeights):
                self._sync_failed(event.message)
        if hopeless := self._giving_up.on_step(step):
            self.driver.fail(UserError(hopeless))
        self.status.on_step(step)

    def _sync_failed(self, message: str) -> None:
        if self._plan.config.weight_sync.required:
            self.driver.fail(UserError(f"weight sync failed, and weight_sync.required is true: {message}"))
        else:
            self.status.say(f"weight sync failed; the version served before goes on: {message}")


def nothing_trained(drops: Counter[str]) -> str:
    """Of a run whose supply ended before the first train step. drops: trajectories given up, by reason."""
    if not drops:
        return (
            "no train step was made: there were no prompts; see workload.environment and workload.max_prompts"
        )
    reason, times = drops.most_common(1)[0]
    return (
        f"no train step was made: {drops.total()} trajectories were given up, {times} of them for {reason}; "
        "mend that, then the same command begins anew"
    )


def _for_a_person(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first of several errors that a person can mend, else all of them."""
    found: BaseException | None = group.subgroup(UserError)
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found or group
