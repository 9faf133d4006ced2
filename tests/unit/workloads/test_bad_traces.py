"""Every way a trace can be wrong gives one line with the place and the mend."""

import pytest

from libra.errors import UserError
from libra.workloads.check import check_trace
from libra.workloads.turn_table import TurnTableWorkload

T = "trajectory_id,turn,prompt_tokens,output_tokens"
R = "t,prompt_tokens,output_tokens"


@pytest.mark.parametrize(
    ("content", "place", "problem"),
    [
        (f"{T}\na,0,5,5\na,1,x,5\n", "line 3, column prompt_tokens", "'x' is not a number"),
        (f"{T}\n\n\na,0,5,five\n", "line 4, column output_tokens", "'five' is not a number"),
        (f'{T},tool_name\na,0,5,5,"two\nlines"\na,1,20,-1,x\n', "line 4, column output_tokens", "below 0"),
        (f"{T}\na,0,0,5\n", "line 2, column prompt_tokens", "below 1"),
        (f"{T}\na,0,5,nan\n", "line 2, column output_tokens", "'nan' is not a finite number"),
        (f"{T}\na,0,inf,5\n", "line 2, column prompt_tokens", "'inf' is not a finite number"),
        (f"{T}\na,0,5.5,5\n", "line 2, column prompt_tokens", "5.5 is not a whole number"),
        (f"{T}\na,0,,5\n", "line 2, column prompt_tokens", "is empty"),
        (f"{T}\na,0,5,5\n,1,5,5\n", "line 3, column trajectory_id", "is empty"),
        (f"{T},tool_latency_s\na,0,5,5,-2\n", "line 2, column tool_latency_s", "below 0"),
        (f"{T},tool_ok\na,0,5,5,maybe\n", "line 2, column tool_ok", "'maybe' is no yes or no"),
        (f"{T}\na,0,5,5\nb,0,5,5\na,0,9,9\n", "line 4, column turn", "turn 0 already on line 2"),
        (f"{T}\na,0,5,5\na,2,30,5\n", "line 3, column turn", "has no turn 1 before turn 2"),
        (f"{T}\na,0,5,5\nb,1,5,5\n", "line 3, column turn", "trajectory b has no turn 0 before turn 1"),
        (f"{T}\na,3,5,5\n", "line 2, column turn", "the lowest turn is 3"),
        (f"{T},arrival_s\na,0,5,5,2\nb,0,5,5,1\n", "line 3, column arrival_s", "1 is before 2"),
        (f"{T}\na,0,5\n", "line 2", "3 fields under 4 column names"),
        (f"{T[:-1]}\na,0,5,5\n", "line 1", "no column 'output_tokens'; rename 'output_token'"),
        ("trajectory_id,turn,prompt_tokens,x\na,0,5,5\n", "line 1", "no column 'output_tokens'"),
        (f"{T},turn\na,0,5,5,5\n", "line 1, column turn", "named twice"),
        (f"{R}\n1,5,5\n0.5,5,5\n", "line 3, column t", "0.5 is before 1"),
        (f"{R}\n0,5,5\n,5,5\n", "line 3, column t", "is empty"),
        (f"{R},reused_prefix_blocks\n0,5,5,-1\n", "line 2, column reused_prefix_blocks", "below 0"),
        ("t,prompt_tokens,outputs\n0,5,5\n", "line 1", "no column 'output_tokens'; rename 'outputs'"),
        (f"{T.replace(',turn', ',turns')}\na,0,5,5\n", "line 1", "no column 'turn'; rename 'turns'"),
        ("trajectory_id,turn,prompt_tokens\na,0,5\n", "line 1", "no column 'output_tokens'; add it (present: "),
        ("t,prompt_tokens\n0,5\n", "line 1", "no column 'output_tokens'; add it (present: t, prompt_tokens)"),
        ("time,prompt,output\n0,5,5\n", "line 1", "neither a turn table"),
        ("", "line 1", "no header"),
        (f"{T}\n", "line 1", "no rows below the header"),
    ],
)  # fmt: skip
def test_bad_cell_or_header(tmp_path, content, place, problem):
    path = tmp_path / "trace.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        check_trace(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, {place}: ")
    assert problem in message
    assert "\n" not in message
    assert ";" in message, "no mend"


def test_not_utf8_names_the_line(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(f"{T}\na,0,5,5\n".encode() + b"caf\xe9,0,5,5\n")
    with pytest.raises(UserError, match=r"t\.csv, line 3: not UTF-8 text; save"):
        check_trace(path)


def test_binary_garbage(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(f"{T}\na,0,\0,5\n".encode())
    with pytest.raises(UserError, match=r"t\.csv, line 2"):
        check_trace(path)


def test_directory_and_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"a directory without turns\.parquet; name a CSV"):
        check_trace(tmp_path)
    with pytest.raises(UserError, match="no such file; check the path"):
        check_trace(tmp_path / "absent.csv")


def test_trajectories_table_is_checked_too(tmp_path):
    (tmp_path / "x_turns.csv").write_text(f"{T}\na,0,5,5\n")
    beside = tmp_path / "x_trajs.csv"
    beside.write_text("trajectory_id,reward\na,1\na,0\n")
    with pytest.raises(
        UserError, match=r"x_trajs\.csv, line 3, column trajectory_id: a stands already on line 2"
    ):
        check_trace(tmp_path / "x_turns.csv")
    beside.write_text("trajectory_id,task\nb,1\n")
    with pytest.raises(UserError, match=r"x_trajs\.csv: no row for trajectory a; add it"):
        check_trace(tmp_path / "x_turns.csv")


def test_good_traces_are_summarised(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("\ufeff" + f"{T},tool_ok\na,0,100,10,1\na,1,120,20,0\nb,0,100,50,1\n", encoding="utf-8")
    summary = check_trace(path)
    assert (summary.kind, summary.num_trajectories, summary.num_turns) == ("turns", 2, 3)
    assert summary.figures["turns"]["max"] == 2
    assert summary.figures["final_context_tokens"]["max"] == 150
    assert summary.figures["tool_ok"] == pytest.approx(2 / 3)
    assert "3 turns without tool_latency_s: 0 s" in summary.problems
    path.write_text(f"{R}\n0,5,7\n")
    assert check_trace(path).kind == "requests"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "workload.path: missing"),
        ({"path": "x", "limit": 0}, "workload.limit: must be at least 1, is 0"),
        ({"path": "x", "repeat": -1}, "workload.repeat: must be at least 1, is -1"),
        ({"path": "x", "tool_timeout_s": 0.0}, "workload.tool_timeout_s: must be above 0"),
    ],
)
def test_turn_table_config_refuses(options, message):
    with pytest.raises(UserError, match=message):
        TurnTableWorkload(**options)
