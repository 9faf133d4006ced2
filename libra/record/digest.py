"""A digest of each row of the wide tables, so that a changed value is found with its place.

It guards a record against slips (a column edited by hand, rows lost or swapped by a tool), not against malice.
Cells are 64-bit patterns; each is mixed in by xor, an odd multiplier and a shift, in a fixed order of columns, so
the digest depends on every value and on which column it is in.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: Knuth's multiplicative hash
_SHIFT: Final = np.uint64(29)


def start(type_name: str, num_rows: int) -> Words:
    """Digests before any cell: the row's type."""
    return np.full(num_rows, text_word(type_name), dtype=np.uint64)


def mix(digests: Words, cells: Words) -> None:
    """Mix one column's cells in, in place."""
    digests ^= cells
    digests *= _MULTIPLIER
    digests ^= digests >> _SHIFT


def number_words(values: npt.NDArray[Any]) -> Words:
    """Bit patterns of int64, float64 or bool values."""
    if values.dtype == np.bool_:
        return values.astype(np.uint64)
    return np.ascontiguousarray(values).view(np.uint64)


def text_words(codes: npt.NDArray[np.int32], texts: Sequence[str]) -> Words:
    """Words of texts given by their codes."""
    return np.array([text_word(text) for text in texts], dtype=np.uint64)[codes]


def list_words(values: Sequence[tuple[float, ...]]) -> Words:
    """Words of tuples of numbers."""
    return np.array([text_word(repr(value)) for value in values], dtype=np.uint64)


def text_word(text: str) -> int:
    """First eight bytes of SHA-256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
