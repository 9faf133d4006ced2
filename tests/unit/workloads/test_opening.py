"""Each configuration opens its source; runs written by the project are played back."""

import shutil
from typing import Annotated

import pyarrow.parquet as pq
import pytest
from pydantic import Field, TypeAdapter

from libra.core.ids import Supply
from libra.errors import UserError
from libra.workloads.check import check_trace, drain
from libra.workloads.opening import WorkloadConfig, open_workload
from libra.workloads.parquet import RunWorkload, write_chunks
from libra.workloads.request_trace import RequestTraceSource, RequestTraceWorkload
from libra.workloads.synthetic import Drift, PresetWorkload, SyntheticSource
from libra.workloads.turn_table import TurnTableSource, TurnTableWorkload


def test_each_kind_opens(tmp_path):
    (tmp_path / "t.csv").write_text("trajectory_id,turn,prompt_tokens,output_tokens\na,0,5,5\n")
    (tmp_path / "r.csv").write_text("t,prompt_tokens,output_tokens\n0,5,5\n")
    preset = PresetWorkload(num_prompts=2)
    opened = [
        open_workload(config, seed=1, n_samples=3, base_dir=tmp_path)
        for config in (preset, TurnTableWorkload(path="t.csv"), RequestTraceWorkload(path="r.csv"))
    ]
    assert [type(s) for s in opened] == [SyntheticSource, TurnTableSource, RequestTraceSource]
    assert [s.next_chunk().num_trajectories for s in opened] == [6, 3, 1]
    assert all(s.next_chunk() is None for s in opened)


@pytest.fixture
def run(tmp_path):
    chunks = drain(SyntheticSource(PresetWorkload(num_prompts=100), seed=1, n_samples=2))
    write_chunks(chunks, tmp_path / "run", supply=Supply.PUSH)
    return tmp_path / "run"


def test_a_run_is_found_in_place_and_in_its_workload_folder(run, tmp_path):
    source = open_workload(RunWorkload(path="run"), seed=0, n_samples=9, base_dir=tmp_path)
    assert source.supply is Supply.PUSH
    assert [c.num_trajectories for c in drain(source)] == [128, 72]
    shutil.move(run, tmp_path / "workload")
    (tmp_path / "run2").mkdir()
    shutil.move(tmp_path / "workload", tmp_path / "run2")
    summary = check_trace(tmp_path / "run2")
    assert (summary.kind, summary.num_trajectories) == ("run", 200)


def test_equal_workloads_are_equal_bytes(run, tmp_path):
    chunks = drain(SyntheticSource(PresetWorkload(num_prompts=100), seed=1, n_samples=2))
    write_chunks(chunks, tmp_path / "again", supply=Supply.PUSH)
    for name in ("turns.parquet", "trajectories.parquet"):
        assert (run / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert sorted(p.name for p in run.iterdir()) == ["trajectories.parquet", "turns.parquet"]


def test_an_interrupted_write_leaves_nothing(tmp_path):
    def broken():
        yield SyntheticSource(PresetWorkload(num_prompts=2), seed=1, n_samples=2).next_chunk()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_chunks(broken(), tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_chunks_of_two_workloads_do_not_mix(tmp_path):
    names = ("tau_dialogue", "dapo_math")
    chunks = [
        SyntheticSource(PresetWorkload(preset=p, num_prompts=2), seed=1, n_samples=2).chunk(0) for p in names
    ]
    with pytest.raises(ValueError, match="tool_names"):
        write_chunks(chunks, tmp_path / "run")


def spoil_not_parquet(run):
    (run / "turns.parquet").write_bytes(b"nonsense")


def spoil_missing(run):
    (run / "trajectories.parquet").unlink()


def spoil_column(run):
    table = pq.read_table(run / "turns.parquet")
    pq.write_table(table.drop_columns(["tool"]), run / "turns.parquet")


def spoil_metadata(run):
    table = pq.read_table(run / "turns.parquet")
    pq.write_table(table.replace_schema_metadata(None), run / "turns.parquet")


def spoil_other_run(run):
    write_chunks([], run / "empty")
    shutil.copy(run / "empty" / "turns.parquet", run / "turns.parquet")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_not_parquet, r"turns\.parquet: not a Parquet file"),
        (spoil_missing, r"trajectories\.parquet: no such file; name the directory of a finished run"),
        (spoil_column, r"turns\.parquet, column tool: missing"),
        (spoil_metadata, r"turns\.parquet: holds no workload"),
        (spoil_other_run, r"are of different runs; copy both from one"),
    ],
)
def test_a_spoilt_run_is_refused(run, spoil, message):
    spoil(run)
    with pytest.raises(UserError, match=message) as caught:
        open_workload(RunWorkload(path=str(run)), seed=0, n_samples=1, base_dir=run)
    assert "\n" not in str(caught.value)


def test_configurations_validate_as_a_union_on_kind(tmp_path):
    adapter = TypeAdapter(Annotated[WorkloadConfig, Field(discriminator="kind")])
    drift = {"from_mean_tokens": 2500, "to_mean_tokens": 11500}
    config = adapter.validate_python({"kind": "preset", "preset": "r2e_gym", "drift": drift})
    assert config == PresetWorkload(preset="r2e_gym", drift=Drift(2500, 11500))
    assert adapter.validate_python({"kind": "run", "path": "x"}) == RunWorkload(path="x")
    with pytest.raises(UserError, match="no preset"):
        adapter.validate_python({"kind": "preset", "preset": "nope"})


def test_run_config_needs_a_path():
    with pytest.raises(UserError, match=r"workload\.path: missing"):
        RunWorkload()


def test_an_empty_workload_round_trips(tmp_path):
    write_chunks([], tmp_path)
    assert open_workload(RunWorkload(path="."), seed=0, n_samples=1, base_dir=tmp_path).next_chunk() is None
