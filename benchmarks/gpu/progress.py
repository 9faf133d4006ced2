"""What a person sees: one line for each row, with the seconds since the start and since the line before."""

from benchmarks.gpu.step_log import now_s


class Progress:
    """Prints at once, also into a pipe."""

    def __init__(self) -> None:
        """The clock starts."""
        self.start_s = now_s()
        self._last_s = self.start_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return now_s() - self.start_s

    def row(self, what: str, text: str) -> None:
        """One line."""
        time_s = now_s()
        print(f"[{time_s - self.start_s:7.2f} s, +{time_s - self._last_s:6.2f}] {what}: {text}", flush=True)
        self._last_s = time_s
