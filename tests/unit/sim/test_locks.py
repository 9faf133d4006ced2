"""Who makes a run directory holds a lock that ends with its process."""

import os

import pytest

from libra.errors import UserError
from sim.locks import BusyError, lock_file, only_writer, wait_for_writer


def test_one_writer_at_a_time(tmp_path):
    out = tmp_path / "deep" / "out"
    with only_writer(out):
        assert lock_file(out).is_file()
        with pytest.raises(BusyError, match="out: another process is making it; wait for its end or give"):
            only_writer(out).__enter__()
        with only_writer(tmp_path / "deep" / "other"):
            pass
        assert lock_file(out).is_file(), "who was refused must not remove the lock of who was not"
    assert list((tmp_path / "deep").iterdir()) == []
    with only_writer(out):
        pass


def test_the_lock_of_a_process_that_is_dead_is_taken_over(tmp_path):
    """Such a file stays behind after `kill -9`; nobody holds it."""
    out = tmp_path / "out"
    child = os.fork()
    if child == 0:
        held = only_writer(out)
        held.__enter__()
        os._exit(0)
    os.waitpid(child, 0)
    assert lock_file(out).is_file()
    wait_for_writer(out)
    with only_writer(out):
        pass
    assert not lock_file(out).exists()


def test_waiting_for_nobody_ends_at_once(tmp_path):
    wait_for_writer(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"x: cannot be made \(Not a directory\); give a writable place"):
        only_writer(tmp_path / "file" / "x").__enter__()
