"""The folder of a run, its checkpoints, and which prompts are done."""

import asyncio
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.checkpoints import Checkpoints, read_progress
from executor.progress import Progress
from executor.run_folder import RunFolder
from libra.core.ids import EndReason
from libra.errors import UserError

CONFIG = {"name": "x", "seed": 0, "total_steps": 10, "executor": {"trainer": {"lr": 0.1}}}
POLICIES = {"routing": "abc"}


def opened(root, config=CONFIG, policies=POLICIES, fresh=False):
    return RunFolder.open(root, config, policies, fresh=fresh)


def checkpoints_of(root, *, interval=1, keep=100, last=10):
    return Checkpoints(root / "checkpoints", interval_steps=interval, keep=keep, last_step=last)


def save(checkpoints, version, numbers=(), fail=False):
    async def save_trainer(folder):
        folder.mkdir()
        (folder / "weights").write_text(str(version))
        if fail:
            raise UserError("trainer: save failed: disk full")

    progress = Progress(version)
    progress.finish(numbers)
    return asyncio.run(checkpoints.save(progress, save_trainer))


# -- identity -----------------------------------------------------------------------------------------------


def test_the_same_experiment_goes_on_and_another_is_refused(tmp_path):
    root = tmp_path / "run"
    opened(root).close()
    opened(root).close()
    other = {**CONFIG, "executor": {"trainer": {"lr": 0.2}}}
    with pytest.raises(UserError, match=r"another configuration \(executor.trainer.lr was 0.1, is 0.2\)"):
        opened(root, other)
    with pytest.raises(UserError, match="a policy's source has changed"):
        opened(root, policies={"routing": "abd"})
    opened(root, other, fresh=True).close()
    with pytest.raises(UserError, match=r"lr was 0\.2, is 0\.1"):
        opened(root)


def test_a_folder_in_use_is_refused_and_left_alone_also_by_fresh(tmp_path):
    folder = opened(tmp_path / "run")
    folder.log_step({"version": 1})
    for fresh in (False, True):
        with pytest.raises(UserError, match="another executor is at work there"):
            opened(tmp_path / "run", fresh=fresh)
    assert folder.steps.read_text() == '{"version": 1}\n'
    folder.close()
    opened(tmp_path / "run").close()


def test_fresh_removes_a_run_and_nothing_else(tmp_path):
    folder = opened(tmp_path / "run")
    folder.log_step({"version": 1})
    (folder.root / "weights" / "v000001").mkdir(parents=True)
    folder.close()
    opened(tmp_path / "run", fresh=True).close()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", "run.json"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(UserError, match="is not empty and holds no run; give another --out"):
            opened(mine, fresh=fresh)
    assert (mine / "thesis.tex").exists()


def test_a_killed_first_write_does_not_stand_in_the_way(tmp_path):
    (tmp_path / ".run.json.4711").write_text("{")
    opened(tmp_path).close()


def names(root) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.mark.parametrize(
    "content", ["{", "[]", "7", "{}", '{"epochs": 3}', '{"config_sha256": 7, "config": {}}']
)
@pytest.mark.parametrize("fresh", [False, True])
def test_a_run_file_of_somebody_else_is_left_alone(tmp_path, content, fresh):
    (tmp_path / "run.json").write_text(content)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"run.json: is not a run of this program; give another --out$"):
        opened(tmp_path, fresh=fresh)
    assert names(tmp_path) == ["run.json", "thesis.tex"], "no lock is left there either"
    assert (tmp_path / "run.json").read_text() == content


@pytest.mark.parametrize("name", ["thesis.tex", ".lockfile", ".run.json.txt"])
def test_a_refused_folder_is_left_as_it_was(tmp_path, name):
    (tmp_path / name).write_text("years of work")
    with pytest.raises(UserError, match="is not empty and holds no run"):
        opened(tmp_path)
    assert names(tmp_path) == [name]


def test_fresh_removes_what_runs_and_reports_write_and_keeps_the_rest(tmp_path):
    opened(tmp_path).close()
    for folder in ("attempts/001", "checkpoints/step-000001", "weights/v000001", "logs", "figures", "mine"):
        (tmp_path / folder).mkdir(parents=True)
    for file in (
        "steps.jsonl", "steps.partial", "report.html", "timeline.json", "figures/gantt.png", ".run.json.17",
        "thesis.tex", "mine/x",
    ):  # fmt: skip
        (tmp_path / file).write_text("")
    other = {**CONFIG, "seed": 1}
    opened(tmp_path, other, fresh=True).close()
    assert names(tmp_path) == [".lock", "mine", "run.json", "thesis.tex"]
    assert (tmp_path / "mine" / "x").exists()
    opened(tmp_path, other).close()


def test_a_run_that_failed_is_not_done_whatever_its_reason(tmp_path):
    folder = opened(tmp_path)
    folder.finish(EndReason.COMPLETED, failed=True)
    folder.close()
    opened(tmp_path).close()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        opened(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("reason", "done"),
    [
        (EndReason.STEPS_DONE, True),
        (EndReason.COMPLETED, True),
        (EndReason.INTERRUPTED, False),
        (EndReason.FAILED, False),
    ],
)
def test_a_run_that_is_done_is_not_continued(tmp_path, reason, done):
    folder = opened(tmp_path)
    folder.finish(reason)
    folder.close()
    if done:
        with pytest.raises(UserError, match=r"this run is finished; .*give another --out, or --fresh"):
            opened(tmp_path)
    else:
        opened(tmp_path).close()


# -- attempts and steps -------------------------------------------------------------------------------------


def test_attempts_are_counted_and_leftovers_removed(tmp_path):
    folder = opened(tmp_path)
    assert folder.next_attempt().name == "001"
    for name in ("001", "007", ".008.partial", "notes"):
        (tmp_path / "attempts" / name).mkdir()
    assert folder.next_attempt().name == "008"
    assert sorted(os.listdir(tmp_path / "attempts")) == ["001", "007", "notes"]
    folder.close()


def test_resume_forgets_what_came_after_the_checkpoint(tmp_path):
    folder = opened(tmp_path)
    for version in (1, 2, 3):
        folder.log_step({"version": version})
    with folder.steps.open("a") as file:
        file.write('{"version": 4, "rew')  # killed here
    save(checkpoints_of(tmp_path), 2, (0, 1, 3))
    folder.resume(checkpoints_of(tmp_path))
    assert folder.checkpoint == tmp_path / "checkpoints" / "step-000002"
    assert folder.progress == Progress(2, 2, {3})
    assert [json.loads(line)["version"] for line in folder.steps.read_text().splitlines()] == [1, 2]
    folder.log_step({"version": 3})
    assert len(folder.steps.read_text().splitlines()) == 3
    folder.close()


def test_without_a_checkpoint_a_run_begins_anew(tmp_path):
    folder = opened(tmp_path)
    folder.log_step({"version": 1})
    folder.resume(checkpoints_of(tmp_path))
    assert (folder.checkpoint, folder.progress, folder.steps.read_text()) == (None, Progress(), "")
    folder.close()


# -- checkpoints --------------------------------------------------------------------------------------------


def test_when_a_checkpoint_is_due(tmp_path):
    assert [v for v in range(1, 11) if checkpoints_of(tmp_path, interval=3).is_due(v)] == [3, 6, 9, 10]
    assert [v for v in range(1, 11) if checkpoints_of(tmp_path, interval=0).is_due(v)] == [10]


def test_a_checkpoint_is_whole_or_not_there_and_older_ones_go(tmp_path):
    checkpoints = checkpoints_of(tmp_path, keep=2)
    assert checkpoints.latest() is None
    for version in (1, 2, 3):
        save(checkpoints, version)
    with pytest.raises(UserError, match="disk full"):
        save(checkpoints, 4, fail=True)
    assert checkpoints.latest() == tmp_path / "checkpoints" / "step-000003"
    assert not checkpoints.has(4)
    assert (tmp_path / "checkpoints" / ".step-000004.partial").exists()
    path = save(checkpoints, 5, (0, 2))
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-000003", "step-000005"]
    assert (path / "trainer" / "weights").read_text() == "5"
    assert read_progress(path) == Progress(5, 1, {2})


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    checkpoints = checkpoints_of(tmp_path)
    save(checkpoints, 1)
    assert read_progress(save(checkpoints, 1, (0,))).watermark == 1


@pytest.mark.parametrize(
    "content", ["", "[]", '{"version": 1}', '{"version": "x", "watermark": 0, "beyond": []}']
)
def test_a_damaged_checkpoint_is_named_with_the_mend(tmp_path, content):
    checkpoint = save(checkpoints_of(tmp_path), 1)
    (checkpoint / "progress.json").write_text(content)
    with pytest.raises(UserError, match=r"progress.json.*remove"):
        read_progress(checkpoint)


# -- progress -----------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=20))
def test_what_is_done_stays_done_and_is_stored_small(batches):
    progress, done = Progress(), set()
    for batch in batches:
        progress.finish(batch)
        done.update(batch)
        assert {n for n in range(45) if progress.is_done(n)} == done
        assert progress.watermark not in done
        assert all(n > progress.watermark for n in progress.beyond)
        plain = json.loads(json.dumps(progress.to_plain()))
        assert Progress.from_plain(plain, "here") == progress
