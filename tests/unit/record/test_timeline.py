"""The trace obeys the trace-event format and shows what the tables hold."""

import json
from collections import Counter

import pytest

from libra.record.reader import Run
from libra.record.timeline import FIRST_REPLICA_PID, TRAINER_PID, trace, write_trace
from libra.record.writer import RunWriter


@pytest.fixture(scope="module")
def run(tmp_path_factory, story, info):
    directory = tmp_path_factory.mktemp("timeline") / "run"
    with RunWriter(directory) as writer:
        for step in story().steps():
            writer.append(step)
        writer.close(info)
    return Run.open(directory)


@pytest.fixture(scope="module")
def entries(run):
    return trace(run, run.events)["traceEvents"]


REQUIRED = {
    "X": {"name", "ts", "dur", "pid", "tid"},
    "b": {"name", "cat", "id", "ts", "pid", "tid"},
    "e": {"name", "cat", "id", "ts", "pid", "tid"},
    "C": {"name", "ts", "pid", "args"},
    "M": {"name", "pid", "args"},
}


def test_every_entry_has_what_its_phase_requires(entries):
    assert {entry["ph"] for entry in entries} == set(REQUIRED)
    for entry in entries:
        assert REQUIRED[entry["ph"]] <= set(entry)
        assert entry["ts"] >= 0
        assert entry.get("dur", 0) >= 0
    assert [entry["ts"] for entry in entries] == sorted(entry["ts"] for entry in entries)


def test_turns_are_pairs(entries, run):
    begun = Counter((e["cat"], e["id"], e["pid"]) for e in entries if e["ph"] == "b")
    assert begun == Counter((e["cat"], e["id"], e["pid"]) for e in entries if e["ph"] == "e")
    assert set(begun.values()) == {1}
    assert len(begun) == len(run.turns)


def test_counters_end_at_zero_and_never_fall_below(entries):
    levels = {}
    for entry in entries:
        if entry["ph"] == "C":
            level = entry["args"]["turns"]
            assert level >= 0
            levels[entry["pid"]] = level
    assert levels == {FIRST_REPLICA_PID: 0, FIRST_REPLICA_PID + 1: 0}


def test_tracks(entries, run):
    names = {e["pid"]: e["args"]["name"] for e in entries if e["name"] == "process_name"}
    assert names == {TRAINER_PID: "trainer", 10: "replica 0 (TP 1, node 0)", 11: "replica 1 (TP 4, node 0)"}
    spans = [e for e in entries if e["ph"] == "X"]
    steps = [e for e in spans if e["name"].startswith("step ")]
    assert [e["dur"] for e in steps] == [3e6] * len(run.train_steps)
    assert sum(e["name"].startswith("load ") for e in spans) == 2 * len(run.train_steps)
    assert sum(e["name"].startswith("publish ") for e in spans) == len(run.train_steps)


def test_file_is_strict_json_and_reproducible(run, tmp_path):
    for name in ("a", "b"):
        write_trace(run, run.events, tmp_path / f"{name}.json")
    text = (tmp_path / "a.json").read_text()
    assert text == (tmp_path / "b.json").read_text()
    json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))
