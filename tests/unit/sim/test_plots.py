"""Figures: what they draw, not how they look."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from sim.plots import outages, plot_bars, plot_gantt, plot_latency_cdf, png_bytes, utilisation
from sim.plots.gantt import MAX_BARS, MAX_LANES, MAX_REPLICAS, sample_turns
from sim.plots.utilisation import time_mean
from sim.results import RunResult, SweepResult

SPANS = st.lists(st.tuples(st.floats(0, 90), st.floats(0, 10)), max_size=20)


def turns_of(num_trajectories, num_turns, num_replicas, length_s=1.0):
    """Trajectories that start one after another, each on one replica, with a tool wait between turns."""
    rows = []
    for trajectory in range(num_trajectories):
        for turn in range(num_turns):
            at = 0.1 * trajectory + 1.5 * length_s * turn
            rows.append((trajectory, turn, trajectory % num_replicas, at, at, at + length_s))
    names = ["trajectory_id", "turn", "replica_id", "submitted_s", "started_s", "finished_s"]
    return pd.DataFrame(rows, columns=names)


def replicas_of(count, end_s):
    return pd.DataFrame(
        {"replica_id": range(count), "tp": [2 ** (i % 3) for i in range(count)], "end_s": end_s}
    )


@given(SPANS, st.integers(1, 30))
def test_time_mean_keeps_the_area(spans, num_bins):
    starts = np.array([start for start, _ in spans])
    ends = np.array([start + length for start, length in spans])
    edges = np.linspace(0.0, 100.0, num_bins + 1)
    area = float((time_mean(starts, ends, edges) * np.diff(edges)).sum())
    assert area == pytest.approx(sum(length for _, length in spans), rel=1e-9, abs=1e-6)


@given(SPANS)
def test_the_covered_share_is_never_more_than_the_whole(spans):
    starts = np.array([start for start, _ in spans])
    ends = np.array([start + length for start, length in spans])
    edges = np.linspace(0.0, 100.0, 11)
    covered = time_mean(starts, ends, edges, cap=1.0)
    assert (covered <= 1.0 + 1e-9).all()
    assert (covered <= time_mean(starts, ends, edges) + 1e-9).all()


def test_time_mean_by_hand():
    found = time_mean(np.array([0.0, 1.0]), np.array([2.0, 3.0]), np.array([0.0, 1.0, 2.0, 4.0]))
    assert found.tolist() == [1.0, 2.0, 0.5]


def test_utilisation_shares_add_up_and_match_the_tables(run_dir):
    run = RunResult(run_dir)
    frame = utilisation(run.turns, run.replicas, run.loads)
    total = frame[["running_share", "paused_share", "idle_share"]].sum(axis=1)
    assert total.to_numpy() == pytest.approx(1.0)
    for tp, part in frame.groupby("tp"):
        replica = run.replicas.set_index("tp").loc[tp]
        assert part["paused_share"].mean() == pytest.approx(replica.paused_s / replica.end_s, rel=1e-6)
        own = run.turns[run.turns["tp"] == tp]
        running = (own["finished_s"] - own["started_s"]).sum() / replica.end_s
        assert part["num_running"].mean() == pytest.approx(running, rel=1e-6)


def test_gpus_of_a_dead_replica_are_not_idle():
    """One of two is down for half of the time, and once more at the end; the other works all the time."""
    kinds = ["ReplicaReady"] * 2 + ["ReplicaLost", "ReplicaReady", "ReplicaLost", "RunEnding"]
    events = pd.DataFrame(
        {"type": kinds, "t_s": [0.0, 0.0, 2.0, 6.0, 9.0, 10.0], "replica_id": [0, 1, 1, 1, 1, None]}
    )
    down = outages(events)
    assert down.to_numpy().tolist() == [[1.0, 2.0, 6.0], [1.0, 9.0, 10.0]]
    replicas = pd.DataFrame({"replica_id": [0, 1], "tp": 1, "ready_s": 0.0, "end_s": 10.0})
    turns = pd.DataFrame({"replica_id": [0], "submitted_s": [0.0], "started_s": [0.0], "finished_s": [10.0]})
    found = utilisation(turns, replicas, down=down, num_bins=10)
    alone = [False, False, True, True, True, True, False, False, False, True]
    assert found["running_share"].to_numpy() == pytest.approx(np.where(alone, 1.0, 0.5))
    assert found["idle_share"].to_numpy() == pytest.approx(np.where(alone, 0.0, 0.5))


def test_a_small_run_is_drawn_whole():
    sample = sample_turns(turns_of(8, 3, 2), replicas_of(2, 5.0))
    assert len(sample.turns) == 24
    assert sample.remark == ""
    assert sample.window_s == (0.0, 5.0)


@settings(max_examples=25)
@given(st.integers(1, 300), st.integers(1, 6), st.integers(1, 30))
def test_a_sample_is_bounded_and_says_what_it_left_out(num_trajectories, num_turns, num_replicas):
    turns = turns_of(num_trajectories, num_turns, num_replicas)
    sample = sample_turns(turns, replicas_of(num_replicas, float(turns["finished_s"].max())))
    assert sample.turns.groupby("replica_id").size().max() <= MAX_BARS
    assert sample.turns["lane"].max() < MAX_LANES
    assert len(sample.replicas) <= MAX_REPLICAS + 3
    assert set(sample.replicas["tp"]) == set(replicas_of(num_replicas, 1.0)["tp"])
    assert (sample.remark == "") == (len(sample.turns) == len(turns) and len(sample.replicas) == num_replicas)
    # Trajectories on one lane of a replica never overlap, tool waits included.
    spans = sample.turns.groupby(["replica_id", "lane", "trajectory_id"]).agg(
        begin=("submitted_s", "min"), end=("finished_s", "max")
    )
    for _, lane in spans.groupby(level=[0, 1]):
        ordered = lane.sort_values("begin")
        assert (ordered["begin"].to_numpy()[1:] >= ordered["end"].to_numpy()[:-1]).all()


def test_too_many_lanes_are_thinned_to_every_nth_trajectory():
    sample = sample_turns(turns_of(100, 1, 1, length_s=60.0), replicas_of(1, 70.0))
    assert 0 < sample.turns["lane"].max() < MAX_LANES
    assert len(sample.turns) < 100
    assert sample.remark.startswith("every ")


def test_too_many_bars_are_thinned_to_every_nth_trajectory():
    sample = sample_turns(turns_of(10, 60, 1), replicas_of(1, 91.0))
    assert len(sample.turns) == 300
    assert sample.remark == "every 2nd trajectory"


def test_every_tp_degree_keeps_a_replica():
    replicas = pd.DataFrame({"replica_id": range(41), "tp": [4] * 20 + [2] + [1] * 20, "end_s": 5.0})
    sample = sample_turns(turns_of(41, 1, 41), replicas)
    assert set(sample.replicas["tp"]) == {1, 2, 4}
    assert sample.remark == f"{len(sample.replicas)} of 41 replicas"


def test_a_long_run_is_shown_through_a_window():
    turns = turns_of(40, 50, 2)
    sample = sample_turns(turns, replicas_of(2, 10_000.0))
    begin, end = sample.window_s
    assert (begin, end) == (4875.0, 5125.0)
    assert "4,875 to 5,125 s of 10,000 s" in sample.remark
    assert len(sample_turns(turns, replicas_of(2, 10_000.0), (0.0, 10.0)).turns) > 0


def test_gantt_names_replicas_with_their_tp(run_dir):
    run = RunResult(run_dir)
    names = [text.get_text() for text in run.plot_gantt().axes[0].get_yticklabels()]
    assert names == ["trainer", "replica 1, TP 4", "replica 0, TP 1"]
    assert run.plot_gantt(colour="group").axes
    assert png_bytes(run.plot_gantt(window_s=(1e6, 2e6)))[:4] == b"\x89PNG"


def test_gantt_draws_on_axes_that_are_given(run_dir):
    run = RunResult(run_dir)
    figure = Figure()
    ax = figure.add_subplot()
    assert plot_gantt(run.turns, run.trajectories, run.replicas, ax=ax) is figure
    assert ax.collections


def test_cdf_curves_rise_to_one_and_keep_the_slowest_turn():
    values = np.linspace(0.1, 50.0, 10_000)
    curve = plot_latency_cdf({"a": values}).axes[0].lines[0]
    assert (np.diff(curve.get_ydata()) >= 0).all()
    assert curve.get_ydata()[-1] == 1.0
    assert curve.get_xdata()[-1] == 50.0
    assert len(curve.get_xdata()) <= 1_500


def test_cdf_without_turns_says_so():
    (text,) = plot_latency_cdf({"a": np.array([])}).axes[0].texts
    assert text.get_text() == "no finished turn"


def test_bars_are_the_means_over_seeds(sweep_dir):
    sweep = SweepResult(sweep_dir)
    ax = sweep.plot_throughput().axes[0]
    expected = sweep.frame.groupby(["layout", "policy"], sort=False)["output_tokens_per_s"].mean()
    assert sorted(bar.get_width() for bar in ax.patches) == pytest.approx(sorted(expected))
    assert "slow (baseline)" in [text.get_text() for text in ax.get_yticklabels()]
    assert ax.get_xlabel() == "output rate [tokens/s]"


def test_bars_without_a_value_say_so():
    frame = pd.DataFrame({"policy": ["a"], "makespan_s": [np.nan]})
    (text,) = plot_bars(frame, "makespan_s", "makespan [s]", "policy", []).axes[0].texts
    assert text.get_text() == "no finished cell has makespan [s]"


def test_drawing_leaves_the_readers_settings_as_they_were(run_dir):
    run = RunResult(run_dir)
    with mpl.rc_context({"font.size": 33.0, "axes.facecolor": "black"}):
        figure = run.plot_utilisation()
        png_bytes(figure)
        assert (mpl.rcParams["font.size"], mpl.rcParams["axes.facecolor"]) == (33.0, "black")
    assert figure.axes[0].get_facecolor() == (1.0, 1.0, 1.0, 1.0)


def test_equal_figures_are_equal_bytes_and_show_themselves(run_dir):
    run = RunResult(run_dir)
    first, second = run.plot_latency_cdf(), run.plot_latency_cdf()
    shown = first._repr_png_()
    assert shown == png_bytes(second)
    assert b"Software" not in shown
