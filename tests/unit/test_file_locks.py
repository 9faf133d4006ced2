"""Who holds a lock file is alone with it, whatever becomes of the file or of the process."""

import errno
import os
import stat

import pytest

from libra import locks
from libra.errors import UserError
from libra.locks import in_use, is_in_use, take_lock, wait_until_free


def test_one_holder_at_a_time(tmp_path):
    path = tmp_path / "lock"
    held = take_lock(path, 0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert take_lock(path) is None
    held.let_go()
    again = take_lock(path)
    held.let_go()  # the second time lets go of nothing
    assert take_lock(path) is None
    again.let_go()


def test_the_lock_of_a_process_that_is_dead_is_taken_over(tmp_path):
    path = tmp_path / "lock"
    child = os.fork()
    if child == 0:
        held = take_lock(path)
        os._exit(0 if held else 1)
    assert os.waitpid(child, 0)[1] == 0
    wait_until_free(path)
    take_lock(path).let_go()


def test_a_file_that_its_holder_removes_between_opening_and_locking_is_made_anew(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    right, taken = locks._flock, []

    def flock(file, how):
        if not taken:
            path.unlink()  # the holder ends just now
        taken.append(file)
        return right(file, how)

    monkeypatch.setattr(locks, "_flock", flock)
    held = take_lock(path)
    assert len(taken) == 2
    monkeypatch.undo()
    assert take_lock(path) is None
    held.let_go()


def test_several_may_use_a_file(tmp_path):
    path = tmp_path / "f"
    path.touch()
    with in_use(path), in_use(path):
        assert is_in_use(path)
        assert take_lock(path) is None
    assert not is_in_use(path)


def test_a_file_system_without_locks_goes_without(tmp_path, monkeypatch):
    def none(file, how):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    held = take_lock(tmp_path / "lock")
    assert held is not None
    wait_until_free(tmp_path / "lock")
    with in_use(tmp_path):
        assert not is_in_use(tmp_path)
    held.let_go()


def test_what_else_goes_wrong_is_told_and_leaves_no_file_open(tmp_path, monkeypatch):
    def broken(file, how):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(locks.fcntl, "flock", broken)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="broken"):
        take_lock(tmp_path / "lock")
    assert os.listdir("/proc/self/fd") == before


def test_a_run_folder_without_locks_and_one_that_cannot_be_locked(tmp_path, monkeypatch):
    """Both programs go without where there are none; before, the executor took it for another at work."""
    from executor.engines.port_pool import PortPool
    from executor.run_folder import RunFolder

    def fails_with(number):
        def fails(file, how):
            raise OSError(number, os.strerror(number))

        return fails

    monkeypatch.setattr(locks.fcntl, "flock", fails_with(errno.ENOLCK))
    RunFolder.open(tmp_path / "run", {}, {}, fresh=False).close()
    pool = PortPool("18100-18199", lock_folder=tmp_path / "ports")
    assert 18100 <= pool.take() <= 18199
    pool.close()
    monkeypatch.setattr(locks.fcntl, "flock", fails_with(errno.EIO))
    with pytest.raises(
        UserError, match=r"other: cannot be made \(Input/output error\); give a writable --out"
    ):
        RunFolder.open(tmp_path / "other", {}, {}, fresh=False)
