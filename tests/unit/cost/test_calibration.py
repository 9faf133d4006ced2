"""Calibration files: what is written is read back, and what is broken is named in one line."""

from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from libra.cost.calibration import (
    COEFFICIENTS,
    MAX_COEFFICIENTS,
    Calibration,
    EngineSettings,
    Stamp,
    load_calibration,
    parse_calibration,
    to_yaml,
)
from libra.cost.rollout import ReplicaCost
from libra.cost.tables import committed_calibrations
from libra.errors import UserError
from tests.support.costs import calibration

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12)
SECONDS = st.floats(1e-12, 100.0)
COUNT = st.integers(1, 10**7)


@st.composite
def calibrations(draw) -> Calibration:
    """Any calibration that `calibrate` could make."""
    stamp = Stamp(
        **{
            name: draw(TEXT)
            for name in ("gpu", "model", "dtype", "engine", "engine_version", "method", "date")
        },
        tp=draw(st.integers(1, 16)),
        data=draw(st.dictionaries(TEXT, TEXT, max_size=3)),
        development_trace=draw(st.just("") | TEXT),
        engine_from=draw(st.just("") | TEXT),
    )
    settings = EngineSettings(
        **{
            name: draw(COUNT)
            for name in (
                "max_num_seqs",
                "max_num_batched_tokens",
                "block_size",
                "kv_capacity_tokens",
                "max_model_len",
            )
        },
        enable_prefix_caching=draw(st.booleans()),
        capture_tokens=draw(st.integers(0, 512)),
        async_scheduling=draw(st.booleans()),
    )
    needed = ("decode_base_s", "decode_per_context_token_s", "prefill_per_token_s", "dispersed_kv_factor")
    values = {name: draw(SECONDS if name in needed else st.just(0.0) | SECONDS) for name in COEFFICIENTS}
    values = {name: float(f"{value:.5g}") for name, value in values.items()}
    num_experts = draw(st.just(0) | st.integers(1, 256))
    cost = ReplicaCost(
        gpu=stamp.gpu,
        model=stamp.model,
        tp=stamp.tp,
        kv_capacity_tokens=settings.kv_capacity_tokens,
        capture_tokens=settings.capture_tokens,
        async_scheduling=settings.async_scheduling,
        num_experts=num_experts,
        experts_per_token=draw(st.integers(1, num_experts)) if num_experts else 0,
        **values,
    )
    fitted = draw(st.sets(st.sampled_from(COEFFICIENTS), max_size=MAX_COEFFICIENTS))
    return Calibration(
        stamp=stamp,
        settings=settings,
        cost=cost,
        fitted=tuple(name for name in COEFFICIENTS if name in fitted),
        errors=draw(st.dictionaries(TEXT, st.floats(-5, 5).map(lambda x: round(x, 4)), max_size=3)),
        notes=tuple(draw(st.lists(TEXT, max_size=2))),
    )


@given(made=calibrations())
def test_what_is_written_is_read_back(made):
    assert parse_calibration(yaml.safe_load(to_yaml(made)), "a file") == made


@given(made=calibrations())
def test_reading_and_writing_again_changes_nothing(made):
    text = to_yaml(made)
    assert to_yaml(parse_calibration(yaml.safe_load(text), "a file")) == text


def test_a_file_knows_its_path_and_says_what_it_is_of(tmp_path):
    path = tmp_path / "cal.yaml"
    path.write_text(to_yaml(calibration()))
    read = load_calibration(path)
    assert read.path == path
    assert read.cost.source == f"{path}: Qwen3-4B bfloat16 on H200 at tp 1, vllm 0.26.0 (measured)"


def test_coefficients_are_written_to_five_digits():
    made = calibration()
    made = replace(made, cost=replace(made.cost, decode_base_s=0.00123456789))
    assert yaml.safe_load(to_yaml(made))["coefficients"]["decode_base_s"] == 0.0012346


def test_more_than_ten_fitted_coefficients_are_refused():
    calibration(fitted=COEFFICIENTS[:10])
    with pytest.raises(UserError, match="calibration: coefficients: 11 fitted; 10 at most, or it over-fits"):
        calibration(fitted=COEFFICIENTS[:11])


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"gpu": "H100"}, "made for gpu H200, wanted for H100"),
        ({"model": "Qwen3-8B"}, "made for model Qwen3-4B, wanted for Qwen3-8B"),
        ({"gpu": "H200", "tp": 2}, "made for tp 1, wanted for 2"),
        ({"engine_version": "0.19.0"}, "made for engine_version 0.26.0, wanted for 0.19.0"),
        ({"engine": "sglang"}, "made for engine vllm, wanted for sglang"),
        ({"dtype": "fp8"}, "made for dtype bfloat16, wanted for fp8"),
    ],
)
def test_a_calibration_of_something_else_is_refused(tmp_path, wanted, message):
    path = tmp_path / "cal.yaml"
    path.write_text(to_yaml(calibration()))
    with pytest.raises(UserError, match=message) as caught:
        load_calibration(path).require(**wanted)
    assert str(caught.value).startswith(f"{path}: ")
    assert "Qwen3-4B bfloat16 on H200 at tp 1, vllm 0.26.0 (measured)" in str(caught.value)


def test_a_calibration_of_what_is_wanted_is_let_through():
    calibration().require(gpu="H200", model="Qwen3-4B", tp=1, engine="vllm", engine_version="0.26.0")


def test_engines_are_told_apart_by_all_but_the_tp_degree_and_the_data():
    stamp = calibration().stamp
    assert replace(stamp, tp=4, data={}, date="2027-01-01").engine_key == stamp.engine_key
    for name in ("gpu", "model", "dtype", "engine", "engine_version", "method"):
        assert replace(stamp, **{name: "other"}).engine_key != stamp.engine_key, name


GONE = object()


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("schema_version",), 2, "no calibration (schema_version 1)"),
        (("schema_version",), GONE, "no calibration (schema_version 1)"),
        (("coeficients",), {}, "unknown section 'coeficients'; known: schema_version, stamp,"),
        (("stamp",), GONE, "stamp: 'gpu', 'model', 'tp'"),
        (("stamp",), "H200", "stamp: must be a mapping"),
        (("stamp",), None, "stamp: must be a mapping"),
        (("stamp", "gpu"), GONE, "stamp: 'gpu' missing"),
        (("stamp", "gpu"), 4090, "stamp.gpu: 4090 is no str"),
        (("stamp", "engine_version"), 0.26, "stamp.engine_version: 0.26 is no str"),
        (("stamp", "tp"), "1", "stamp.tp: '1' is no int"),
        (("stamp", "tp"), True, "stamp.tp: True is no int"),
        (("stamp", "data"), "grid.csv", "stamp.data: 'grid.csv' is no dict"),
        (("stamp", "gpus"), "H200", "stamp: unknown key 'gpus'; known: gpu, model, tp,"),
        (("settings",), GONE, "settings: 'max_num_seqs', "),
        (("settings", "block_size"), 0, "settings: block_size is 0; give 1 or more"),
        (("settings", "max_num_seqs"), -1, "settings: max_num_seqs is -1; give 1 or more"),
        (("settings", "capture_tokens"), -1, "settings: capture_tokens is -1; give 0 or more"),
        (("settings", "max_model_len"), 1.5, "settings.max_model_len: 1.5 is no int"),
        (("settings", "async_scheduling"), 1, "settings.async_scheduling: 1 is no bool"),
        (("settings", "blocks"), 16, "settings: unknown key 'blocks'"),
        (
            ("coefficients", "decode_base_s"),
            "fast",
            "coefficients.decode_base_s: 'fast' is no number of 0 or more",
        ),
        (
            ("coefficients", "decode_base_s"),
            -0.1,
            "coefficients.decode_base_s: -0.1 is no number of 0 or more",
        ),
        (("coefficients", "decode_base_s"), float("nan"), "coefficients.decode_base_s: nan is no number"),
        (("coefficients", "decode_base_s"), float("inf"), "coefficients.decode_base_s: inf is no number"),
        (("coefficients", "decode_base_s"), True, "coefficients.decode_base_s: True is no number"),
        (("coefficients", "decode_base_s"), None, "coefficients.decode_base_s: None is no number"),
        (("coefficients", "decode_base_s"), GONE, "coefficients: decode_base_s is missing or 0"),
        (("coefficients", "decode_base_s"), 0, "coefficients: decode_base_s is missing or 0"),
        (("coefficients", "speed"), 1.0, "coefficients: unknown coefficient 'speed'; known: decode_base_s,"),
        (("coefficients",), [1, 2], "coefficients: must be a mapping"),
        (("derived", "decode_base_s"), 0.1, "decode_base_s is both fitted and derived; remove one"),
        (("derived", "prefill_per_token_s"), GONE, "coefficients: prefill_per_token_s is missing or 0"),
        (("derived", "speed"), 0.1, "derived: unknown coefficient 'speed'"),
        (("coefficients",), dict.fromkeys(COEFFICIENTS, 0.1), "is both fitted and derived"),
        (("experts",), {"num_experts": 8, "per_token": 2}, "experts: unknown key 'per_token'"),
        (("experts",), {"num_experts": 8}, "experts: experts_per_token is 0 of 8"),
        (("experts",), {"num_experts": 2, "experts_per_token": 3}, "experts: experts_per_token is 3 of 2"),
        (("experts",), 3, "experts: must be a mapping"),
        (("errors", "decode_mean"), "small", "errors.decode_mean: 'small' is no number"),
        (("errors",), [0.1], "errors: must be a mapping"),
        (("notes",), "a note", "notes: must be a list of texts"),
        (("notes",), 3, "notes: must be a list of texts"),
    ],
)
def test_a_broken_file_is_named_with_its_key(tmp_path, place, value, message):
    content = yaml.safe_load(to_yaml(calibration()))
    *sections, key = place
    target = content
    for name in sections:
        target = target[name]
    if value is GONE:
        del target[key]
    else:
        target[key] = value
    path = tmp_path / "cal.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError) as caught:
        load_calibration(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert message in text
    assert "\n" not in text


def test_too_many_coefficients_in_a_file_are_refused_by_its_name(tmp_path):
    content = yaml.safe_load(to_yaml(calibration()))
    content["coefficients"] = dict.fromkeys(COEFFICIENTS[:11], 0.1)
    content["derived"] = dict.fromkeys(COEFFICIENTS[11:], 0.1)
    path = tmp_path / "cal.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError) as caught:
        load_calibration(path)
    assert str(caught.value) == f"{path}: coefficients: 11 fitted; 10 at most, or it over-fits"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: ]\n", ", line 2: not YAML; `python -m sim calibrate` writes such files"),
        (b"\xff\xfe\x00", ": cannot be read ("),
        (b"", ": no calibration"),
        (b"- 1\n", ": no calibration"),
        (b"just a text\n", ": no calibration"),
        (b"a: \x00\n", ": not YAML"),
    ],
)
def test_what_is_no_calibration_at_all(tmp_path, content, message):
    path = tmp_path / "cal.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_calibration(path)
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)


def test_no_file_and_a_folder(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            load_calibration(path)


def test_the_committed_ones_are_stamped_and_say_what_was_fitted():
    found = committed_calibrations()
    assert {(each.stamp.gpu, each.stamp.model, each.stamp.tp) for each in found} >= {
        ("H200", "Qwen3-4B", 1),
        ("H200", "Qwen3-14B", 1),
        ("H200", "Qwen3-14B", 2),
        ("RTX4090", "Llama-3.1-8B", 1),
        ("RTXPRO6000", "Llama-3.1-8B", 1),
    }
    for each in found:
        assert each.stamp.method == "measured"
        assert each.stamp.data
        assert all(len(digest) == 64 for digest in each.stamp.data.values())
        assert 0 < len(each.fitted) <= MAX_COEFFICIENTS
        assert each.errors
