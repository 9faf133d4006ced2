"""Real episodes: tasks that an environment of the executor plays, with tools that run.

Nobody knows their lengths beforehand, so the simulator cannot play them; it plays a record of such a run
(`kind: run`), which has all that the world did.
"""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class EnvironmentWorkload:
    """`environment`: its `kind` and its own fields (`executor.environments`). max_prompts: 0 for no end."""

    kind: Literal["environment"] = "environment"
    environment: dict[str, Any] = field(default_factory=lambda: {"kind": "cipher"})
    max_prompts: int = 0

    def __post_init__(self) -> None:
        if self.max_prompts < 0:
            raise ValueError("max_prompts must be at least 1, or 0 for no end")
