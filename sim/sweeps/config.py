"""The `sweep:` block: which points, how many seeds, what is compared with what."""

from dataclasses import dataclass, field
from typing import Any

from libra.errors import UserError


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """A grid.

    axes: name -> points. Points are either a mapping of point name -> {key path: value} (any number of keys, a
    mapping value replaces the whole section), or, when the axis is named after a key path, a list of values. A point
    or an axis that comes from a base_config is dropped by null in its place.
    seeds: a number n (seeds 0 .. n-1 on top of the experiment's own) or a list.
    baseline: axis -> point that the others are compared with; by default the first point of the first axis.
    metric: the figure that the report is about; by default trained_tokens_per_s where every cell trains, else
    output_tokens_per_s.
    """

    axes: dict[str, Any] = field(default_factory=dict[str, Any])
    seeds: int | tuple[int, ...] = 1
    baseline: dict[str, Any] = field(default_factory=dict[str, Any])
    metric: str = ""

    def seed_list(self, first: int) -> list[int]:
        """The seeds of the grid. Raises UserError for an empty or repeated list."""
        if isinstance(self.seeds, int):
            if self.seeds < 1:
                raise UserError(f"sweep.seeds: must be at least 1, not {self.seeds}")
            return list(range(first, first + self.seeds))
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise UserError("sweep.seeds: name at least one seed, each once, none negative")
        return list(self.seeds)
