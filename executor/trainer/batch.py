"""What a train step is made of: trajectories, their advantages, and the padded arrays that ranks compute on.

Guarantees: the weights of all trained tokens of a step add up to 1 however it is split, so losses and gradients are
sums over ranks and micro-batches; every rank gets the same number of micro-batches of the same shapes. numpy only.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from libra.errors import UserError

_EQUAL_REWARDS = 1e-8
"""Rewards of a group within this range count as equal."""
_STD_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished trajectory of n tokens, prompts and tool results included.

    tokens: int32. loss_mask: bool, True for tokens that the policy generated; never the first. rollout_logprobs:
    float32, the engine's log-probs of those tokens at temperature 1, 0 elsewhere.
    """

    trajectory_id: int
    group_id: int
    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    rollout_logprobs: NDArray[np.float32]
    reward: float

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.loss_mask) == len(self.rollout_logprobs):
            raise ValueError(
                f"trajectory {self.trajectory_id}: tokens, loss_mask and rollout_logprobs differ in length"
            )
        if len(self.tokens) < 2 or self.loss_mask[0]:
            raise ValueError(f"trajectory {self.trajectory_id}: a generated token needs one before it")

    @property
    def num_loss_tokens(self) -> int:
        """Tokens that are trained on."""
        return int(self.loss_mask.sum())


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """The trajectories of one train step; members of a group may stand anywhere in it."""

    samples: tuple[Sample, ...]

    def to_bytes(self) -> bytes:
        """As `from_bytes` reads it: ragged arrays end to end, with the offsets of their starts."""
        samples = self.samples
        out = io.BytesIO()
        np.savez(
            out,
            trajectory_ids=np.array([s.trajectory_id for s in samples], np.int64),
            group_ids=np.array([s.group_id for s in samples], np.int64),
            rewards=np.array([s.reward for s in samples], np.float64),
            tokens=_joined([s.tokens for s in samples], np.int32),
            loss_mask=_joined([s.loss_mask for s in samples], np.bool_),
            rollout_logprobs=_joined([s.rollout_logprobs for s in samples], np.float32),
            offsets=np.cumsum([0, *(len(s.tokens) for s in samples)], dtype=np.int64),
        )
        return out.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises ValueError for anything that `to_bytes` did not make."""
        with np.load(io.BytesIO(data), allow_pickle=False) as npz:
            arrays = {name: npz[name] for name in npz.files}
        try:
            cuts = arrays["offsets"][1:-1]
            columns = [np.split(arrays[name], cuts) for name in ("tokens", "loss_mask", "rollout_logprobs")]
            heads = zip(arrays["trajectory_ids"], arrays["group_ids"], arrays["rewards"], strict=True)
            if len(arrays["offsets"]) == 1:
                return cls(())
            return cls(
                tuple(
                    Sample(int(trajectory), int(group), tokens, mask, logprobs, float(reward))
                    for (trajectory, group, reward), tokens, mask, logprobs in zip(
                        heads, *columns, strict=True
                    )
                )
            )
        except KeyError as error:
            raise ValueError(f"array {error.args[0]} is missing") from error


def pack_arrays(arrays: Sequence[NDArray[np.float32]]) -> bytes:
    """A list of float32 arrays as bytes; `unpack_arrays` gives it back."""
    out = io.BytesIO()
    np.savez(out, flat=_joined(arrays, np.float32), offsets=np.cumsum([0, *map(len, arrays)], dtype=np.int64))
    return out.getvalue()


def unpack_arrays(data: bytes) -> list[NDArray[np.float32]]:
    """The list that `pack_arrays` took."""
    with np.load(io.BytesIO(data), allow_pickle=False) as npz:
        offsets, flat = npz["offsets"], npz["flat"]
    return [flat[start:end] for start, end in pairwise(offsets)]


def group_advantages(
    rewards: NDArray[np.float64], group_ids: NDArray[np.int64], normalize_std: bool
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Each reward minus its group's mean, over the group's (population) standard deviation if `normalize_std`.

    Also which trajectories belong to a group whose rewards are all equal: nothing can be learnt from them.
    """
    _, member = np.unique(group_ids, return_inverse=True)
    sizes = np.bincount(member)
    means = np.bincount(member, rewards) / sizes
    centred = rewards - means[member]
    spread = np.zeros(len(sizes))
    np.maximum.at(spread, member, np.abs(centred))
    flat = (spread <= _EQUAL_REWARDS)[member]
    if normalize_std:
        stds = np.sqrt(np.bincount(member, centred**2) / sizes)
        centred = centred / (stds[member] + _STD_FLOOR)
    return np.where(flat, 0.0, centred), flat


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Padded arrays of [trajectories, length]. `mask`, `weights`, `old_logprobs` stand at the token they speak of."""

    tokens: NDArray[np.int64]
    mask: NDArray[np.bool_]
    advantages: NDArray[np.float32]
    weights: NDArray[np.float32]
    rollout_logprobs: NDArray[np.float32]
    rows: tuple[int, ...] = field(default=())
    """Positions in the list of samples; -1 for padding, which weighs nothing."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What all ranks train on in a step, before it is split among them."""

    samples: tuple[Sample, ...]
    advantages: NDArray[np.float64]
    weights: NDArray[np.float64]
    """Of each of a sample's generated tokens."""
    num_zero_variance_groups: int
    mean_reward: float


def plan_step(
    batch: TrainBatch, *, normalize_std: bool, aggregation: str, max_length_tokens: int
) -> StepPlan:
    """Advantages and token weights; trajectories of groups without any spread, or without a token of the policy,
    are left out. aggregation: `sequence_mean` (each trajectory weighs the same) or `token_mean` (each token does).
    Raises UserError where a trajectory is longer than `max_length_tokens`.
    """
    for sample in batch.samples:
        if len(sample.tokens) > max_length_tokens:
            raise UserError(
                f"trajectory {sample.trajectory_id} has {len(sample.tokens)} tokens, the trainer takes "
                f"{max_length_tokens}; raise trainer.max_seq_length_tokens or limit the rollout"
            )
    rewards = np.array([s.reward for s in batch.samples], np.float64)
    groups = np.array([s.group_id for s in batch.samples], np.int64)
    advantages, flat = group_advantages(rewards, groups, normalize_std)
    lengths = np.array([s.num_loss_tokens for s in batch.samples], np.int64)
    kept = np.flatnonzero(~flat & (lengths > 0))
    lengths = lengths[kept]
    if aggregation == "token_mean":
        weights = np.full(len(kept), 1.0 / max(1, lengths.sum()))
    else:
        weights = 1.0 / (lengths * max(1, len(kept)))
    return StepPlan(
        samples=tuple(batch.samples[i] for i in kept),
        advantages=advantages[kept],
        weights=weights,
        num_zero_variance_groups=len(np.unique(groups[flat])),
        mean_reward=float(rewards.mean()) if len(rewards) else 0.0,
    )


def split(
    samples: Sequence[Sample],
    *,
    dp_size: int,
    dp_rank: int,
    micro_batch_size: int,
    same_length: bool,
    advantages: NDArray[np.float64] | None = None,
    weights: NDArray[np.float64] | None = None,
) -> list[MicroBatch]:
    """This data-parallel rank's micro-batches: of similar lengths, dealt out so that all ranks have like work.

    Where the samples do not fill all ranks, copies of weight 0 do. same_length: pad all to one length, as pipeline
    stages need; otherwise each micro-batch to its own longest.
    """
    order = sorted(range(len(samples)), key=lambda i: (-len(samples[i].tokens), i))
    order += [-1] * (-len(order) % (dp_size * micro_batch_size))
    cuts = [order[i : i + micro_batch_size] for i in range(0, len(order), micro_batch_size)]
    longest = max((len(s.tokens) for s in samples), default=0)
    return [
        _pad(samples, rows, longest if same_length else 0, advantages, weights)
        for rows in cuts[dp_rank::dp_size]
    ]


def _pad(
    samples: Sequence[Sample],
    rows: list[int],
    length: int,
    advantages: NDArray[np.float64] | None,
    weights: NDArray[np.float64] | None,
) -> MicroBatch:
    # The shortest sample stands in for padding: real tokens, so that nothing divides by zero, but weight 0.
    stand_in = min(range(len(samples)), key=lambda i: len(samples[i].tokens))
    chosen = [samples[i if i >= 0 else stand_in] for i in rows]
    length = length or max(len(s.tokens) for s in chosen)
    shape = (len(rows), length)
    tokens, mask = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    values: dict[str, Any] = {
        n: np.zeros(shape, np.float32) for n in ("advantages", "weights", "rollout_logprobs")
    }
    for line, (row, sample) in enumerate(zip(rows, chosen, strict=True)):
        n = len(sample.tokens)
        tokens[line, :n] = sample.tokens
        mask[line, :n] = sample.loss_mask
        values["rollout_logprobs"][line, :n] = sample.rollout_logprobs
        if row >= 0 and advantages is not None and weights is not None:
            values["advantages"][line, :n] = advantages[row]
            values["weights"][line, :n] = np.where(sample.loss_mask, weights[row], 0.0)
    return MicroBatch(tokens, mask, rows=tuple(rows), **values)


def _joined(arrays: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype, copy=False)
