"""Frozen values: immutable for the type checker, cheap at run time.

Events and actions are created several hundred thousand times in a run. A `frozen=True` dataclass assigns
each field through `object.__setattr__`, which makes creation about three times dearer. `@value` therefore
builds a slotted dataclass with a plain `__init__` and declares it frozen to the type checker only: assigning
to a field of a value is a pyright error, and `tests/unit/core/test_vocabulary.py` shows that it is.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Class decorator: a slotted dataclass that the type checker treats as frozen."""
    return dataclass(slots=True)(cls)
