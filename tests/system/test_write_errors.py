"""A disk that fills up: one line, nothing half-written under a final name, and the other cells are finished."""

import errno
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sim.cli.main import main
from tests.system.sweeping import NUM_CELLS, check_whole, contents, finished_cells, write_sweep
from tests.system.tiny import write_experiment

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Fails:
    """Fails for paths that contain a text, until it is `mended`."""

    def __init__(self, monkeypatch, part: str) -> None:
        self.part, self.mended = part, False
        self._patch = monkeypatch

    def check(self, path) -> None:
        if not self.mended and self.part in str(path):
            raise FULL

    def break_writer(self, method: str) -> None:
        """`pyarrow.parquet.ParquetWriter`, whose `where` is the path."""
        made = pq.ParquetWriter.__init__
        right = getattr(pq.ParquetWriter, method)

        def init(writer, where, *args, **kwargs) -> None:
            made(writer, where, *args, **kwargs)
            writer.where_it_writes = where

        def wrong(writer, *args, **kwargs):
            self.check(getattr(writer, "where_it_writes", ""))
            return right(writer, *args, **kwargs)

        self._patch.setattr(pq.ParquetWriter, "__init__", init)
        self._patch.setattr(pq.ParquetWriter, method, wrong)

    def break_path(self, method: str) -> None:
        """A method of `Path`."""
        right = getattr(Path, method)

        def wrong(path, *args, **kwargs):
            self.check(path)
            return right(path, *args, **kwargs)

        self._patch.setattr(Path, method, wrong)


BREAKS = {
    "a table": lambda fails: fails.break_writer("write_batch"),
    "the end of a table": lambda fails: fails.break_writer("close"),
    "the manifest": lambda fails: fails.break_path("write_text"),
    "the last rename": lambda fails: fails.break_path("rename"),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_run_that_cannot_be_written(tmp_path, monkeypatch, capsys, what):
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path)
    fails = Fails(monkeypatch, ".out.partial")
    BREAKS[what](fails)
    assert main(["run", "tiny.yaml", "--out", "out"]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert "No space left on device" in line
    assert captured.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.yaml", "turns.csv"]
    fails.mended = True
    assert main(["run", "tiny.yaml", "--out", "out"]) == 0


@pytest.mark.parametrize("what", BREAKS)
def test_a_cell_that_cannot_be_written(tmp_path, monkeypatch, capsys, what):
    monkeypatch.chdir(tmp_path)
    experiment = write_sweep(tmp_path, num_prompts=4)
    fails = Fails(monkeypatch, "router=round,max_head_offpolicyness=2,seed=1.partial")
    BREAKS[what](fails)
    argv = ["sweep", str(experiment), "--out", "out", "--jobs", "1", "--no-report"]
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert err.count("failed: router=round,max_head_offpolicyness=2,seed=1: ") == 1
    assert "No space left on device" in err
    assert "11 cells done, 0 were finished before, 1 failed" in err
    out = tmp_path / "out"
    assert len(finished_cells(out)) == NUM_CELLS - 1
    assert [path.name for path in (out / "failed").iterdir()] == [
        "router=round,max_head_offpolicyness=2,seed=1.json"
    ]
    check_whole(out)
    before = contents(out)
    fails.mended = True
    assert main(argv) == 0
    assert "1 cells done, 11 were finished before, 0 failed" in capsys.readouterr().err
    after = contents(out)
    assert len(after) == NUM_CELLS
    assert {name: after[name] for name in before} == before
    assert list((out / "failed").iterdir()) == []


def test_a_failure_that_cannot_even_be_noted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    experiment = write_sweep(tmp_path, num_prompts=4)
    Fails(monkeypatch, "router=round").break_path("write_text")
    assert main(["sweep", str(experiment), "--out", "out", "--jobs", "1", "--no-report"]) == 1
    assert "8 cells done, 0 were finished before, 4 failed" in capsys.readouterr().err
    check_whole(tmp_path / "out")


def test_a_sweep_folder_that_cannot_be_begun(refused, tmp_path, monkeypatch):
    experiment = write_sweep(tmp_path, num_prompts=4)
    Fails(monkeypatch, "sweep.json").break_path("write_text")
    monkeypatch.setattr(Path, "mkdir", lambda *args, **kwargs: None)
    message = refused("sweep", experiment, "--out", "out", "--jobs", "1", "--no-report")
    assert message == "out: cannot be written (No space left on device); give another --out"


def test_all_cells_fail(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    experiment = write_sweep(tmp_path, num_prompts=4)
    Fails(monkeypatch, ".partial").break_path("rename")
    assert main(["sweep", str(experiment), "--out", "out", "--jobs", "1", "--no-report"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        "error: every cell failed; the first: cannot write the run (No space left on device"
    )
    assert finished_cells(tmp_path / "out") == []
