"""Synthetic trajectories from a preset: any number of them, a chunk at a time.

A chunk is a fixed set of groups and has its own random streams, so chunk k holds the same trajectories
whoever asks, and whether the chunks before it were ever made. What the samples of a prompt have in common is
drawn from a stream of the prompt's block, so a prompt that returns in a later epoch is the same prompt.

Within a chunk everything is array work; the cost is about a microsecond a turn.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from libra.core.ids import Supply
from libra.core.streams import stream
from libra.errors import UserError
from libra.workloads.preset import Preset, load_preset
from libra.workloads.synthetic_turns import Turns, draw_turns
from libra.workloads.table import Chunk, Floats, Ints

GROUPS_PER_CHUNK = 64
_NUM_LATENTS = 5
_DRIFT_KNOTS = 257
"""Points of the run at which the drift's factor is solved; between them it is a straight line."""
_LARGEST_MEAN = 0.9
"""Of the room for output: beyond it nearly every trajectory would be cut and a mean says little."""


@dataclass(frozen=True)
class Drift:
    """Mean output tokens of a trajectory at the first and at the last group; straight line between.

    The mean includes what the context cap takes off (with payloads at their mean, so a little approximate).
    """

    from_mean_tokens: float
    to_mean_tokens: float

    def __post_init__(self) -> None:
        """Raise `UserError` unless both means are at least 1."""
        for name in ("from_mean_tokens", "to_mean_tokens"):
            if not 1 <= getattr(self, name) < math.inf:
                raise UserError(f"workload.drift.{name}: must be at least 1 token; give a mean such as 2500")


@dataclass(frozen=True)
class PresetWorkload:
    """Synthetic workload: which preset, how much of it, and what to change.

    num_prompts: prompts (groups) of one epoch. num_epochs: how often each prompt returns; later epochs visit
    the prompts in another order and draw new trajectories for them. length_scale: factor on the output tokens
    of every trajectory. tail_weight: factor on the log distance of a trajectory's output tokens above the
    preset's median (1: as published, 0: no tail). drift: moves the mean over the run and therefore replaces
    `length_scale`. max_context_tokens, group_correlation, failure_lengthens, reward_probability: `None`
    keeps the preset's.
    """

    kind: Literal["preset"] = "preset"
    preset: str = "terminal_agent"
    num_prompts: int = 1024
    num_epochs: int = 1
    length_scale: float = 1.0
    tail_weight: float = 1.0
    drift: Drift | None = None
    max_context_tokens: int | None = None
    group_correlation: float | None = None
    failure_lengthens: float | None = None
    reward_probability: float | None = None

    def __post_init__(self) -> None:
        """Raise `UserError` for a value out of its domain or a contradiction."""
        preset = load_preset(self.preset)
        for name in ("num_prompts", "num_epochs"):
            if getattr(self, name) < 1:
                raise UserError(f"workload.{name}: must be at least 1, is {getattr(self, name)}")
        if not 0 < self.length_scale < math.inf:
            raise UserError(f"workload.length_scale: must be above 0, is {self.length_scale}")
        if not 0 <= self.tail_weight < math.inf:
            raise UserError(f"workload.tail_weight: must be 0 or more, is {self.tail_weight}")
        for name in ("group_correlation", "reward_probability"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise UserError(f"workload.{name}: must lie between 0 and 1, is {value}")
        if self.failure_lengthens is not None and not -1 < self.failure_lengthens < math.inf:
            raise UserError(f"workload.failure_lengthens: must be above -1, is {self.failure_lengthens}")
        if self.drift is not None and self.length_scale != 1.0:
            raise UserError("workload.length_scale: has no effect beside workload.drift; remove one of them")
        largest = preset.first_prompt_tokens.maximum
        if self.max_context_tokens is not None and self.max_context_tokens <= largest:
            raise UserError(
                f"workload.max_context_tokens: first prompts of {self.preset} reach {largest:.0f} tokens; "
                f"give more than that, not {self.max_context_tokens}"
            )


class SyntheticSource:
    """The trajectories of a `PresetWorkload` in groups of `n_samples` under one seed."""

    supply = Supply.PULL

    def __init__(self, config: PresetWorkload, *, seed: int, n_samples: int) -> None:
        if n_samples < 1:
            raise UserError(f"n_samples: must be at least 1, is {n_samples}")
        self._config = config
        self._preset: Preset = load_preset(config.preset)
        self._seed = seed
        self._n_samples = n_samples
        self._num_blocks = -(-config.num_prompts // GROUPS_PER_CHUNK)
        self._drift_scales = _drift_scales(config, self._preset)
        self._order: tuple[int, Ints] = (0, np.arange(self._num_blocks))
        self._next = 0

    @property
    def num_chunks(self) -> int:
        """Chunks of the whole run."""
        return self._num_blocks * self._config.num_epochs

    def next_chunk(self) -> Chunk | None:
        """The next chunk in order, or `None` at the end."""
        if self._next == self.num_chunks:
            return None
        self._next += 1
        return self.chunk(self._next - 1)

    def chunk(self, index: int) -> Chunk:
        """Chunk `index` in [0, num_chunks), whatever was asked for before."""
        n_samples = self._n_samples
        group_id, prompt_id, block = self._groups(index)
        shared = self._shared(block)[prompt_id - block * GROUPS_PER_CHUNK]
        latent = self._latents(index, shared)
        first_prompt = _tokens(self._preset.first_prompt_tokens.at(shared[:, 0]))
        rng = stream(self._seed, "workload.trajectory", index)
        turns = self._turns(index, np.repeat(group_id, n_samples), np.repeat(first_prompt, n_samples), latent)
        num = len(latent)
        ids = np.repeat(group_id * n_samples, n_samples) + np.tile(np.arange(n_samples), len(group_id))
        prompts = first_prompt.tolist()
        prefixes = [((-1 - group, tokens),) for group, tokens in zip(group_id.tolist(), prompts, strict=True)]
        prompt_names = [f"{self._preset.name}/{prompt}" for prompt in prompt_id.tolist()]
        return Chunk(
            trajectory_id=ids,
            group_id=np.repeat(group_id, n_samples),
            prompt_id=np.repeat(prompt_id, n_samples),
            sample_index=np.tile(np.arange(n_samples), len(group_id)),
            group_size=np.full(num, n_samples),
            arrival_s=np.zeros(num),
            start_latency_s=self._preset.start_latency_s.at(rng.standard_normal(num)),
            reward=(latent[:, 4] < self._reward_threshold()).astype(np.float64),
            source_id=tuple(name for name in prompt_names for _ in range(n_samples)),
            prefix=tuple(prefix for prefix in prefixes for _ in range(n_samples)),
            first_turn=turns.first_turn,
            prompt_tokens=turns.prompt_tokens,
            output_tokens=turns.output_tokens,
            prefix_tokens=turns.prefix_tokens,
            tool=turns.tool,
            tool_latency_s=turns.tool_latency_s,
            tool_status=turns.tool_status,
            payload_tokens=turns.payload_tokens,
            tool_names=tuple(tool.name for tool in self._preset.tools),
        )

    def _groups(self, index: int) -> tuple[Ints, Ints, int]:
        """Group ids and prompt ids of a chunk, and the block of its prompts."""
        epoch, position = divmod(index, self._num_blocks)
        if epoch != self._order[0]:
            rng = stream(self._seed, "workload.order", epoch)
            order = np.arange(self._num_blocks) if epoch == 0 else rng.permutation(self._num_blocks)
            self._order = (epoch, order)
        order = self._order[1]
        block = int(order[position])
        num_prompts = self._config.num_prompts
        missing = self._num_blocks * GROUPS_PER_CHUNK - num_prompts
        # The last block is short; the chunks that follow it in this epoch start that much earlier.
        after_short = bool(np.any(order[:position] == self._num_blocks - 1)) if missing else False
        start = epoch * num_prompts + position * GROUPS_PER_CHUNK - (missing if after_short else 0)
        size = min(GROUPS_PER_CHUNK, num_prompts - block * GROUPS_PER_CHUNK)
        return start + np.arange(size), block * GROUPS_PER_CHUNK + np.arange(size), block

    def _shared(self, block: int) -> Floats:
        """Latents of a block's prompts, [64, 5]: first prompt, turns, output, payload, reward."""
        rng = stream(self._seed, "workload.prompt", block)
        return rng.standard_normal((GROUPS_PER_CHUNK, _NUM_LATENTS))

    def _latents(self, index: int, shared: Floats) -> Floats:
        """Latents of the chunk's trajectories, [groups * n_samples, 5], alike within a group."""
        rho = self._config.group_correlation
        rho = self._preset.group_correlation if rho is None else rho
        own = stream(self._seed, "workload.sample", index).standard_normal(
            (len(shared) * self._n_samples, _NUM_LATENTS)
        )
        return math.sqrt(rho) * np.repeat(shared, self._n_samples, axis=0) + math.sqrt(1 - rho) * own

    def _reward_threshold(self) -> float:
        """Latent below which a trajectory is rewarded."""
        chance = self._config.reward_probability
        chance = self._preset.reward_probability if chance is None else chance
        if chance in (0.0, 1.0):
            return -math.inf if chance == 0.0 else math.inf
        return NormalDist().inv_cdf(chance)

    def _turns(self, index: int, group_id: Ints, first_prompt: Ints, latent: Floats) -> Turns:
        preset, config = self._preset, self._config
        num_turns = _tokens(preset.turns.at(latent[:, 1]))
        c = preset.turns_output_correlation
        output_latent = c * latent[:, 1] + math.sqrt(1 - c * c) * latent[:, 2]
        output = preset.trajectory_output_tokens.tailed(output_latent, config.tail_weight)
        lengthens = config.failure_lengthens
        return draw_turns(
            preset,
            stream(self._seed, "workload.turn", index),
            num_turns=num_turns,
            first_prompt=first_prompt,
            output=_tokens(output * self._scale(group_id)),
            payload_latent=latent[:, 3],
            failure_lengthens=preset.failure_lengthens if lengthens is None else lengthens,
            max_context_tokens=config.max_context_tokens or preset.max_context_tokens,
        )

    def _scale(self, group_id: Ints) -> Floats:
        """Factor on output tokens for each trajectory."""
        if self._drift_scales is None:
            return np.full(len(group_id), self._config.length_scale)
        last = max(1, self._config.num_prompts * self._config.num_epochs - 1)
        return np.interp(group_id / last, np.linspace(0, 1, _DRIFT_KNOTS), self._drift_scales)


def _drift_scales(config: PresetWorkload, preset: Preset) -> Floats | None:
    """Factor on output tokens at equally spaced points of the run, or `None` without drift."""
    drift = config.drift
    if drift is None:
        return None
    payload = sum(tool.mix * tool.payload_tokens.mean() for tool in preset.tools)
    cap = config.max_context_tokens or preset.max_context_tokens
    room = cap - preset.first_prompt_tokens.median - (preset.turns.mean() - 1) * payload
    means = np.linspace(drift.from_mean_tokens, drift.to_mean_tokens, _DRIFT_KNOTS)
    if means.max() > _LARGEST_MEAN * room:
        raise UserError(
            f"workload.drift: a mean of {means.max():.0f} output tokens does not fit a context of {cap} tokens; "
            f"stay below {max(0.0, _LARGEST_MEAN * room):.0f} or raise workload.max_context_tokens"
        )
    return preset.trajectory_output_tokens.scale_for(means, tail_weight=config.tail_weight, ceiling=room)


def _tokens(values: Floats) -> Ints:
    """Rounded, at least 1."""
    return np.maximum(np.rint(values), 1).astype(np.int64)
