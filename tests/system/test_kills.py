"""A sweep that is killed or interrupted at any moment goes on as if nothing had been, and leaves nobody behind."""

import os
import signal
import time

import numpy as np
import pandas as pd
import pytest

from tests.system import sweeping
from tests.system.sweeping import (
    NUM_CELLS,
    check_whole,
    contents,
    finished_cells,
    members,
    start,
    summary,
    wait_for,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc"),
]

NUM_PROMPTS = 48
"""A cell of about a fifth of a second."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def experiment(folder):
    return sweeping.write_sweep(folder, NUM_PROMPTS)


@pytest.fixture(scope="module")
def undisturbed(folder, experiment):
    out = folder / "undisturbed"
    sweeping.run_to_end(experiment, out, "--jobs", "2")
    return out


def at_some_moment(out, rng, process) -> None:
    """Once the sweep has begun, wait a part of the time that it takes."""
    assert wait_for(lambda: (out / "sweep.json").exists()), process.communicate()
    time.sleep(float(rng.uniform(0.0, 2.0)))


@pytest.mark.parametrize("attempt", range(2))
def test_killed_and_started_again(folder, experiment, undisturbed, attempt):
    rng = np.random.default_rng(attempt)
    out = folder / f"killed{attempt}"
    for _ in range(2):
        process = start(experiment, out, "--jobs", "2")
        at_some_moment(out, rng, process)
        process.kill()
        process.communicate()
        check_whole(out)
        assert wait_for(lambda: not members(process.pid)), "workers outlive their sweep"  # noqa: B023
    sweeping.run_to_end(experiment, out, "--jobs", "2")
    assert contents(out) == contents(undisturbed)
    pd.testing.assert_frame_equal(summary(out), summary(undisturbed))


@pytest.mark.parametrize("everybody", [True, False], ids=["the whole group", "the parent alone"])
def test_interrupted_and_started_again(folder, experiment, undisturbed, everybody):
    rng = np.random.default_rng(7 + everybody)
    out = folder / f"interrupted{everybody}"
    process = start(experiment, out, "--jobs", "2")
    at_some_moment(out, rng, process)
    before = time.monotonic()
    (os.killpg if everybody else os.kill)(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    if process.returncode != 0:  # it was not over before
        assert process.returncode == 130
        assert err.rstrip().endswith("interrupted; what was finished is kept")
        assert "Traceback" not in err
        assert time.monotonic() - before < 3.0
    assert wait_for(lambda: not members(process.pid), 3.0), "workers outlive their sweep"
    check_whole(out)
    sweeping.run_to_end(experiment, out, "--jobs", "2")
    assert contents(out) == contents(undisturbed)
    pd.testing.assert_frame_equal(summary(out), summary(undisturbed))


def test_an_interrupt_does_not_wait_for_long_cells(folder):
    """Each of these cells would take half a minute."""
    experiment = sweeping.write_sweep(folder / "long", 10_000)
    out = folder / "long" / "out"
    process = start(experiment, out, "--jobs", "2")
    assert wait_for(lambda: len(members(process.pid)) >= 4), (
        "parent, resource tracker or fork server, two workers"
    )
    assert wait_for(lambda: any((out / "cells").glob(".*.partial")))
    before = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - before < 5.0
    assert wait_for(lambda: not members(process.pid), 3.0)
    assert finished_cells(out) == []


def test_a_worker_that_is_killed_is_told_of_and_the_rest_kept(folder, experiment, undisturbed):
    out = folder / "worker"
    process = start(experiment, out, "--jobs", "2")
    assert wait_for(lambda: any((out / "cells").glob("[!.]*")))
    victim = max(members(process.pid))
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    if process.returncode != 0:  # the newest process may have been none of the workers
        assert process.returncode == 2
        assert "error: a worker process died" in err
    check_whole(out)
    assert wait_for(lambda: not members(process.pid), 3.0)
    sweeping.run_to_end(experiment, out, "--jobs", "2")
    assert len(finished_cells(out)) == NUM_CELLS
    assert contents(out) == contents(undisturbed)


def test_two_sweeps_in_one_folder_share_the_work(folder, experiment, undisturbed):
    """Both end with the whole sweep, also where one of them is killed on the way."""
    out = folder / "shared"
    first, second, third = (start(experiment, out, "--jobs", "1", hash_seed=i) for i in range(3))
    assert wait_for(lambda: out.exists() and any((out / "cells").glob("[!.]*")))
    third.kill()
    for process in (first, second, third):
        _, err = process.communicate(timeout=120)
        assert process.returncode == (-signal.SIGKILL if process is third else 0), err
    assert len(finished_cells(out)) == NUM_CELLS
    assert contents(out) == contents(undisturbed)
