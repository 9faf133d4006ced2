"""Episodes under way: the exact tokens of every trajectory, and what a turn may still generate.

Guarantees that a trajectory's context is the concatenation of token ids as they were sent to and came from the
engines, never text that was tokenised again; and that for every generated token its log-probability and the weight
version that generated it are kept beside it. Trainer, engines and environment all read and write trajectories here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from libra.core.ids import GroupId, TrajectoryId

PROMPT_VERSION: Final = -1
"""Stands in `versions` for a token that no policy generated."""


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How turns are sampled.

    max_new_tokens: of one turn. temperature: of the softmax; a run that trains takes 1 only, since the loss takes
    log-probs at temperature 1. top_p: sample from the likeliest tokens that together have this probability; a run
    that trains takes 1 only, since the loss takes log-probs over the whole vocabulary.
    """

    max_new_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError("max_new_tokens must be at least 1")
        if self.temperature < 0:
            raise ValueError("temperature must not be negative")
        if not 0 < self.top_p <= 1:
            raise ValueError("top_p must lie in (0, 1]")

    def bounded(self, max_tokens: int) -> "SamplingConfig":
        """The same with the smaller bound of a turn; 0 bounds nothing."""
        return replace(self, max_new_tokens=min(self.max_new_tokens, max_tokens)) if max_tokens else self


@dataclass(frozen=True, slots=True)
class TurnPrompt:
    """What an engine is asked for. seed: of this request's sampling. allowed_token_ids: None for all."""

    token_ids: Sequence[int]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """What an engine has generated: of a whole turn, or of the part before it was aborted or lost.

    versions: weight version of each token, where the engine tells them, else the version that it served.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int]


@dataclass(slots=True)
class Episode:
    """One trajectory. `state` is the environment's own; `turn_start` is where the turn under way begins."""

    trajectory_id: TrajectoryId
    group_id: GroupId
    sample_index: int
    task: Any
    state: Any = None
    tokens: list[int] = field(default_factory=list)
    generated: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turn: int = 0
    turn_start: int = 0
    num_attempts: int = 0
    reward: float = float("nan")
    finished: bool = False
    allowed_token_ids: tuple[int, ...] | None = None

    def extend_prompt(self, token_ids: Sequence[int]) -> None:
        """Append tokens that the environment wrote; a turn begins after them."""
        count = len(token_ids)
        self.tokens.extend(token_ids)
        self.generated.extend([False] * count)
        self.logprobs.extend([0.0] * count)
        self.versions.extend([PROMPT_VERSION] * count)
        self.turn_start = len(self.tokens)

    def extend_generated(self, turn: TurnTokens) -> None:
        """Append tokens that an engine generated."""
        self.tokens.extend(turn.token_ids)
        self.generated.extend([True] * len(turn.token_ids))
        self.logprobs.extend(turn.logprobs)
        self.versions.extend(turn.versions)

    @property
    def turn_tokens(self) -> list[int]:
        """Tokens of the turn under way, all attempts."""
        return self.tokens[self.turn_start :]


class EpisodeStore:
    """All live episodes, by trajectory id."""

    def __init__(
        self, sampling: SamplingConfig, *, max_model_len: int, seed: int, stop_token_ids: tuple[int, ...]
    ):
        self._sampling = sampling
        self.max_model_len = max_model_len
        self._seed = seed
        self._stop_token_ids = stop_token_ids
        self._episodes: dict[TrajectoryId, Episode] = {}
        self._groups: dict[GroupId, set[TrajectoryId]] = {}

    def __contains__(self, trajectory_id: TrajectoryId) -> bool:
        return trajectory_id in self._episodes

    def __getitem__(self, trajectory_id: TrajectoryId) -> Episode:
        return self._episodes[trajectory_id]

    def add(self, episode: Episode) -> None:
        """A trajectory has arrived."""
        self._episodes[episode.trajectory_id] = episode
        self._groups.setdefault(episode.group_id, set()).add(episode.trajectory_id)

    def remove(self, trajectory_id: TrajectoryId) -> Episode | None:
        """It was trained on or given up. Returns it, None if it was gone."""
        episode = self._episodes.pop(trajectory_id, None)
        if episode is not None:
            members = self._groups[episode.group_id]
            members.discard(trajectory_id)
            if not members:
                del self._groups[episode.group_id]
        return episode

    def group(self, group_id: GroupId) -> list[Episode]:
        """Live members of a group, in order of their ids."""
        return [self._episodes[member] for member in sorted(self._groups.get(group_id, ()))]

    def room_tokens(self, episode: Episode) -> int:
        """Tokens that the turn under way may still generate: its own cap, and the end of the context."""
        of_turn = self._sampling.max_new_tokens - len(episode.turn_tokens)
        return min(of_turn, self.max_model_len - len(episode.tokens))

    def prompt_of(self, trajectory_id: TrajectoryId) -> TurnPrompt:
        """What to ask of an engine for the trajectory's turn; a resumed turn goes on after its own tokens."""
        episode = self._episodes[trajectory_id]
        episode.num_attempts += 1
        entropy = (self._seed, int(trajectory_id), episode.turn, episode.num_attempts)
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF
        return TurnPrompt(
            token_ids=tuple(episode.tokens),
            max_tokens=max(1, self.room_tokens(episode)),
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            seed=seed,
            stop_token_ids=self._stop_token_ids,
            allowed_token_ids=episode.allowed_token_ids,
        )
