"""How a run ends, and what the command line says of it."""

import json

import pytest

from libra.record.reader import Run
from sim.cli.main import main
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


def test_at_the_time_limit(run):
    status, ending, _ = run(sim__max_sim_s=1.0)
    assert (status, ending) == (0, "time_limit")
    assert Run.open("out").manifest["horizon_s"] == 1.0


def test_with_every_replica_dead_for_good(run):
    status, ending, line = run(**DEAD)
    assert (status, ending) == (1, "stalled")
    assert line.startswith("stalled in ")


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
    status, ending, _ = run(
        trace=trace,
        workload={"kind": "turns", "path": "turns.csv", "repeat": 1},
        heterogeneous_rollout__max_model_len=1000,
    )
    assert (status, ending) == (0, "completed")
    assert sorted(Run.open("out").trajectories["drop_reason"]) == ["prompt_too_long", "short_group"]


def test_a_run_directory_is_replaced_only_when_asked_and_then_whole(run, tmp_path, capsys):
    run()
    first = files_below(tmp_path / "out")
    assert main(["run", "tiny.yaml", "--out", "out", "--fresh", "--record", "summary"]) == 0
    assert set(files_below(tmp_path / "out")) == {"host.json", "manifest.json", "summary.json"}
    assert main(["run", "tiny.yaml", "--out", "out", "--fresh"]) == 0
    again = files_below(tmp_path / "out")
    del first["host.json"], again["host.json"]
    assert again == first
