"""The presets say where their numbers come from and reproduce the percentiles that were published."""

import copy
from importlib import resources

import numpy as np
import pytest
import yaml

from libra.errors import UserError
from libra.workloads.check import drain
from libra.workloads.describe import describe
from libra.workloads.preset import load_preset, parse_preset, preset_names
from libra.workloads.synthetic import Drift, PresetWorkload, SyntheticSource

# Percentiles of all 171 trajectories (3,485 turns) of the terminal-bench recordings and all 200 tau-bench
# dialogues: the data cards in docs/workloads.md name the sources.
TERMINAL = {
    "turns": {"p10": 9, "p50": 18, "p90": 36, "p99": 53},
    "trajectory_output_tokens": {"p10": 1125, "p50": 3628, "p90": 10507, "p99": 25200},
    "final_context_tokens": {"p10": 2977, "p50": 8466, "p90": 22964, "p99": 46042},
    "payload_tokens": {"p50": 221 / 4, "p90": 1942 / 4, "p95": 3901 / 4, "p99": 12555 / 4},
}
TAU = {
    "turns": {"p10": 5, "p50": 11, "p90": 20, "p99": 30},
    "trajectory_output_tokens": {"p10": 291, "p50": 586, "p90": 1262, "p99": 2149},
    "final_context_tokens": {"p10": 2064, "p50": 3186, "p90": 4929, "p99": 6573},
    "payload_tokens": {"p50": 121 / 4, "p90": 838 / 4, "p99": 2710 / 4},
}


def figures(preset, num_prompts=1500, n_samples=8, **changes):
    config = PresetWorkload(preset=preset, num_prompts=num_prompts, **changes)
    chunks = drain(SyntheticSource(config, seed=11, n_samples=n_samples))
    return describe(chunks), chunks


@pytest.mark.parametrize(
    ("preset", "published"), [("terminal_agent", TERMINAL), ("tau_dialogue", TAU)], ids=["terminal", "tau"]
)
def test_generated_percentiles_match_the_published_ones(preset, published):
    # Percentiles that a preset goes through directly: 6 and 8 % (sampling); sums and mixtures of them: 20 %.
    tolerance = {"turns": 0.06, "trajectory_output_tokens": 0.08}
    got, _ = figures(preset)
    for quantity, percentiles in published.items():
        for p, want in percentiles.items():
            assert got[quantity][p] == pytest.approx(want, rel=tolerance.get(quantity, 0.20)), (quantity, p)


def test_terminal_tool_outcomes_match_the_published_rates():
    got, chunks = figures("terminal_agent")
    assert got["tool_ok"] == pytest.approx(0.827, abs=0.01)
    assert got["tool_timeout"] == pytest.approx(0.089, abs=0.01)
    latency = got["tool_latency_s"]
    assert latency["p50"] == pytest.approx(0.035, rel=0.3)
    assert latency["p90"] == pytest.approx(20.5, rel=0.3)
    assert latency["p95"] == pytest.approx(29.9, rel=0.02)
    names = chunks[0].tool_names
    for tool, ok, median_s in (
        ("read", 0.94, 0.02),
        ("edit", 0.93, 0.03),
        ("exec", 0.74, 0.67),
        ("install", 0.37, 29.3),
    ):
        rows = [
            (c.tool_status[c.tool == names.index(tool)], c.tool_latency_s[c.tool == names.index(tool)])
            for c in chunks
        ]
        assert np.mean(np.concatenate([s for s, _ in rows]) == 0) == pytest.approx(ok, abs=0.02)
        assert np.median(np.concatenate([t for _, t in rows])) == pytest.approx(median_s, rel=0.25)


def test_tau_calls_fail_at_the_published_rate():
    _, chunks = figures("tau_dialogue")
    own = [chunks[0].tool_names.index(name) for name in ("read", "write", "calc")]
    status = np.concatenate([c.tool_status[np.isin(c.tool, own)] for c in chunks])
    assert np.mean(status == 0) == pytest.approx(1 - 73 / 1164, abs=0.01)


def remaining_after(chunks, failed):
    """Median output tokens still to come after small-payload calls that failed (or succeeded)."""
    parts = []
    for c in chunks:
        owner = np.repeat(np.arange(c.num_trajectories), np.diff(c.first_turn))
        done = np.cumsum(c.output_tokens)
        remaining = done[c.first_turn[1:] - 1][owner] - done
        called = c.tool != c.tool_names.index("none")
        parts.append(remaining[called & ((c.tool_status != 0) == failed) & (c.payload_tokens < 100)])
    return np.median(np.concatenate(parts))


def test_failures_lengthen_what_remains_as_published_and_more_when_told():
    _, chunks = figures("terminal_agent")
    ratio = remaining_after(chunks, True) / remaining_after(chunks, False)
    assert ratio == pytest.approx(2837 / 1942, rel=0.08)
    _, none = figures("terminal_agent", failure_lengthens=0.0)
    _, strong = figures("terminal_agent", failure_lengthens=1.0)
    assert remaining_after(none, True) / remaining_after(none, False) < ratio - 0.1
    assert remaining_after(strong, True) / remaining_after(strong, False) > ratio + 0.3


def test_r2e_longest_tenth_takes_over_half_and_starts_at_the_published_mean():
    got, _ = figures("r2e_gym")
    assert got["longest_tenth_share"] > 0.5
    assert got["trajectory_output_tokens"]["mean"] == pytest.approx(2500, rel=0.08)
    assert got["turns"]["max"] == 12
    assert load_preset("r2e_gym").published_drift == (2500.0, 11500.0)


def test_real_agent_tails_are_lighter_than_r2e():
    got, _ = figures("terminal_agent")
    assert 0.3 < got["longest_tenth_share"] < 0.4  # 36.5 % over the whole recorded set


@pytest.mark.parametrize(("preset", "turns"), [("search_r1", 5), ("dapo_math", 2), ("r2e_gym", 12)])
def test_turn_limits_of_the_published_settings_hold(preset, turns):
    got, _ = figures(preset, num_prompts=200)
    assert got["turns"]["max"] == turns


def test_samples_of_a_prompt_share_the_stated_part_of_variance():
    _, chunks = figures("terminal_agent", num_prompts=1024)
    log_output = np.concatenate(
        [np.log(np.add.reduceat(c.output_tokens, c.first_turn[:-1])) for c in chunks]
    ).reshape(-1, 8)
    within = log_output.var(axis=1, ddof=1).mean()
    assert 1 - within / log_output.var() == pytest.approx(0.65, abs=0.05)


def test_tail_weight_spreads_only_above_the_median():
    flat, plain, heavy = (figures("terminal_agent", tail_weight=w)[0] for w in (0.0, 1.0, 1.5))
    output = "trajectory_output_tokens"
    assert flat[output]["p99"] == pytest.approx(plain[output]["p50"], rel=0.05)
    assert heavy[output]["p50"] == pytest.approx(plain[output]["p50"], rel=0.02)
    assert heavy[output]["p10"] == pytest.approx(plain[output]["p10"], rel=0.02)
    assert heavy["longest_tenth_share"] > plain["longest_tenth_share"] + 0.05


def test_length_scale_and_drift_set_the_mean():
    plain, _ = figures("tau_dialogue")
    doubled, _ = figures("tau_dialogue", length_scale=2.0)
    output = "trajectory_output_tokens"
    assert doubled[output]["mean"] == pytest.approx(2 * plain[output]["mean"], rel=0.01)
    _, chunks = figures("r2e_gym", num_prompts=4096, drift=Drift(500, 2000))
    ends = [
        np.concatenate([np.add.reduceat(c.output_tokens, c.first_turn[:-1]) for c in part])
        for part in (chunks[:8], chunks[-8:])
    ]
    assert ends[0].mean() == pytest.approx(500 + 1500 * 4 / 64, rel=0.15)
    assert ends[1].mean() == pytest.approx(2000 - 1500 * 4 / 64, rel=0.15)


def test_published_drift_is_reached_although_the_context_cuts():
    config = PresetWorkload(preset="r2e_gym", num_prompts=8192, drift=Drift(2500, 11500))
    source = SyntheticSource(config, seed=11, n_samples=8)
    for first, want in ((0, 2500), (64, 7000), (120, 11500)):
        part = describe([source.chunk(i) for i in range(first, first + 8)])
        assert part["trajectory_output_tokens"]["mean"] == pytest.approx(want, rel=0.15)
        assert part["final_context_tokens"]["max"] <= 32768


def test_a_drift_that_cannot_fit_is_refused():
    config = PresetWorkload(preset="r2e_gym", drift=Drift(2500, 31000))
    with pytest.raises(UserError, match=r"workload\.drift: a mean of 31000 output tokens does not fit"):
        SyntheticSource(config, seed=1, n_samples=1)


def test_reward_probability():
    assert figures("search_r1", reward_probability=0.7)[0]["reward"] == pytest.approx(0.7, abs=0.03)
    assert figures("search_r1", num_prompts=50, reward_probability=0.0)[0]["reward"] == 0
    assert figures("search_r1", num_prompts=50, reward_probability=1.0)[0]["reward"] == 1


def entries(node):
    """All mappings below `node` that hold numbers of their own."""
    if isinstance(node, dict):
        if any(isinstance(v, int | float) for v in node.values()) or {"quantiles", "median"} & set(node):
            yield node
        for value in node.values():
            if isinstance(value, dict | list):
                yield from entries(value)
    elif isinstance(node, list):
        for value in node:
            yield from entries(value)


@pytest.mark.parametrize("name", preset_names())
def test_every_number_of_a_preset_has_a_source(name):
    data = yaml.safe_load((resources.files("libra.workloads.presets") / f"{name}.yaml").read_text("utf-8"))
    owned = [
        e
        for e in entries(data)
        if not {"median_weight"} & set(e) and not all(isinstance(k, float) for k in e)
    ]
    assert len(owned) > 10
    for entry in owned:
        assert entry.get("source"), entry
    broken = copy.deepcopy(data)
    del broken["tools"][0]["latency_s"]["source"]
    with pytest.raises(ValueError, match=r"tools\[0\]\.latency_s: no source"):
        parse_preset(name, broken)


def test_a_preset_whose_mix_does_not_sum_to_one_is_refused():
    data = yaml.safe_load(
        (resources.files("libra.workloads.presets") / "tau_dialogue.yaml").read_text("utf-8")
    )
    data["tools"][0]["mix"] = 0.9
    with pytest.raises(ValueError, match="mix"):
        parse_preset("tau_dialogue", data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "terminal"}, "no preset 'terminal'; choose one of dapo_math, "),
        ({"num_prompts": 0}, "workload.num_prompts: must be at least 1"),
        ({"length_scale": 0.0}, "workload.length_scale: must be above 0"),
        ({"length_scale": float("nan")}, "workload.length_scale: must be above 0"),
        ({"tail_weight": -1.0}, "workload.tail_weight: must be 0 or more"),
        ({"group_correlation": 1.5}, "workload.group_correlation: must lie between 0 and 1"),
        ({"failure_lengthens": -1.0}, "workload.failure_lengthens: must be above -1"),
        ({"length_scale": 2.0, "drift": Drift(10, 20)}, "workload.length_scale: has no effect beside"),
        ({"max_context_tokens": 2000}, "first prompts of terminal_agent reach 2769 tokens"),
    ],
)
def test_config_refuses(changes, message):
    with pytest.raises(UserError) as caught:
        PresetWorkload(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_drift_and_samples_refuse():
    with pytest.raises(UserError, match=r"workload\.drift\.to_mean_tokens"):
        Drift(100, 0)
    with pytest.raises(UserError, match="n_samples"):
        SyntheticSource(PresetWorkload(), seed=1, n_samples=0)
