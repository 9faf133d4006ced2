"""Runs and sweeps as frames and tables."""

import json
from math import isnan

import pytest

from libra.errors import UserError
from sim.results import RunResult, SweepResult, compare_runs, open_result
from sim.results.labels import label, number, sentence
from sim.results.text import MAX_WIDTH, fit_columns, markup


def test_open_result_tells_a_run_from_a_sweep(run_dir, sweep_dir, tmp_path):
    assert isinstance(open_result(run_dir), RunResult)
    assert isinstance(open_result(sweep_dir), SweepResult)
    with pytest.raises(UserError, match="holds neither a run"):
        open_result(tmp_path)


def test_run_result_has_tables_summary_and_html(run_dir):
    run = RunResult(run_dir)
    assert (len(run.turns), len(run.trajectories), len(run.train_steps), len(run.replicas)) == (24, 12, 1, 2)
    assert run.summary["num_finished"] == 12
    assert run.summary["output_tokens"] == run.turns["output_tokens"].sum()
    assert len(run.loads) == 2
    assert "makespan" in run.table()
    assert "<table>" in run._repr_html_()


def test_comparing_a_run_with_itself_shows_no_difference(run_dir):
    frame = compare_runs(run_dir, RunResult(run_dir))
    assert list(frame.columns) == ["metric", "a", "b", "difference [%]"]
    assert (frame["difference [%]"] == 0.0).all()
    assert "tail share [%]" in set(frame["metric"])
    assert frame["a"].notna().all()


def test_compare_runs_gives_the_change_of_b_over_a(make_run, tmp_path):
    slow, fast = make_run(tmp_path / "a", 1.0), make_run(tmp_path / "b", 2.0)
    row = compare_runs(slow, fast).set_index("metric").loc["turn latency p50 [s]"]
    assert row["b"] == pytest.approx(row["a"] / 2)
    assert row["difference [%]"] == pytest.approx(-50.0)


def test_frame_has_a_row_for_every_cell(sweep_dir):
    frame = SweepResult(sweep_dir).frame
    assert len(frame) == 24
    assert list(frame.columns[:5]) == ["policy", "layout", "seed", "status", "error"]
    failed = frame[frame["status"] == "failed"]
    assert failed[["policy", "layout", "seed"]].values.tolist() == [["fast", "uniform", 5]]
    assert failed["error"].item() == "trace.csv:3: <column> is missing"
    assert failed["makespan_s"].isna().all()
    assert frame[frame["status"] == "finished"]["makespan_s"].notna().all()


def test_comparison_is_paired_and_counts_the_failed_cell(sweep_dir):
    frame = SweepResult(sweep_dir).comparison().set_index("layout")
    assert frame.loc["mixed", "pairs"] == 6
    assert (frame.loc["uniform", "pairs"], frame.loc["uniform", "left out"]) == (5, 1)
    assert (frame["verdict"] == "better").all()
    assert (frame["low [%]"] > 0).all()
    slower = SweepResult(sweep_dir).comparison("turn_latency_p95_s").set_index("layout")
    assert slower.loc["mixed", "difference [%]"] == pytest.approx(100 * (1 / 1.5 - 1))
    assert slower.loc["mixed", "verdict"] == "better"


def test_an_unknown_metric_is_refused_by_name(sweep_dir):
    with pytest.raises(UserError, match="no metric speed; the sweep has makespan_s"):
        SweepResult(sweep_dir).comparison("speed")


def test_table_fits_a_terminal_and_says_what_is_missing(sweep_dir):
    text = SweepResult(sweep_dir).table()
    assert max(map(len, text.splitlines())) <= MAX_WIDTH
    assert "output rate [tokens/s], mean over 6 seeds" in text
    assert "against policy=slow; higher is better" in text
    assert "1 of 24 cells failed" in text
    fast = next(line for line in text.splitlines() if line.startswith("mixed") and "fast" in line)
    assert "better" in fast


def test_a_wide_table_loses_its_last_columns_then_shortens_cells():
    rows = [["policy", "value", "extra"], ["p" * 60, "v" * 60, "e" * 60]]
    lines = fit_columns(rows, left=1, keep=2)
    assert max(map(len, lines)) <= MAX_WIDTH
    assert "extra" in lines[0]
    many = [[f"column {i} of many" for i in range(12)]] * 2
    assert max(map(len, fit_columns(many, left=1, keep=8))) <= MAX_WIDTH
    assert len(fit_columns(many, left=1, keep=2)[0].split("of many")) == 7


def test_one_seed_gives_no_interval_and_says_so(make_sweep, tmp_path):
    sweep = SweepResult(make_sweep(tmp_path / "s", {"slow": 1.0, "fast": 1.5}, seeds=1))
    assert "one pair of seeds gives no interval" in sweep.table()
    (row,) = sweep.differences()
    assert "one seed, so no interval and no verdict" in sentence(row)
    assert isnan(sweep.comparison()["low [%]"].item())


def test_three_seeds_say_that_the_interval_is_students(make_sweep, tmp_path):
    sweep = SweepResult(make_sweep(tmp_path / "s", {"slow": 1.0, "fast": 1.5}, seeds=3))
    assert "Student t" in sweep.table()


def test_sentences_are_plain_words(sweep_dir):
    mixed, uniform = (sentence(row) for row in SweepResult(sweep_dir).differences())
    assert mixed.startswith("fast makes ")
    assert " % more output tokens/s than slow on layout mixed (95 % interval +" in mixed
    assert mixed.endswith("%, 6 seeds): better.")
    assert uniform.endswith("%, 5 seeds, 1 left out): better.")
    latency = sentence(SweepResult(sweep_dir).differences("turn_latency_p95_s")[0])
    assert "fast has 33.3 % lower turn latency p95 than slow" in latency


def test_run_picks_a_cell_and_refuses_what_is_not_there(sweep_dir):
    sweep = SweepResult(sweep_dir)
    assert sweep.run().cell == "policy=slow, layout=mixed, seed=0"
    assert sweep.run({"policy": "fast"}, seed=3).cell == "policy=fast, layout=mixed, seed=3"
    with pytest.raises(UserError, match="no point policy=turbo"):
        sweep.run({"policy": "turbo"})
    with pytest.raises(UserError, match="cell policy=fast, layout=uniform, seed=5 is not finished"):
        sweep.run({"policy": "fast", "layout": "uniform"}, seed=5)
    assert sweep.representative().cell == "policy=slow, layout=mixed, seed=0"


def test_a_cell_that_never_ran_is_missing_not_absent(make_sweep, tmp_path):
    directory = make_sweep(tmp_path / "s", {"slow": 1.0, "fast": 1.5})
    described = json.loads((directory / "sweep.json").read_text())
    (directory / "sweep.json").write_text(json.dumps(described | {"seeds": [0, 1, 2]}))
    sweep = SweepResult(directory)
    assert sweep.frame["status"].value_counts().to_dict() == {"finished": 4, "missing": 2}
    assert "2 of 6 cells missing" in sweep.table()


def test_a_sweep_without_a_finished_cell_still_has_a_table(make_sweep, tmp_path):
    directory = make_sweep(tmp_path / "s", {"a": 1.0}, seeds=1, failed=[("a", "mixed", 0)])
    assert "no cell has finished" in SweepResult(directory).table()


def test_a_sweep_of_seeds_alone_has_no_comparison(make_run, tmp_path):
    described = {
        "schema_version": 1,
        "name": "n",
        "axes": {},
        "seeds": [0, 1],
        "baseline": {},
        "metric": "makespan_s",
    }
    (tmp_path / "sweep.json").write_text(json.dumps(described))
    for seed in (0, 1):
        make_run(tmp_path / "cells" / f"seed={seed}", seed=seed, cell={"point": {}, "seed": seed})
    sweep = SweepResult(tmp_path)
    assert sweep.differences() == []
    assert "makespan [s], mean over 2 seeds" in sweep.table()
    assert sweep.plot_throughput().axes
    assert sweep.plot_latency_cdf().axes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 9}, "schema_version 9"),
        ({"seeds": []}, "has no seed"),
        ({"axes": [1]}, "damaged"),
        ({"baseline": {"policy": "other"}}, "baseline policy=other is no point"),
    ],
)
def test_a_damaged_sweep_file_is_named(make_sweep, tmp_path, change, message):
    directory = make_sweep(tmp_path / "s", {"slow": 1.0}, seeds=1)
    described = json.loads((directory / "sweep.json").read_text())
    (directory / "sweep.json").write_text(json.dumps(described | change))
    with pytest.raises(UserError, match=message) as caught:
        SweepResult(directory)
    assert "sweep.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,346"),
        (123.45, "123.5"),
        (0.5, "0.50"),
        (0.0123, "0.012"),
        (7.0, "7"),
        (float("nan"), "-"),
    ],
)
def test_numbers_have_about_four_digits(value, text):
    assert number(value) == text


def test_labels_have_units_and_shares_are_percent():
    assert label("tail_share").text == "tail share [%]"
    assert label("tail_share").scale == 100.0
    assert label("num_turns").text == "turns"
    assert label("their_own").text == "their_own"


def test_markup_escapes_everything():
    text = markup(["<a>"], [["<script>"]], caption="a & b")
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "a &amp; b" in text
