"""The grid of a sweep: which cells, in which order, under which names."""

import itertools

import pytest

from libra.config.document import Document, apply_sets, load_document
from libra.errors import UserError
from sim.sweeps.grid import expand

TREE = {
    "name": "x",
    "workload": {"kind": "preset", "preset": "terminal_agent"},
    "heterogeneous_rollout": {"instances": [{"tp": 2, "count": 2}]},
    "batch_size": 8,
    "n_samples": 4,
}


def grid(**block):
    return expand(Document(TREE | {"sweep": block}))


def test_without_a_sweep_block_there_is_one_cell():
    (cell,) = expand(Document(TREE)).cells
    assert (cell.name, cell.point, cell.seed) == ("seed=0", {}, 0)


def test_cells_are_all_points_times_all_seeds():
    axes = {"policy": {"a": {"total_steps": 1}, "b": {"total_steps": 2}}, "batch_size": [4, 8, 16]}
    cells = grid(axes=axes, seeds=2).cells
    assert [cell.name for cell in cells] == [
        f"policy={p},batch_size={b},seed={s}" for p, b, s in itertools.product("ab", (4, 8, 16), (0, 1))
    ]
    for cell in cells:
        experiment = cell.resolve().experiment
        assert str(experiment.batch_size) == cell.point["batch_size"]
        assert experiment.total_steps == {"a": 1, "b": 2}[cell.point["policy"]]
        assert experiment.seed == cell.seed


def test_seeds_count_from_the_experiment_s_own_or_are_listed():
    assert expand(Document(TREE | {"seed": 5, "sweep": {"seeds": 3}})).seeds == [5, 6, 7]
    assert expand(Document(TREE | {"seed": 5, "sweep": {"seeds": [2, 9]}})).seeds == [2, 9]


def test_a_mapping_replaces_the_whole_section():
    scheduling = {"scheduler_type": "length_aware"}
    axes = {"policy": {"long": {"heterogeneous_rollout.scheduling": scheduling}}}
    tree = TREE | {"sweep": {"axes": axes}}
    tree["heterogeneous_rollout"] = TREE["heterogeneous_rollout"] | {
        "scheduling": {"scheduler_type": "load_balance", "sticky": False}
    }
    (cell,) = expand(Document(tree)).cells
    assert cell.resolve().policies["routing"].entry.kind == "length_aware"


@pytest.mark.parametrize(
    ("changes", "axes", "metric"),
    [
        ({"train_gpus": 4}, {}, "trained_tokens_per_s"),
        ({"train_gpus": 0}, {}, "output_tokens_per_s"),
        ({}, {"train_gpus": [0, 4]}, "output_tokens_per_s"),
        ({}, {"train_gpus": [2, 4]}, "trained_tokens_per_s"),
    ],
)
def test_a_sweep_is_about_what_was_trained_on_where_all_of_it_trains(changes, axes, metric):
    document = Document({**TREE, **changes, "sweep": {"axes": axes}})
    assert expand(document).config.metric == metric
    document.tree["sweep"]["metric"] = "makespan_s"
    assert expand(document).config.metric == "makespan_s"


def test_cells_do_not_share_their_trees():
    first, second = grid(axes={"batch_size": [4, 8]}).cells
    first.document.tree["workload"]["preset"] = "other"
    assert second.document.tree["workload"]["preset"] == "terminal_agent"


def test_names_are_safe_for_folders():
    axes = {"a/b": {"../x y": {"total_steps": 1}, "p,q=r": {"total_steps": 2}}}
    names = [cell.name for cell in grid(axes=axes).cells]
    assert names == ["a%2Fb=..%2Fx%20y,seed=0", "a%2Fb=p%2Cq%3Dr,seed=0"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, {"p": "a"}), ({"p": "b"}, {"p": "b"}), ({"batch_size": 8}, {"batch_size": "8"})],
)
def test_the_baseline_is_the_first_point_of_the_first_axis_or_what_is_named(given, expected):
    axes = {"p": {"a": {"total_steps": 1}, "b": {"total_steps": 2}}, "batch_size": [4, 8]}
    assert grid(axes=axes, baseline=given).baseline == expected


@pytest.mark.parametrize("key", ["seed", "sweep", "sweep.seeds"])
@pytest.mark.parametrize("named", [True, False])
def test_what_the_grid_sets_itself_is_no_axis(key, named):
    axes = {"p": {"a": {key: 1}}} if named else {key: [1]}
    with pytest.raises(UserError, match=f"{key} cannot be an axis; seeds are listed in sweep.seeds"):
        grid(axes=axes)


def test_a_seed_that_is_none_is_refused_before_it_is_overwritten():
    with pytest.raises(UserError, match="seed must be a whole number of at least 0, not abc"):
        expand(Document(TREE | {"seed": "abc"}))


def test_a_point_or_an_axis_of_the_base_is_dropped_by_null(tmp_path):
    base = """
name: x
workload: {kind: preset, preset: terminal_agent}
heterogeneous_rollout: {instances: [{tp: 2, count: 2}]}
sweep:
  axes:
    policy: {a: {total_steps: 1}, b: {total_steps: 2}, c: {total_steps: 3}}
    layout: {one: {total_steps: 1}}
    batch_size: [4, 8]
"""
    (tmp_path / "base.yaml").write_text(base, encoding="utf-8")
    child = "base_config: base.yaml\nsweep: {axes: {policy: {b: null}, layout: null, batch_size: null}}\n"
    (tmp_path / "child.yaml").write_text(child, encoding="utf-8")
    document = load_document(tmp_path / "child.yaml")
    assert expand(document).axes == {"policy": ["a", "c"]}
    apply_sets(document, ["sweep.axes.policy.a=null"])
    assert expand(document).axes == {"policy": ["c"]}
    apply_sets(document, ["sweep.axes.policy.c=null"])
    with pytest.raises(UserError, match="the axis has no points, so the grid is empty"):
        expand(document)
