"""The GRPO loss and the passes over a model that it needs, for any layout of ranks.

Guarantees: a token's log-prob is that of temperature 1 under the full vocabulary, in float32, wherever the vocabulary
is split; gradients after `train_pass` are those of one loss over the whole batch, however it was cut into
micro-batches and ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import Tensor

from executor.trainer.batch import MicroBatch
from executor.trainer.model import Place
from executor.trainer.spec import GrpoConfig

_MAX_LOG_RATIO = 20.0
"""Log-ratios are cut here, so that one broken token cannot make the step infinite."""
SUMS = ("loss", "kl", "entropy", "clipped", "logprob_diff", "num_tokens")


@dataclass(frozen=True, slots=True)
class Tokens:
    """One micro-batch's generated tokens, all of its trajectories end to end."""

    logprobs: Tensor
    entropies: Tensor | None


def token_logprobs(logits: Tensor, tokens: Tensor, mask: Tensor, with_entropy: bool = False) -> Tokens:
    """Log-probs of `tokens` [b, s] where `mask` is True, from logits [b, s, this rank's share of the vocabulary].

    A token is foretold by the logits one place before it. Only the chosen places are copied to float32.
    """
    chosen = mask[:, 1:]
    rows = logits[:, :-1][chosen].float()
    entropies = _entropies(rows.detach()) if with_entropy else None
    # The library works in place on what it is given; a copy of its own keeps the graph whole.
    losses: Any = vocab_parallel_cross_entropy(rows.clone(), tokens[:, 1:][chosen])
    return Tokens(-losses, entropies)


def _entropies(rows: Tensor) -> Tensor:
    """Entropy in nats of each row of logits that tensor-parallel ranks share out by columns."""
    group = parallel_state.get_tensor_model_parallel_group()
    highest = rows.max(dim=-1).values
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
    shifted = rows - highest.unsqueeze(-1)
    powers = shifted.exp()
    sums = torch.stack([powers.sum(-1), (powers * shifted).sum(-1)])
    dist.all_reduce(sums, group=group)
    return sums[0].log() - sums[1] / sums[0]


def grpo_loss(
    logprobs: Tensor,
    rollout: Tensor,
    reference: Tensor | None,
    advantages: Tensor,
    weights: Tensor,
    config: GrpoConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weighted sum over tokens of the clipped objective, and sums of its figures; all arguments are flat.

    Per token, with r the ratio of the probabilities now and of old: -w * min(r A, clip(r) A) + kl_coef * k3, where w
    corrects for an engine that saw other weights (see `GrpoConfig.recompute_logprobs`).
    """
    now = logprobs.detach()
    old = now if config.recompute_logprobs else rollout
    ratio = _exp(logprobs - old)
    high = config.clip if config.clip_high is None else config.clip_high
    plain, clipped = ratio * advantages, ratio.clamp(1 - config.clip, 1 + high) * advantages
    objective = torch.minimum(plain, clipped)
    if config.recompute_logprobs and config.importance_cap is not None:
        objective = objective * _exp(now - rollout).clamp(max=config.importance_cap)
    per_token = -objective
    kl = torch.zeros_like(now)
    if reference is not None:
        gap = reference - logprobs
        kl = _exp(gap) - gap - 1
        per_token = per_token + config.kl_coef * kl
    loss = (weights * per_token).sum()
    counts = (weights > 0).float()
    difference = (now - rollout).abs() * counts
    return loss, {
        "loss": loss.detach().clone(),  # the schedule divides the loss itself in place
        "kl": (weights * kl.detach()).sum(),
        "clipped": ((clipped < plain).float() * counts).sum(),
        "logprob_diff": difference.sum(),
        "logprob_diff_max": difference.max() if difference.numel() else difference.sum(),
        "num_tokens": counts.sum(),
    }


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def train_pass(
    model: Any,
    micro_batches: Sequence[MicroBatch],
    references: Sequence[Tensor] | None,
    config: GrpoConfig,
    place: Place,
) -> dict[str, Tensor]:
    """Forward and backward over this rank's micro-batches; gradients are ready afterwards, on all ranks.

    Returns this rank's sums of figures, empty where no logits are computed.
    """
    scale = len(micro_batches) * place.dp_size  # undoes the means that Megatron takes over both

    def loss_of(batch: dict[str, Tensor], index: int, logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        mask = batch["mask"]
        tokens = token_logprobs(logits, batch["tokens"], mask, with_entropy=True)
        chosen = mask[:, 1:]
        rollout, advantages, weights = (
            batch[name][:, 1:][chosen] for name in ("rollout_logprobs", "advantages", "weights")
        )
        reference = references[index] if references is not None else None
        loss, sums = grpo_loss(tokens.logprobs, rollout, reference, advantages, weights, config)
        assert tokens.entropies is not None
        sums["entropy"] = (tokens.entropies * (weights > 0)).sum()
        return loss * scale, sums

    found = _run(model, micro_batches, loss_of, forward_only=False)
    if not found:
        return {}
    result = {name: torch.stack([sums[name] for sums in found]).sum() for name in SUMS}
    result["logprob_diff_max"] = torch.stack([sums["logprob_diff_max"] for sums in found]).max()
    return result


def logprob_pass(model: Any, micro_batches: Sequence[MicroBatch], *, whole: bool = False) -> list[Tensor]:
    """Log-probs of each micro-batch's generated tokens, flat, without gradients; [] where no logits are computed.

    whole: of every token after the first, padding included, instead.
    """

    def collect(batch: dict[str, Tensor], index: int, logits: Tensor) -> Tensor:
        mask = torch.ones_like(batch["mask"]) if whole else batch["mask"]
        return token_logprobs(logits, batch["tokens"], mask).logprobs

    with torch.no_grad():
        return _run(model, micro_batches, collect, forward_only=True)


def _run(
    model: Any,
    micro_batches: Sequence[MicroBatch],
    finish: Callable[[dict[str, Tensor], int, Tensor], Any],
    *,
    forward_only: bool,
) -> list[Any]:
    """Megatron's schedule over the micro-batches; what `finish` made of each, on the last pipeline stage."""
    device = torch.device("cpu") if not torch.cuda.is_available() else torch.device("cuda")

    def forward_step(batches: Any, part: Any) -> tuple[Tensor, Callable[..., Any]]:
        index, arrays = next(batches)
        batch = _tensors(arrays, device)
        tokens = batch["tokens"]
        positions = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
        output = part(tokens, positions, None)
        done = partial(finish, batch, index)
        return output, lambda logits, non_loss_data=False: done(logits)

    return get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iter(enumerate(micro_batches)),
        model=model,
        num_microbatches=len(micro_batches),
        seq_length=micro_batches[0].tokens.shape[1],
        micro_batch_size=micro_batches[0].tokens.shape[0],
        forward_only=forward_only,
        collect_non_loss_data=forward_only,
    )


def _tensors(arrays: MicroBatch, device: torch.device) -> dict[str, Tensor]:
    names = ("tokens", "mask", "advantages", "weights", "rollout_logprobs")
    return {name: torch.from_numpy(getattr(arrays, name)).to(device) for name in names}
