"""One rank's trainer: model, optimizer, reference, and the commands that all ranks carry out together.

Guarantees: every rank that gets the same command makes the same collective operations, and where one is refused with
UserError it is refused on all ranks, so that they stay in step.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from executor.trainer import checkpoint, export, grpo, optimizer
from executor.trainer.batch import MicroBatch, Sample, StepPlan, TrainBatch, plan_step, split
from executor.trainer.model import Place, build_model, for_training
from executor.trainer.results import StepResult
from executor.trainer.shape import read_shape
from executor.trainer.spec import TrainerSpec
from executor.trainer.switches import decide, has_transformer_engine
from libra.errors import UserError


class Trainer:
    """See the module. Making it loads the weights, and the checkpoint if the spec names one."""

    def __init__(self, spec: TrainerSpec, place: Place) -> None:
        self.spec = spec
        self.place = place
        self.version = spec.start_version
        self._config = spec.config
        self._shape = read_shape(spec.model_path)
        # Its kernels need a GPU, wherever it is installed.
        can_switch = torch.cuda.is_available() and has_transformer_engine()
        chosen = decide(spec.config.optimizer, has_transformer_engine=can_switch)
        self.notes = chosen.notes
        self._reference: Any = None
        if spec.config.grpo.kl_coef > 0:
            self._reference = build_model(self._shape, spec.config, place, spec.model_path)
            self._reference.requires_grad_(False).eval()
        plain = build_model(self._shape, spec.config, place, spec.model_path)
        self._model = for_training(plain, chosen.distributed)
        self._optimizer = optimizer.build_optimizer(spec.config, chosen, self._model)
        if spec.checkpoint:
            found = checkpoint.load(self._model, self._optimizer, spec.config.optimizer, spec.checkpoint)
            if found != spec.start_version:
                raise UserError(
                    f"{spec.checkpoint}: holds version {found}, not {spec.start_version}; name another checkpoint"
                )

    def step(self, batch: TrainBatch, version: int) -> StepResult:
        """Train on `batch`, which makes `version`; nothing moves where no group has any spread of rewards."""
        if version != self.version + 1:
            raise UserError(f"trainer: step to version {version} asked for at version {self.version}")
        start_s = time.perf_counter()
        settings = self._config.grpo
        plan = plan_step(
            batch,
            normalize_std=settings.normalize_advantage_std,
            aggregation=settings.loss_aggregation,
            max_length_tokens=self._config.max_seq_length_tokens,
        )
        figures, grad_norm = self._update(plan) if plan.samples else (dict.fromkeys(_FIGURES, 0.0), 0.0)
        self.version = version
        num_tokens = figures["num_tokens"]
        per_token = 1.0 / max(1.0, num_tokens)
        return StepResult(
            version=version,
            loss=figures["loss"],
            grad_norm=grad_norm,
            kl=figures["kl"],
            mean_reward=plan.mean_reward,
            num_trajectories=len(plan.samples),
            num_tokens=int(num_tokens),
            num_zero_variance_groups=plan.num_zero_variance_groups,
            train_s=time.perf_counter() - start_s,
            clip_fraction=figures["clipped"] * per_token,
            logprob_diff_mean=figures["logprob_diff"] * per_token,
            logprob_diff_max=figures["logprob_diff_max"],
            entropy=figures["entropy"] * per_token,
        )

    def _update(self, plan: StepPlan) -> tuple[dict[str, float], float]:
        """One optimizer step; the figures summed over ranks, and the gradient's norm."""
        settings, model = self._config.grpo, self._model
        micro_batches = self._split(plan.samples, plan.advantages, plan.weights)
        references: list[Tensor] | None = None
        if self._reference is not None:
            references = grpo.logprob_pass(self._reference, micro_batches)
        model.zero_grad_buffer()
        self._optimizer.zero_grad()
        sums = grpo.train_pass(model, micro_batches, references, settings, self.place)
        succeeded, grad_norm, _ = self._optimizer.step()
        norm = float(grad_norm or 0.0)
        if not succeeded or not math.isfinite(norm):
            # In float32 Megatron applies such a step: these weights must reach no checkpoint and no engine.
            raise RuntimeError(
                "a gradient is infinite or not a number, and the weights with it; resume the run"
            )
        return self._total(sums), norm

    def _total(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Figures over all data-parallel ranks; each set is counted once, not once per tensor-parallel rank."""
        counts = bool(sums) and self.place.tp_rank == 0
        added = [float(sums[name]) if counts else 0.0 for name in grpo.SUMS]
        largest = [float(sums["logprob_diff_max"]) if counts else 0.0]
        total, peak = torch.tensor(added, dtype=torch.float64), torch.tensor(largest, dtype=torch.float64)
        dist.all_reduce(total, group=self.place.control)
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=self.place.control)
        return dict(zip(grpo.SUMS, total.tolist(), strict=True)) | {"logprob_diff_max": float(peak)}

    def logprobs(self, samples: tuple[Sample, ...]) -> list[NDArray[np.float32]]:
        """Log-prob of each token of each sample under the current weights, 0 for the first; [] but on rank 0."""
        if not samples:
            return []
        micro_batches = self._split(samples)
        model = self._model
        model.eval()
        try:
            rows = grpo.logprob_pass(model, micro_batches, whole=True)
        finally:
            model.train()
        own: dict[int, NDArray[np.float32]] = {}
        if self.place.is_last_stage and self.place.tp_rank == 0:
            for batch, flat in zip(micro_batches, rows, strict=True):
                own |= _by_sample(batch, flat, samples)
        found: list[Any] = [None] * dist.get_world_size() if self.place.rank == 0 else []
        dist.gather_object(own, found or None, group=self.place.control)
        merged = {row: array for part in found for row, array in part.items()}
        return [merged[row] for row in range(len(samples))] if self.place.rank == 0 else []

    def _split(
        self,
        samples: tuple[Sample, ...],
        advantages: NDArray[np.float64] | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> list[MicroBatch]:
        return split(
            samples,
            dp_size=self.place.dp_size,
            dp_rank=self.place.dp_rank,
            micro_batch_size=self._config.micro_batch_size,
            same_length=self.place.pp_size > 1,
            advantages=advantages,
            weights=weights,
        )

    def gather_weights(self) -> dict[str, Tensor]:
        """Hugging Face weights on rank 0, {} elsewhere."""
        return export.gather_hf(self._model, self._shape, self.place)

    def write_weights(self, folder: str) -> None:
        """Export to `folder`."""
        weights = self.gather_weights()
        self._on_rank_0(lambda: export.write_hf(weights, self.spec.model_path, folder))

    def save(self, folder: str) -> None:
        """Checkpoint into `folder`."""
        checkpoint.save(self._model, self._optimizer, self.version, self.place, folder)

    def _on_rank_0(self, work: Callable[[], None]) -> None:
        """Do it there; where that fails for want of disk or rights, refuse on all ranks."""
        failure: list[str] = [""]
        if self.place.rank == 0:
            try:
                work()
            except OSError as error:
                failure = [str(error)]
        dist.broadcast_object_list(failure, 0, group=self.place.control)
        if failure[0]:
            raise UserError(f"trainer: weights cannot be written: {failure[0]}")


_FIGURES = (*grpo.SUMS, "logprob_diff_max")


def _by_sample(
    batch: MicroBatch, flat: Tensor, samples: tuple[Sample, ...]
) -> dict[int, NDArray[np.float32]]:
    """A micro-batch's log-probs of all places, cut into its samples' own lengths."""
    lines = flat.float().cpu().numpy().reshape(len(batch.rows), -1)
    return {
        row: np.concatenate([np.zeros(1, np.float32), line[: len(samples[row].tokens) - 1]])
        for row, line in zip(batch.rows, lines, strict=True)
        if row >= 0
    }
