"""A record that was changed by hand does not replay, and the first sequence number that differs is named."""

import hashlib
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from libra.policies.load_balance import LoadBalance
from libra.record.manifest import file_sha256
from sim.cli.main import main
from tests.system.tiny import write_experiment


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run with training, two replicas and some polls."""
    folder = tmp_path_factory.mktemp("tampering")
    path = write_experiment(folder, {"sim.metrics_period_s": 1.0})
    assert main(["run", str(path), "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture
def run(original, tmp_path):
    """A copy to tamper with."""
    return shutil.copytree(original, tmp_path / "run")


def rewrite(run, name: str, change) -> None:
    """Replace a table by `change(table)`."""
    path = run / f"{name}.parquet"
    table = pq.read_table(path)
    pq.write_table(change(table), path)


def with_value(table, row: int, column: str, change):
    """The table with one value changed."""
    values = table.column(column).to_pylist()
    assert values[row] is not None, f"{column} has no value in row {row}"
    values[row] = change(values[row])
    field = table.schema.field(column)
    return table.set_column(table.schema.names.index(column), field, pa.array(values, field.type))


def row_of(table, kind: str, number: int = 1) -> int:
    """Row of the n-th event or action of a type."""
    return int(np.flatnonzero(np.array(table.column("type").to_pylist()) == kind)[number])


def differences(run, capsys) -> list[str]:
    """What `sim replay` says differs."""
    capsys.readouterr()
    assert main(["replay", str(run)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-1].endswith("1 differ")
    return [line.removeprefix("differs: ") for line in out[:-1]]


def test_a_record_that_was_not_touched_replays(run, capsys):
    assert main(["replay", str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("all actions equal")


def test_the_same_rows_in_another_file_layout_are_seen_as_changed_files(run, capsys):
    rewrite(run, "events", lambda table: table)
    (line,) = differences(run, capsys)
    assert line.startswith(f"{run}: ")
    assert "events.parquet" in line


EVENT_VALUES = {
    "latency that no policy reads": ("ToolReturned", "latency_s", lambda v: v + 1.0),
    "payload": ("ToolReturned", "payload_tokens", lambda v: v + 1),
    "outcome": ("ToolReturned", "status", lambda v: "timeout"),
    "prompt that a policy reads": ("ToolReturned", "prompt_tokens", lambda v: v + 1),
    "output tokens": ("TurnFinished", "output_tokens", lambda v: v + 1),
    "replica": ("TurnFinished", "replica_id", lambda v: 1 - v),
    "closed action": ("TurnFinished", "closes", lambda v: v + 1),
    "tool name": ("TurnFinished", "tool_name", lambda v: "other"),
    "time of the source": ("TurnFinished", "first_token_s", lambda v: v * (1 + 1e-15)),
    "time of handling": ("TurnFinished", "t_s", lambda v: v * (1 + 1e-15)),
    "reward": ("TrajectoryFinished", "reward", lambda v: 0.5),
    "a poll": ("MetricsSampled", "num_running", lambda v: [n + 1 for n in v]),
    "version": ("WeightsLoaded", "version", lambda v: v - 1),
}


@pytest.mark.parametrize(("kind", "column", "change"), EVENT_VALUES.values(), ids=EVENT_VALUES)
def test_one_value_of_an_event(run, capsys, kind, column, change):
    seqs: list[int] = []

    def tamper(table):
        row = row_of(table, kind)
        seqs.append(table.column("seq")[row].as_py())
        return with_value(table, row, column, change)

    rewrite(run, "events", tamper)
    (line,) = differences(run, capsys)
    assert f"seq {seqs[0]}" in line


ACTION_VALUES = {
    "replica": ("SubmitTurn", "replica_id", lambda v: 1 - v),
    "prompt": ("SubmitTurn", "prompt_tokens", lambda v: v + 1),
    "priority": ("SubmitTurn", "priority", lambda v: v + 1),
    "reason": ("SubmitTurn", "reason", lambda v: "because"),
    "groups of a step": ("StartTrainStep", "group_ids", lambda v: [9]),
    "time": ("SubmitTurn", "t_s", lambda v: v + 1e-9),
}


@pytest.mark.parametrize(("kind", "column", "change"), ACTION_VALUES.values(), ids=ACTION_VALUES)
def test_one_value_of_an_action(run, capsys, kind, column, change):
    causes: list[int] = []

    def tamper(table):
        row = row_of(table, kind, 0)
        causes.append(table.column("cause")[row].as_py())
        return with_value(table, row, column, change)

    rewrite(run, "actions", tamper)
    (line,) = differences(run, capsys)
    assert f"seq {causes[0]}" in line


@pytest.mark.parametrize(("name", "kind"), [("events", "TurnFinished"), ("actions", "SubmitTurn")])
def test_a_row_that_is_missing(run, capsys, name, kind):
    seqs: list[int] = []

    def tamper(table):
        row = row_of(table, kind)
        seqs.append(table.column("seq" if name == "events" else "cause")[row].as_py())
        return pa.concat_tables([table.slice(0, row), table.slice(row + 1)])

    rewrite(run, name, tamper)
    (line,) = differences(run, capsys)
    assert f"seq {seqs[0]}" in line or f"seq {seqs[0] + 1}" in line


@pytest.mark.parametrize("name", ["events", "actions"])
def test_two_rows_that_changed_places(run, capsys, name):
    seqs: list[int] = []

    def tamper(table):
        row = 12
        column = table.column("seq" if name == "events" else "cause")
        seqs.append(min(column[row].as_py(), column[row + 5].as_py()))
        order = list(range(table.num_rows))
        order[row], order[row + 5] = order[row + 5], order[row]
        return table.take(order)

    rewrite(run, name, tamper)
    (line,) = differences(run, capsys)
    assert (
        f"seq {seqs[0]}: {'the event is missing or' if name == 'events' else 'action 12 is'} out of" in line
    )


def test_an_action_that_is_missing_is_named_with_its_neighbours(run, capsys):
    causes: list[int] = []

    def tamper(table):
        causes.extend(table.column("cause").to_pylist()[11:14])
        return pa.concat_tables([table.slice(0, 12), table.slice(13)])

    rewrite(run, "actions", tamper)
    (line,) = differences(run, capsys)
    assert f"seq {causes[0]} to seq {causes[2]}: action 12 is missing" in line


def rewrite_unseen(run, name: str, change) -> None:
    """Replace a table, and what the manifest says of its file: only the replay itself can find the change."""
    rewrite(run, name, change)
    manifest = run / "manifest.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    content["files"][f"{name}.parquet"] = file_sha256(run / f"{name}.parquet")
    manifest.write_text(json.dumps(content), encoding="utf-8")


def test_two_actions_of_a_step_that_changed_places_with_their_numbers(run, capsys):
    named: list[tuple[int, int]] = []

    def tamper(table):
        causes, kinds = table.column("cause").to_pylist(), table.column("type").to_pylist()
        row = next(
            i for i in range(len(causes) - 1) if causes[i] == causes[i + 1] and kinds[i] != kinds[i + 1]
        )
        named.append((causes[row], row))
        order = list(range(table.num_rows))
        order[row], order[row + 1] = order[row + 1], order[row]
        ids = table.column("action_id")
        swapped = table.take(order)
        return swapped.set_column(swapped.schema.names.index("action_id"), "action_id", ids)

    rewrite_unseen(run, "actions", tamper)
    (line,) = differences(run, capsys)
    assert f"seq {named[0][0]}: action {named[0][1]}: recorded " in line


FOUR = hashlib.sha256(b"4").hexdigest()
ODD_VALUES = {
    "replica that is none": ("events", "TurnFinished", "replica_id", lambda v: 99),
    "action that is none": ("events", "TurnFinished", "closes", lambda v: 10**6),
    "trajectory that is none": ("events", "ToolReturned", "trajectory_id", lambda v: 10**6),
    "time that goes back": ("events", "ToolReturned", "t_s", lambda v: 0.0),
    "outcome that is none": ("events", "ToolReturned", "status", lambda v: "odd"),
    "type that is none": ("events", "ToolReturned", "type", lambda v: "Odd"),
    "another type": ("events", "ToolReturned", "type", lambda v: "WeightsLoaded"),
    "nothing for a number": ("events", "TurnFinished", "output_tokens", lambda v: None),
    "action of no type": ("actions", "SubmitTurn", "type", lambda v: "Odd"),
    "action of nobody": ("actions", "SubmitTurn", "cause", lambda v: None),
}


@pytest.mark.parametrize(("name", "kind", "column", "change"), ODD_VALUES.values(), ids=ODD_VALUES)
def test_a_record_that_no_run_could_have_made(run, capsys, name, kind, column, change):
    rewrite_unseen(run, name, lambda table: with_value(table, row_of(table, kind), column, change))
    (line,) = differences(run, capsys)
    assert "seq " in line


def test_a_policy_that_fails_on_what_it_is_told_again(run, capsys, monkeypatch):
    asked = []

    def on_event(policy, now, event, view):
        asked.append(event)
        if len(asked) == 7:
            raise TypeError("not again\nat all")
        return right(policy, now, event, view)

    right = LoadBalance.on_event
    monkeypatch.setattr(LoadBalance, "on_event", on_event)
    (line,) = differences(run, capsys)
    assert "seq " in line
    assert "libra.policies.load_balance:LoadBalance failed at seq " in line
    assert "TypeError: not again (" in line


@pytest.mark.parametrize("change", [{"policies": ["a"]}, {"files": 4}, {"config": 4, "config_sha256": FOUR}])
def test_a_manifest_that_no_program_wrote(run, refused, change):
    manifest = run / "manifest.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps(content | change), encoding="utf-8")
    message = refused("replay", run)
    assert message.startswith(f"{run}: damaged (")
    assert message.endswith("; run it again")


def test_a_row_too_many(run, capsys):
    rewrite(run, "events", lambda table: pa.concat_tables([table, table.slice(table.num_rows - 1)]))
    (line,) = differences(run, capsys)
    assert "seq " in line


def test_the_end_cut_off(run, capsys):
    rewrite(run, "events", lambda table: table.slice(0, table.num_rows - 3))
    (line,) = differences(run, capsys)
    assert "seq " in line or "events.parquet" in line


def test_a_configuration_that_was_changed(run, capsys):
    manifest = run / "manifest.json"
    text = manifest.read_text(encoding="utf-8")
    assert '"max_concurrent_rollouts": 6' in text
    manifest.write_text(
        text.replace('"max_concurrent_rollouts": 6', '"max_concurrent_rollouts": 5'), encoding="utf-8"
    )
    (line,) = differences(run, capsys)
    assert "the configuration was changed after the run" in line


def test_a_table_that_is_gone(run, capsys):
    (run / "turns.parquet").unlink()
    (line,) = differences(run, capsys)
    assert line.endswith("turns.parquet: missing")


def test_a_table_cut_short(run, capsys):
    path = run / "turns.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    (line,) = differences(run, capsys)
    assert "turns.parquet" in line


def test_the_events_cut_short(run, refused):
    path = run / "events.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert "events.parquet: damaged" in refused("replay", run)


def test_one_bad_run_does_not_hide_the_others(run, original, capsys):
    (run / "turns.parquet").unlink()
    assert main(["replay", str(original), str(run)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-1].startswith("2 runs, ")
    assert out[-1].endswith(" 1 differ")
