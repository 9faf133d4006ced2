"""From the arguments of `sim.api` to an experiment document: what a notebook gives, in the form of a file.

So a run from Python and one from the command line go the same way from here on, and a policy class goes by the name
under which other processes and a replay find it.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

from libra.config.document import Document, apply_overrides, load_document
from libra.config.resolve import Resolved
from libra.errors import UserError
from libra.record.writer import Level

Experiment: TypeAlias = str | Path | Mapping[str, Any]
Policy: TypeAlias = type[Any] | str | Mapping[str, Any]
SCHEDULING = "heterogeneous_rollout.scheduling"
_EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"


def document_of(experiment: Experiment, overrides: Mapping[str, Any] | None, seed: int | None) -> Document:
    """The experiment with its overrides. Raises UserError for a file that cannot be read or is not there."""
    if isinstance(experiment, Mapping):
        document = Document(dict(experiment)).copy()
    else:
        document = load_document(_experiment_file(experiment))
    if overrides is not None and not isinstance(cast(object, overrides), Mapping):
        raise UserError(f"set=: give a mapping of key paths to values, not {overrides!r}")
    apply_overrides(document, overrides or {}, "set=")
    if seed is not None:
        document.replace("seed", seed, "seed=")
    return document


def _experiment_file(experiment: str | Path) -> Path:
    """The file itself, or for a bare name the one in `experiments/`, here or beside this package."""
    path = Path(experiment)
    if path.exists() or path.suffix or path.name != str(experiment):
        return path
    for folder in (Path("experiments"), _EXPERIMENTS):
        named = folder / f"{experiment}.yaml"
        if named.is_file():
            return named
    known = ", ".join(sorted(file.stem for file in _EXPERIMENTS.glob("*.yaml"))) or "none"
    raise UserError(f"{experiment}: neither a file nor the name of an experiment; known: {known}")


def put_sweep(
    document: Document,
    policies: Mapping[str, Policy] | None,
    baseline: str | None,
    seeds: int | Sequence[int] | None,
    metric: str | None,
) -> None:
    """Write the arguments of `sweep` into the document's `sweep:` block."""
    if document.tree.get("sweep") is None:
        document.replace("sweep", {}, "sweep()")
    block = document.tree["sweep"]
    axes = block.get("axes") or {} if isinstance(block, dict) else None
    if not isinstance(axes, dict):
        raise UserError(
            f"{document.origin(('sweep',))}: sweep and sweep.axes must be mappings of keys to values"
        )
    if policies is not None:
        kept = {name: points for name, points in cast(dict[str, Any], axes).items() if name != "policy"}
        points = {name: {SCHEDULING: scheduling_of(policy, None)} for name, policy in policies.items()}
        document.replace("sweep.axes", {"policy": points, **kept}, "policies=")
        baseline = baseline if baseline is not None else next(iter(policies), "")
    if baseline is not None:
        document.replace("sweep.baseline", {"policy": baseline}, "baseline=")
    if seeds is not None:
        document.replace("sweep.seeds", seeds if isinstance(seeds, int) else list(seeds), "seeds=")
    if metric is not None:
        document.replace("sweep.metric", metric, "metric=")


def scheduling_of(policy: Policy, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The section `heterogeneous_rollout.scheduling` of a policy and its own fields."""
    if isinstance(policy, Mapping):
        return {**policy, **(config or {})}
    if isinstance(policy, type):
        policy = _name_of(policy)
    return {"scheduler_type": policy, **(config or {})}


def _name_of(policy: type[Any]) -> str:
    """`module:Class`, when that leads to this very class."""
    name = f"{policy.__module__}:{policy.__qualname__}"
    if "." in policy.__qualname__:
        raise UserError(f"{policy.__qualname__}: define the class at the top of a module or notebook cell")
    if getattr(sys.modules.get(policy.__module__), policy.__qualname__, None) is not policy:
        raise UserError(
            f"{name}: that name now leads to another class (a cell was run again, or the class was built by a "
            "function); give each class a name of its own"
        )
    return name


def check_level(record: str) -> None:
    """Refuse a level of recording that there is not."""
    if record not in get_args(Level):
        raise UserError(f"record={record!r}: must be one of {', '.join(get_args(Level))}")


def check_processes(resolved: Iterable[Resolved]) -> None:
    """Other processes can import a module or run a script again, but not a notebook."""
    if getattr(sys.modules["__main__"], "__file__", None) is not None:
        return
    for one in resolved:
        policy = one.policies["routing"].entry.policy
        if policy.__module__ == "__main__":
            raise UserError(
                f"{policy.__qualname__} lives in this notebook, where other processes cannot find it; use jobs=1, "
                "or put the class into a module"
            )
