"""Which of the manual's optimizer switches act on a machine.

Guarantees: a switch acts, or one line says what runs instead; it is never ignored in silence. Without
TransformerEngine all are off: its fused Adam is what the precision-aware optimizer and offloading are made on, and
Megatron's distributed optimizer saves checkpoints that it cannot load again with torch's Adam. Loads no torch.
"""

import importlib.util
from dataclasses import dataclass

from executor.trainer.spec import OptimizerConfig

_SWITCHES = (
    ("use_distributed_optimizer", "each rank keeps the whole optimizer state"),
    ("use_precision_aware_optimizer", "optimizer states and gradients are float32"),
    ("optimizer_cpu_offload", "the optimizer state stays with the weights"),
)


@dataclass(frozen=True, slots=True)
class Switches:
    """What really runs, and a line for each wish that does not."""

    distributed: bool
    precision_aware: bool
    cpu_offload: bool
    notes: tuple[str, ...]


def decide(config: OptimizerConfig, *, has_transformer_engine: bool) -> Switches:
    """Which of the switches act."""
    if not has_transformer_engine:
        notes = tuple(
            f"trainer.optimizer.{name}: not without TransformerEngine, which is not installed; {instead}"
            for name, instead in _SWITCHES
            if getattr(config, name)
        )
        return Switches(False, False, False, notes)
    notes = ()
    if config.use_precision_aware_optimizer and not config.use_distributed_optimizer:
        notes = (
            "trainer.optimizer.use_precision_aware_optimizer: runs with the distributed optimizer, as it must",
        )
    return Switches(
        distributed=config.use_distributed_optimizer or config.use_precision_aware_optimizer,
        precision_aware=config.use_precision_aware_optimizer,
        cpu_offload=config.optimizer_cpu_offload,
        notes=notes,
    )


def has_transformer_engine() -> bool:
    """Whether this interpreter could import it."""
    return importlib.util.find_spec("transformer_engine") is not None
