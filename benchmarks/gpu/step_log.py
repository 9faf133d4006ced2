"""The step log: one row for each step of the engine, written where the scheduler runs.

Guarantees: times are of `time.perf_counter`, which on Linux is CLOCK_MONOTONIC and so the same clock in every
process. A step costs its row's formatting, some microseconds; a file is written to when the engine falls idle, when
FLUSH_ROWS rows have gathered, and at the end. Imports no vLLM.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOG_VARIABLE: Final = "LIBRA_STEP_LOG"
"""Environment variable that names the file; the engine's process inherits it."""

FLUSH_ROWS: Final = 2000

SEPARATOR: Final = "~"
"""A request is called `phase~case~name`, so that a step can say what it was measured for."""

STEP_COLUMNS: Final = (
    "phase",  # of the newest request
    "case",
    "step",  # counts every call of schedule(), also those that found nothing to do
    "schedule_start_s",
    "schedule_end_s",
    "launched_s",  # the model's part has been handed over: kernels launched, or workers told; 0: not known
    "update_start_s",  # its tokens have arrived
    "update_end_s",
    "num_decodes",
    "decode_context_tokens",  # in the KV cache before the step, summed over the decoding requests
    "num_prefills",
    "prefill_tokens",
    "prefills",  # `computed before:tokens of this step`, separated by spaces
    "num_new",
    "num_resumed",
    "num_preempted",
    "num_running",
    "num_waiting",
    "kv_usage",
)


def request_name(phase: str, case: str, name: str) -> str:
    """The id of a request, from which the step log knows phase and case."""
    return SEPARATOR.join(part.replace(SEPARATOR, "-").replace(",", "-") for part in (phase, case, name))


def phase_and_case(request_id: str) -> tuple[str, str]:
    """The other way; what is not named so is of phase `other`."""
    parts = request_id.split(SEPARATOR)
    return (parts[0], parts[1]) if len(parts) >= 3 else ("other", "")


@dataclass(slots=True)
class Work:
    """What one step computes: num_decodes with context_tokens in the cache, and chunks (before, tokens)."""

    num_decodes: int
    context_tokens: int
    chunks: list[tuple[int, int]]


def work_of(
    scheduled: Mapping[str, int],
    new: Iterable[tuple[str, int]],
    cached: Iterable[tuple[str, int, int]],
) -> Work:
    """Tell decodes from prefills.

    scheduled: tokens of this step by request. new: (request, tokens computed before) of requests that are scheduled
    for the first time. cached: (request, computed before, outputs so far, those on their way included). A decode has
    an output and one token to compute; what a preempted request computes again is a prefill.
    """
    work = Work(0, 0, [(before, scheduled[request]) for request, before in new])
    for request, before, outputs in cached:
        tokens = scheduled[request]
        if outputs > 0 and tokens == 1:
            work.num_decodes += 1
            work.context_tokens += before
        else:
            work.chunks.append((before, tokens))
    return work


@dataclass(slots=True)
class Step:
    """A row in the making."""

    label: tuple[str, str]
    number: int
    schedule_start_s: float
    schedule_end_s: float
    work: Work
    counts: tuple[int, int, int, int, int]  # new, resumed, preempted, running, waiting
    kv_usage: float
    launched_s: float = 0.0

    def line(self, update_start_s: float, update_end_s: float) -> str:
        """The row, without a line end."""
        work = self.work
        chunks = " ".join(f"{before}:{tokens}" for before, tokens in work.chunks)
        tokens = sum(tokens for _, tokens in work.chunks)
        return (
            f"{self.label[0]},{self.label[1]},{self.number},{self.schedule_start_s:.6f},"
            f"{self.schedule_end_s:.6f},{self.launched_s:.6f},{update_start_s:.6f},{update_end_s:.6f},"
            f"{work.num_decodes},{work.context_tokens},{len(work.chunks)},{tokens},{chunks},"
            f"{','.join(map(str, self.counts))},{self.kv_usage:.5f}"
        )


class StepLog:
    """Gathers lines and writes them in bunches."""

    def __init__(self, path: Path, columns: Sequence[str] = STEP_COLUMNS) -> None:
        """Write the header; `path` is overwritten."""
        self._path = path
        self._lines: list[str] = []
        path.write_text(",".join(columns) + "\n", encoding="utf-8")

    def add(self, line: str, idle: bool) -> None:
        """One more row; `idle`: nothing waits for the engine, so that now is the time to write."""
        self._lines.append(line)
        if idle or len(self._lines) >= FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered."""
        if self._lines:
            lines, self._lines = self._lines, []
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")


now_s: Callable[[], float] = time.perf_counter
"""The clock of the step log and of the client."""
