"""A sweep's folder: whose cells are in it, and several processes that work in it at a time."""

import json
import shutil

import pytest

from libra.locks import in_use
from sim.cli.main import main
from sim.locks import only_writer
from sim.sweeps import execute
from tests.system.sweeping import check_whole, contents, finished_cells
from tests.system.tiny import TURNS, write_experiment

SWEEP = ["sweep", "tiny.yaml", "--out", "out", "--jobs", "1", "--no-report"]
NAMES = ["batch_size=4,seed=0", "batch_size=4,seed=1", "batch_size=8,seed=0", "batch_size=8,seed=1"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With an experiment of four cells."""
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, {"sweep": {"axes": {"batch_size": [4, 8]}, "seeds": 2}})
    return tmp_path


def replaced(text: str, what: str) -> str:
    return f"out: holds the sweep of {what}; give another --out, or --fresh to replace it"


def test_an_edited_trace_is_another_sweep(folder, refused, capsys):
    assert main(SWEEP) == 0
    (folder / "turns.csv").write_text(TURNS.replace("380,25", "380,26"), encoding="utf-8")
    assert refused(*SWEEP) == replaced("out", "another content of the workload's files")
    (folder / "turns.csv").write_text(TURNS, encoding="utf-8")
    assert main(SWEEP) == 0
    (folder / "trajs.csv").write_text("trajectory_id,reward\na,1\n", encoding="utf-8")
    assert refused(*SWEEP) == replaced("out", "another content of the workload's files")
    assert main([*SWEEP, "--fresh"]) == 0
    assert "4 cells done, 0 were finished before" in capsys.readouterr().err


def test_a_recorded_run_as_workload_counts_by_its_tables(folder, refused):
    assert main(["run", "tiny.yaml", "--out", "made"]) == 0
    write_experiment(folder, {"workload": {"kind": "run", "path": "made"}, "sweep": {"seeds": 1}})
    assert main(SWEEP) == 0
    again = [
        "run",
        "tiny.yaml",
        "--set",
        "workload={kind: turns, path: turns.csv}",
        "--fresh",
        "--out",
        "made",
    ]
    assert main([*again, "--set", "workload.repeat=2"]) == 0
    assert main(SWEEP) == 0, "the same run has the same tables"
    assert main([*again, "--set", "workload.repeat=2", "--set", "batch_size=2"]) == 0
    assert refused(*SWEEP) == replaced("out", "another content of the workload's files")


def test_another_level_of_recording_is_another_sweep(folder, refused):
    assert main(SWEEP) == 0
    found = refused(*SWEEP, "--record", "summary")
    assert found == replaced("out", "another level of recording (--record full)")
    assert main([*SWEEP, "--record", "summary", "--fresh"]) == 0
    assert refused(*SWEEP) == replaced("out", "another level of recording (--record summary)")


def test_a_trace_that_is_gone_is_named(folder, refused):
    (folder / "turns.csv").unlink()
    assert refused(*SWEEP) == "turns.csv: no such file; check the path"


@pytest.fixture
def whole(folder):
    """The sweep as one process makes it."""
    assert main([*SWEEP[:3], "whole", *SWEEP[4:]]) == 0
    return contents(folder / "whole")


def test_what_another_process_is_making_is_waited_for_and_not_made_twice(folder, whole, capsys, monkeypatch):
    other = only_writer(folder / "out" / "cells" / NAMES[1])
    other.__enter__()
    waited = []

    def finished_by_the_other(path):
        waited.append(path.name)
        assert [cell.name for cell in finished_cells(folder / "out")] == [NAMES[0], *NAMES[2:]]
        shutil.copytree(folder / "whole" / "cells" / path.name, path)
        other.__exit__(None, None, None)

    monkeypatch.setattr(execute, "wait_for_writer", finished_by_the_other)
    capsys.readouterr()
    assert main(SWEEP) == 0
    assert waited == [NAMES[1]]
    assert "3 cells done, 1 were finished before, 0 failed" in capsys.readouterr().err
    assert contents(folder / "out") == whole
    assert sorted(path.name for path in (folder / "out" / "cells").iterdir()) == NAMES


def test_what_another_process_leaves_when_it_dies_is_made_after_all(folder, whole, capsys, monkeypatch):
    out = folder / "out" / "cells"
    other = only_writer(out / NAMES[0])
    other.__enter__()
    half = out / f".{NAMES[0]}.partial"
    half.mkdir()
    (half / "events.parquet").write_text("half", encoding="utf-8")
    monkeypatch.setattr(execute, "wait_for_writer", lambda path: other.__exit__(None, None, None))
    capsys.readouterr()
    assert main(SWEEP) == 0
    assert "4 cells done, 0 were finished before, 0 failed" in capsys.readouterr().err
    assert contents(folder / "out") == whole
    assert sorted(path.name for path in out.iterdir()) == NAMES


def test_a_half_written_cell_of_another_process_is_left_alone(folder, refused):
    """As two runs into one directory leave each other's files alone."""
    half = folder / ".out.partial"
    with only_writer(folder / "out"):
        half.mkdir()
        (half / "events.parquet").write_text("half", encoding="utf-8")
        message = refused("run", "tiny.yaml", "--out", "out")
    assert message == "out: another process is making it; wait for its end or give another --out"
    assert main(["run", "tiny.yaml", "--out", "out"]) == 0
    check_names = sorted(path.name for path in folder.iterdir())
    assert check_names == ["out", "tiny.yaml", "turns.csv"]


def test_a_sweep_that_is_running_is_not_replaced(folder, refused):
    assert main(SWEEP) == 0
    with in_use(folder / "out" / "sweep.json"):
        message = refused(*SWEEP, "--fresh")
    assert message == "out: a sweep is running in it; wait for its end or give another --out"
    assert main([*SWEEP, "--fresh"]) == 0


@pytest.mark.parametrize("begun", [["cells"], [".sweep.json.77.part"], ["cells", ".sweep.json.77.part"]])
def test_a_folder_that_another_process_has_just_begun_is_joined(folder, begun):
    for name in begun:
        (folder / "out").mkdir(exist_ok=True)
        (folder / "out" / name).mkdir() if name == "cells" else (folder / "out" / name).touch()
    assert main(SWEEP) == 0
    check_whole(folder / "out")


def test_of_two_sweeps_that_begin_in_one_folder_the_second_is_refused(folder, refused, monkeypatch):
    """The other's file comes up after this one has looked and before it gives its own its name."""
    assert main([*SWEEP[:3], "whole", *SWEEP[4:]]) == 0
    right = execute._publish

    def late(part, file):
        described = json.loads(part.read_text(encoding="utf-8"))
        file.write_text(json.dumps(described | {"experiment_hash": "0"}), encoding="utf-8")
        right(part, file)

    monkeypatch.setattr(execute, "_publish", late)
    assert main(SWEEP) == 2
    assert json.loads((folder / "out" / "sweep.json").read_text(encoding="utf-8"))["experiment_hash"] == "0"
    assert finished_cells(folder / "out") == []
    assert [path.name for path in (folder / "out").iterdir() if path.name.startswith(".")] == []


def test_the_note_of_a_failure_goes_when_the_cell_is_there_whoever_made_it(folder):
    assert main(SWEEP) == 0
    failed = folder / "out" / "failed"
    failed.mkdir()
    note = json.dumps({"point": {"batch_size": "4"}, "seed": 1, "error": "killed"})
    (failed / f"{NAMES[1]}.json").write_text(note, encoding="utf-8")
    assert main(SWEEP) == 0
    assert list(failed.iterdir()) == []


def test_shards_at_the_same_time_make_the_same_sweep(folder, whole):
    for shard in ("1/2", "0/2"):
        assert main([*SWEEP, "--shard", shard]) == 0
    assert contents(folder / "out") == whole
