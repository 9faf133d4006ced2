"""What an environment is: tasks, and for each trajectory an episode that answers its turns.

1. An environment is made once, from its own frozen config, before anything is started: outside the event loop. It
   knows its tasks, and of each trajectory that is played it keeps nothing: that is the `EnvironmentEpisode`, made by
   `reset`. Before the run, episodes are made for a look at their first prompts.
2. `step` decides at once, from what the model has written, whether a tool is called or the episode is over; it
   neither waits nor blocks. What takes time (the tool, a reward that must be computed) is in what it returns.
3. An episode sees texts and token ids, no tokenizer: `executor.environments.chat` makes tokens of observations.
4. Whatever a model writes is a turn. What is no well-formed tool call is a failed call, never an error of the run.
5. All randomness comes from the generator given to `reset`.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from executor.tools.result import ToolResult
from libra.core.ids import ToolStatus


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Observation:
    """What the model sees next, in one of three forms: `messages` for the model's chat template, `text`, or
    `token_ids`; the last two are taken as they are. tools: descriptions for the template, with the first prompt only.
    """

    messages: tuple[Message, ...] = ()
    text: str = ""
    token_ids: tuple[int, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if sum((bool(self.messages), bool(self.text), bool(self.token_ids))) > 1:
            raise ValueError("an observation has one form: messages, text or token_ids")


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt of a data set. prompt_id: its place there, from 0. meta: whatever its environment needs."""

    prompt_id: int
    text: str
    answer: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnRules:
    """How an environment bounds each turn. max_tokens: 0 for the experiment's own bound (the smaller one holds).

    allowed_characters: the engine samples only tokens made of these (and the end of the turn); empty for all.
    """

    max_tokens: int = 0
    allowed_characters: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The turn calls a tool. `call` keeps its own time limit."""

    name: str
    call: Callable[[], Awaitable[ToolResult]]


@dataclass(frozen=True, slots=True)
class End:
    """The episode is over. reward: in [0, 1]; where finding it takes time, `score` finds it."""

    reward: float = math.nan
    score: Callable[[], Awaitable[float]] | None = None

    async def final_reward(self) -> float:
        """The reward. Raises ValueError if it lies outside [0, 1]: a defect of the environment."""
        reward = self.reward if self.score is None else await self.score()
        if not 0.0 <= reward <= 1.0:
            raise ValueError(f"a reward must lie in [0, 1], and is {reward}")
        return reward


StepOutcome: TypeAlias = ToolCall | End


class EnvironmentEpisode(Protocol):
    """One trajectory in its environment."""

    @property
    def first_prompt(self) -> Observation:
        """What the first turn answers."""
        ...

    def step(self, turn_text: str, turn_token_ids: Sequence[int]) -> StepOutcome:
        """The model has written a whole turn; the text lacks the token that ended it."""
        ...

    def observe(self, result: ToolResult) -> Observation:
        """What the next turn sees of the tool's result."""
        ...


class Environment(Protocol):
    """See the module. Its constructor takes `(config: <a frozen dataclass>)`."""

    @property
    def tasks(self) -> Sequence[Task]:
        """The data set."""
        ...

    @property
    def turn_rules(self) -> TurnRules:
        """The same for every turn."""
        ...

    def reset(self, task: Task, rng: np.random.Generator) -> EnvironmentEpisode:
        """A new episode of `task`."""
        ...


async def call_tool(call: ToolCall, time_limit_s: float) -> ToolResult:
    """Carry a tool call out, at most `time_limit_s` long. It never raises but for its own cancellation.

    A tool that breaks (a service that is down, a defect) is a failed call, and its result says how.
    """
    clock = asyncio.get_running_loop().time
    called_s = clock()
    try:
        async with asyncio.timeout(time_limit_s):
            return await call.call()
    except TimeoutError:
        text = f"[{call.name} timed out after {time_limit_s:g} s]"
        return ToolResult(ToolStatus.TIMEOUT, text, clock() - called_s)
    except Exception as error:
        text = f"[{call.name} failed: {type(error).__name__}: {error}]"
        return ToolResult(ToolStatus.FAILURE, text, clock() - called_s)
