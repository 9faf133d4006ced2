"""How a run ends, and what the command line says of it."""

import json
import shutil

import pytest

from libra.record.reader import Run
from sim.cli.main import main
from sim.results import SweepResult
from tests.system.tiny import files_below, write_experiment


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the tiny experiment with changes: exit status, the run's ending, last line on stderr."""
    monkeypatch.chdir(tmp_path)

    def call(verb: str = "run", trace: str = "", **changes) -> tuple[int, str, str]:
        write_experiment(tmp_path, {key.replace("__", "."): value for key, value in changes.items()})
        if trace:
            (tmp_path / "turns.csv").write_text(trace, encoding="utf-8")
        options = ["--no-report", "--jobs", "1"] if verb == "sweep" else []
        status = main([verb, "tiny.yaml", "--out", "out", *options])
        ending = (
            Run.open("out").manifest["exit_reason"] if (tmp_path / "out" / "manifest.json").exists() else ""
        )
        return status, ending, capsys.readouterr().err.splitlines()[-1]

    return call


DEAD = {
    "sim": {"faults": {"replica_loss": {"mean_time_between_losses_s": 0.3}}},
    "policies": {"recovery": {"kind": "give_up_or_restart", "max_restarts": 0}},
}
"""Replicas that die at once, and nobody who starts them again."""


def test_after_its_last_step(run):
    assert run()[:2] == (0, "steps_done")


def test_when_the_workload_is_done(run):
    assert run(total_steps=99)[:2] == (0, "completed")


def test_when_nothing_is_trained_and_all_has_finished(run):
    """Rollout only: what finishes is counted with what was trained on."""
    assert run(train_gpus=0)[:2] == (0, "completed")


def test_at_the_time_limit(run):
    """It is kept, but it is not a finished run."""
    status, ending, line = run(sim__max_sim_s=1.0)
    assert (status, ending) == (1, "time_limit")
    assert line.startswith("unfinished: the run was cut off at sim.max_sim_s = 1 s of simulated time")
    assert line.endswith("raise sim.max_sim_s, or make the run smaller")
    found = Run.open("out")
    assert found.manifest["horizon_s"] == found.summary["makespan_s"] == 1.0


def test_a_makespan_lasts_to_the_end_of_the_run(run):
    """Not to the last trajectory that finished: what hung until the end would be free."""
    run(total_steps=99)
    found = Run.open("out")
    assert found.summary["makespan_s"] == found.end_s == found.events["t_s"].iloc[-1]
    assert found.events["type"].iloc[-1] == "RunEnding"


SLOW_POINT = {
    "sweep": {"seeds": 2, "axes": {"limit": {"high": {}, "low": {"sim.max_sim_s": 1.0}}}},
}


def test_a_cell_at_the_time_limit_is_told_and_in_no_mean(run, tmp_path):
    status, _, line = run("sweep", **SLOW_POINT)
    assert status == 1
    assert line.startswith(
        "unfinished: 2 of 4 cells were cut off at sim.max_sim_s and are in no mean (the first: "
    )
    sweep = SweepResult(tmp_path / "out")
    assert sweep.frame["status"].tolist() == ["finished"] * 2 + ["time_limit"] * 2
    assert sweep.frame["makespan_s"].notna().tolist() == [True, True, False, False]
    (row,) = sweep.differences()
    assert (row.num_pairs, row.num_missing) == (0, 2)
    assert "2 of 4 cells cut off at sim.max_sim_s (time_limit), in no mean" in sweep.table()
    assert sweep.run({"limit": "low"}).manifest["exit_reason"] == "time_limit"
    # Found finished at the next start, they are still told.
    assert run("sweep", **SLOW_POINT)[0] == 1


def test_a_sweep_of_nothing_but_cut_off_cells_has_no_finished_one(run, tmp_path):
    assert run("sweep", sim__max_sim_s=1.0, sweep={"seeds": 2})[0] == 1
    table = SweepResult(tmp_path / "out").table()
    assert "no cell has finished" in table
    assert "2 of 2 cells cut off" in table


def test_with_every_replica_dead_for_good(run):
    status, ending, line = run(**DEAD)
    assert (status, ending) == (1, "stalled")
    assert line.startswith("unfinished: the run stalled: nothing is under way")
    assert line.endswith(" ready)")


def test_a_cell_that_stalls_fails_and_says_where_its_trajectories_stand(run, tmp_path):
    status, _, line = run("sweep", **DEAD)
    assert status == 2
    assert line.startswith("error: every cell failed; the first: the run stalled: nothing is under way")
    (note,) = (tmp_path / "out" / "failed").iterdir()
    assert json.loads(note.read_text(encoding="utf-8"))["error"].endswith(" ready)")
    assert list((tmp_path / "out" / "cells").iterdir()) == []


def test_a_trainer_that_waits_for_requests_to_come_is_not_stalled(run):
    """The first request is done long before the second, which completes the batch, arrives."""
    status, ending, _ = run(
        trace="t,prompt_tokens,output_tokens\n0,10,1\n50,10,1\n",
        workload={"kind": "requests", "path": "turns.csv"},
        batch_size=2,
        n_samples=1,
        total_steps=1,
        sim={"metrics_period_s": 0.0},
    )
    assert (status, ending) == (0, "steps_done")


def test_groups_that_are_too_short_do_not_stop_a_run(run):
    """One trajectory of each pair does not fit, so the other, finished as it is, is given up."""
    trace = "trajectory_id,turn,prompt_tokens,output_tokens,task\na,0,50,20,x\nb,0,50,9000,x\n"
    status, ending, line = run(
        trace=trace,
        workload={"kind": "turns", "path": "turns.csv", "repeat": 1},
        heterogeneous_rollout__max_model_len=1000,
    )
    assert (status, ending) == (1, "completed")
    assert line.startswith("unfinished: no trajectory was trained on: 2 were dropped")
    assert sorted(Run.open("out").trajectories["drop_reason"]) == ["prompt_too_long", "short_group"]


@pytest.mark.parametrize("train_gpus", [0, 4])
def test_a_run_that_drops_everything_has_nothing_to_show(run, tmp_path, train_gpus):
    nothing_fits = {"heterogeneous_rollout__max_model_len": 32, "train_gpus": train_gpus}
    status, _, line = run(**nothing_fits)
    assert status == 1
    what = "was trained on" if train_gpus else "finished"
    assert line.startswith(f"unfinished: no trajectory {what}: ")
    shutil.rmtree(tmp_path / "out")
    status, _, line = run("sweep", **nothing_fits)
    assert status == 2
    assert line.startswith(f"error: every cell failed; the first: no trajectory {what}: ")


def test_a_replica_that_dies_and_comes_back_is_down_in_between(run):
    faults = {"replica_loss": {"mean_time_between_losses_s": 20.0}}
    run(sim={"faults": faults}, total_steps=99, workload__repeat=8)
    found = Run.open("out")
    rows, figures = found.replicas, found.summary
    assert rows["down_s"].sum() > 0
    assert rows["usage_source"].eq("engine").all()
    parts = rows[["busy_s", "paused_s", "idle_s", "down_s"]].sum(axis=1)
    assert parts.to_numpy() == pytest.approx((rows["end_s"] - rows["ready_s"]).to_numpy())
    shares = [figures[f"rollout_{part}_share"] for part in ("busy", "paused", "idle")]
    assert sum(shares) == pytest.approx(1.0)
    down = (rows["tp"] * rows["down_s"]).sum() / (rows["tp"] * (rows["end_s"] - rows["ready_s"])).sum()
    assert figures["rollout_down_share"] == pytest.approx(down)


def test_a_run_directory_is_replaced_only_when_asked_and_then_whole(run, tmp_path, capsys):
    run()
    first = files_below(tmp_path / "out")
    assert main(["run", "tiny.yaml", "--out", "out", "--fresh", "--record", "summary"]) == 0
    assert set(files_below(tmp_path / "out")) == {"host.json", "manifest.json", "summary.json"}
    assert main(["run", "tiny.yaml", "--out", "out", "--fresh"]) == 0
    again = files_below(tmp_path / "out")
    del first["host.json"], again["host.json"]
    assert again == first
