"""A run directory is complete or absent, exact, and the same bytes for the same run."""

import hashlib
import json
import timeit

import pyarrow as pa
import pytest

from libra.core import events as ev
from libra.core.ids import EndReason
from libra.core.step import Step
from libra.errors import UserError
from libra.record import writer as writer_module
from libra.record.frames import summary
from libra.record.manifest import HostInfo
from libra.record.reader import Run
from libra.record.writer import RunWriter


def record(directory, steps, info, **options):
    with RunWriter(directory, **options) as writer:
        for step in steps:
            writer.append(step)
        return writer.close(info)


def flat(step):
    actions = [(type(action), repr(action)) for action in step.actions]
    return (step.seq, step.now_s, type(step.event), repr(step.event), step.first_action_id, actions)


def digests(directory):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@pytest.mark.parametrize("chunk_steps", [1, 50, 100_000])
@pytest.mark.parametrize("digest_steps", [7, 4000])
def test_recorded_steps_come_back_exactly(tmp_path, monkeypatch, story, info, chunk_steps, digest_steps):
    monkeypatch.setattr(writer_module, "DIGEST_STEPS", digest_steps)
    steps = list(story().steps())
    record(tmp_path / "run", steps, info, chunk_steps=chunk_steps)
    assert [flat(step) for step in Run.open(tmp_path / "run").steps()] == [flat(step) for step in steps]


@pytest.mark.parametrize("chunk_steps", [60, 100_000])
def test_same_run_same_bytes(tmp_path, story, info, chunk_steps):
    for name, ended in (("a", "2026-01-01T00:00:00"), ("b", "2026-01-01T00:00:09")):
        with RunWriter(tmp_path / name, chunk_steps=chunk_steps) as writer:
            for step in story().steps():
                writer.append(step)
            writer.close(info, HostInfo(ended_at=ended))
    left, right = digests(tmp_path / "a"), digests(tmp_path / "b")
    assert left.pop("host.json") != right.pop("host.json")
    assert left == right
    assert {"manifest.json", "summary.json", "events.parquet", "turns.parquet"} < set(left)


def test_tables_do_not_depend_on_the_size_of_chunks(tmp_path, monkeypatch, story, info):
    record(tmp_path / "large", story().steps(), info)
    monkeypatch.setattr(writer_module, "DIGEST_STEPS", 10)
    record(tmp_path / "small", story().steps(), info, chunk_steps=25)
    large, small = Run.open(tmp_path / "large"), Run.open(tmp_path / "small")
    for name, keys in [("turns", ["seq"]), ("trajectories", ["trajectory_id"]), ("replicas", ["replica_id"])]:
        left = getattr(large, name).sort_values(keys).astype(object).to_dict("list")
        right = getattr(small, name).sort_values(keys).astype(object).to_dict("list")
        assert repr(left) == repr(right)
    assert large.summary == pytest.approx(small.summary, rel=1e-12, nan_ok=True)


def test_summary_level_has_the_same_figures_and_no_tables(tmp_path, story, info):
    full = record(tmp_path / "full", story().steps(), info)
    short = record(tmp_path / "short", story().steps(), info, level="summary")
    assert short == pytest.approx(full, rel=0, abs=0, nan_ok=True)
    assert {path.name for path in (tmp_path / "short").iterdir()} == {
        "manifest.json",
        "host.json",
        "summary.json",
    }
    assert summary(Run.open(tmp_path / "full")) == pytest.approx(full, rel=1e-12, nan_ok=True)
    with pytest.raises(UserError, match=r"events\.parquet: not recorded, .*record with level full"):
        _ = Run.open(tmp_path / "short").events


class DiskFull(OSError):
    pass


@pytest.mark.parametrize("at_call", [0, 1, 3])
def test_a_write_error_leaves_nothing(tmp_path, monkeypatch, story, info, at_call):
    calls = []
    real = writer_module._Table.write

    def write(self, batch):
        calls.append(1)
        if len(calls) > at_call:
            raise DiskFull(28, "No space left on device")
        real(self, batch)

    monkeypatch.setattr(writer_module._Table, "write", write)
    with pytest.raises(DiskFull):
        record(tmp_path / "run", story().steps(), info, chunk_steps=50)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupt_leaves_nothing(tmp_path, story, error):
    def run():
        with RunWriter(tmp_path / "run", chunk_steps=50) as writer:
            for step in story().steps():
                writer.append(step)
            raise error

    with pytest.raises(error):
        run()
    assert list(tmp_path.iterdir()) == []


def test_leaving_without_close_leaves_nothing(tmp_path):
    with RunWriter(tmp_path / "run"):
        assert not (tmp_path / "run").exists()
    assert list(tmp_path.iterdir()) == []


def test_the_left_over_of_a_killed_run_does_not_matter(tmp_path, story, info):
    stale = tmp_path / ".run.partial"
    stale.mkdir()
    (stale / "events.parquet").write_text("half")
    record(tmp_path / "run", story().steps(), info)
    assert Run.open(tmp_path / "run").manifest["counts"]["replicas"] == 2
    assert not stale.exists()


def test_an_existing_directory_is_kept_unless_told(tmp_path, story, info):
    record(tmp_path / "run", story(seed=1).steps(), info)
    before = digests(tmp_path / "run")
    with pytest.raises(UserError, match="exists already; remove it"):
        RunWriter(tmp_path / "run")
    assert digests(tmp_path / "run") == before
    record(tmp_path / "run", story(seed=2).steps(), info, overwrite=True)
    assert digests(tmp_path / "run")["turns.parquet"] != before["turns.parquet"]


def test_a_place_that_cannot_be_made_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="give a writable place"):
        RunWriter(tmp_path / "file" / "run")


def test_a_run_without_anything_is_a_run(tmp_path, info):
    steps = [Step(0, 0.0, ev.RunEnding(EndReason.STALLED), 0, ())]
    figures = record(tmp_path / "run", steps, info)
    run = Run.open(tmp_path / "run")
    assert (len(run.turns), len(run.trajectories), len(run.train_steps), len(run.replicas)) == (0, 0, 0, 0)
    assert figures["num_turns"] == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["trained_tokens_per_s"] is None
    assert (figures["makespan_s"], figures["num_trajectories"]) == (0.0, 0.0)
    assert summary(run) == pytest.approx(figures, nan_ok=True)


def test_manifest_says_what_was_run(tmp_path, story, info):
    record(tmp_path / "run", story().steps(), info)
    manifest = Run.open(tmp_path / "run").manifest
    wanted = '{"name":"story","seed":3}'
    assert manifest["config_sha256"] == hashlib.sha256(wanted.encode()).hexdigest()
    assert (manifest["commit"], manifest["exit_reason"], manifest["seed"]) == ("abc", "completed", 3)
    events = Run.open(tmp_path / "run").events
    assert manifest["counts"]["events"] == len(events)
    assert manifest["horizon_s"] == events["t_s"].max()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "manifest.json").unlink(), r"manifest\.json: missing"),
        (lambda run: (run / "manifest.json").write_text("{"), r"manifest\.json: damaged"),
        (
            lambda run: (run / "manifest.json").write_text('{"schema_version": 99}'),
            "schema_version 99, this program reads 2",
        ),
        (lambda run: (run / "turns.parquet").unlink(), r"turns\.parquet: missing"),
        (lambda run: (run / "turns.parquet").write_bytes(b"PAR1"), r"turns\.parquet: damaged"),
        (
            lambda run: (run / "turns.parquet").write_bytes((run / "replicas.parquet").read_bytes()),
            "columns differ",
        ),
    ],
)
def test_damaged_runs_are_user_errors(tmp_path, story, info, damage, message):
    record(tmp_path / "run", story(num_groups=2).steps(), info)
    damage(tmp_path / "run")
    with pytest.raises(UserError, match=message) as caught:
        _ = Run.open(tmp_path / "run").turns
    assert "\n" not in str(caught.value)


def test_verify_finds_what_was_changed(tmp_path, story, info):
    record(tmp_path / "run", story(num_groups=2).steps(), info)
    record(tmp_path / "other", story(num_groups=3).steps(), info)
    manifest = tmp_path / "run" / "manifest.json"
    text = manifest.read_text()
    assert Run.open(tmp_path / "run").verify() == ""
    manifest.write_text(text.replace('"name": "story"', '"name": "tale"'))
    assert "the configuration was changed" in Run.open(tmp_path / "run").verify()
    manifest.write_text(text)
    table = tmp_path / "run" / "actions.parquet"
    table.write_bytes((tmp_path / "other" / "actions.parquet").read_bytes())
    assert Run.open(tmp_path / "run").verify() == "action 57 and those after it are missing"
    table.unlink()
    assert Run.open(tmp_path / "run").verify() == f"{table}: missing"


def test_a_manifest_that_lacks_a_key_is_a_user_error(tmp_path):
    (tmp_path / "manifest.json").write_text('{"schema_version": 2, "level": "full"}')
    with pytest.raises(UserError, match=r"manifest\.json: lacks 'config'"):
        Run.open(tmp_path)


def test_no_directory_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="no such directory"):
        Run.open(tmp_path / "nothing")


def test_append_is_cheap(tmp_path):
    """Less than 0.3 us a step where no digest is due: the best of many rounds, so that load does not matter."""
    step = Step(0, 0.0, ev.RunEnding(EndReason.STALLED), 0, ())
    with RunWriter(tmp_path / "run", level="summary") as writer:
        timer = timeit.Timer("append(step)", globals={"append": writer.append, "step": step})
        best = min(timer.repeat(repeat=30, number=100)) / 100
    assert best < 0.3e-6


def test_memory_stays_flat(tmp_path, story, info):
    """Arrow's own count of live bytes and the writer's lists: neither grows with the run."""
    steps = list(story(num_groups=60).steps())
    held = []
    with RunWriter(tmp_path / "run", chunk_steps=200) as writer:
        writer_module_digest = writer._digest
        for number, step in enumerate(steps):
            writer.append(step)
            if number % 100 == 99:
                writer_module_digest()
                turns = sum(len(part) for part in writer._turns._kept)
                held.append(
                    (writer._events.num_rows, turns, len(writer._deriver._lives), pa.total_allocated_bytes())
                )
        writer.close(info)
    late, early = held[len(held) // 2 :], held[: len(held) // 2]
    for position, slack in enumerate((0, 60, 24, 1 << 20)):
        assert max(row[position] for row in late) <= max(row[position] for row in early) + slack
    assert max(row[0] for row in held) < 300
