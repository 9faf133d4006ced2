"""A secret code: each key letter has a code word, and only the reward tells which. One turn, no tool.

The task with which the whole machine is tried: a tiny random model learns it within minutes on a CPU, and only if
sampling, reward, log-probabilities, training and weight loading all do what they should.

Guarantees: the code words share no character, so whatever a policy writes that does not look at the prompt earns at
most 1 / num_keys on average. A mean reward clearly above that has been learnt from the prompt.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from executor.environments.base import End, Message, Observation, StepOutcome, Task, TurnRules
from executor.tools.result import ToolResult
from libra.core.streams import stream

KEY_LETTERS: Final = string.ascii_uppercase
CODE_CHARACTERS: Final = string.ascii_lowercase + string.digits + string.ascii_uppercase


@dataclass(frozen=True, slots=True)
class CipherConfig:
    """num_keys: distinct prompts. answer_length: characters of a code word, and the most tokens of a turn.

    key_repeats: how often the prompt says its letter; a tiny model sees it the better. elsewhere_credit: for a
    character of the code word that stands in another place, as a share of a right one; it makes the first successes
    frequent enough to learn from. code_seed: which code. chat: through the model's chat template, not as bare text.
    """

    num_keys: int = 8
    answer_length: int = 4
    key_repeats: int = 8
    elsewhere_credit: float = 0.5
    code_seed: int = 0
    chat: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.num_keys <= len(KEY_LETTERS):
            raise ValueError(f"num_keys must lie between 2 and {len(KEY_LETTERS)}")
        if self.answer_length < 1:
            raise ValueError("answer_length must be at least 1")
        if self.num_keys * self.answer_length > len(CODE_CHARACTERS):
            raise ValueError(
                f"num_keys times answer_length must be at most {len(CODE_CHARACTERS)}: code words share no character"
            )
        if self.key_repeats < 1:
            raise ValueError("key_repeats must be at least 1")
        if not 0 <= self.elsewhere_credit < 1:
            raise ValueError("elsewhere_credit must lie in [0, 1)")


class Cipher:
    """The environment. See the module."""

    def __init__(self, config: CipherConfig) -> None:
        self.config = config
        length = config.answer_length
        # The first characters only: small codes stay within letters and digits.
        used = CODE_CHARACTERS[: max(36, config.num_keys * length)]
        order = stream(config.code_seed, "environment.cipher").permutation(len(used))
        shuffled = "".join(used[i] for i in order)
        self._tasks = tuple(
            Task(i, KEY_LETTERS[i] * config.key_repeats, shuffled[i * length : (i + 1) * length])
            for i in range(config.num_keys)
        )

    @property
    def tasks(self) -> Sequence[Task]:
        """One for each key letter."""
        return self._tasks

    @property
    def turn_rules(self) -> TurnRules:
        """No token can be worth anything after the word's length."""
        return TurnRules(max_tokens=self.config.answer_length)

    @property
    def blind_reward(self) -> float:
        """The most that a policy can earn on average without looking at the prompt."""
        return 1 / self.config.num_keys

    def reset(self, task: Task, rng: np.random.Generator) -> "CipherEpisode":
        """See `Environment`."""
        return CipherEpisode(self.config, task)


class CipherEpisode:
    """One guess."""

    def __init__(self, config: CipherConfig, task: Task) -> None:
        self._config = config
        self._task = task

    @property
    def first_prompt(self) -> Observation:
        """See `EnvironmentEpisode`."""
        text = self._task.text
        return Observation(messages=(Message("user", text),)) if self._config.chat else Observation(text=text)

    def step(self, turn_text: str, turn_token_ids: Sequence[int]) -> StepOutcome:
        """See `EnvironmentEpisode`."""
        return End(guess_reward(turn_text, self._task.answer, self._config.elsewhere_credit))

    def observe(self, result: ToolResult) -> Observation:
        """Never asked for: there is no tool."""
        raise AssertionError("the cipher has no tool")


def guess_reward(guess: str, word: str, elsewhere_credit: float) -> float:
    """Mean over the word's places: 1 for the right character, `elsewhere_credit` for another one of the word."""
    credits = [
        1.0 if said == meant else elsewhere_credit if said in word else 0.0
        for said, meant in zip(guess, word, strict=False)
    ]
    return sum(credits) / len(word)
