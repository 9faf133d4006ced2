"""Sections of a YAML file as typed values: what is wrong in one is said with file, section and key."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, cast

from libra.errors import UserError

_PLAIN: Final = (int, str, bool)
"""Types of a section's fields; the rest are mappings."""


class Sections:
    """Typed views of the sections of a parsed YAML file; every error names the file, section and key."""

    def __init__(self, content: dict[str, Any], origin: str) -> None:
        self._content = content
        self._origin = origin

    def mapping(self, name: str) -> dict[str, Any]:
        """A section; empty where it is left out."""
        section = self._content.get(name, {})
        if not isinstance(section, dict):
            raise UserError(f"{self._origin}: {name}: must be a mapping; calibrate again")
        return section  # pyright: ignore[reportUnknownVariableType]

    def section(self, name: str, kind: type[Any]) -> Any:
        """A section as a dataclass, whose defaults stand for what is left out."""
        section = self.mapping(name)
        types = {each.name: each for each in fields(kind)}
        for key, value in section.items():
            if key not in types:
                raise UserError(f"{self._origin}: {name}: unknown key {key!r}; known: {', '.join(types)}")
            expected = next((plain for plain in _PLAIN if types[key].type is plain), dict)
            if not isinstance(value, expected) or (expected is bool) != isinstance(value, bool):
                raise UserError(
                    f"{self._origin}: {name}.{key}: {value!r} is no {expected.__name__}; correct it"
                )
        try:
            return kind(**section)
        except UserError as error:
            raise UserError(f"{self._origin}: {name}: {error}") from None
        except TypeError as error:
            missing = str(error).partition(": ")[2] or str(error)
            raise UserError(f"{self._origin}: {name}: {missing} missing; calibrate again") from None

    def errors(self) -> dict[str, float]:
        """`errors`: signed numbers by any name."""
        errors = self.mapping("errors")
        for key, value in errors.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UserError(f"{self._origin}: errors.{key}: {value!r} is no number; correct it")
        return {key: float(value) for key, value in errors.items()}

    def notes(self) -> tuple[str, ...]:
        """`notes`: a list of texts."""
        notes: Any = self._content.get("notes") or []
        if not isinstance(notes, list):
            raise UserError(f"{self._origin}: notes: must be a list of texts; correct it")
        return tuple(map(str, cast("list[Any]", notes)))

    def numbers(self, name: str, known: Sequence[str]) -> dict[str, float]:
        """Finite numbers of 0 or more, by names that are all known."""
        section = self.mapping(name)
        for key, value in section.items():
            if key not in known:
                raise UserError(
                    f"{self._origin}: {name}: unknown coefficient {key!r}; known: {', '.join(known)}"
                )
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0.0 <= value < float("inf")
            ):
                raise UserError(
                    f"{self._origin}: {name}.{key}: {value!r} is no number of 0 or more; correct it"
                )
        return {key: float(value) for key, value in section.items()}
