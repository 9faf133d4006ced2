"""An event loop whose clock jumps: where nothing is ready, the next timer's time is now.

Sockets on this machine work as ever (what was sent is there at once), so clients and servers on one such loop play
an hour in a moment and always in the same order of time.
"""

import asyncio
import selectors
from typing import Any

_SETTLE_S = 0.0005
"""What travels between two sockets of this machine is given so long to arrive before time jumps."""
_NOTHING_DUE_S = 0.05


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time` begins at 0."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now_s

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        events = super().select(_SETTLE_S if timeout is not None else _NOTHING_DUE_S)
        if not events and timeout is not None:
            self._loop.jump(timeout)
        return events
