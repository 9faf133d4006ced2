"""Waiting queues of an engine: order of admission, and where a preempted request goes.

FCFS: order of arrival, a preempted request at the front. PRIORITY: ascending (priority, arrival), a preempted
request in its place. Both keep `items` in admission order, so the head is `items[0]`.
"""

from bisect import insort
from collections import deque
from operator import attrgetter
from typing import Any, Protocol

from sim.engine.base import QueueOrder, Request


class Queued(Protocol):
    """What waits: anything that carries its request."""

    request: Request


class FcfsQueue:
    """First come, first served."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: deque[Any] = deque()

    def push(self, item: Queued) -> None:
        """Add a new arrival."""
        self.items.append(item)

    def push_back(self, item: Queued) -> None:
        """Put a preempted request back: before all others."""
        self.items.appendleft(item)

    def pop_head(self) -> None:
        """Take the head out."""
        self.items.popleft()

    def remove(self, item: Queued) -> None:
        """Take an aborted request out, wherever it is."""
        self.items.remove(item)


def rank(item: Queued) -> tuple[int, int]:
    """Place of a request in the priority order: low goes first, high is preempted first."""
    return item.request.priority, item.request.arrival_index


class PriorityQueue:
    """Lowest (priority, arrival) first. A sorted list: queues are short against the cost of a step."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[Any] = []

    def push(self, item: Queued) -> None:
        """Add a request in its place."""
        insort(self.items, item, key=rank)

    def push_back(self, item: Queued) -> None:
        """Put a preempted request back: in its place."""
        self.push(item)

    def pop_head(self) -> None:
        """Take the head out."""
        del self.items[0]

    def remove(self, item: Queued) -> None:
        """Take an aborted request out, wherever it is."""
        self.items.remove(item)


def make_queue(order: QueueOrder) -> FcfsQueue | PriorityQueue:
    """The queue of an order."""
    return PriorityQueue() if order is QueueOrder.PRIORITY else FcfsQueue()


admission_order = attrgetter("admit_no")
"""Sort key of running sequences: oldest first."""
