"""Mistakes in a `sweep:` block, and in how to run it: refused as those of an experiment (`test_bad_experiments`)."""

import pytest

from tests.system.tiny import write_experiment

GRIDS = {
    "key of the sweep": ({"sedes": 3}, "tiny.yaml:22: sweep.sedes: ", "did you mean seeds?"),
    "empty axis": (
        {"axes": {"batch_size": []}},
        "tiny.yaml:23: sweep.axes.batch_size: ",
        "name at least one",
    ),
    "axis without points": ({"axes": {"p": {}}}, "tiny.yaml:23: sweep.axes.p: ", "name at least one"),
    "axis of one value": ({"axes": {"batch_size": 4}}, "tiny.yaml:23: sweep.axes.batch_size: ", "a list"),
    "value twice": ({"axes": {"batch_size": [4, 4]}}, "tiny.yaml:23: sweep.axes.batch_size: ", "each once"),
    "point that is a value": ({"axes": {"p": {"a": 4}}}, "tiny.yaml:23: sweep.axes.p.a: ", "a mapping"),
    "key in a point": ({"axes": {"p": {"a": {"btch_size": 4}}}}, "tiny.yaml:24: p=a: ", "batch_size?"),
    "point that is nothing": ({"axes": {"p": {"a": None}}}, "tiny.yaml:23: sweep.axes.p.a: ", "null drops"),
    "axis that is nothing": ({"axes": {"p": None}}, "tiny.yaml:23: sweep.axes.p: ", "give a list of values"),
    "key of an axis": ({"axes": {"btch_size": [4]}}, "tiny.yaml:23: btch_size=4: ", "batch_size?"),
    "value of an axis": ({"axes": {"batch_size": [4, 5]}}, "tiny.yaml:23: batch_size=5: ", "multiple of"),
    "seeds as an axis": ({"axes": {"seed": [4, 5]}}, "tiny.yaml:23: sweep.axes.seed: ", "sweep.seeds"),
    "trace of a point": ({"axes": {"workload.path": ["turns.csv", "b.csv"]}}, "b.csv: ", "check the path"),
    "name too long": (
        {"axes": {"p": {"a" * 250: {"batch_size": 4}}}},
        "tiny.yaml:22: sweep.axes: ",
        "shorten",
    ),
    "baseline axis": (
        {"axes": {"batch_size": [4, 8]}, "baseline": {"btch_size": 4}},
        "tiny.yaml:27: sweep.baseline.btch_size: ",
        "did you mean batch_size?",
    ),
    "baseline point": (
        {"axes": {"batch_size": [4, 8]}, "baseline": {"batch_size": 5}},
        "tiny.yaml:27: sweep.baseline.batch_size: ",
        "known keys: 4, 8",
    ),
    "metric": ({"metric": "makespan"}, "tiny.yaml:22: sweep.metric: ", "did you mean makespan_s?"),
    "no seeds": ({"seeds": 0}, "tiny.yaml:22: sweep.seeds: ", "must be at least 1"),
    "empty seeds": ({"seeds": []}, "tiny.yaml:22: sweep.seeds: ", "at least one seed"),
    "seed twice": ({"seeds": [1, 1]}, "tiny.yaml:22: sweep.seeds: ", "each once"),
    "seeds in quotes": ({"seeds": "5"}, "tiny.yaml:22: sweep.seeds: ", 'must be a whole number, not "5"'),
}


@pytest.mark.parametrize(("block", "place", "mend"), GRIDS.values(), ids=GRIDS)
def test_a_mistake_in_the_grid(refused, tmp_path, block, place, mend):
    write_experiment(tmp_path, {"sweep": block})
    message = refused("sweep", "tiny.yaml")
    assert message.startswith(place)
    assert mend in message


@pytest.mark.parametrize("option", ["--shard=x", "--shard=2/2", "--shard=0/0", "--shard=-1/2", "--jobs=-1"])
def test_a_mistake_in_how_to_sweep(refused, tmp_path, option):
    write_experiment(tmp_path)
    message = refused("sweep", "tiny.yaml", option)
    assert message.startswith(option.replace("=", " ") + ": ")
    assert "i/n" in message or "at least 1" in message
