"""Settings of cost models that carry their source: `stamp` declares one, `stamped_values` lists them.

Guarantees that a figure and where it came from cannot part: the source stands in the field that holds the default,
and a value that somebody set says so instead.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any


def stamp(default: Any, source: str) -> Any:
    """A dataclass field with a default and the source of that default."""
    return dataclasses.field(default=default, metadata={"source": source})


@dataclass(frozen=True, slots=True)
class StampedValue:
    """One setting: its dotted name, its value, and where that came from."""

    name: str
    value: Any
    source: str


def stamped_values(config: Any, prefix: str = "") -> list[StampedValue]:
    """All stamped settings of a config dataclass and of those inside it, in order; others are left out."""
    found: list[StampedValue] = []
    for field in dataclasses.fields(config):
        name, value = f"{prefix}{field.name}", getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found += stamped_values(value, f"{name}.")
        elif "source" in field.metadata:
            source = str(field.metadata["source"])
            if value != field.default:
                source = f"set by the experiment; the default is {field.default} ({source})"
            found.append(StampedValue(name, value, source))
    return found
