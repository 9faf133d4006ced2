"""`sim.run`, `sim.sweep`, `sim.compare`: what they give, how long it lives, and what they refuse."""

import gc
import subprocess
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import sim
from libra.config.document import load_document
from libra.errors import PolicyError, UserError
from libra.policies.placement import Placement

QUICKSTART = Path(__file__).resolve().parents[3] / "experiments" / "quickstart.yaml"
TINY = {
    "total_steps": 1,
    "batch_size": 8,
    "n_samples": 4,
    "workload.num_prompts": 2,
    "workload.max_context_tokens": 3000,
    "heterogeneous_rollout.instances": [{"tp": 2, "count": 2}],
}
GRID = {**TINY, "sweep.axes": {}}
LEAST = {"scheduler_type": "load_balance"}


@dataclass(frozen=True)
class PinConfig:
    replica_id: int = 0


class Pin:
    """Everything on one replica."""

    def __init__(self, config: PinConfig, rng: np.random.Generator):
        self.config = config
        self.placement = Placement(lambda trajectory, view: (self.config.replica_id, "pinned"))

    def on_event(self, now, event, view):
        return self.placement.on_event(event, view)


class Places:
    """Nothing, anywhere: the run stalls."""

    def __init__(self, config: PinConfig, rng: np.random.Generator): ...

    def on_event(self, now, event, view):
        return ()


class Raises(Places):
    """A defect of the user's."""

    def on_event(self, now, event, view):
        raise KeyError("a defect")


class Outer:
    """Holds a class that no text `module:Class` leads to."""

    class Inner(Pin): ...


@pytest.fixture(autouse=True)
def temporary_folders_go_here(monkeypatch, tmp_path):
    """Where `leftovers` looks."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def leftovers(tmp_path: Path) -> list[str]:
    gc.collect()
    return [path.name for path in tmp_path.glob("libra-*")]


def test_a_policy_class_with_its_fields_takes_the_routers_place():
    result = sim.run(QUICKSTART, Pin, config={"replica_id": 1}, set=TINY, seed=3)
    assert set(result.turns["replica_id"]) == {1}
    assert result.manifest["seed"] == 3
    scheduling = result.manifest["config"]["heterogeneous_rollout"]["scheduling"]
    assert scheduling == {"scheduler_type": f"{__name__}:Pin", "replica_id": 1}
    assert result.manifest["code_hash"]


def test_path_name_and_mapping_are_the_same_experiment():
    tree = load_document(QUICKSTART).tree
    runs = [sim.run(given, set=TINY, record="summary") for given in (str(QUICKSTART), "quickstart", tree)]
    assert len({run.summary.to_json() for run in runs}) == 1
    assert "sweep" in tree


def test_class_text_and_mapping_are_the_same_policy():
    given = (Pin, f"{__name__}:Pin", {"scheduler_type": f"{__name__}:Pin"})
    runs = [sim.run(QUICKSTART, policy, set=TINY, record="summary") for policy in given]
    assert len({run.summary.to_json() for run in runs}) == 1


def test_a_temporary_result_lives_as_long_as_anything_that_reads_it(tmp_path):
    record = sim.run(QUICKSTART, set=TINY).record
    assert len(record.turns)
    cell = sim.sweep(QUICKSTART, {"least": LEAST, "pin": Pin}, seeds=1, set=GRID).run({"policy": "pin"})
    gc.collect()
    assert set(cell.turns["replica_id"]) == {0}
    assert len(leftovers(tmp_path)) == 2
    gone = weakref.ref(cell)
    del record, cell
    assert leftovers(tmp_path) == []
    assert gone() is None


def test_out_is_kept_and_not_overwritten(tmp_path):
    out = tmp_path / "mine"
    before = sim.run(QUICKSTART, set=TINY, out=out).summary
    gc.collect()
    with pytest.raises(UserError, match="mine"):
        sim.run(QUICKSTART, set=TINY, out=out)
    assert sim.results.RunResult(out).summary.equals(before)


def test_a_sweep_pairs_policies_and_keeps_the_other_axes():
    layouts = {"layout": {"two": {"heterogeneous_rollout.instances": [{"tp": 2, "count": 2}]}}}
    result = sim.sweep(
        QUICKSTART,
        {"least": LEAST, "pin": Pin},
        seeds=[4, 6],
        baseline="pin",
        metric="makespan_s",
        set={**TINY, "sweep.axes": layouts},
        record="summary",
    )
    assert result.axes == ["policy", "layout"]
    assert len(result.frame) == 4
    (row,) = result.differences()
    assert (row.point, row.baseline_point, row.metric, row.num_pairs) == ("least", "pin", "makespan_s", 2)


def test_a_finished_sweep_is_completed_and_other_code_is_refused(tmp_path, monkeypatch):
    out = tmp_path / "grid"
    first = sim.sweep(QUICKSTART, {"pin": Pin}, seeds=1, set=GRID, out=out, record="summary")
    written = {path: path.stat().st_mtime_ns for path in out.rglob("manifest.json")}
    again = sim.sweep(QUICKSTART, {"pin": Pin}, seeds=1, set=GRID, out=out, record="summary")
    assert again.frame.equals(first.frame)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("manifest.json")} == written
    monkeypatch.setattr("libra.config.resolve.source_of", lambda entry: "an edited policy")
    with pytest.raises(UserError, match="another version of the code"):
        sim.sweep(QUICKSTART, {"pin": Pin}, seeds=1, set=GRID, out=out, record="summary")


def test_two_classes_of_one_name_are_not_compared_with_each_other():
    built = type("Pin", (Pin,), {"__module__": __name__, "__qualname__": "Pin"})
    with pytest.raises(UserError, match="leads to another class"):
        sim.sweep(QUICKSTART, {"old": built, "new": Pin}, seeds=1, set=GRID)


def test_failed_cells_are_told():
    with pytest.warns(UserWarning, match=r"1 of 2 cells failed.*KeyError: 'a defect'"):
        result = sim.sweep(
            QUICKSTART, {"least": LEAST, "raises": Raises}, seeds=1, set=GRID, record="summary"
        )
    assert [cell.point for cell in result.failed] == [{"policy": "raises"}]
    with pytest.raises(UserError, match=r"every cell failed; the first: policy .*:Raises failed at seq 0"):
        sim.sweep(QUICKSTART, {"raises": Raises}, seeds=2, set=GRID)


def test_a_run_that_was_cut_off_is_returned_with_a_warning():
    with pytest.warns(UserWarning, match=r"the run was cut off at sim\.max_sim_s = 1 s"):
        found = sim.run(QUICKSTART, set={**TINY, "sim.max_sim_s": 1.0})
    assert found.manifest["exit_reason"] == "time_limit"
    with pytest.warns(UserWarning, match=r"1 of 2 cells were cut off at sim\.max_sim_s and are in no mean"):
        swept = sim.sweep(
            QUICKSTART,
            set={
                **TINY,
                "sweep.axes": {"limit": {"high": {}, "low": {"sim.max_sim_s": 1.0}}},
                "sweep.baseline": {"limit": "high"},
            },
            seeds=1,
        )
    assert swept.frame["status"].tolist() == ["finished", "time_limit"]


def test_a_run_that_drops_everything_has_nothing_to_return():
    with pytest.raises(UserError, match="no trajectory was trained on: 8 were dropped"):
        sim.run(QUICKSTART, set={**TINY, "heterogeneous_rollout.max_model_len": 16})


def test_failures_leave_no_temporary_folder(tmp_path):
    with pytest.raises(UserError, match="the run stalled"):
        sim.run(QUICKSTART, Places, set=TINY)
    with pytest.raises(PolicyError, match="KeyError: 'a defect'") as caught:
        sim.run(QUICKSTART, Raises, set=TINY)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(UserError):
        sim.sweep(QUICKSTART, {"raises": Raises}, seeds=1, set=GRID)
    assert leftovers(tmp_path) == []


def test_compare_by_name_and_in_a_row():
    pinned, least = (sim.run(QUICKSTART, policy, set=TINY, record="summary") for policy in (Pin, LEAST))
    named = sim.compare({"pin": pinned, "least": least}, baseline="least")
    assert list(named.columns) == ["unit", "pin", "least", "pin against least [%]"]
    row = named.loc["makespan_s"]
    assert row["unit"] == "s"
    assert row["pin against least [%]"] == pytest.approx(100 * (row["pin"] / row["least"] - 1))
    in_a_row = sim.compare(least, pinned)
    assert in_a_row["b against a [%]"].equals(named["pin against least [%]"].rename("b against a [%]"))
    assert np.isnan(in_a_row.loc[in_a_row["a"] == 0, "b against a [%]"]).all()
    assert (in_a_row["a"] == 0).any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sim.run("no_such"), "neither a file nor the name of an experiment; known: .*quickstart"),
        (lambda: sim.run("no/such.yaml"), "no/such.yaml: there is no such file"),
        (lambda: sim.run(QUICKSTART, set=["total_steps=1"]), "set=: give a mapping"),
        (lambda: sim.run(QUICKSTART, set={"total_step": 1}), "did you mean total_steps"),
        (lambda: sim.run(QUICKSTART, config={"replica_id": 1}), "config= needs policy="),
        (lambda: sim.run(QUICKSTART, Pin, config={"replica": 1}), "did you mean replica_id"),
        (lambda: sim.run(QUICKSTART, int), "int: a policy needs a method on_event"),
        (lambda: sim.run(QUICKSTART, Outer.Inner), "Inner: define the class at the top"),
        (lambda: sim.run(QUICKSTART, record="ful"), "must be one of full, summary"),
        (lambda: sim.sweep(QUICKSTART, {}, set=TINY), "the axis has no points"),
        (lambda: sim.sweep(QUICKSTART, baseline="nope", set=TINY), "nope is no point"),
        (lambda: sim.sweep(QUICKSTART, metric="makespan"), "did you mean makespan_s"),
        (lambda: sim.sweep(QUICKSTART, seeds=0), "must be at least 1"),
        (lambda: sim.sweep(QUICKSTART, jobs=0), "jobs=0: must be at least 1"),
        (lambda: sim.sweep(QUICKSTART, set={"sweep": 3}), "must be mappings"),
        (lambda: sim.compare({}), "at least one run"),
    ],
)
def test_mistakes_are_one_line(call, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path) == []


def test_a_class_of_a_notebook_needs_one_process(monkeypatch):
    notebook = type(sys)("__main__")
    mine = type("Mine", (Pin,), {"__module__": "__main__", "__qualname__": "Mine"})
    notebook.Mine = mine
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    with pytest.raises(UserError, match=r"Mine lives in this notebook.*jobs=1"):
        sim.sweep(QUICKSTART, {"mine": mine}, seeds=2, set=GRID, jobs=2)


def test_the_module_offers_its_names_and_no_others():
    assert {"run", "sweep", "compare"} <= set(sim.__all__)
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = sim.walk


@pytest.mark.slow
def test_a_script_runs_the_api_without_warnings(tmp_path):
    """Also at the end of the process nothing is left, and nothing complains."""
    script = tmp_path / "script.py"
    script.write_text(
        "import tempfile, sim\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        f"result = sim.run({str(QUICKSTART)!r}, set={TINY!r})\n"
        "print(len(result.turns) > 0)\n"
    )
    root = QUICKSTART.parents[1]
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, env={"PYTHONPATH": str(root)}, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert leftovers(tmp_path) == []
