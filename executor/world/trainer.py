"""The trainer as the controller meets it: the `TrainerPort` over trainer processes.

A step takes the finished trajectories of its groups out of the episode store, trains on them and, when one is due,
writes a checkpoint before anybody hears that the step is done: what a checkpoint holds is then the state between two
steps, and the prompts that led to it are known exactly (`executor.progress`).
"""

import dataclasses
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from executor.clock import WallClock
from executor.episodes import Episode, EpisodeStore
from executor.progress import Progress
from executor.trainer.batch import Sample, TrainBatch
from libra.core import events as ev
from libra.core.actions import PublishWeights, StartTrainStep
from libra.core.ids import ActionId, FailureKind, GroupId, WeightVersion
from libra.errors import UserError
from libra.ports import Emit


class StepFigures(Protocol):
    """What a train step tells; see `executor.trainer.client.StepResult`."""

    @property
    def num_zero_variance_groups(self) -> int: ...


class Trainer(Protocol):
    """What this port needs of the trainer's client."""

    async def step(self, batch: TrainBatch, version: int) -> StepFigures: ...


@dataclass
class StepLog:
    """A row for the run's `steps.jsonl` and the status line. prompts: numbers of those trained on, `TaskOrder`'s.

    reward_mean: of the step's trajectories.
    """

    version: int
    prompts: list[int]
    reward_mean: float
    reward_std: float
    num_trajectories: int
    num_groups: int
    started_s: float
    finished_s: float
    staleness_mean: float
    output_tokens_mean: float
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainerHooks:
    """What happens around steps. checkpoint(version, progress): write one if due. logged(row): a step is done."""

    checkpoint: Callable[[int, Progress], Awaitable[None]]
    logged: Callable[[StepLog], None]


class RealTrainer:
    """See the module. publish(version): makes the current weights loadable, or raises UserError.

    max_empty_batches: steps without any signal (all rewards of each group equal) in a row that are borne.
    """

    def __init__(
        self,
        trainer: Trainer,
        store: EpisodeStore,
        progress: Progress,
        clock: WallClock,
        emit: Emit,
        spawn: Callable[[Coroutine[Any, Any, None], str], Any],
        hooks: TrainerHooks,
        publish: Callable[[int], Awaitable[None]],
        *,
        max_empty_batches: int,
    ) -> None:
        self._trainer = trainer
        self._store = store
        self._progress = progress
        self._clock = clock
        self._emit = emit
        self._spawn = spawn
        self._hooks = hooks
        self._make_loadable = publish
        self._max_empty_batches = max_empty_batches
        self._num_empty = 0
        self._version = progress.version

    def start_step(self, action_id: ActionId, action: StartTrainStep) -> None:
        """See `TrainerPort`."""
        self._spawn(self._step(action_id, action.group_ids), f"train step {self._version + 1}")

    async def _step(self, action_id: ActionId, group_ids: tuple[GroupId, ...]) -> None:
        started_s = self._clock.now_s()
        episodes = [e for group_id in group_ids for e in self._store.group(group_id) if e.finished]
        version = self._version + 1
        result = await self._trainer.step(TrainBatch(tuple(sample_of(e) for e in episodes)), version)
        self._count_empty(result, len(group_ids))
        self._version = version
        self._progress.version = version
        self._progress.finish(int(group_id) for group_id in group_ids)
        for episode in episodes:
            self._store.remove(episode.trajectory_id)
        finished_s = self._clock.now_s()
        self._hooks.logged(_log_of(version, episodes, group_ids, started_s, finished_s, result))
        await self._hooks.checkpoint(version, self._progress)
        self._emit(
            ev.TrainStepFinished(
                action_id,
                WeightVersion(version),
                len(episodes),
                sum(len(e.tokens) for e in episodes),
                started_s,
                self._clock.now_s(),
            )
        )

    def _count_empty(self, result: StepFigures, num_groups: int) -> None:
        self._num_empty = self._num_empty + 1 if result.num_zero_variance_groups >= num_groups else 0
        if self._num_empty >= self._max_empty_batches:
            raise UserError(
                f"{self._num_empty} train steps in a row had nothing to learn from: within each group all rewards "
                "were equal. Take a task of another difficulty, a larger n_samples or a higher temperature "
                "(executor.trainer.grpo.max_empty_batches says how many are borne)"
            )

    def publish(self, action_id: ActionId, action: PublishWeights) -> None:
        """See `TrainerPort`."""
        self._spawn(self._publish(action_id, action.version), f"publication of version {action.version}")

    async def _publish(self, action_id: ActionId, version: WeightVersion) -> None:
        started_s = self._clock.now_s()
        try:
            await self._make_loadable(int(version))
        except UserError as error:
            self._emit(ev.ActionFailed(action_id, FailureKind.ENGINE_ERROR, str(error)))
            return
        self._emit(ev.WeightsPublished(action_id, version, started_s, self._clock.now_s()))


def sample_of(episode: Episode) -> Sample:
    """A finished trajectory as the trainer takes it."""
    return Sample(
        trajectory_id=int(episode.trajectory_id),
        group_id=int(episode.group_id),
        tokens=np.asarray(episode.tokens, np.int32),
        loss_mask=np.asarray(episode.generated, np.bool_),
        rollout_logprobs=np.asarray(episode.logprobs, np.float32),
        reward=float(episode.reward),
    )


def _log_of(
    version: int,
    episodes: list[Episode],
    group_ids: tuple[GroupId, ...],
    started_s: float,
    finished_s: float,
    result: StepFigures,
) -> StepLog:
    rewards = np.array([e.reward for e in episodes])
    generated = np.array([sum(e.generated) for e in episodes])
    trained_at = version - 1
    lag = [trained_at - v for e in episodes for v, own in zip(e.versions, e.generated, strict=True) if own]
    return StepLog(
        version=version,
        prompts=[int(group_id) for group_id in group_ids],
        reward_mean=float(rewards.mean()) if len(rewards) else float("nan"),
        reward_std=float(rewards.std()) if len(rewards) else float("nan"),
        num_trajectories=len(episodes),
        num_groups=len(group_ids),
        started_s=started_s,
        finished_s=finished_s,
        staleness_mean=float(np.mean(lag)) if lag else float("nan"),
        output_tokens_mean=float(generated.mean()) if len(generated) else float("nan"),
        figures={f.name: getattr(result, f.name) for f in dataclasses.fields(result)},  # type: ignore[arg-type]
    )
