"""A document into an experiment with its policies: what is stored reads back as the same experiment."""

import dataclasses

import numpy as np
import pytest
import yaml

from libra.config.document import Document, apply_sets
from libra.config.resolve import ChosenPolicy, resolve
from libra.config.schema import DEFAULT_KINDS
from libra.controller import Controller
from libra.errors import UserError
from libra.policies.load_balance import LoadBalance
from libra.policies.registry import BUILT_IN, entry_for_class, find_policy
from sim.config import SimConfig

TREE = yaml.safe_load(
    """
name: x
workload: {kind: preset, preset: terminal_agent}
heterogeneous_rollout: {instances: [{tp: 2, count: 2}], max_model_len: 8192}
train_gpus: 4
batch_size: 8
n_samples: 4
"""
)


def resolved(**changes):
    return resolve(Document(TREE | changes), {"sim": SimConfig})


def test_the_stored_tree_reads_back_as_the_same_experiment():
    first = resolved(
        sim={"engine": "reference"}, policies={"training": {"kind": "async_grpo", "on_stale": "drop"}}
    )
    again = resolve(Document(first.tree()), {"sim": SimConfig})
    assert again.tree() == first.tree()
    assert again.config_hash() == first.config_hash()
    assert again.policies["training"].config == first.policies["training"].config


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"sim": {"debug": True}},
        {"policies": {"recovery": {"kind": "give_up_or_restart", "max_restarts": 9}}},
    ],
)
def test_every_value_is_in_the_hash(change):
    assert resolved(**change).config_hash() != resolved().config_hash()


def test_where_a_value_was_written_is_not_in_the_hash():
    written_out = resolved(seed=0, total_steps=100)
    assert written_out.config_hash() == resolved().config_hash()


def test_blocks_of_other_programs_are_left_alone():
    assert resolved(executor={"what": "ever"}, sweep={"seeds": 3}).config_hash() == resolved().config_hash()
    assert "sim" not in resolve(Document(TREE | {"sim": {"typo": 1}}), {}).private


def test_policies_are_asked_in_the_order_of_the_architecture():
    assert list(resolved().policies) == ["recovery", "training", "admission", "routing"]
    assert isinstance(resolved().build_policies()[-1], LoadBalance)
    assert isinstance(resolved().build_controller(), Controller)


def test_shared_settings_reach_every_policy_that_declares_them():
    policies = resolved(max_head_offpolicyness=3, partial_rollout=False).policies
    for role in ("training", "admission"):
        config = policies[role].config
        assert (config.batch_size, config.n_samples, config.max_head_offpolicyness) == (8, 4, 3)
        assert (config.partial_rollout, config.training) == (False, True)


def test_no_trainer_means_no_training():
    config = resolved(train_gpus=0).policies["training"].config
    assert config.training is False


def test_each_policy_has_a_random_stream_of_its_own():
    @dataclasses.dataclass(frozen=True)
    class Config:
        pass

    drawn: list[float] = []

    class Draws:
        def __init__(self, config: Config, rng: np.random.Generator) -> None:
            drawn.append(float(rng.random()))

        def on_event(self, now, event, view):
            return ()

    # The annotations name a local class, so the entry is made by hand.
    entry = dataclasses.replace(BUILT_IN["routing", "load_balance"], policy=Draws, config=Config)
    for seed in (0, 0, 1):
        known = resolve(Document(TREE | {"seed": seed}), {"sim": SimConfig})
        policies = {**known.policies, "routing": ChosenPolicy(entry, Config())}
        dataclasses.replace(known, policies=policies).build_policies()
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_class_from_outside_is_a_policy_by_its_path():
    kind = "libra.policies.load_balance:LoadBalance"
    scheduling = {"scheduler_type": kind, "sticky": False}
    chosen = resolved(heterogeneous_rollout=TREE["heterogeneous_rollout"] | {"scheduling": scheduling})
    assert chosen.policies["routing"].entry.policy is LoadBalance
    assert chosen.policies["routing"].config.sticky is False
    assert chosen.policy_hashes()["routing"] == resolved().policy_hashes()["routing"]


def test_show_config_names_every_leaf_once():
    rows = resolved(sim={"debug": True}).origins()
    paths = [path for path, _, _ in rows]
    assert len(paths) == len(set(paths))
    origins = {path: origin for path, _, origin in rows}
    assert origins["total_steps"] == "default"
    assert origins["batch_size"] != "default"
    assert origins["sim.debug"] != "default"


@pytest.mark.parametrize(("role", "kind"), sorted(BUILT_IN))
def test_every_built_in_policy_has_a_config_with_defaults_and_a_summary(role, kind):
    entry = find_policy(role, kind)
    assert entry.summary
    assert dataclasses.is_dataclass(entry.config())
    assert entry_for_class(role, entry.policy, kind).config is entry.config


class NoConfig:
    def __init__(self, config: int, rng: np.random.Generator) -> None:
        pass

    def on_event(self, now, event, view):
        return ()


class BadAnnotation(NoConfig):
    def __init__(self, config: "Missing", rng) -> None:  # noqa: F821
        pass


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (object, "a policy needs a method on_event"),
        (NoConfig, "the constructor must be"),
        (BadAnnotation, "annotations cannot be read"),
    ],
)
def test_a_class_that_is_no_policy_is_told_why(policy, message):
    with pytest.raises(UserError, match=message):
        entry_for_class("routing", policy, "mine")


SECTIONS = {
    "policies.admission.prefetch_trajectories=8": ("admission", "prefetch_trajectories", 8),
    "policies.training.on_stale=drop": ("training", "on_stale", "drop"),
    "policies.recovery.max_restarts=9": ("recovery", "max_restarts", 9),
    "heterogeneous_rollout.scheduling.sticky=false": ("routing", "sticky", False),
}


@pytest.mark.parametrize(("given", "expected"), SECTIONS.items(), ids=SECTIONS)
def test_one_field_of_a_default_policy_may_be_set(given, expected):
    role, name, value = expected
    document = Document(TREE).copy()
    apply_sets(document, [given])
    found, default = resolve(document, {}), resolve(Document(TREE), {})
    assert getattr(found.policies[role].config, name) == value != getattr(default.policies[role].config, name)
    assert found.policies[role].entry is default.policies[role].entry
    assert resolve(Document(found.tree()), {}).tree() == found.tree()


def test_the_default_policies_are_there():
    for role, kind in DEFAULT_KINDS.items():
        assert find_policy(role, kind).kind == resolved().policies[role].entry.kind == kind
