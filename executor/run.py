"""One real run, from a plan to a finished folder.

Order of a start: the trainer first (a resumed run takes its weights from the checkpoint, and the engines theirs
from the trainer), the engines beside it where they can; the run's clock begins when all are there. Order of an end,
however it comes: the record is closed, then engines and trainer are stopped; nothing is left behind.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from executor.assembly import Host, Outcome, RealWorld
from executor.checkpoints import Checkpoints
from executor.driver import ExecutorDriver
from executor.engines.port_pool import PortPool
from executor.engines.transport import new_session
from executor.environments.chat import ChatTokens
from executor.plan import RunPlan
from executor.run_folder import RunFolder
from executor.trainer.client import TrainerClient
from executor.trainer.processes import TrainerProcesses
from executor.world.weights import MAX_PROBE_ERROR, PublishedWeights
from libra.core.ids import WeightVersion
from libra.errors import UserError

__all__ = ["Host", "Outcome", "Parts", "execute"]

NUM_PROBES = 2
_STOP_S = 5.0
"""How long the trainer may take to end by itself; in the middle of a step it is not waited for."""


@asynccontextmanager
async def local_trainer(plan: RunPlan, folder: RunFolder) -> AsyncIterator[TrainerClient]:
    """The trainer's processes on this machine, and their client; both are gone afterwards."""
    pool = PortPool(plan.config.engines.ports, plan.config.engines.host)
    try:
        processes = await TrainerProcesses.start(
            plan.trainer,
            plan.model_path,
            folder.logs,
            start_version=folder.progress.version,
            checkpoint=folder.checkpoint / "trainer" if folder.checkpoint is not None else "",
            devices=range(plan.resolved.experiment.train_gpus) if plan.replicas[0].gpus else (),
            ports=(pool.take(), pool.take()),
        )
        try:
            async with TrainerClient(processes.base_url, processes.died) as client:
                yield client
        finally:
            await processes.stop()
    finally:
        pool.close()


@dataclass(frozen=True)
class Parts:
    """What a run is built on, for tests to put something else in its place."""

    trainer: Callable[[RunPlan, RunFolder], AbstractAsyncContextManager[TrainerClient]] = local_trainer
    tokens: Callable[[Path], ChatTokens] = ChatTokens.load


async def execute(
    plan: RunPlan,
    folder: RunFolder,
    host: Host,
    say: Callable[[str], None],
    on_driver: Callable[[ExecutorDriver], None],
    parts: Parts | None = None,
) -> Outcome:
    """Run to the end. `on_driver` gets the driver as soon as there is one, to stop it on a signal.

    Raises UserError where the run could not begin; what breaks it later is `Outcome.error`, and its record is kept.
    """
    config = plan.config
    parts = parts or Parts()
    checkpoints = Checkpoints(
        folder.root / "checkpoints",
        interval_steps=config.checkpoint.interval_steps,
        keep=config.checkpoint.keep,
        last_step=plan.resolved.experiment.total_steps,
    )
    folder.resume(checkpoints)
    start_version = folder.progress.version
    if folder.checkpoint is not None:
        say(f"going on after step {start_version}, from {folder.checkpoint}")
    async with AsyncExitStack() as stack:
        trainer = await stack.enter_async_context(parts.trainer(plan, folder))
        session = await stack.enter_async_context(new_session())
        weights = _weights(plan, folder, trainer)
        tokens = parts.tokens(plan.model_path)
        world = RealWorld(plan, folder, trainer, weights, checkpoints, session, tokens)
        stack.push_async_callback(world.engines.close)
        await world.start(start_version)
        on_driver(world.driver)
        outcome = await world.run(host, WeightVersion(start_version))
        await asyncio.gather(world.engines.close(), _end(trainer))
        return outcome


def probe_tolerance(plan: RunPlan) -> float:
    """Largest difference of log-probs that is rounding: of the coarser of the trainer's and the engines' dtype."""
    return max(MAX_PROBE_ERROR[plan.trainer.dtype], MAX_PROBE_ERROR[plan.engine_dtype])


def _weights(plan: RunPlan, folder: RunFolder, trainer: TrainerClient) -> PublishedWeights:
    sync = plan.config.weight_sync
    return PublishedWeights(
        trainer,
        mode=sync.mode,
        folder=folder.weights,
        start_path=plan.model_path,
        start_version=0,
        keep_versions=sync.keep_versions,
        tp_of={replica.replica_id: replica.tp for replica in plan.replicas}.__getitem__,
        vocab_size=plan.shape.vocab_size,
        num_probes=NUM_PROBES if sync.verify_after_sync else 0,
        tolerance=probe_tolerance(plan),
        deadline_s=sync.deadline_s,
        backend="nccl" if plan.replicas[0].gpus else "gloo",
    )


async def _end(trainer: TrainerClient) -> None:
    """Let the ranks end by themselves, if they are idle."""
    with contextlib.suppress(UserError, TimeoutError):
        await asyncio.wait_for(trainer.stop(), _STOP_S)
