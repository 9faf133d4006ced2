"""Figures by hand."""

import math

import numpy as np
import pytest

from libra.record.figures import headline
from libra.record.frames import finished_over_time, step_times, summary, turns_by_tp, usage_by_tp
from libra.record.metrics import METRICS, SummaryBuilder, publication_s, tail_share
from libra.record.reader import Run
from libra.record.writer import RunWriter


def column(*values):
    return np.array(values)


def hand_made():
    builder = SummaryBuilder()
    builder.add_turns(
        {
            "status": np.array(["finished", "finished", "aborted", "prompt_too_long"], dtype=object),
            "ready_s": column(0.0, 7.0, 0.0, 0.0),
            "submitted_s": column(0.0, 10.0, 0.0, 0.0),
            "started_s": column(1.0, 13.0, math.nan, math.nan),
            "first_token_s": column(2.0, 14.0, math.nan, math.nan),
            "finished_s": column(5.0, 20.0, 1.0, 0.0),
            "prompt_tokens": column(100, 200, 60, 40),
            "output_tokens": column(30, 50, 20, 0),
            "cached_tokens": column(0, 100, 0, 0),
            "recomputed_tokens": column(7, 0, 0, 0),
            "num_preemptions": column(1, 0, 0, 0),
        }
    )
    builder.add_trajectories(
        {
            "place": np.array(["trained", "trained", "finished", "dropped"], dtype=object),
            "arrival_s": column(0.0, 1.0, 5.0, 0.0),
            "started_s": column(0.0, 2.0, 5.0, 0.0),
            "finished_s": column(10.0, 20.0, 30.0, math.nan),
            "train_step": column(1, 1, -1, -1),
            "output_tokens": column(30, 10, 50, 10),
            "staleness_min": column(0.0, 2.0, math.nan, math.nan),
            "staleness_mean": column(0.5, 2.5, math.nan, math.nan),
            "staleness_max": column(1.0, 3.0, math.nan, math.nan),
        }
    )
    builder.add_train_steps(
        {
            "version": column(1, 2),
            "num_tokens": column(400, 600),
            "started_s": column(20.0, 32.0),
            "finished_s": column(26.0, 36.0),
            "rollout_wait_s": column(20.0, 6.0),
            "publish_started_s": column(26.0, 36.0),
            "publish_finished_s": column(28.0, 37.0),
            "load_last_s": column(30.0, 40.0),
        }
    )
    builder.add_replicas(
        {
            "tp": column(1, 4),
            "ready_s": column(0.0, 0.0),
            "end_s": column(40.0, 50.0),
            "busy_s": column(30.0, 5.0),
            "paused_s": column(2.0, 5.0),
            "idle_s": column(8.0, 10.0),
            "down_s": column(0.0, 30.0),
        }
    )
    return builder.result(50.0)


EXPECTED = {
    "makespan_s": 50.0,
    "trained_tokens_per_s": 40 / 50,
    "output_tokens_per_s": 100 / 50,
    "trajectories_per_h": 3 / 50 * 3600,
    "train_tokens_per_s": 1000 / 50,
    "num_train_steps": 2,
    "step_s": (26 + 10) / 2,
    "step_rollout_wait_s": (20 + 4) / 2,
    "step_publish_s": 1.0,
    "step_train_s": 5.0,
    "sync_s": 4.0,
    "tail_share": 0.0,
    "step_tail_share": 0.0,
    "train_busy_share": 10 / 50,
    "train_idle_share": 40 / 50,
    "rollout_busy_share": (30 + 4 * 5) / 120,
    "rollout_paused_share": (2 + 4 * 5) / 120,
    "rollout_idle_share": (8 + 4 * 10) / 120,
    "rollout_down_share": 4 * 30 / 240,
    "rollout_busy_share_tp1": 30 / 40,
    "rollout_busy_share_tp2": math.nan,
    "rollout_busy_share_tp4": 5 / 20,
    "rollout_busy_share_tp8": math.nan,
    "queue_mean_s": 3.5,
    "queue_p95_s": 5.75,
    "turn_latency_p50_s": 9.0,
    "turn_latency_p95_s": 12.6,
    "turn_latency_p99_s": 12.92,
    "ttft_mean_s": 4.5,
    "ttft_p95_s": 6.75,
    "engine_queue_mean_s": 2.0,
    "engine_queue_p95_s": 2.9,
    "engine_latency_p50_s": 7.5,
    "engine_latency_p95_s": 9.75,
    "engine_latency_p99_s": 9.95,
    "engine_ttft_mean_s": 3.0,
    "engine_ttft_p95_s": 3.9,
    "trajectory_latency_p50_s": 19.0,
    "trajectory_latency_p95_s": 24.4,
    "num_turns": 2,
    "output_tokens": 100,
    "trained_output_tokens": 40,
    "wasted_output_tokens": 60,
    "wasted_share": 0.6,
    "dropped_output_tokens": 10,
    "leftover_output_tokens": 50,
    "num_preemptions": 1,
    "recomputed_tokens": 7,
    "prefix_hit_rate": 0.25,
    "staleness_min": 0.0,
    "staleness_mean": (0.5 * 30 + 2.5 * 10) / 40,
    "staleness_max": 3.0,
    "num_trajectories": 4,
    "num_finished": 3,
    "num_dropped": 1,
    "num_failed_turns": 2,
    "num_refused_prompts": 1,
}


def test_every_figure_by_hand():
    figures = hand_made()
    assert list(figures) == list(METRICS) == list(EXPECTED)
    assert figures == pytest.approx(EXPECTED, nan_ok=True)


def test_parts_in_any_order_give_the_same():
    rng = np.random.Generator(np.random.PCG64(1))
    turns = {name: rng.random(50) for name in ("submitted_s", "started_s", "first_token_s", "finished_s")}
    names = ("prompt_tokens", "output_tokens", "cached_tokens", "recomputed_tokens", "num_preemptions")
    turns |= {name: rng.integers(0, 99, 50) for name in names}
    whole, parts = SummaryBuilder(), SummaryBuilder()
    ready_s = rng.random(50)
    whole.add_finished_turns(turns, ready_s)
    for rows in (slice(30, 50), slice(0, 7), slice(7, 30)):
        parts.add_finished_turns({name: values[rows] for name, values in turns.items()}, ready_s[rows])
    assert parts.result(9.0) == pytest.approx(whole.result(9.0), rel=0, abs=0, nan_ok=True)


def test_what_is_said_of_training_is_unknown_without_a_step():
    figures = SummaryBuilder().result(1.0)
    for name in ("trained_tokens_per_s", "wasted_output_tokens", "wasted_share", "leftover_output_tokens"):
        assert math.isnan(figures[name]), name
    assert (headline(training=True), headline(training=False)) == (
        "trained_tokens_per_s",
        "output_tokens_per_s",
    )


@pytest.mark.parametrize(
    ("publish", "expected"),
    [
        ((5.0, 7.0), 2.0),
        ((5.0, 99.0), 5.0),  # the next step did not wait for its end
        ((3.0, 6.0), 1.0),  # it began before the step's end
        ((math.nan, math.nan), 0.0),  # none after this step
        ((11.0, 12.0), 0.0),  # after the next one began
    ],
)
def test_publication_is_what_lies_between_two_steps(publish, expected):
    steps = {
        "version": column(1, 2),
        "started_s": column(1.0, 10.0),
        "finished_s": column(5.0, 13.0),
        "publish_started_s": column(publish[0], math.nan),
        "publish_finished_s": column(publish[1], math.nan),
    }
    assert publication_s(steps).tolist() == [0.0, expected]


@pytest.mark.parametrize(
    ("finished", "begin", "share"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 19], 0, 10 / 19),
        ([19, 9, 8, 7, 6, 5, 4, 3, 2, 1], 0, 10 / 19),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 19], -1, 10 / 20),
        ([5.0], 0, 0.0),
        ([], 0, math.nan),
        ([3.0], 3.0, math.nan),
    ],
)
def test_tail_share(finished, begin, share):
    assert tail_share(np.array(finished, dtype=float), begin) == pytest.approx(share, nan_ok=True)


def test_metrics_are_documented():
    for name, metric in METRICS.items():
        assert metric.better in ("higher", "lower", "neutral"), name
        assert metric.unit
        assert metric.doc.endswith(".")


@pytest.fixture(scope="module")
def run(tmp_path_factory, story, info):
    directory = tmp_path_factory.mktemp("metrics") / "run"
    with RunWriter(directory) as writer:
        for step in story(num_groups=8, group_size=8).steps():
            writer.append(step)
        writer.close(info)
    return Run.open(directory)


def test_frames_agree_with_the_summary(run):
    figures = summary(run)
    usage = usage_by_tp(run)
    assert list(usage.index) == [1, 4]
    shares = usage[["busy_share", "paused_share", "idle_share"]].sum(axis=1)
    assert shares.to_numpy() == pytest.approx([1.0, 1.0])
    assert usage.loc[4, "busy_share"] == pytest.approx(figures["rollout_busy_share_tp4"])
    by_tp = turns_by_tp(run)
    assert by_tp["num_turns"].sum() == figures["num_turns"]
    assert (by_tp["latency_p50_s"] < by_tp["latency_p99_s"]).all()
    steps = step_times(run)
    assert steps["step_s"].mean() == pytest.approx(figures["step_s"])
    parts = steps["rollout_wait_s"] + steps["publish_s"] + steps["train_s"]
    assert parts.to_numpy() == pytest.approx(steps["step_s"].to_numpy())
    assert steps["publish_s"].tolist()[:2] == pytest.approx([0.0, 0.5])
    assert (steps["rollout_wait_s"] >= -1e-9).all()
    assert steps["publish_s"].mean() == pytest.approx(figures["step_publish_s"])
    assert steps["rollout_wait_s"].mean() == pytest.approx(figures["step_rollout_wait_s"])
    assert figures["makespan_s"] == run.manifest["horizon_s"]
    trained = run.trajectories[run.trajectories["place"] == "trained"]["output_tokens"].sum()
    assert figures["trained_tokens_per_s"] == pytest.approx(trained / run.end_s)
    assert figures["wasted_output_tokens"] == run.turns["output_tokens"].sum() - trained
    assert steps["tail_share"].mean() == pytest.approx(figures["step_tail_share"])
    curve = finished_over_time(run)
    assert curve["t_s"].is_monotonic_increasing
    assert curve["finished_share"].iloc[-1] == figures["num_finished"] / figures["num_trajectories"]
