"""The tables that are written: their columns, which hold those of `libra.cost.points` that `sim calibrate` reads, and
a writer that loses nothing when the run is cut short.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from libra.cost import points

GRID_COLUMNS: Final = (*points.GRID_COLUMNS, "aux2")
"""prefill: median, least and greatest time to first token. prefill_batch: until the whole batch has its first
token. decode: seconds per output token while the whole batch runs (-1: it never did), total seconds, batch."""

MIXED_COLUMNS: Final = (*points.MIXED_COLUMNS, "n", "note")
"""param: tokens of the prefill. mixed: mean step time while n prefills follow one another beside the batch."""

REQUEST_COLUMNS: Final = (
    "phase",
    "case",
    "request",
    "submit_s",
    "first_token_s",
    "last_token_s",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "ended",
)
"""Every request of the run as the client saw it; times in seconds of the clock of the step log. ended: finished, or
aborted by the client."""


class Table:
    """A CSV file that is on disk row by row; a context manager."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        """Write the header; `path` is overwritten."""
        self.columns = columns
        self.num_rows = 0
        self._file = path.open("w", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file, lineterminator="\n")
        self._rows.writerow(columns)
        self._file.flush()

    def add(self, *values: object) -> None:
        """Append one row; ValueError if it is not as wide as the header."""
        if len(values) != len(self.columns):
            raise ValueError(f"{len(values)} values for {len(self.columns)} columns")
        self._rows.writerow(values)
        self._file.flush()
        self.num_rows += 1

    def close(self) -> None:
        """No more rows."""
        self._file.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
