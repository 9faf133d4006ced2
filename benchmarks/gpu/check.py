"""Do the step log and the client's own table tell the same story? `python -m benchmarks.gpu.check DIR`

What must hold, in every phase in which nothing was aborted or preempted: a request computes its prompt less what the
prefix cache held, and each of its tokens but the last; so the sums over its steps and over its requests are equal.
"""

import csv
import statistics
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libra.errors import UserError

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """Rows with numbers as floats; UserError if there is no such file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [{key: _number(key, value) for key, value in row.items()} for row in csv.DictReader(file)]
    except OSError:
        raise UserError(f"{path}: cannot be read; give a folder that benchmarks.gpu has written") from None


def _number(key: str, value: str) -> Any:
    return value if key in ("phase", "case", "prefills", "request", "ended") else float(value)


@dataclass(frozen=True, slots=True)
class Sums:
    """Tokens of a phase; by its steps and by its requests."""

    phase: str
    step_prefill: int
    request_prefill: int
    step_decode: int
    request_decode: int
    preempted: int
    aborted: int

    @property
    def exact(self) -> bool:
        """Whether both sides have to be equal."""
        return not self.aborted and not self.preempted

    @property
    def holds(self) -> bool:
        """Whether they are."""
        same = (self.step_prefill, self.step_decode) == (self.request_prefill, self.request_decode)
        return same or not self.exact


def sums(steps: Sequence[Row], requests: Sequence[Row]) -> Iterator[Sums]:
    """One for each phase."""
    for phase in dict.fromkeys(row["phase"] for row in requests):
        mine = [row for row in steps if row["phase"] == phase]
        theirs = [row for row in requests if row["phase"] == phase]
        yield Sums(
            phase,
            int(sum(row["prefill_tokens"] for row in mine)),
            int(sum(row["prompt_tokens"] - row["cached_tokens"] for row in theirs)),
            int(sum(row["num_decodes"] for row in mine)),
            int(sum(max(row["output_tokens"] - 1, 0) for row in theirs)),
            int(sum(row["num_preempted"] for row in mine)),
            sum(row["ended"] == "aborted" for row in theirs),
        )


def durations_s(steps: Sequence[Row]) -> list[float]:
    """Of each step: until its tokens are there, from its scheduling or the tokens of the step before if later."""
    before_s = 0.0
    made = []
    for row in steps:
        made.append(row["update_start_s"] - max(row["schedule_start_s"], before_s))
        before_s = row["update_start_s"]
    return made


def _times(steps: Sequence[Row], requests: Sequence[Row]) -> Iterator[str]:
    ends = [row["update_end_s"] for row in steps]
    starts = [row["schedule_start_s"] for row in steps if row["num_new"] > 0]
    done = [row for row in requests if row["output_tokens"] > 0]
    delivered = []
    admitted = []
    for row in done:
        step = bisect_right(ends, row["first_token_s"]) - 1
        delivered.append(row["first_token_s"] - ends[step] if step >= 0 else 0.0)
        place = bisect_right(starts, row["submit_s"])
        admitted.append(starts[place] - row["submit_s"] if place < len(starts) else 0.0)
    yield f"from submission to the next step that admits: {_spread(admitted)}"
    yield f"from the end of a step to its tokens at the client: {_spread(delivered)}"
    for name, first, last in (
        ("schedule", "schedule_start_s", "schedule_end_s"),
        ("launch", "schedule_end_s", "launched_s"),
        ("update", "update_start_s", "update_end_s"),
    ):
        values = [row[last] - row[first] for row in steps if row[last] > 0]
        if values:
            yield f"{name} of a step: {_spread(values)}"


def _spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    tenth, half, most = (ordered[int(part * (len(ordered) - 1))] for part in (0.1, 0.5, 0.9))
    return f"p10 {tenth * 1e3:.3f} ms, median {half * 1e3:.3f} ms, p90 {most * 1e3:.3f} ms (n {len(ordered)})"


def _cases(steps: Sequence[Row], lengths_s: Sequence[float]) -> Iterator[str]:
    yield f"{'phase':6} {'case':28} {'steps':>6} {'decode ms':>10} {'n':>6} {'with prefill ms':>16} {'n':>6}"
    for phase, case in dict.fromkeys((row["phase"], row["case"]) for row in steps):
        mine = [
            (row, length)
            for row, length in zip(steps, lengths_s, strict=True)
            if (row["phase"], row["case"]) == (phase, case)
        ]
        plain = [length for row, length in mine if row["num_decodes"] and not row["num_prefills"]]
        filled = [length for row, length in mine if row["num_prefills"]]
        shown = [f"{statistics.median(part) * 1e3:.3f}" if part else "-" for part in (plain, filled)]
        yield (
            f"{phase:6} {case:28} {len(mine):6} {shown[0]:>10} {len(plain):6} {shown[1]:>16} {len(filled):6}"
        )


def main(arguments: Sequence[str]) -> int:
    """Print the comparison; exit status 1 where a sum does not hold."""
    if len(arguments) != 1:
        print("usage: python -m benchmarks.gpu.check DIR", file=sys.stderr)
        return 2
    try:
        steps, requests = (read(Path(arguments[0]) / name) for name in ("steps.csv", "requests.csv"))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    wrong = 0
    for line in _cases(steps, durations_s(steps)):
        print(line)
    for one in sums(steps, requests):
        wrong += not one.holds
        print(
            f"{one.phase}: prefill tokens {one.step_prefill} in steps, {one.request_prefill} in requests; "
            f"decodes {one.step_decode}, {one.request_decode}; preempted {one.preempted}, aborted {one.aborted}: "
            f"{'equal' if one.exact and one.holds else 'NOT EQUAL' if one.exact else 'not compared'}"
        )
    for line in _times(steps, requests):
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
