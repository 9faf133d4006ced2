"""An environment for tests: several turns with a tool that succeeds, fails, hangs, or breaks, as the config says."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from executor.environments.base import End, Observation, StepOutcome, Task, ToolCall, TurnRules
from executor.tools.result import ToolResult
from libra.core.ids import ToolStatus


@dataclass(frozen=True)
class TalkConfig:
    """tools: what becomes of the call after turn i, the last also after all later ones: ok, bad, hang, raise."""

    num_tasks: int = 3
    num_turns: int = 3
    turn_tokens: int = 8
    tools: tuple[str, ...] = ("ok", "bad")
    payload: str = "[payload]"
    broken: bool = False
    stubborn: bool = False


class Talk:
    """See the module."""

    def __init__(self, config: TalkConfig) -> None:
        self.config = config
        self.tasks = tuple(Task(i, f"prompt {i}:") for i in range(config.num_tasks))
        self.turn_rules = TurnRules(config.turn_tokens)

    def reset(self, task: Task, rng: np.random.Generator) -> "TalkEpisode":
        return TalkEpisode(self.config, task, float(rng.random()))


class TalkEpisode:
    """The reward differs among samples, so that every group has something to say."""

    def __init__(self, config: TalkConfig, task: Task, reward: float) -> None:
        self.config = config
        self.first_prompt = Observation(text=task.text)
        self.reward = reward
        self.turn = 0

    def step(self, turn_text: str, turn_token_ids: Sequence[int]) -> StepOutcome:
        if self.config.broken:
            raise RuntimeError("the environment broke")
        self.turn += 1
        if self.turn >= self.config.num_turns:
            return End(self.reward)
        what = self.config.tools[min(self.turn, len(self.config.tools)) - 1]
        return ToolCall("tool", lambda: self._call(what))

    async def _call(self, what: str) -> ToolResult:
        if what == "hang":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not self.config.stubborn:
                    raise
        if what == "raise":
            raise RuntimeError("the tool broke")
        return ToolResult(
            ToolStatus.SUCCESS if what == "ok" else ToolStatus.FAILURE, self.config.payload, 0.0
        )

    def observe(self, result: ToolResult) -> Observation:
        return Observation(text=result.payload)
