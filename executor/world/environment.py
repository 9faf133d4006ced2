"""Episodes in their environments: starts, tool calls, rewards; and the tokens of their turns.

The `EnvironmentPort` of a real run, and the `TurnStore` that the engines ask. Guarantees that a trajectory that was
dropped makes no further event, also not from a tool call under way; that a tool call ends within its time limit; and
that a turn that has no room left in the context ends the episode instead of being refused later.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from executor.clock import WallClock
from executor.engines.turns import TurnOutcome
from executor.engines.wire import GenerateResult
from executor.environments.base import End, Environment, StepOutcome, ToolCall, call_tool
from executor.environments.chat import ChatTokens
from executor.episodes import Episode, EpisodeStore, TurnPrompt, TurnTokens
from executor.progress import Progress
from executor.tools.result import ToolResult
from libra.core import events as ev
from libra.core.actions import DropTrajectory, StartTrajectory
from libra.core.ids import ActionId, NextStep, TrajectoryId
from libra.core.streams import stream
from libra.ports import Emit

MIN_ROOM_TOKENS: Final = 1
"""A turn begins only where the context has room for this many generated tokens."""


class RealEnvironment:
    """See the module. tool_timeout_s: of one tool call, whatever the environment's own limit is."""

    def __init__(
        self,
        environment: Environment,
        tokens: ChatTokens,
        store: EpisodeStore,
        progress: Progress,
        emit: Emit,
        spawn: Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"],
        clock: WallClock,
        *,
        seed: int,
        tool_timeout_s: float,
    ) -> None:
        self._environment = environment
        self._tokens = tokens
        self._store = store
        self._progress = progress
        self._emit = emit
        self._spawn = spawn
        self._clock = clock
        self._seed = seed
        self._tool_timeout_s = tool_timeout_s
        rules = environment.turn_rules
        allowed = rules.allowed_characters
        self._allowed = tokens.allowed_token_ids(allowed) if allowed else None
        self._outcomes: dict[TrajectoryId, StepOutcome] = {}
        self._tasks: dict[TrajectoryId, asyncio.Task[None]] = {}

    def open(self, episode: Episode) -> None:
        """A trajectory has arrived: reset its environment and write its first prompt."""
        rng = stream(self._seed, "environment.episode", int(episode.trajectory_id))
        episode.state = self._environment.reset(episode.task, rng)
        episode.allowed_token_ids = self._allowed
        episode.extend_prompt(self._tokens.first_prompt(episode.state.first_prompt))

    # -- port ---------------------------------------------------------------------------------------------

    def start(self, action_id: ActionId, action: StartTrajectory) -> None:
        """See `EnvironmentPort`. Episodes are made when they arrive; there is nothing left to wait for."""
        self._emit(ev.TrajectoryStarted(action_id, action.trajectory_id))

    def drop(self, action: DropTrajectory) -> None:
        """See `EnvironmentPort`."""
        trajectory_id = action.trajectory_id
        self._outcomes.pop(trajectory_id, None)
        task = self._tasks.pop(trajectory_id, None)
        if task is not None:
            task.cancel()
        episode = self._store.remove(trajectory_id)
        # A group nobody of which is left has been given up: a resumed run does not play it again.
        if episode is not None and not self._store.group(episode.group_id):
            self._progress.finish([int(episode.group_id)])

    # -- turns of the engines -----------------------------------------------------------------------------

    def prompt_of(self, trajectory_id: TrajectoryId) -> TurnPrompt:
        """See `TurnStore`."""
        return self._store.prompt_of(trajectory_id)

    def on_turn_end(self, trajectory_id: TrajectoryId, turn: int, result: GenerateResult) -> TurnOutcome:
        """See `TurnStore`: keep the tokens, and decide what comes of the turn."""
        episode = self._store[trajectory_id]
        episode.extend_generated(_tokens_of(result))
        said = episode.turn_tokens
        stopped = said and said[-1] in self._tokens.stop_token_ids
        outcome = episode.state.step(self._tokens.decode(said[:-1] if stopped else said), said)
        self._outcomes[trajectory_id] = outcome
        if isinstance(outcome, End):
            return TurnOutcome(NextStep.END)
        return TurnOutcome(NextStep.TOOL, outcome.name)

    def on_turn_failed(self, trajectory_id: TrajectoryId, turn: int, result: GenerateResult) -> None:
        """See `TurnStore`: what there is stays in the context, and the next attempt goes on after it."""
        self._store[trajectory_id].extend_generated(_tokens_of(result))

    def after_turn(self, trajectory_id: TrajectoryId, turn: int) -> None:
        """See `TurnStore`: the tool is called, or the episode ends."""
        outcome = self._outcomes.pop(trajectory_id, None)
        if outcome is None:  # it was dropped in answer to the event
            return
        work = (
            self._end(trajectory_id, outcome)
            if isinstance(outcome, End)
            else self._call(trajectory_id, turn, outcome)
        )
        task = self._spawn(work, f"trajectory {trajectory_id}")
        self._tasks[trajectory_id] = task
        task.add_done_callback(lambda done: self._forget(trajectory_id, done))

    def _forget(self, trajectory_id: TrajectoryId, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(trajectory_id) is task:
            del self._tasks[trajectory_id]

    async def _call(self, trajectory_id: TrajectoryId, turn: int, call: ToolCall) -> None:
        begin_s = self._clock.now_s()
        result = await call_tool(call, self._tool_timeout_s)
        latency_s = self._clock.now_s() - begin_s
        if (
            trajectory_id not in self._store
        ):  # dropped, and a tool of somebody's own did not mind being cancelled
            return
        episode = self._store[trajectory_id]
        payload = self._tokens.next_prompt(episode.state.observe(result), episode.tokens)
        room = self._store.max_model_len - len(episode.tokens) - len(payload)
        if room < MIN_ROOM_TOKENS:
            self._finish(episode, await _reward_without_room(episode, result))
            return
        episode.extend_prompt(payload)
        episode.turn = turn + 1
        self._emit(
            ev.ToolReturned(
                trajectory_id, turn, call.name, result.status, len(payload), latency_s, len(episode.tokens)
            )
        )

    async def _end(self, trajectory_id: TrajectoryId, outcome: End) -> None:
        reward = await outcome.final_reward()
        if trajectory_id in self._store:
            self._finish(self._store[trajectory_id], reward)

    def _finish(self, episode: Episode, reward: float) -> None:
        episode.reward = reward
        episode.finished = True
        self._emit(ev.TrajectoryFinished(episode.trajectory_id, episode.turn + 1, reward))


async def _reward_without_room(episode: Episode, result: ToolResult) -> float:
    """The context is full: the episode gets what it would for having nothing more to say."""
    outcome = episode.state.step("", ())
    return await outcome.final_reward() if isinstance(outcome, End) else 0.0


def _tokens_of(result: GenerateResult) -> TurnTokens:
    return TurnTokens(result.token_ids, result.logprobs, result.versions())
