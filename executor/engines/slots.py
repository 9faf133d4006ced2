"""When a turn came to be served, as far as the driver can tell.

An engine does not say when a request left its queue. But the driver knows all its requests and how many run at a
time (`max_num_seqs`), so it can keep the same queue. Exact unless KV cache or token budget hold the queue up; the
caller bounds the answer by the time of the first token.
"""

import heapq


class SlotLedger:
    """Keys are requests under way; the lowest (priority, arrival) waiting gets the next free slot."""

    def __init__(self, num_slots: int) -> None:
        self._free = num_slots
        self._waiting: list[tuple[int, int, int]] = []  # (priority, arrival, key)
        self._arrivals = 0
        self._started_s: dict[int, float] = {}
        self._queued: set[int] = set()

    def enter(self, key: int, priority: int, now_s: float) -> None:
        """A request was sent."""
        if self._free > 0:
            self._free -= 1
            self._started_s[key] = now_s
            return
        heapq.heappush(self._waiting, (priority, self._arrivals, key))
        self._arrivals += 1
        self._queued.add(key)

    def leave(self, key: int, now_s: float) -> float | None:
        """It has ended; when it had started, None if it never did."""
        if key in self._queued:
            self._queued.discard(key)
            return None
        started_s = self._started_s.pop(key)
        self._free += 1
        while self._waiting and self._free > 0:
            successor = heapq.heappop(self._waiting)[2]
            if successor in self._queued:
                self._queued.discard(successor)
                self._started_s[successor] = now_s
                self._free -= 1
        return started_s

    def has_started(self, key: int) -> bool:
        """Whether it has left the queue."""
        return key in self._started_s
