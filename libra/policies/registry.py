"""Policies by name: the built-in ones, and anybody's own as `package.module:Class`.

A policy class is found with its config: the type that its constructor declares for `config`. A class from
outside needs nothing but that and `on_event`.
"""

import dataclasses
import importlib
import inspect
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_type_hints

from libra.errors import UserError
from libra.policies.admission import Admission, AdmissionConfig
from libra.policies.failure import described
from libra.policies.length_aware import LengthAware, LengthAwareConfig
from libra.policies.load_balance import LoadBalance, LoadBalanceConfig
from libra.policies.recovery import Recovery, RecoveryConfig
from libra.policies.train_loop import TrainLoop, TrainLoopConfig

Role: TypeAlias = Literal["admission", "training", "routing", "recovery"]


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy class, its config class and what its first docstring line says."""

    kind: str
    role: Role
    policy: type[Any]
    config: type[Any]

    @property
    def summary(self) -> str:
        """One line for listings: the class's own docstring, or its module's where that says nothing."""
        for text in (self.policy.__doc__, inspect.getmodule(self.policy).__doc__):  # type: ignore[union-attr]
            line = (text or "").strip().split("\n")[0]
            if line and line != "See the module.":
                return line
        return ""


def _entry(
    kind: str, role: Role, policy: type[Any], config: type[Any]
) -> tuple[tuple[Role, str], PolicyEntry]:
    return (role, kind), PolicyEntry(kind, role, policy, config)


BUILT_IN: dict[tuple[Role, str], PolicyEntry] = dict(
    [
        _entry("concurrency_and_staleness", "admission", Admission, AdmissionConfig),
        _entry("async_grpo", "training", TrainLoop, TrainLoopConfig),
        _entry("load_balance", "routing", LoadBalance, LoadBalanceConfig),
        _entry("length_aware", "routing", LengthAware, LengthAwareConfig),
        _entry("give_up_or_restart", "recovery", Recovery, RecoveryConfig),
    ]
)


def kinds(role: Role) -> list[str]:
    """Names of the built-in policies of a role."""
    return [kind for (of, kind) in BUILT_IN if of == role]


def find_policy(role: Role, kind: str) -> PolicyEntry:
    """The policy named `kind`, or the class at `package.module:Class`. Raises UserError."""
    entry = BUILT_IN.get((role, kind))
    if entry is not None:
        return entry
    if ":" not in kind:
        known = ", ".join(kinds(role))
        raise UserError(f"{kind!r} is no {role} policy; known: {known}, or package.module:Class")
    module_name, _, class_name = kind.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
        raise UserError(f"{kind!r} names no class; write it as package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"{kind}: cannot import {module_name} ({error}); start from the folder that holds it or "
            "put that on PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:  # its code runs now, and may do anything
        raise UserError(
            f"{kind}: importing {module_name} failed with {described(error, module_name)}; mend the module"
        ) from error
    policy = getattr(module, class_name, None)
    if not isinstance(policy, type):
        raise UserError(f"{kind}: {module_name} has no class {class_name}")
    return entry_for_class(role, policy, kind)


def entry_for_class(role: Role, policy: type[Any], kind: str) -> PolicyEntry:
    """Check that a class can serve as a policy and find its config type. Raises UserError."""
    if not callable(getattr(policy, "on_event", None)):
        raise UserError(f"{kind}: a policy needs a method on_event(self, now, event, view)")
    try:
        config = get_type_hints(policy.__init__).get("config")
    except Exception as error:  # text annotations are code
        raise UserError(
            f"{kind}: the constructor's annotations cannot be read ({type(error).__name__}: {error}); "
            "name the config's class there"
        ) from error
    if not (isinstance(config, type) and dataclasses.is_dataclass(config)):
        raise UserError(f"{kind}: the constructor must be (self, config: <a dataclass>, rng)")
    return PolicyEntry(kind, role, policy, config)


def source_of(entry: PolicyEntry) -> str:
    """Source text behind the policy, for its hash in the manifest: its module's, or its methods' in a notebook.

    Raises UserError if there is none.
    """
    module = inspect.getmodule(entry.policy)
    try:
        if module is not None and module.__name__ != "__main__":
            return inspect.getsource(module)
        # A notebook's cells are no file, but each function knows the cell that it came from.
        methods = [method for method in vars(entry.policy).values() if inspect.isfunction(method)]
        return "\n".join(inspect.getsource(method) for method in methods)
    except (OSError, TypeError) as error:
        raise UserError(f"{entry.kind}: its source cannot be read; define it in a file or a cell") from error
