"""What goes into the manifest."""

import hashlib
import inspect

import pytest

from libra.core import streams
from libra.policies.registry import PolicyEntry, source_of
from libra.record import manifest
from libra.record.manifest import RunInfo, canonical_json, config_sha256, package_versions


def test_hash_of_a_config_does_not_depend_on_the_order_of_keys():
    assert config_sha256({"a": 1, "b": {"c": 2, "d": 3}}) == config_sha256({"b": {"d": 3, "c": 2}, "a": 1})
    assert config_sha256({"a": 1}) != config_sha256({"a": 2})
    assert canonical_json({"é": 1}) == '{"é":1}'


def test_a_config_with_nan_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": float("nan")})


def test_source_hash_is_that_of_the_file():
    text = inspect.getsource(manifest)
    entry = PolicyEntry("a policy", "routing", RunInfo, RunInfo)
    hashed = hashlib.sha256(source_of(entry).encode()).hexdigest()
    assert hashed == hashlib.sha256(text.encode()).hexdigest()
    assert hashed != hashlib.sha256(inspect.getsource(streams).encode()).hexdigest()


def test_package_versions_skip_what_is_not_there():
    found = package_versions(["numpy", "no-such-distribution-here"])
    assert list(found) == ["python", "numpy"]
    assert found["numpy"].count(".") >= 1
