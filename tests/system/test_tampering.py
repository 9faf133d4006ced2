"""A record that was changed by hand does not replay, and the first sequence number that differs is named."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
    assert f"seq {seqs[0]}" in line or "action 12 is missing or out of its place" in line


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
