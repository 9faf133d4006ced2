"""Whole simulated runs, drawn at random: what holds whatever the workload, the engine and the policies are."""

import pytest
from hypothesis import HealthCheck, event, given, settings

from libra.core.ids import EndReason
from libra.record.reader import Run
from sim.replay import replay
from tests.property.sim_experiments import Small, experiments, run_in

TABLES = ("events", "actions", "turns", "trajectories", "train_steps", "replicas")
FEW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

counter = iter(range(10**9))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def fresh(base):
    """A folder for one example."""
    return base / str(next(counter))


def tables(run: Run) -> dict[str, bytes]:
    return {name: (run.directory / f"{name}.parquet").read_bytes() for name in TABLES}


def check_conservation(run: Run, small: Small) -> None:
    """Each trajectory arrived once and is in one place; those trained on belong to a step that was made."""
    rows = run.trajectories
    arrived = run.events.loc[run.events["type"] == "TrajectoryArrived", "trajectory_id"]
    assert arrived.is_unique
    assert sorted(rows["trajectory_id"]) == sorted(arrived)
    trained = rows[rows["place"] == "trained"]
    if not small.tree["train_gpus"]:
        return
    assert set(trained["train_step"]) == set(run.train_steps["version"])
    assert run.train_steps["num_trajectories"].sum() == len(trained)
    assert rows["train_step"].notna().sum() == len(trained)


def check_staleness(run: Run, small: Small) -> None:
    """I5, as the record tells it."""
    if small.tree["train_gpus"]:
        trained = run.trajectories[run.trajectories["place"] == "trained"]
        assert (trained["staleness_max"] <= small.tree["max_head_offpolicyness"]).all()
        assert (trained["staleness_min"] >= 0).all()


def check_replicas(run: Run) -> None:
    """No replica is busy, paused, idle or down for longer than it was there."""
    rows = run.replicas
    for part in ("busy_s", "paused_s", "idle_s", "down_s"):
        assert (rows[part] >= -1e-9).all()
    spent = rows["busy_s"] + rows["paused_s"] + rows["idle_s"] + rows["down_s"]
    assert (abs(spent - (rows["end_s"] - rows["ready_s"])) < 1e-6).all()


@FEW
@given(small=experiments())
def test_both_engines_write_the_same_record_and_it_replays(base, small):
    folder = fresh(base)
    reason, _ = run_in(folder, small, "skip")
    event(f"ended: {reason}")
    run_in(folder, small.with_sim(engine="reference"), "reference")
    run, reference = Run.open(folder / "skip"), Run.open(folder / "reference")
    event(f"preempted: {bool(run.turns['num_preemptions'].sum())}")
    assert tables(run) == tables(reference)
    assert run.summary.keys() == reference.summary.keys()
    check_conservation(run, small)
    check_staleness(run, small)
    check_replicas(run)
    result = replay(folder / "skip")
    assert result.difference == ""
    assert (result.num_events, result.num_actions) == (len(run.events), len(run.actions))
    if not small.tree["sim"]["faults"].get("replica_loss"):
        assert reason in (EndReason.COMPLETED, EndReason.STEPS_DONE)


@FEW
@given(small=experiments(training=False))
def test_without_a_trainer_every_turn_of_the_workload_is_played_once(base, small):
    folder = fresh(base)
    reason, _ = run_in(folder, small)
    run = Run.open(folder / "run")
    turns = run.turns
    finished = turns[turns["status"] == "finished"]
    assert not finished.duplicated(["trajectory_id", "turn"]).any()
    rows = run.trajectories
    assert set(rows["place"]) <= {"finished", "dropped"} or reason is not EndReason.COMPLETED
    done = rows[rows["place"] == "finished"]
    assert (
        finished.groupby("trajectory_id").size().reindex(done["trajectory_id"])
        == done["num_turns"].to_numpy()
    ).all()
    # Tokens of failed attempts stay in the context, so a turn's attempts add up to what the trace says of it.
    played = (
        turns[turns["trajectory_id"].isin(done["trajectory_id"])]
        .groupby("trajectory_id")["output_tokens"]
        .sum()
    )
    assert (played.sort_index() == done.set_index("trajectory_id")["output_tokens"].sort_index()).all()
    expected = outputs_of_the_trace(small)
    assert set(played) <= set(expected)
    if (
        reason is EndReason.COMPLETED
        and not (rows["place"] == "dropped").any()
        and small.tree["n_samples"] == 1
    ):
        assert sum(played) >= sum(expected)


def outputs_of_the_trace(small: Small) -> list[int]:
    """Output tokens of each trajectory of the trace."""
    header, *lines = (line.split(",") for line in small.trace.splitlines())
    column = header.index("output_tokens")
    if "trajectory_id" not in header:
        return [int(line[column]) for line in lines]
    sums: dict[str, int] = {}
    for line in lines:
        sums[line[0]] = sums.get(line[0], 0) + int(line[column])
    return list(sums.values())
