"""Derived tables against what the story did, counted independently from the wide tables."""

import math
import struct

import pytest

from libra.core import actions as ac
from libra.core import events as ev
from libra.core.ids import NO_ACTION, DropReason, FailureKind, NextStep, ToolStatus
from libra.core.step import Step
from libra.record.columns import replica_columns
from libra.record.derive import Deriver
from libra.record.reader import Run
from libra.record.replica_lives import ReplicaUsage
from libra.record.writer import RunWriter


@pytest.fixture(scope="module")
def run(tmp_path_factory, story, info):
    directory = tmp_path_factory.mktemp("derive") / "run"
    with RunWriter(directory, chunk_steps=80) as writer:
        for step in story(num_groups=8).steps():
            writer.append(step)
        writer.close(info, usage={1: ReplicaUsage(busy_s=2.5, paused_s=0.5, num_steps=77)})
    return Run.open(directory)


def of_type(frame, name):
    return frame[frame["type"] == name]


def test_every_ended_turn_is_one_row(run):
    ended = {*of_type(run.events, "TurnFinished")["seq"], *of_type(run.events, "TurnFailed")["seq"]}
    assert set(run.turns["seq"]) == ended
    assert len(run.turns) == len(ended)
    assert len(of_type(run.events, "TurnFailed")) > 0


def test_token_sums_agree_with_the_events(run):
    ended = run.events[run.events["type"].isin(["TurnFinished", "TurnFailed"])]
    for name in ("prompt_tokens", "output_tokens", "cached_tokens", "recomputed_tokens", "num_preemptions"):
        assert run.turns[name].sum() == ended[name].sum(), name
    for table in (run.trajectories, run.replicas):
        for name in ("output_tokens", "recomputed_tokens", "num_preemptions"):
            assert table[name].sum() == run.turns[name].sum(), name


def test_turn_times_and_tools_are_those_of_the_events(run):
    events = of_type(run.events, "TurnFinished").set_index("seq")
    tools = of_type(run.events, "ToolReturned").set_index(["trajectory_id", "turn"])
    done = run.turns[run.turns["status"] == "finished"]
    answered = 0
    for row in done.itertuples():
        event = events.loc[row.seq]
        assert (row.submitted_s, row.started_s, row.finished_s) == tuple(
            event[["submitted_s", "started_s", "finished_s"]]
        )
        if (row.trajectory_id, row.turn) in tools.index:
            answer = tools.loc[(row.trajectory_id, row.turn)]
            assert (row.tool_latency_s, row.payload_tokens) == (answer["latency_s"], answer["payload_tokens"])
            assert row.tool_status == answer["status"]
            answered += 1
    assert answered == len(tools)


def test_attempts_count_the_failures_before(run):
    for _, attempts in run.turns.sort_values("seq").groupby(["trajectory_id", "turn"]):
        assert list(attempts["attempt"]) == list(range(len(attempts)))
        assert set(attempts["status"].iloc[:-1]) <= {"aborted"}


def test_prefix_is_known_only_where_the_history_was_kept(run):
    first = run.turns[run.turns["attempt"] == 0].sort_values("seq")
    context = {}
    known = 0
    for row in run.turns.sort_values("seq").itertuples():
        before = context.get((row.trajectory_id, row.turn - 1))
        if row.turn == 0 or row.trajectory_id % 3 == 0:
            assert row.prefix_tokens is not row.prefix_tokens or str(row.prefix_tokens) == "<NA>"
        else:
            assert row.prefix_tokens == before
            known += 1
        context[(row.trajectory_id, row.turn)] = row.prompt_tokens + row.output_tokens
    assert known > len(first) / 4


def test_trajectories_end_where_they_should(run):
    table = run.trajectories.set_index("trajectory_id")
    dropped = set(of_type(run.actions, "DropTrajectory")["trajectory_id"])
    finished = set(of_type(run.events, "TrajectoryFinished")["trajectory_id"])
    assert set(table.index) == set(of_type(run.events, "TrajectoryArrived")["trajectory_id"])
    assert set(table.index[table["place"] == "dropped"]) == dropped
    assert dropped
    assert set(table.index[table["finished_s"].notna()]) == finished
    assert set(table["drop_reason"].dropna()) == {"surplus"}
    assert table.loc[list(finished), "train_step"].notna().all()
    assert table["start_latency_s"].to_numpy() == pytest.approx(0.1)


def test_staleness_is_trainer_version_minus_generating_version(run):
    trained = run.trajectories[run.trajectories["place"] == "trained"]
    turns = run.turns.groupby("trajectory_id")
    for row in trained.itertuples():
        mine = turns.get_group(row.trajectory_id)
        mine = mine[mine["output_tokens"] > 0]
        base = row.train_step - 1
        assert row.staleness_min == base - mine["version_last"].max()
        assert row.staleness_max == base - mine["version_first"].min()
        mean = mine["version_token_sum"].sum() / mine["output_tokens"].sum()
        assert row.staleness_mean == pytest.approx(base - mean)
        assert 0 <= row.staleness_min <= row.staleness_mean <= row.staleness_max
    for row in run.train_steps.itertuples():
        mine = trained[trained["train_step"] == row.version]
        assert row.staleness_max == mine["staleness_max"].max()
        weighted = (mine["staleness_mean"] * mine["output_tokens"]).sum() / mine["output_tokens"].sum()
        assert row.staleness_mean == pytest.approx(weighted)


def test_train_steps_hold_publication_and_loads(run):
    steps = run.train_steps
    assert list(steps["version"]) == list(range(1, len(steps) + 1))
    assert (steps["num_loads"] == 2).all()
    assert (steps["publish_finished_s"] - steps["finished_s"]).round(9).eq(0.5).all()
    assert (steps["load_last_s"] - steps["load_first_s"]).round(9).eq(0.3).all()
    assert (steps["rollout_wait_s"] >= 0).all()


def test_replica_time_adds_up_and_the_engine_wins(run):
    table = run.replicas.set_index("replica_id")
    total = table["busy_s"] + table["paused_s"] + table["idle_s"] + table["down_s"]
    assert (total - (table["end_s"] - table["ready_s"])).abs().max() < 1e-9
    assert tuple(table.loc[1, ["busy_s", "paused_s", "num_steps", "usage_source"]]) == (
        2.5,
        0.5,
        77,
        "engine",
    )
    assert table.loc[0, "usage_source"] == "events"
    assert table.loc[0, "paused_s"] == pytest.approx(0.1 * len(run.train_steps))
    mine = run.turns[run.turns["replica_id"] == 0]
    assert table.loc[0, "busy_s"] == pytest.approx(union_s(mine) - overlap_s(mine, run), abs=1e-9)


def union_s(turns):
    """Length of the union of [submitted, finished]."""
    total, end = 0.0, -math.inf
    for start, stop in sorted(zip(turns["submitted_s"], turns["finished_s"], strict=True)):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def overlap_s(turns, run):
    """Load time of replica 0 during which it had a turn (the story never starts or ends one inside a load)."""
    loads = of_type(run.events, "WeightsLoaded")
    loads = loads[loads["replica_id"] == 0]
    covered = 0.0
    for start, stop in zip(loads["started_s"], loads["finished_s"], strict=True):
        pieces = turns[(turns["submitted_s"] < stop) & (turns["finished_s"] > start)]
        clipped = pieces.assign(
            submitted_s=pieces["submitted_s"].clip(lower=start),
            finished_s=pieces["finished_s"].clip(upper=stop),
        )
        covered += union_s(clipped)
    return covered


def ready(replica):
    return ev.ReplicaReady(NO_ACTION, replica, 2, 0, 0, 1000, 8, 4096)


def finished(closes, trajectory, turn, at_s, end):
    step = NextStep.END if end else NextStep.TOOL
    return ev.TurnFinished(
        closes,
        trajectory,
        turn,
        0,
        10,
        5,
        0,
        0,
        0,
        0,
        0,
        0,
        at_s - 1,
        at_s - 0.9,
        at_s - 0.5,
        at_s,
        step,
        "shell",
    )


def feed(script, training=True):
    """Steps from (time, event, *actions)."""
    deriver, first = Deriver(training), 0
    for seq, (now, event, *actions) in enumerate(script):
        deriver.feed([Step(seq, now, event, first, actions)])
        first += len(actions)
    return deriver


def submit(trajectory, turn=0):
    return ac.SubmitTurn(trajectory, turn, 0, 10, 0, "")


def arrived(trajectory):
    return ev.TrajectoryArrived(trajectory, 0, 0, trajectory, 2, 10)


def rows(done):
    """(number, tool status, payload tokens, tool latency) of each turn."""
    unpacked = [struct.unpack("<6qd", packed) for packed in done.numbers]
    return [
        (number, status, payload, latency)
        for (number, _, _, _, _, payload, latency), status in zip(unpacked, done.tool_statuses, strict=True)
    ]


def test_a_turn_of_a_dropped_trajectory_still_counts():
    deriver = feed(
        [
            (0.0, ready(0)),
            (0.0, arrived(0), submit(0)),
            (
                1.0,
                arrived(1),
                ac.DropTrajectory(0, DropReason.STALE, "too old"),
                ac.AbortTurn(0, 0, "too old"),
            ),
            (2.0, ev.TurnFailed(0, 0, 0, 0, FailureKind.ABORTED, 10, 3, 0, 0, 0, 0, 0, 0, 0.0, 2.0)),
        ]
    )
    (life,) = deriver.trajectories
    assert (life.place, life.drop_reason, life.output_tokens, life.num_failed_turns) == (
        "dropped",
        "stale",
        3,
        1,
    )
    assert len(deriver.failed) == 1


def test_answers_for_a_dropped_trajectory_are_ignored():
    deriver = feed(
        [
            (0.0, ready(0)),
            (0.0, arrived(0), submit(0)),
            (2.0, finished(0, 0, 0, 2.0, end=False), ac.DropTrajectory(0, DropReason.STALE, "")),
            (3.0, ev.ToolReturned(0, 0, "shell", ToolStatus.SUCCESS, 4, 1.0, 19)),
            (3.0, ev.TrajectoryFinished(0, 1, 0.0)),
        ]
    )
    assert [life.place for life in deriver.trajectories] == ["dropped"]
    ((number, status, payload, latency),) = rows(deriver.take_turns()[0])
    assert (number, status, payload, math.isnan(latency)) == (0, None, -1, True)


def test_the_last_turn_waits_for_the_end_of_the_episode():
    script = [(0.0, ready(0)), (0.0, arrived(0), submit(0)), (2.0, finished(0, 0, 0, 2.0, end=True))]
    deriver = feed([*script, (5.0, ev.TrajectoryFinished(0, 1, 0.5))], training=False)
    ((_, status, _, latency),) = rows(deriver.take_turns()[0])
    assert (status, latency) == (None, 3.0)
    assert [(life.reward, life.finished_s) for life in deriver.trajectories] == [(0.5, 5.0)]


def test_a_failed_step_gives_its_trajectories_back():
    script = [
        (0.0, ready(0)),
        (0.0, arrived(0), submit(0)),
        (2.0, finished(0, 0, 0, 2.0, end=True)),
        (3.0, ev.TrajectoryFinished(0, 1, 1.0), ac.StartTrainStep((0,), 1, 15, "")),
        (4.0, ev.ActionFailed(1, FailureKind.ENGINE_ERROR, "out of memory")),
    ]
    deriver = feed(script)
    assert deriver.trajectories == []
    deriver.end({})
    assert [life.place for life in deriver.trajectories] == ["finished"]


def test_a_lost_replica_is_busy_until_it_is_lost():
    deriver = feed(
        [
            (0.0, ready(0)),
            (1.0, arrived(0), submit(0)),
            (4.0, ev.ReplicaLost(0)),
            (4.0, ev.TurnFailed(0, 0, 0, 0, FailureKind.REPLICA_LOST, 10, 0, 0, 0, 0, -1, -1, 0, 1.0, 4.0)),
            (9.0, ev.TimerFired(NO_ACTION, "tick")),
        ]
    )
    ((replica, usage),) = deriver.end({})
    assert (replica.busy_s, replica.end_s, usage) == (3.0, 9.0, None)
    assert replica.down_s == 5.0
    (life,) = deriver.trajectories
    assert (life.version_first, life.place) == (-1, "ready")


@pytest.mark.parametrize(
    ("script", "times"),
    [
        ([(4.0, ev.ReplicaLost(0)), (7.0, ready(0)), (10.0, ev.TimerFired(NO_ACTION, ""))], (10.0, 3.0)),
        ([(4.0, ev.ReplicaLost(0)), (10.0, ev.TimerFired(NO_ACTION, ""))], (10.0, 6.0)),
        ([(4.0, ev.ReplicaStopped(0, 0)), (10.0, ev.TimerFired(NO_ACTION, ""))], (4.0, 0.0)),
        (
            [
                (4.0, ev.ReplicaLost(0)),
                (5.0, ready(0)),
                (6.0, ev.ReplicaStopped(0, 0)),
                (9.0, ready(0)),
                (10.0, ev.TimerFired(NO_ACTION, "")),
            ],
            (10.0, 4.0),
        ),
    ],
)
def test_dead_time_is_neither_busy_nor_idle(script, times):
    """It lasts from a loss to the return or the run's end; a replica that was stopped is no longer there."""
    (row,) = feed([(0.0, ready(0)), *script]).end({})
    columns = replica_columns([row])
    assert (columns["end_s"].item(), columns["down_s"].item()) == times
    assert columns["idle_s"].item() == times[0] - times[1]


def test_an_engine_that_knows_when_it_died_is_down_before_that_is_noticed():
    usage = {0: ReplicaUsage(busy_s=1.0, paused_s=0.0, up_s=3.0)}
    script = [(0.0, ready(0)), (8.0, ev.ReplicaLost(0)), (10.0, ev.TimerFired(NO_ACTION, ""))]
    columns = replica_columns(feed(script).end(usage))
    assert [columns[f"{part}_s"].item() for part in ("busy", "idle", "down", "end")] == [1.0, 2.0, 7.0, 10.0]


def test_turns_that_stay_open_are_numbered_anew():
    deriver = feed(
        [
            (0.0, ready(0)),
            (0.0, arrived(0), submit(0)),
            (0.0, arrived(1), submit(1)),
            (2.0, finished(0, 0, 0, 2.0, end=False)),
            (2.0, finished(1, 1, 0, 2.0, end=False)),
            (3.0, ev.ToolReturned(0, 0, "shell", ToolStatus.SUCCESS, 4, 1.0, 19)),
        ]
    )
    done, staying = deriver.take_turns()
    assert ([row[0] for row in rows(done)], staying) == ([0], [1])
    deriver.feed([Step(9, 4.0, ev.ToolReturned(1, 0, "shell", ToolStatus.TIMEOUT, 0, 2.0, 15), 2, ())])
    done, staying = deriver.take_turns()
    assert ([row[:2] for row in rows(done)], staying) == ([(0, "timeout")], [])
