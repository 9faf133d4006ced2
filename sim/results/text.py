"""Tables as aligned text and as HTML."""

from collections.abc import Collection, Iterable, Sequence
from html import escape

MAX_WIDTH = 110
MAX_CELL = 30


def columns_of_text(rows: Sequence[Sequence[str]], left: int, max_cell: int = MAX_CELL) -> list[str]:
    """Lines of aligned columns, the first row being the head: the first `left` of them flush left.

    Cells longer than `max_cell` end in an ellipsis.
    """
    cells = [[cell if len(cell) <= max_cell else f"{cell[: max_cell - 1]}…" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        aligned = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(aligned).rstrip())
    rule = "  ".join("-" * width for width in widths)
    return [lines[0], rule, *lines[1:]]


def fit_columns(rows: Sequence[Sequence[str]], left: int, keep: int) -> list[str]:
    """`columns_of_text` in at most `MAX_WIDTH` characters: columns after the first `keep` go from the right,
    then cells are shortened."""
    for count in range(len(rows[0]), keep - 1, -1):
        kept = [row[:count] for row in rows]
        if _width(kept, left, MAX_CELL) <= MAX_WIDTH:
            return columns_of_text(kept, left)
    kept = [row[:keep] for row in rows]
    max_cell = next((size for size in range(MAX_CELL - 1, 4, -1) if _width(kept, left, size) <= MAX_WIDTH), 4)
    return [line[:MAX_WIDTH] for line in columns_of_text(kept, left, max_cell)]


def _width(rows: Sequence[Sequence[str]], left: int, max_cell: int) -> int:
    return max(map(len, columns_of_text(rows, left, max_cell)))


def markup(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    caption: str = "",
    left: int = 1,
    classes: Collection[tuple[int, int, str]] = (),
) -> str:
    """An HTML table; every text is escaped. `classes`: (row, column, class name) of marked cells."""
    marked = {(row, column): name for row, column, name in classes}

    def cell(tag: str, column: int, value: object, name: str = "") -> str:
        names = " ".join(part for part in ("l" if column < left else "", name) if part)
        attribute = f' class="{names}"' if names else ""
        return f"<{tag}{attribute}>{escape(str(value))}</{tag}>"

    lines = ["<table>"]
    if caption:
        lines.append(f"<caption>{escape(caption)}</caption>")
    lines.append(
        f"<thead><tr>{''.join(cell('th', i, name) for i, name in enumerate(head))}</tr></thead><tbody>"
    )
    for number, row in enumerate(rows):
        cells = "".join(cell("td", i, value, marked.get((number, i), "")) for i, value in enumerate(row))
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</tbody></table>"])
