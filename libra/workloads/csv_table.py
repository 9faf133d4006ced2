"""A user's CSV as typed columns, with errors that name the file, the line and the column.

Line numbers are those an editor shows (the header is line 1), also behind quoted line breaks and blank lines.
Whole columns convert at once; only a column that fails is searched for the cell at fault.
"""

import csv
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from libra.errors import UserError
from libra.workloads.table import Floats, Ints


@dataclass(frozen=True)
class CsvTable:
    """Cells of a CSV file as text, by column; `lines[i]` is the line on which row i ends."""

    path: Path
    columns: Mapping[str, Sequence[str]]
    lines: Sequence[int]

    @property
    def num_rows(self) -> int:
        """Number of rows, the header not counted."""
        return len(self.lines)

    def error(self, row: int, column: str, what: str) -> UserError:
        """A `UserError` at a cell."""
        return UserError(f"{self.path}, line {self.lines[row]}, column {column}: {what}")

    def require(self, *names: str) -> None:
        """Raise `UserError` unless all columns are there; the message suggests the nearest name.

        A column that is required itself is never what another should be made from.
        """
        for name in names:
            if name not in self.columns:
                spare = [column for column in self.columns if column not in names]
                near = difflib.get_close_matches(name, spare, n=1, cutoff=0.5)
                mend = f"rename {near[0]!r}" if near else f"add it (present: {', '.join(self.columns)})"
                raise UserError(f"{self.path}, line 1: no column {name!r}; {mend}")

    def first_of(self, *names: str) -> str | None:
        """The first of these names that is a column."""
        return next((name for name in names if name in self.columns), None)

    def text(self, name: str) -> Sequence[str]:
        """Cells of a column that must not be empty."""
        cells = self.columns[name]
        if "" in cells:
            raise self.error(cells.index(""), name, "is empty; fill it in or remove the line")
        return cells

    def floats(self, name: str, *, required: bool, minimum: float = 0.0) -> Floats:
        """A numeric column; empty cells are nan, or an error where `required`."""
        cells = self.columns[name]
        try:
            values = np.array([cell or "nan" for cell in cells], dtype=np.float64)
        except ValueError:
            row = next(i for i, cell in enumerate(cells) if not _is_number(cell))
            raise self.error(row, name, f"{cells[row]!r} is not a number; correct it") from None
        empty = np.array([cell == "" for cell in cells], dtype=np.bool_)
        wrong = ~np.isfinite(values) & ~empty
        if wrong.any():
            row = int(np.argmax(wrong))
            raise self.error(
                row, name, f"{cells[row]!r} is not a finite number; correct it or leave it empty"
            )
        if required and empty.any():
            raise self.error(int(np.argmax(empty)), name, "is empty; fill it in or remove the line")
        low = values < minimum
        if low.any():
            row = int(np.argmax(low))
            raise self.error(row, name, f"{cells[row]} is below {minimum:g}; correct it")
        return values

    def ints(self, name: str, *, minimum: int = 0) -> Ints:
        """A required column of whole numbers (`12` or `12.0`)."""
        values = self.floats(name, required=True, minimum=minimum)
        broken = (values != np.floor(values)) | (values > 2**53)
        if broken.any():
            row = int(np.argmax(broken))
            raise self.error(row, name, f"{self.columns[name][row]} is not a whole number; round it")
        return values.astype(np.int64)

    def flags(self, name: str) -> Floats:
        """A column of 0/1, true/false (any case) or empty, as 1.0, 0.0 or nan."""
        codes = {"": np.nan, "0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0}
        cells = self.columns[name]
        values = [codes.get(cell.lower(), -1.0) for cell in cells]
        if -1.0 in values:
            row = values.index(-1.0)
            raise self.error(row, name, f"{cells[row]!r} is no yes or no; write 1, 0 or leave it empty")
        return np.array(values, dtype=np.float64)


def read_csv(path: Path) -> CsvTable:
    """Read a UTF-8 CSV with a header. Raises `UserError` for what is not one."""
    if path.is_dir():
        raise UserError(f"{path}: is a directory; name the CSV file inside it")
    if not path.exists():
        raise UserError(f"{path}: no such file; check the path")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, rows, lines = _records(path, file)
    except UnicodeDecodeError:
        raise UserError(f"{path}, line {_bad_line(path)}: not UTF-8 text; save the file as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    if not rows:
        raise UserError(f"{path}, line 1: no rows below the header; the file is empty, write it again")
    cells = [list(column) for column in zip(*rows, strict=True)]
    return CsvTable(path, dict(zip(header, cells, strict=True)), lines)


def _records(path: Path, file: Iterable[str]) -> tuple[list[str], list[list[str]], list[int]]:
    reader = csv.reader(file)
    rows: list[list[str]] = []
    lines: list[int] = []
    no_header: list[str] = []
    try:
        header = [name.strip() for name in next(reader, no_header)]
        if not any(header):
            raise UserError(f"{path}, line 1: no header; the first line must name the columns")
        for name in header:
            if header.count(name) > 1:
                raise UserError(f"{path}, line 1, column {name}: named twice; rename one")
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise UserError(
                    f"{path}, line {reader.line_num}: {len(row)} fields under {len(header)} column names; "
                    "add or remove fields"
                )
            rows.append([cell.strip() for cell in row])
            lines.append(reader.line_num)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not CSV ({error}); write it again") from None
    return header, rows, lines


def _bad_line(path: Path) -> int:
    data = path.read_bytes()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return data.count(b"\n", 0, error.start) + 1
    return 1


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True
