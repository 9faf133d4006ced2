"""From a document to everything a driver needs: experiment, policies, private blocks, and where each came from."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from libra.config.document import Document, KeyPath, Tree
from libra.config.schema import DEFAULT_KINDS, ExperimentConfig
from libra.config.validate import nearest_hint, validate
from libra.controller import Controller, ControllerConfig
from libra.core.streams import stream
from libra.cost.model_config import is_model_path
from libra.errors import PolicyError, UserError
from libra.policies.base import SHARED_SETTINGS, Policy
from libra.policies.failure import described
from libra.policies.registry import PolicyEntry, Role, find_policy, source_of
from libra.record.manifest import config_sha256

PRIVATE_BLOCKS: Final = ("sim", "executor", "sweep")
"""Blocks that belong to one program; the others leave them unread."""

_SECTIONS: Final[dict[Role, KeyPath]] = {
    "recovery": ("policies", "recovery"),
    "training": ("policies", "training"),
    "admission": ("policies", "admission"),
    "routing": ("heterogeneous_rollout", "scheduling"),
}
"""Where each role's section stands, in the order in which the controller asks the policies."""


@dataclass(frozen=True, slots=True)
class ChosenPolicy:
    """A policy and its validated config."""

    entry: PolicyEntry
    config: Any


@dataclass(frozen=True, slots=True)
class Resolved:
    """A validated experiment. `private[name]` is the validated block of the program that asked for it."""

    experiment: ExperimentConfig
    policies: Mapping[Role, ChosenPolicy]
    private: Mapping[str, Any]
    document: Document

    @property
    def workload_folder(self) -> Path:
        """What the workload's relative paths are relative to."""
        return self.document.folder_of(("workload", "path"))

    def tree(self) -> Tree:
        """Every value, defaults included, as plain data: what is stored with a run and hashed."""
        tree = to_plain(self.experiment)
        for role, section in _SECTIONS.items():
            chosen = self.policies[role]
            own = {
                name: value
                for name, value in to_plain(chosen.config).items()
                if name not in SHARED_SETTINGS and name != _kind_key(role)
            }
            _put(tree, section, {_kind_key(role): chosen.entry.kind, **own})
        for name, block in self.private.items():
            tree[name] = to_plain(block)
        return tree

    def config_hash(self) -> str:
        """SHA-256 of the resolved values, as the manifest has it."""
        return config_sha256(self.tree())

    def origins(self) -> list[tuple[str, Any, str]]:
        """(key path, value, where it came from) of every leaf, for `--show-config`."""
        rows: list[tuple[str, Any, str]] = []
        _flatten(self.tree(), (), self.document, rows)
        return rows

    def shown(self) -> str:
        """What `--show-config` prints: a line per value, with its origin."""
        return "\n".join(f"{path} = {value!r}  # {origin}" for path, value, origin in self.origins())

    def policy_hashes(self) -> dict[str, str]:
        """SHA-256 of each policy's source, by role."""
        return {
            role: hashlib.sha256(source_of(chosen.entry).encode()).hexdigest()
            for role, chosen in self.policies.items()
        }

    def build_policies(self) -> list[Policy]:
        """Fresh policies, each with its own random stream. Raises PolicyError."""
        return [self._build(role, chosen) for role, chosen in self.policies.items()]

    def _build(self, role: Role, chosen: ChosenPolicy) -> Policy:
        policy = chosen.entry.policy
        try:
            return policy(chosen.config, stream(self.experiment.seed, f"policy.{role}"))
        except (Exception, SystemExit) as error:
            what = described(error, policy.__module__)
            raise PolicyError(f"policy {chosen.entry.kind} failed when it was constructed: {what}") from error

    def build_controller(self, *, debug: bool = False) -> Controller:
        """A fresh controller with fresh policies: for a run, or to replay one."""
        experiment = self.experiment
        config = ControllerConfig(
            training=experiment.training,
            total_steps=experiment.total_steps,
            max_head_offpolicyness=experiment.max_head_offpolicyness,
            debug=debug,
        )
        return Controller(config, self.build_policies())


def resolve(document: Document, blocks: Mapping[str, type[Any]]) -> Resolved:
    """Validate a document. `blocks`: private blocks to read, with their dataclasses; the others are ignored.

    Raises UserError.
    """
    tree = dict(document.tree)
    private: dict[str, Any] = {}
    for name in PRIVATE_BLOCKS:
        block = tree.pop(name, None)
        if name in blocks:
            private[name] = validate(blocks[name], {} if block is None else block, document, (name,))
    _locate_model(tree, document)
    _locate_calibrations(tree, document)
    experiment = validate(ExperimentConfig, tree, document)
    policies: dict[Role, ChosenPolicy] = {}
    for role, section in _SECTIONS.items():
        policies[role] = _choose(role, section, _get(experiment, section), experiment, document)
    return Resolved(experiment, policies, private, document)


def _locate_model(tree: Tree, document: Document) -> None:
    """Where `model_arch_config` is a path: the whole of it, for a relative one belongs to the file that gives it."""
    name = tree.get("model_arch_config")
    if isinstance(name, str) and is_model_path(name):
        folder = document.folder_of(("model_arch_config",))
        tree["model_arch_config"] = str((folder / name).resolve())


def _locate_calibrations(tree: Tree, document: Document) -> None:
    """Likewise the files of `cost.rollout.calibrations`."""
    path = ("cost", "rollout", "calibrations")
    cost: Any = deepcopy(tree.get("cost"))  # the document keeps what its file says
    rollout: Any = cast(Tree, cost).get("rollout") if isinstance(cost, dict) else None
    names: Any = cast(Tree, rollout).get("calibrations") if isinstance(rollout, dict) else None
    if isinstance(names, list) and all(isinstance(name, str) for name in cast(list[Any], names)):
        folder = document.folder_of(path)
        rollout["calibrations"] = [str((folder / name).resolve()) for name in cast(list[str], names)]
        tree["cost"] = cost


def hash_tree(tree: Any) -> str:
    """SHA-256 over canonical JSON."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True, default=str).encode()).hexdigest()


def to_plain(value: Any) -> Any:
    """Dataclasses, enums, tuples and paths as dicts, text and lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in cast(Sequence[Any], value)]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        return cast(Any, value.item())  # pyright: ignore[reportUnknownMemberType]
    return value


def _kind_key(role: Role) -> str:
    return "scheduler_type" if role == "routing" else "kind"


def _choose(
    role: Role,
    section: KeyPath,
    given: dict[str, Any],
    experiment: ExperimentConfig,
    document: Document,
) -> ChosenPolicy:
    own = dict(given)
    key = _kind_key(role)
    kind = own.pop(key, DEFAULT_KINDS[role])
    place = ".".join(map(str, section))
    if not isinstance(kind, str):
        raise UserError(
            f"{document.origin((*section, key))}: {place}.{key} must name a policy, such as {DEFAULT_KINDS[role]}"
        )
    try:
        entry = find_policy(role, kind)
    except UserError as error:
        raise UserError(f"{document.origin((*section, key))}: {place}.{key}: {error}") from error
    declared = {field.name for field in dataclasses.fields(entry.config)}
    for name in own:
        at = f"{document.origin((*section, name))}: {place}.{name}"
        if name in SHARED_SETTINGS:
            raise UserError(f"{at}: set {name} at the top of the experiment; every policy shares it")
        if name not in declared:
            offered = sorted(declared - SHARED_SETTINGS - {key})
            raise UserError(f"{at}: unknown key of {entry.kind}{nearest_hint(name, offered)}")
    for name in declared & SHARED_SETTINGS:
        own[name] = getattr(experiment, name)
    try:
        return ChosenPolicy(entry, validate(entry.config, own, document, section))
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # from the checks of a user's own config class
        what = described(error, entry.config.__module__)
        raise UserError(
            f"{document.origin(section)}: {place}: {entry.kind} refuses its config: {what}"
        ) from error


def _get(config: Any, section: KeyPath) -> dict[str, Any]:
    for name in section:
        config = getattr(config, str(name))
    return config


def _put(tree: Tree, section: KeyPath, value: Any) -> None:
    for name in section[:-1]:
        tree = tree[str(name)]
    tree[str(section[-1])] = value


def _flatten(value: Any, place: KeyPath, document: Document, rows: list[tuple[str, Any, str]]) -> None:
    branch = cast(Tree, value) if isinstance(value, dict) else {}
    if branch:
        for key, item in branch.items():
            _flatten(item, (*place, key), document, rows)
        return
    given = _is_given(document.tree, place)
    rows.append((".".join(map(str, place)), cast(Any, value), document.origin(place) if given else "default"))


def _is_given(tree: Any, place: KeyPath) -> bool:
    for key in place:
        if not isinstance(tree, dict) or key not in tree:
            return False
        tree = cast(Tree, tree)[str(key)]
    return True
