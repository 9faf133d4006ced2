"""Output of a program, capped: the first and the last part are kept, and what was left out is visible.

Guarantees that the kept bytes never exceed the limit, however much is added. The end is kept because it is where a
traceback says what went wrong.
"""


class CappedOutput:
    """Collects bytes up to `limit_bytes`, half of them from the start and half from the end."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_room = limit_bytes - limit_bytes // 2
        self._tail_room = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.num_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Take note of `chunk`, the next bytes of the output."""
        self.num_bytes += len(chunk)
        room = self._head_room - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        surplus = len(self._tail) - self._tail_room
        if surplus > 0:
            del self._tail[:surplus]

    @property
    def truncated_bytes(self) -> int:
        """Bytes that were left out."""
        return self.num_bytes - len(self._head) - len(self._tail)

    def text(self) -> str:
        """The kept output; bytes that are no UTF-8 show as U+FFFD."""
        if self.truncated_bytes == 0:
            return (self._head + self._tail).decode("utf-8", "replace")
        head = self._head.decode("utf-8", "replace")
        tail = self._tail.decode("utf-8", "replace")
        return f"{head}\n[... {self.truncated_bytes} bytes left out ...]\n{tail}"
