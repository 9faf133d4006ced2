"""Sums with a calculator: several turns, each with a tool call that really runs, then an answer.

In every turn but the last the model writes an expression; the calculator evaluates it in a process of its own, and
its result, or what is wrong with the expression, is what the next turn sees. The last turn is the answer; one in
`<answer>...</answer>` may come earlier.

Guarantees: whatever the model writes is played. A call is written as Qwen and others do (`<tool_call>` around JSON
with `name` and `arguments.expression`), or as the bare expression; all else goes to the calculator as it stands,
which refuses it. So a random model makes real calls too, and `turn_rules` can make some of them succeed.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from executor.environments.base import End, Message, Observation, StepOutcome, Task, ToolCall, TurnRules
from executor.tools.calculator import CalculatorError, evaluate
from executor.tools.python_tool import calculate
from executor.tools.result import ToolResult
from executor.tools.sandbox import Sandbox, SandboxConfig
from libra.core.ids import ToolStatus
from libra.core.streams import stream

TOOL_NAME: Final = "calculator"
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)
_MAX_SHOWN_CHARACTERS = 400
_SYSTEM = "Compute what you are asked with the calculator. Then say the result in <answer></answer>, as digits only."
_TOOLS: Final = (
    {
        "type": "function",
        "function": {
            "name": TOOL_NAME,
            "description": "Value of an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string", "description": "such as (3+4)*12"}},
                "required": ["expression"],
            },
        },
    },
)


@dataclass(frozen=True, slots=True)
class ArithmeticConfig:
    """num_tasks: distinct sums. num_operands: numbers in each. max_operand: the largest. operators: some of `+-*`.

    max_turns: the answer's turn included. max_turn_tokens: 0 for the experiment's own bound. allowed_characters: the
    engine samples nothing else, such as `0123456789+-*`; empty for everything. answer_share: part of the reward that
    is for the answer; the rest is for the share of calls that succeed. slow_call_share: of the calls that
    dawdle, to try time-outs. slow_call_s: for how long they do. task_seed: which sums. chat: through the model's chat
    template, not as bare text.
    """

    num_tasks: int = 64
    num_operands: int = 2
    max_operand: int = 99
    operators: str = "+-*"
    max_turns: int = 3
    max_turn_tokens: int = 0
    allowed_characters: str = ""
    answer_share: float = 0.7
    slow_call_share: float = 0.0
    slow_call_s: float = 60.0
    task_seed: int = 0
    chat: bool = False
    sandbox: SandboxConfig = field(
        default_factory=lambda: SandboxConfig(
            time_limit_s=5.0, memory_limit_bytes=1 << 28, output_limit_bytes=2048
        )
    )

    def __post_init__(self) -> None:
        for name, least in (("num_tasks", 1), ("num_operands", 1), ("max_operand", 1), ("max_turns", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}")
        if not self.operators or set(self.operators) - set("+-*"):
            raise ValueError("operators must be some of + - *")
        if self.max_turn_tokens < 0:
            raise ValueError("max_turn_tokens must not be negative (0 for the experiment's own bound)")
        for name in ("answer_share", "slow_call_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1]")
        if self.slow_call_s < 0:
            raise ValueError("slow_call_s must not be negative")


class Arithmetic:
    """The environment. See the module."""

    def __init__(self, config: ArithmeticConfig) -> None:
        self.config = config
        self.sandbox = Sandbox(config.sandbox)
        rng = stream(config.task_seed, "environment.arithmetic")
        self._tasks = tuple(_make_task(config, prompt_id, rng) for prompt_id in range(config.num_tasks))

    @property
    def tasks(self) -> Sequence[Task]:
        """The sums; some may be the same."""
        return self._tasks

    @property
    def turn_rules(self) -> TurnRules:
        """See `ArithmeticConfig`."""
        return TurnRules(self.config.max_turn_tokens, self.config.allowed_characters)

    def reset(self, task: Task, rng: np.random.Generator) -> "ArithmeticEpisode":
        """See `Environment`."""
        return ArithmeticEpisode(self.config, self.sandbox, task, rng)


class ArithmeticEpisode:
    """One sum under way."""

    def __init__(
        self, config: ArithmeticConfig, sandbox: Sandbox, task: Task, rng: np.random.Generator
    ) -> None:
        self._config = config
        self._sandbox = sandbox
        self._task = task
        self._rng = rng
        self._num_turns = 0
        self._num_successes = 0

    @property
    def first_prompt(self) -> Observation:
        """See `EnvironmentEpisode`."""
        if not self._config.chat:
            return Observation(text=f"{self._task.text}=?\n")
        messages = (Message("system", _SYSTEM), Message("user", f"What is {self._task.text}?"))
        return Observation(messages=messages, tools=_TOOLS)

    def step(self, turn_text: str, turn_token_ids: Sequence[int]) -> StepOutcome:
        """See `EnvironmentEpisode`."""
        self._num_turns += 1
        tagged = _ANSWER.search(turn_text)
        if tagged or self._num_turns >= self._config.max_turns:
            return End(self._reward(tagged[1] if tagged else turn_text))
        slow = self._rng.random() < self._config.slow_call_share
        sleep_s = self._config.slow_call_s if slow else 0.0
        return ToolCall(TOOL_NAME, partial(self._calculate, read_expression(turn_text), sleep_s))

    def observe(self, result: ToolResult) -> Observation:
        """See `EnvironmentEpisode`."""
        payload = result.payload.strip()[:_MAX_SHOWN_CHARACTERS]
        if self._config.chat:
            return Observation(messages=(Message("tool", payload),))
        return Observation(text=f"\n={payload}\n")

    async def _calculate(self, expression: str, sleep_s: float) -> ToolResult:
        result = await calculate(self._sandbox, expression, sleep_s=sleep_s)
        self._num_successes += result.status is ToolStatus.SUCCESS
        return result

    def _reward(self, answer: str) -> float:
        num_calls = self._num_turns - 1
        share = self._config.answer_share
        calls = self._num_successes / num_calls if num_calls else 0.0
        return share * answer_credit(answer, self._task.answer) + (1 - share) * calls


def read_expression(turn_text: str) -> str:
    """What a turn asks of the calculator: the argument of a well-formed call to it, else the text itself."""
    tagged = _CALL.search(turn_text)
    if tagged is None:
        return turn_text
    try:
        call: Any = json.loads(tagged[1])
        expression = call["arguments"]["expression"]
        named = call["name"] == TOOL_NAME
    except (ValueError, LookupError, TypeError, RecursionError):  # no JSON, or of another shape
        return turn_text
    return expression if named and isinstance(expression, str) else turn_text


def answer_credit(said: str, meant: str) -> float:
    """1 for the right number; else half the share of characters that are right and in place."""
    said = said.strip()
    try:
        if float(said) == float(meant):
            return 1.0
    except ValueError:  # no number
        pass
    right = sum(a == b for a, b in zip(said, meant, strict=False))
    return 0.5 * right / max(len(said), len(meant))


def _make_task(config: ArithmeticConfig, prompt_id: int, rng: np.random.Generator) -> Task:
    operands = rng.integers(0, config.max_operand, size=config.num_operands, endpoint=True)
    signs = rng.integers(0, len(config.operators), size=config.num_operands - 1)
    parts = [str(operands[0])]
    for sign, operand in zip(signs, operands[1:], strict=True):
        parts += [config.operators[sign], str(operand)]
    text = "".join(parts)
    try:
        return Task(prompt_id, text, str(evaluate(text)))
    except CalculatorError as error:
        raise ValueError(f"num_operands or max_operand is too large: {error}") from error
