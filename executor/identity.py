"""What makes two configurations the same experiment: a run is continued only by the one that began it.

Guarantees that whatever may change what is learnt counts, and that what a person has to adjust between two attempts
(addresses, time limits, how often something is saved or watched, how many steps) does not.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

_OPERATIONAL: Final = (
    ("total_steps",),
    *(
        ("executor", key)
        for key in ("max_run_s", "metrics_period_s", "debug", "tool_timeout_s", "checkpoint")
    ),
    *(
        ("executor", "engines", key)
        for key in (
            "ports",
            "host",
            "python",
            "startup_timeout_s",
            "health_period_s",
            "request_timeout_s",
            "stop_grace_s",
            "lost_after_failures",
            "omp_threads",
            "endpoints",
        )
    ),
)
_BEYOND_THE_RUN: Final = (("sync_interval",), ("max_head_offpolicyness",))
"""Without weight sync these follow from `total_steps` (`executor.plan.resolve_for_executor`)."""


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved configuration without what may change while a run is continued."""
    kept = copy.deepcopy(dict(config))
    sync = _at(kept, ("executor", "weight_sync"))
    syncs = not (isinstance(sync, dict) and sync.get("mode") == "none")
    for path in _OPERATIONAL if syncs else (*_OPERATIONAL, *_BEYOND_THE_RUN):
        holder = _at(kept, path[:-1])
        if isinstance(holder, dict):
            holder.pop(path[-1], None)
    return kept


def first_difference(known: Any, wanted: Any, place: str = "") -> str:
    """Path and both values of the first value that differs."""
    if isinstance(known, dict) and isinstance(wanted, dict):
        for key in [*wanted, *(k for k in known if k not in wanted)]:
            if known.get(key) != wanted.get(key):
                return first_difference(
                    known.get(key), wanted.get(key), f"{place}.{key}" if place else str(key)
                )
    return f"{place} was {known!r}, is {wanted!r}"


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree
