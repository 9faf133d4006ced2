"""Megatron's Adam, set up from our settings.

Guarantees: rates are those of the configuration at any time, a loaded checkpoint included; norms never decay.
"""

from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import get_megatron_optimizer

from executor.trainer.spec import OptimizerConfig, TrainerConfig
from executor.trainer.switches import Switches


def build_optimizer(config: TrainerConfig, chosen: Switches, model: Any) -> Any:
    """Megatron's optimizer over the wrapped model."""
    wanted = config.optimizer
    settings = MegatronOptimizerConfig(
        optimizer="adam",
        lr=wanted.lr,
        min_lr=wanted.lr,
        adam_beta1=wanted.beta1,
        adam_beta2=wanted.beta2,
        adam_eps=wanted.eps,
        weight_decay=wanted.weight_decay,
        clip_grad=wanted.clip_grad,
        bf16=config.dtype == "bfloat16",
        params_dtype=getattr(torch, config.dtype),
        use_distributed_optimizer=chosen.distributed,
        use_precision_aware_optimizer=chosen.precision_aware,
        optimizer_cpu_offload=chosen.cpu_offload,
        optimizer_offload_fraction=wanted.optimizer_offload_fraction,
    )
    optimizer = get_megatron_optimizer(settings, [model], use_gloo_process_groups=False)
    set_rates(optimizer, wanted)
    return optimizer


def set_rates(optimizer: Any, config: OptimizerConfig) -> None:
    """Learning rate and weight decay of all parameters: Megatron leaves them to a scheduler, which we have not, and
    a loaded checkpoint brings those that it was saved with."""
    for group in optimizer.param_groups:
        group["lr"] = group["max_lr"] = group["min_lr"] = config.lr
        group["weight_decay"] = config.weight_decay * group["wd_mult"]  # 0 for norms
