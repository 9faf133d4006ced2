"""Prompts out of a dataset of tasks, group by group: the `PromptSource` port of a real run.

Prompt number n of a run (n = 0, 1, ...) is fixed by the seed: the tasks are gone through in epochs, each in an order
of its own. It is also the group's id, so a resumed run can say which of them are done; it goes on with the first
that is not, and none is trained on twice or left out.
"""

from collections.abc import Sequence
from typing import Any

from executor.episodes import Episode, EpisodeStore
from executor.progress import Progress
from libra.core import events as ev
from libra.core.actions import FetchPrompts
from libra.core.ids import ActionId, GroupId, PromptId, Supply, TrajectoryId
from libra.core.streams import stream
from libra.ports import Emit


class TaskOrder:
    """Which task is prompt n. max_prompts: where the run's supply ends; None for never."""

    def __init__(self, num_tasks: int, seed: int, max_prompts: int | None = None) -> None:
        self._num_tasks = num_tasks
        self._seed = seed
        self._max_prompts = max_prompts
        self._epoch = -1
        self._order: Sequence[int] = ()

    def task_of(self, number: int) -> int | None:
        """Index of the task of prompt `number`; None past the end."""
        if self._max_prompts is not None and number >= self._max_prompts:
            return None
        epoch, position = divmod(number, self._num_tasks)
        if epoch != self._epoch:
            order = stream(self._seed, "dataset.epoch", epoch).permutation(self._num_tasks)
            self._epoch, self._order = epoch, order.tolist()
        return self._order[position]


class TaskSource:
    """See the module. `prompt_tokens_of(task)`: length of the first prompt."""

    supply = Supply.PULL

    def __init__(
        self,
        tasks: Sequence[Any],
        order: TaskOrder,
        group_size: int,
        store: EpisodeStore,
        progress: Progress,
        emit: Emit,
        first_prompt: Any,
    ) -> None:
        self._tasks = tasks
        self._order = order
        self._group_size = group_size
        self._store = store
        self._progress = progress
        self._emit = emit
        self._first_prompt = first_prompt
        self._next = 0

    def fetch(self, action_id: ActionId, action: FetchPrompts) -> None:
        """See `PromptSource`: whole groups, at least as many trajectories as asked for."""
        count = 0
        exhausted = False
        while count < action.num_trajectories:
            number = self._next
            index = self._order.task_of(number)
            if index is None:
                exhausted = True
                break
            self._next += 1
            if not self._progress.is_done(number):
                count += self._arrive(number, index)
        exhausted = exhausted or self._order.task_of(self._next) is None
        self._emit(ev.PromptsFetched(action_id, count, exhausted))

    def _arrive(self, number: int, index: int) -> int:
        task = self._tasks[index]
        group_id = GroupId(number)
        for sample in range(self._group_size):
            trajectory_id = TrajectoryId(number * self._group_size + sample)
            episode = Episode(trajectory_id, group_id, sample, task)
            self._first_prompt(episode)
            self._store.add(episode)
            self._emit(
                ev.TrajectoryArrived(
                    trajectory_id,
                    group_id,
                    PromptId(index),
                    sample,
                    self._group_size,
                    len(episode.tokens),
                )
            )
        return self._group_size
