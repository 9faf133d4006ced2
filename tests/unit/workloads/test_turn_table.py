"""Turn tables: what is played, how gaps are filled, how groups are made."""

from pathlib import Path

import numpy as np
import pytest

from libra.core.ids import Supply
from libra.errors import UserError
from libra.workloads.check import drain
from libra.workloads.csv_table import read_csv
from libra.workloads.turn_table import TurnTableSource, TurnTableWorkload

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the development data in ../shared/data")

BASIC = """trajectory_id,turn,prompt_tokens,output_tokens,tool_name,tool_ok,tool_latency_s,payload_tokens,timeout
b,0,100,10,read,1,0.5,5,0
a,0,80,7,run,0,2,3,0
b,1,115,20,,,,0,
a,1,90,9,run,,30,4,1
"""


def source(tmp_path, text, name="x_turns.csv", n_samples=1, seed=0, **options):
    (tmp_path / name).write_text(text, encoding="utf-8")
    config = TurnTableWorkload(path=name, **options)
    return TurnTableSource(config, seed=seed, n_samples=n_samples, base_dir=tmp_path)


def test_a_small_table_in_full(tmp_path):
    src = source(tmp_path, BASIC)
    (c,) = drain(src)
    assert src.supply is Supply.PULL
    assert c.source_id == ("b", "a")
    assert c.first_turn.tolist() == [0, 2, 4]
    assert c.prompt_tokens.tolist() == [100, 115, 80, 90]
    assert c.output_tokens.tolist() == [10, 20, 7, 9]
    assert c.prefix == (((-1, 100),), ((-2, 80),))
    assert c.prefix_tokens.tolist() == [100, 110, 80, 87]
    assert [c.tool_names[i] for i in c.tool] == ["read", "none", "run", "run"]
    assert c.tool_status.tolist() == [0, 0, 1, 2]
    assert c.tool_latency_s.tolist() == [0.5, 0, 2, 30]
    assert c.payload_tokens.tolist() == [5, 0, 3, 4]
    assert np.isnan(c.reward).all()
    assert src.notes == [
        "1 turns without tool_latency_s: 0 s",
        "2 turns without tool_ok: success",
        "no task column: every trajectory is its own prompt",
        "2 trajectories without reward",
    ]


def test_required_columns_alone_suffice(tmp_path):
    src = source(tmp_path, "trajectory_id,turn,prompt_tokens,output_tokens\na,1,10,0\na,2,30.0,4\n")
    (c,) = drain(src)
    assert c.output_tokens.tolist() == [1, 4]
    assert c.payload_tokens.tolist() == [19, 0]
    assert "1 turns with 0 output tokens count as 1" in src.notes
    assert "2 turns without payload: growth of the next prompt" in src.notes


def test_rewritten_history_shortens_the_prefix(tmp_path):
    # Context after turn 0 is 110. 108: rounding; 107, 105: the output left out; 60: compacted; 40: below the start.
    rows = "".join(f"t{p},0,100,10\nt{p},1,{p},5\n" for p in (111, 110, 108, 107, 105, 60, 40))
    opening = "u,0,50,10\nu,1,200,10\nu,2,80,10\n"
    src = source(tmp_path, "trajectory_id,turn,prompt_tokens,output_tokens\n" + rows + opening)
    (c,) = drain(src)
    assert c.prefix_tokens[1:14:2].tolist() == [110, 110, 108, 100, 100, 60, 40]
    assert c.prefix_tokens[14:].tolist() == [50, 60, 50]
    assert (c.prefix_tokens <= c.prompt_tokens).all()
    assert any(note.startswith("2 turns whose prompt leaves out") for note in src.notes)
    assert any(note.startswith("3 turns whose prompt was compacted") for note in src.notes)


@pytest.mark.parametrize(
    ("head", "cells", "option", "status"),
    [
        ("timeout", "TRUE", None, 2),
        ("timeout", "0", None, 0),
        ("tool_timeout_s", "30", None, 2),
        ("tool_timeout_s", "31", None, 0),
        ("tool_timeout_s", "", None, 0),
        ("note", "x", 30.0, 2),
        ("note", "x", 30.5, 0),
    ],
)
def test_a_call_that_reached_its_limit_timed_out(tmp_path, head, cells, option, status):
    text = f"trajectory_id,turn,prompt_tokens,output_tokens,tool_latency_s,{head}\na,0,5,5,30,{cells}\n"
    (c,) = drain(source(tmp_path, text, tool_timeout_s=option))
    assert c.tool_status.tolist() == [status]


def test_payload_characters_are_a_quarter_token_each(tmp_path):
    text = "trajectory_id,turn,prompt_tokens,output_tokens,payload_chars\na,0,5,5,10\na,1,15,5,\n"
    (c,) = drain(source(tmp_path, text))
    assert c.payload_tokens.tolist() == [3, 0]


TASKS = "trajectory_id,turn,prompt_tokens,output_tokens,task_id\n" + "".join(
    f"{task}{i},0,{100 + i},10,{task}\n" for i in range(3) for task in "xy"
)


def members(src):
    names = [(g, n) for c in drain(src) for g, n in zip(c.group_id.tolist(), c.source_id, strict=True)]
    return [[n for g, n in names if g == group] for group in sorted({g for g, _ in names})]


def test_groups_by_task(tmp_path):
    assert members(source(tmp_path, TASKS, repeat=1)) == [["x0", "x1", "x2"], ["y0", "y1", "y2"]]
    assert members(source(tmp_path, TASKS, repeat=2))[0] == ["x0", "x0", "x1", "x1", "x2", "x2"]
    assert members(source(tmp_path, TASKS, n_samples=2)) == [
        ["x0", "x1"],
        ["x2", "x0"],
        ["y0", "y1"],
        ["y2", "y0"],
    ]
    assert members(source(tmp_path, TASKS, n_samples=5))[1] == ["y0", "y1", "y2", "y0", "y1"]
    assert members(source(tmp_path, TASKS, limit=3, repeat=1)) == [["x0", "x1"], ["y0"]]
    (c,) = drain(source(tmp_path, TASKS, n_samples=2))
    assert c.prompt_id.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert c.group_size.tolist() == [2] * 8
    assert c.sample_index.tolist() == [0, 1] * 4
    assert c.prefix[:4] == (((-1, 100),),) * 2 + (((-2, 100),),) * 2
    assert c.prefix_tokens.tolist() == [100] * 8


def test_shuffle_is_seeded_and_loses_nothing(tmp_path):
    text = "trajectory_id,turn,prompt_tokens,output_tokens\n" + "".join(f"t{i},0,9,9\n" for i in range(200))
    ids = [i for c in drain(source(tmp_path, text, repeat=2)) for i in c.trajectory_id.tolist()]
    assert ids == list(range(400))
    runs = [[c.source_id for c in drain(source(tmp_path, text, order="shuffle", seed=s))] for s in (1, 1, 2)]
    names = [[n for ids in run for n in ids] for run in runs]
    assert names[0] == names[1] != names[2]
    assert sorted(names[0]) == sorted(names[2]) == sorted(f"t{i}" for i in range(200))


def test_arrivals_make_push_supply(tmp_path):
    head = "trajectory_id,turn,prompt_tokens,output_tokens,arrival_s,task\n"
    text = head + "a,0,9,9,0.5,k\na,1,30,9,0.5,k\nb,0,9,9,2,k\n"
    src = source(tmp_path, text, n_samples=8)
    (c,) = drain(src)
    assert src.supply is Supply.PUSH
    assert c.arrival_s.tolist() == [0.5, 2.0]
    assert c.group_size.tolist() == [1, 1]
    assert c.prompt_id.tolist() == [0, 0]
    with pytest.raises(UserError, match=r"workload\.order"):
        source(tmp_path, text, order="shuffle")


def test_rewards_and_tasks_from_the_table_beside(tmp_path):
    (tmp_path / "x_trajs.csv").write_text("trajectory_id,task_index,resolved\na,7,1\nb,7,0\nc,9,\n")
    (c,) = drain(source(tmp_path, BASIC, repeat=1))
    assert c.reward.tolist() == [0.0, 1.0]
    assert c.prompt_id.tolist() == [0, 0]
    (tmp_path / "other.csv").write_text("trajectory_id,reward\na,-0.5\n")
    (c,) = drain(source(tmp_path, BASIC, trajectories_path="other.csv"))
    assert np.array_equal(c.reward, [np.nan, -0.5], equal_nan=True)


@needs_data
@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "turns", "trajectories"),
    [("terminalbench_miniswe_turns.csv", 2250, 117), ("taubench_airline_turns.csv", 1229, 100)],
)
def test_every_recorded_turn_appears_exactly_once(name, turns, trajectories):
    table = read_csv(DATA / name)
    want = sorted(
        zip(
            *(table.columns[k] for k in ("trajectory_id", "turn", "prompt_tokens", "output_tokens")),
            strict=True,
        )
    )
    src = TurnTableSource(TurnTableWorkload(path=name), seed=0, n_samples=1, base_dir=DATA)
    got = []
    for c in drain(src):
        for i, trajectory in enumerate(c.source_id):
            for turn, row in enumerate(range(c.first_turn[i], c.first_turn[i + 1])):
                got.append((trajectory, str(turn), str(c.prompt_tokens[row]), str(c.output_tokens[row])))
    assert len(got) == turns
    assert len({g[0] for g in got}) == trajectories
    assert sorted(got) == want


@needs_data
@pytest.mark.data
def test_recorded_timeouts_failures_and_rewards_are_kept():
    config = TurnTableWorkload(path="terminalbench_miniswe_turns.csv", repeat=1)
    chunks = drain(TurnTableSource(config, seed=0, n_samples=1, base_dir=DATA))
    status = np.concatenate([c.tool_status for c in chunks])
    assert (status == 2).sum() == 201
    assert np.concatenate([c.reward for c in chunks]).mean() == pytest.approx(32 / 117)
    assert len({g for c in chunks for g in c.group_id.tolist()}) == 42
