"""Libra's simulator: the cluster as a SimPy model that drives the same controller as the real one.

`sim.run`, `sim.sweep`, `sim.compare` (see `sim.api`) are loaded when first used, so that importing the package costs
next to nothing; `python -m sim` is the command line.
"""

from typing import TYPE_CHECKING, Any

import libra as libra  # before any module of this package: it settles which of them are compiled

if TYPE_CHECKING:
    from sim.api import compare, run, sweep

__all__ = ["compare", "run", "sweep"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from sim import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
