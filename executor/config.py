"""The `executor:` block of an experiment: what only a real run needs."""

from dataclasses import dataclass, field
from typing import Literal

from executor.engines.config import EnginesConfig
from executor.episodes import SamplingConfig
from executor.trainer.spec import TrainerConfig


@dataclass(frozen=True, slots=True)
class WeightSyncConfig:
    """How the engines get new weights.

    mode: `disk` (a folder of safetensors, loaded in place), `direct` (the trainer broadcasts to the engines) or
    `none` (they keep the weights that the attempt started with: for debugging the trainer alone). required: a sync
    that fails ends the run; otherwise it warns, and the engine goes on with the weights it has. verify_after_sync:
    after a load, compare the engine's log-probs of a few tokens with the trainer's. deadline_s: of one load on one
    engine. keep_versions: folders of `disk` kept.
    """

    mode: Literal["none", "disk", "direct"] = "disk"
    required: bool = True
    verify_after_sync: bool = False
    deadline_s: float = 300.0
    keep_versions: int = 2

    def __post_init__(self) -> None:
        if self.mode == "none" and self.required:
            raise ValueError(
                "mode none loads no weights, so required (REQUIRE_ROLLOUT_WEIGHT_SYNC) cannot be true; "
                "set required: false, or take mode disk or direct"
            )
        if self.deadline_s <= 0:
            raise ValueError("deadline_s must be positive")
        if self.keep_versions < 1:
            raise ValueError("keep_versions must be at least 1")


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """interval_steps: train steps between checkpoints, 0 for none; one is always written after the last step.
    keep: checkpoints kept, newest first."""

    interval_steps: int = 10
    keep: int = 2

    def __post_init__(self) -> None:
        if self.interval_steps < 0:
            raise ValueError("interval_steps must not be negative")
        if self.keep < 1:
            raise ValueError("keep must be at least 1")


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """model_path: folder of a Hugging Face model (config, safetensors, tokenizer), relative to the experiment file.

    launcher: `local` starts engines on this machine and takes no `engines.endpoints`; `static` uses these, started by
    somebody else.
    tool_timeout_s: of one tool call, whatever limit the environment has itself.
    metrics_period_s: between polls of the engines' own counters. max_run_s: 0 for no limit.
    debug: recount every total after every event, and watch that policies only look.
    """

    model_path: str = ""
    launcher: Literal["local", "static"] = "local"
    tool_timeout_s: float = 600.0
    metrics_period_s: float = 2.0
    max_run_s: float = 0.0
    debug: bool = False
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    engines: EnginesConfig = field(default_factory=EnginesConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    weight_sync: WeightSyncConfig = field(default_factory=WeightSyncConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        if self.metrics_period_s <= 0 or self.tool_timeout_s <= 0:
            raise ValueError("metrics_period_s and tool_timeout_s must be positive")
        if self.max_run_s < 0:
            raise ValueError("max_run_s must not be negative (0 for no limit)")
        if self.launcher == "local" and self.engines.endpoints:
            raise ValueError(
                "launcher local starts its own engines and would ignore engines.endpoints; "
                "set launcher: static, or leave the endpoints out"
            )
