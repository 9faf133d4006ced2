"""The folder of a real run: `replay` takes all its attempts, what shows one run takes the last."""

import shutil

import pytest

from libra.errors import UserError
from sim.attempts import attempts_of, last_attempt
from sim.replay import runs_below
from sim.results import RunResult, compare_runs, open_result
from tests.unit.sim.conftest import write_run


@pytest.fixture
def folder(tmp_path):
    """Two recorded attempts, and what a killed third one left."""
    root = tmp_path / "real"
    for number, speed in (("001", 1.0), ("002", 2.0)):
        write_run(root / "attempts" / number, speed)
    shutil.copytree(root / "attempts" / "001", root / "attempts" / ".003.partial")
    (root / "run.json").write_text("{}")
    return root


def test_all_attempts_are_replayed(folder):
    assert runs_below(folder) == [folder / "attempts" / "001", folder / "attempts" / "002"]
    assert runs_below(folder / "attempts" / "001") == [folder / "attempts" / "001"]


def test_attempts_are_in_the_order_of_their_numbers(folder):
    for number in ("999", "1000"):
        shutil.copytree(folder / "attempts" / "001", folder / "attempts" / number)
    assert [path.name for path in attempts_of(folder)] == ["001", "002", "999", "1000"]


def test_the_last_attempt_is_shown_and_compared(folder, tmp_path):
    result = open_result(folder)
    assert isinstance(result, RunResult)
    assert result.directory == folder / "attempts" / "002"
    same = compare_runs(folder, folder / "attempts" / "002")
    assert (same["difference [%]"].dropna() == 0).all()


def test_a_run_without_a_recorded_attempt_is_one_line(folder):
    for number in ("001", "002"):
        shutil.rmtree(folder / "attempts" / number)
    for read in (runs_below, open_result, last_attempt):
        with pytest.raises(UserError, match="no attempt at this run has been recorded yet; wait"):
            read(folder)


def test_a_run_directory_is_itself(tmp_path):
    run = write_run(tmp_path / "run")
    assert (attempts_of(run), last_attempt(run)) == ([], run)
