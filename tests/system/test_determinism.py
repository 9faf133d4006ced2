"""One experiment and one seed give one record, to the byte: whatever the process, its hash seed, its helpers or
the order of its cells.
"""

import pandas as pd
import pytest
import yaml

from libra.record.reader import Run
from sim.cli.main import main
from tests.system.sweeping import NUM_CELLS, contents, run_to_end, summary, write_sweep

TABLES = {
    f"{name}.parquet" for name in ("events", "actions", "turns", "trajectories", "train_steps", "replicas")
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("determinism")


@pytest.fixture(scope="module")
def experiment(folder):
    return write_sweep(folder, num_prompts=8)


@pytest.fixture(scope="module")
def whole(folder, experiment):
    """The sweep in this process, one cell after another."""
    out = folder / "whole"
    assert main(["sweep", str(experiment), "--out", str(out), "--no-report", "--jobs", "1"]) == 0
    return out


def test_every_cell_has_all_its_tables(whole):
    cells = contents(whole)
    assert len(cells) == NUM_CELLS
    for files in cells.values():
        assert files.keys() == TABLES | {"manifest.json", "summary.json"}


def test_cells_of_a_seed_meet_one_world_and_seeds_meet_others(whole):
    columns = ["trajectory_id", "group_id", "prompt_tokens", "start_latency_s"]
    worlds: dict[str, list[pd.DataFrame]] = {}
    for name in contents(whole):
        rows = Run.open(whole / "cells" / name).trajectories.sort_values("trajectory_id")
        worlds.setdefault(name.rpartition("seed=")[2], []).append(rows[columns].reset_index(drop=True))
    for frames in worlds.values():
        shortest = min(map(len, frames))
        for frame in frames[1:]:
            pd.testing.assert_frame_equal(frame.head(shortest), frames[0].head(shortest))
    assert not worlds["0"][0].equals(worlds["1"][0])


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "hash_seed"), [("1", 0), ("2", 1)])
def test_processes_and_hash_seeds_change_no_byte(folder, experiment, whole, jobs, hash_seed):
    out = folder / f"jobs{jobs}"
    run_to_end(experiment, out, "--jobs", jobs, hash_seed=hash_seed)
    assert contents(out) == contents(whole)
    pd.testing.assert_frame_equal(summary(out), summary(whole))


def test_shards_make_the_same_sweep_as_the_whole(folder, experiment, whole):
    out = folder / "shards"
    for i, (shard, number) in enumerate((("1/3", 4), ("0/3", 8), ("2/3", 12))):
        assert (
            main(
                ["sweep", str(experiment), "--out", str(out), "--no-report", "--jobs", "1", "--shard", shard]
            )
            == 0
        )
        assert len(contents(out)) == number, i
    assert contents(out) == contents(whole)
    pd.testing.assert_frame_equal(summary(out), summary(whole))


def test_the_order_of_the_points_changes_no_cell(folder, experiment, whole):
    tree = yaml.safe_load(experiment.read_text(encoding="utf-8"))
    axes = tree["sweep"]["axes"]
    axes["router"] = dict(reversed(axes["router"].items()))
    axes["max_head_offpolicyness"].reverse()
    tree["sweep"]["seeds"] = [1, 0]
    turned = experiment.with_name("turned.yaml")
    turned.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    out = folder / "turned"
    assert main(["sweep", str(turned), "--out", str(out), "--no-report", "--jobs", "1"]) == 0
    assert contents(out) == contents(whole)


def test_a_single_run_is_the_cell_of_the_sweep(folder, experiment, whole):
    out = folder / "single"
    point = ["--set", "max_head_offpolicyness=2", "--set", "seed=1"]
    assert main(["run", str(experiment), *point, "--out", str(out)]) == 0
    cell = contents(whole)["router=least,max_head_offpolicyness=2,seed=1"]
    for name in TABLES:
        assert (out / name).read_bytes() == cell[name]


def test_a_summary_record_has_the_same_figures(folder, experiment, whole):
    out = folder / "summary"
    argv = ["sweep", str(experiment), "--out", str(out), "--no-report", "--jobs", "1", "--record", "summary"]
    assert main(argv) == 0
    full = contents(whole)
    assert {name: files["summary.json"] for name, files in contents(out).items()} == {
        name: files["summary.json"] for name, files in full.items()
    }
