"""Which code a simulated run came from: what its manifest says of that."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from libra.host import code_hash, git_state

PACKAGES: Final = ("libra", "sim")
"""Whose sources a simulated result depends on."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """What the caller knows about the code and the host, for the manifest. calibration_id: of costs of its own."""

    commit: str = ""
    dirty: bool = False
    code_hash: str = ""
    cell: Mapping[str, Any] | None = None
    calibration_id: str = ""


def provenance() -> Provenance:
    """Of the code as it stands."""
    commit, dirty = git_state(PACKAGES)
    return Provenance(commit=commit, dirty=dirty, code_hash=code_hash(PACKAGES))
