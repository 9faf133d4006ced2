"""Which prompts of a run are done: trained on, or given up. What a checkpoint remembers beside the weights.

Guarantees that a prompt that is done stays so, and that the size of what is stored follows what is out of order, not
the length of the run: all below `watermark` are done, and so are those in `beyond`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from libra.errors import UserError


@dataclass
class Progress:
    """version: weight version that these prompts led to."""

    version: int = 0
    watermark: int = 0
    beyond: set[int] = field(default_factory=set)

    def is_done(self, number: int) -> bool:
        """Whether prompt `number` needs no more rollout."""
        return number < self.watermark or number in self.beyond

    def finish(self, numbers: Iterable[int]) -> None:
        """These are done now."""
        self.beyond.update(number for number in numbers if number >= self.watermark)
        while self.watermark in self.beyond:
            self.beyond.discard(self.watermark)
            self.watermark += 1

    def to_plain(self) -> dict[str, Any]:
        """For a checkpoint's JSON file."""
        return {"version": self.version, "watermark": self.watermark, "beyond": sorted(self.beyond)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], place: str) -> "Progress":
        """Back from JSON. Raises UserError that names `place` where something is missing or odd."""
        try:
            version, watermark = int(plain["version"]), int(plain["watermark"])
            beyond = {int(number) for number in plain["beyond"]}
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{place}: not a checkpoint's progress ({error}); remove that checkpoint"
            ) from error
        return cls(version, watermark, beyond)
