"""The least loaded of many replicas, in constant time.

Loads are small integers that change by one, so replicas sit in one ordered set per load and a floor that
follows them. Among equals the one that has stood longest at its load comes first, which spreads arrivals
round the equals instead of piling them on the lowest id.
"""

from typing import Generic, TypeVar

K = TypeVar("K")


class LoadIndex(Generic[K]):
    """Keys by integer load (>= 0)."""

    __slots__ = ("_floor", "_levels", "_load")

    def __init__(self) -> None:
        self._load: dict[K, int] = {}
        self._levels: list[dict[K, None]] = [{}]
        self._floor = 0

    def __len__(self) -> int:
        return len(self._load)

    def set(self, key: K, load: int) -> None:
        """Add a key or change its load. Constant time, but for the levels that a jump skips."""
        old = self._load.get(key)
        if old is not None:
            if old == load:
                return
            del self._levels[old][key]
        levels = self._levels
        while load >= len(levels):
            levels.append({})
        levels[load][key] = None
        self._load[key] = load
        if load < self._floor:
            self._floor = load

    def discard(self, key: K) -> None:
        """Remove a key, if it is there."""
        load = self._load.pop(key, None)
        if load is not None:
            del self._levels[load][key]

    def least(self) -> tuple[K, int] | None:
        """The least loaded key and its load, or `None` when empty."""
        if not self._load:
            return None
        levels = self._levels
        floor = self._floor
        while not levels[floor]:
            floor += 1
        self._floor = floor
        return next(iter(levels[floor])), floor
