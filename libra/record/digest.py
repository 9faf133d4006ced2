"""A digest of each row of the wide tables, so that a changed value is found with its place.

It guards a record against slips (a column edited by hand, rows lost or swapped by a tool), not against malice.
Every cell is a 64-bit word; the digest is the sum over the cells, modulo 2^64, of word times an odd weight that
belongs to the column. A change of one cell changes it always (an odd weight has an inverse), of several all
but certainly; and it is one pass over the numbers of a batch.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


def text_word(text: str) -> int:
    """First eight bytes of SHA-256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def weight(column: str) -> np.uint64:
    """The weight of a column."""
    return np.uint64(text_word(f"weight of {column}") | 1)


def number_words(values: npt.NDArray[Any]) -> Words:
    """Bit patterns of int64, float64 or bool values."""
    if values.dtype == np.bool_:
        return values.astype(np.uint64)
    return np.ascontiguousarray(values).view(np.uint64)


def table_sums(numbers: npt.NDArray[Any]) -> Words:
    """Weighted sum over the fields of each element of a structured array."""
    names = numbers.dtype.names or ()
    weights = np.array([weight(name) for name in names], dtype=np.uint64)
    if names and numbers.dtype.itemsize == 8 * len(names):  # all of them 64-bit: one matrix product
        return numbers.view(np.uint64).reshape(len(numbers), len(names)) @ weights
    total = np.zeros(len(numbers), dtype=np.uint64)
    for name, factor in zip(names, weights, strict=True):
        total += number_words(numbers[name]) * factor
    return total


def text_words(codes: npt.NDArray[np.int32], texts: Sequence[str]) -> Words:
    """Words of texts given by their codes."""
    return np.array([text_word(text) for text in texts], dtype=np.uint64)[codes]


def list_words(values: Sequence[tuple[float, ...]]) -> Words:
    """Words of tuples of numbers."""
    return np.array([text_word(repr(value)) for value in values], dtype=np.uint64)
