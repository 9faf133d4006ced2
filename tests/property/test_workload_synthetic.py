"""Laws of synthetic workloads, for any preset, size and seed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.workloads.check import drain
from libra.workloads.preset import load_preset, preset_names
from libra.workloads.synthetic import Drift, PresetWorkload, SyntheticSource
from libra.workloads.table import Chunk

ARRAYS = [name for name in Chunk.__dataclass_fields__ if name not in ("source_id", "prefix", "tool_names")]


def build_configs(**more):
    return st.builds(
        PresetWorkload,
        preset=st.sampled_from(preset_names()),
        num_prompts=st.integers(1, 150),
        num_epochs=st.integers(1, 3),
        tail_weight=st.sampled_from([0.0, 0.5, 1.0, 2.5]),
        group_correlation=st.none() | st.sampled_from([0.0, 0.5, 1.0]),
        failure_lengthens=st.none() | st.sampled_from([0.0, 1.0, -0.5]),
        **more,
    )


# A drift must fit the context, so the two are not drawn together.
configs = build_configs(max_context_tokens=st.integers(2770, 9000)) | build_configs(
    drift=st.none() | st.builds(Drift, st.integers(1, 9000), st.integers(1, 9000))
)
sources = st.builds(
    lambda config, seed, n: SyntheticSource(config, seed=seed, n_samples=n),
    configs,
    st.integers(0, 2**63),
    st.integers(1, 9),
)


def same(a: Chunk, b: Chunk) -> bool:
    arrays = all(np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True) for name in ARRAYS)
    return arrays and (a.source_id, a.prefix, a.tool_names) == (b.source_id, b.prefix, b.tool_names)


@settings(max_examples=30, deadline=None)
@given(configs, st.integers(0, 2**63), st.integers(1, 9), st.randoms(use_true_random=False))
def test_chunks_do_not_depend_on_the_order_they_are_asked_for(config, seed, n_samples, random):
    in_order = drain(SyntheticSource(config, seed=seed, n_samples=n_samples))
    source = SyntheticSource(config, seed=seed, n_samples=n_samples)
    asked = list(range(source.num_chunks)) * 2
    random.shuffle(asked)
    assert len(in_order) == source.num_chunks
    assert all(same(source.chunk(i), in_order[i]) for i in asked)


@settings(max_examples=60, deadline=None)
@given(sources)
def test_values_lie_in_their_domain(source):
    preset = source._preset
    for c in drain(source):
        assert all(getattr(c, name).dtype in (np.int64, np.float64) for name in ARRAYS)
        assert c.first_turn[0] == 0
        assert c.first_turn[-1] == c.num_turns
        assert np.diff(c.first_turn).min() >= 1
        assert c.output_tokens.min() >= 1
        assert c.prompt_tokens.min() >= 1
        assert c.payload_tokens.min() >= 0
        assert set(np.unique(c.tool_status)) <= {0, 1, 2}
        assert c.tool.min() >= 0
        assert c.tool.max() < len(c.tool_names)
        end = len(c.tool_names) - 1
        is_end = c.tool == end
        assert np.array_equal(np.flatnonzero(is_end), c.first_turn[1:] - 1)
        for column in (c.tool_latency_s, c.start_latency_s, c.reward, c.arrival_s):
            assert np.isfinite(column).all()
            assert column.min() >= 0
        longest = np.array([tool.timeout_s for tool in preset.tools])[c.tool]
        timed_out = c.tool_status == 2
        assert np.array_equal(c.tool_latency_s[timed_out], longest[timed_out])
        assert (c.tool_latency_s <= longest).all()


@settings(max_examples=60, deadline=None)
@given(sources)
def test_contexts_grow_by_output_and_payload_and_stay_below_the_cap(source):
    cap = source._config.max_context_tokens or load_preset(source._config.preset).max_context_tokens
    for c in drain(source):
        context = c.prompt_tokens + c.output_tokens
        assert context.max() <= cap
        inner = np.ones(c.num_turns, dtype=bool)
        inner[c.first_turn[:-1]] = False
        follows = np.flatnonzero(inner)
        assert np.array_equal(c.prompt_tokens[follows], (context + c.payload_tokens)[follows - 1])
        assert np.array_equal(c.prefix_tokens[follows], context[follows - 1])
        assert np.array_equal(
            c.prefix_tokens[c.first_turn[:-1]], [sum(n for _, n in prefix) for prefix in c.prefix]
        )


@settings(max_examples=60, deadline=None)
@given(sources)
def test_groups_are_whole_and_share_the_first_prompt(source):
    chunks = drain(source)
    config, n = source._config, source._n_samples
    ids = np.concatenate([c.trajectory_id for c in chunks])
    assert np.array_equal(ids, np.arange(config.num_prompts * config.num_epochs * n))
    seen: dict[int, int] = {}
    for c in chunks:
        assert np.array_equal(c.group_id, c.trajectory_id // n)
        assert np.array_equal(c.sample_index, c.trajectory_id % n)
        assert (c.group_size == n).all()
        first_prompt = c.prompt_tokens[c.first_turn[:-1]]
        for group, prompt, tokens, prefix in zip(
            c.group_id, c.prompt_id, first_prompt, c.prefix, strict=True
        ):
            assert prefix == ((-1 - group, tokens),)
            # The same prompt has the same first prompt in its group and in every epoch.
            assert seen.setdefault(int(prompt), int(tokens)) == tokens
    assert sorted(seen) == list(range(config.num_prompts))
    visits = np.bincount(np.concatenate([c.prompt_id for c in chunks]))
    assert (visits == config.num_epochs * n).all()


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(preset_names()), st.integers(0, 2**32), st.booleans())
def test_drift_moves_the_mean_in_a_straight_line(preset, seed, falling):
    """Against the same draws without drift, so that a heavy tail does not hide the line in noise."""
    ends = (10000.0, 2000.0) if falling else (2000.0, 10000.0)
    means = quarter_means(preset, seed, Drift(*ends)) / quarter_means(preset, seed, Drift(6000.0, 6000.0))
    expected = np.interp([0.125, 0.375, 0.625, 0.875], [0, 1], ends) / 6000.0
    np.testing.assert_allclose(means, expected, rtol=0.1)


def quarter_means(preset, seed, drift):
    """Mean output tokens of a trajectory in each quarter of the run."""
    config = PresetWorkload(preset=preset, num_prompts=2048, drift=drift, max_context_tokens=10**7)
    source = SyntheticSource(config, seed=seed, n_samples=4)
    chunks = [source.chunk(i) for i in range(source.num_chunks)]
    assert len(chunks) == 32
    return np.array(
        [
            np.concatenate(
                [np.add.reduceat(c.output_tokens, c.first_turn[:-1]) for c in chunks[i : i + 8]]
            ).mean()
            for i in range(0, 32, 8)
        ]
    )


def test_a_prompt_keeps_its_character_over_epochs_but_not_its_draws():
    config = PresetWorkload(num_prompts=640, num_epochs=2)
    chunks = drain(SyntheticSource(config, seed=3, n_samples=4))
    log_output = np.concatenate([np.log(np.add.reduceat(c.output_tokens, c.first_turn[:-1])) for c in chunks])
    prompt = np.concatenate([c.prompt_id for c in chunks]).reshape(2, -1)
    epochs = [log_output.reshape(2, -1)[e][np.argsort(prompt[e], kind="stable")] for e in (0, 1)]
    assert not np.array_equal(prompt[0], prompt[1])
    assert not np.isclose(epochs[0], epochs[1]).mean() > 0.1
    means = [epoch.reshape(-1, 4).mean(axis=1) for epoch in epochs]
    assert np.corrcoef(*means)[0, 1] > 0.75


DIGEST = """
import hashlib
from libra.workloads.check import drain
from libra.workloads.synthetic import PresetWorkload, SyntheticSource
from libra.workloads.table import Chunk
source = SyntheticSource(PresetWorkload(num_prompts=130, num_epochs=2), seed=5, n_samples=3)
digest = hashlib.sha256()
for chunk in drain(source):
    for name in Chunk.__dataclass_fields__:
        value = getattr(chunk, name)
        digest.update(repr(value).encode() if isinstance(value, tuple) else value.tobytes())
print(digest.hexdigest())
"""


def test_same_bytes_in_a_fresh_process_whatever_the_hash_seed():
    root = Path(__file__).parents[2]
    digests = set()
    for hash_seed in ("0", "4242"):
        env = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST], env=env, cwd=root, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout)
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64
