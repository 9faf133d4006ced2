"""The parts of `benchmarks.gpu` that need no engine: plan, traces, tables, and what the step log and check say."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.gpu.__main__ import parser, plays
from benchmarks.gpu.check import durations_s, main, sums
from benchmarks.gpu.decode import steady_s
from benchmarks.gpu.engine import Served
from benchmarks.gpu.forms import REQUEST_COLUMNS, Table
from benchmarks.gpu.plan import FULL, PLANS, fits, parse_phases
from benchmarks.gpu.shapes import SHAPES, model_config, shape_of, write_model
from benchmarks.gpu.step_log import (
    FLUSH_ROWS,
    STEP_COLUMNS,
    Step,
    StepLog,
    phase_and_case,
    request_name,
    work_of,
)
from benchmarks.gpu.trace import Turn, random_ids, read_trace
from libra.cost.points import TRACE_COLUMNS
from libra.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
HEADER = ",".join(TRACE_COLUMNS)


def trace_file(tmp_path, *lines, header=HEADER):
    path = tmp_path / "trace.csv"
    path.write_text("\n".join((header, *lines)) + "\n")
    return path


def test_importing_the_benchmark_needs_no_vllm():
    code = (
        "import sys, benchmarks.gpu.__main__, benchmarks.gpu.check, benchmarks.gpu.worker\n"
        "print([name for name in ('vllm', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_those_of_the_catalogue(name):
    catalogue = yaml.safe_load((ROOT / "libra/cost/catalogue/models.yaml").read_text())
    size = name.removeprefix("qwen3-")
    entry = catalogue[f"Qwen3-{size if size == 'tiny' else size.upper()}"]
    shape = shape_of(name)
    assert entry == {key: getattr(shape, key) for key in entry}


def test_a_model_folder_holds_a_config_that_names_its_sizes(tmp_path):
    folder = write_model(tmp_path / "model", shape_of("qwen3-14b"), "bfloat16")
    config = json.loads((folder / "config.json").read_text())
    assert config == model_config(shape_of("qwen3-14b"), "bfloat16")
    assert (config["hidden_size"], config["intermediate_size"], config["tie_word_embeddings"]) == (
        5120,
        17408,
        False,
    )
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_unknown_shapes_and_phases_are_one_line():
    with pytest.raises(UserError, match="--model-shape qwen9: unknown; choose one of qwen3-"):
        shape_of("qwen9")
    with pytest.raises(UserError, match="--phases decode,warm: no phase 'warm'"):
        parse_phases("decode,warm")
    with pytest.raises(UserError, match="--phases: empty"):
        parse_phases(" ,")
    assert parse_phases("trace, decode") == ("decode", "trace")


def test_cells_fit_into_the_cache():
    kv_tokens = 833_824  # Qwen3-4B on one H200
    cells = list(FULL.decode_cells(kv_tokens, 128))
    assert (96, 8192) in cells
    assert (128, 8192) not in cells  # 1,061,376 tokens
    assert (128, 2048) in cells
    assert len(cells) == 26
    assert all(batch * (context + FULL.decode_tokens) <= kv_tokens for batch, context in cells)
    assert list(FULL.mixed_cells(kv_tokens, 128))[:3] == [(8, 8192), (32, 8192), (64, 8192)]
    assert (64, 8192) not in list(FULL.mixed_cells(kv_tokens, 64)), (
        "the prefill needs a place beside the batch"
    )
    assert list(FULL.decode_cells(1000, 128)) == [(1, 128), (2, 128), (4, 128)]


def test_fits_counts_whole_blocks():
    assert fits(1, 97, 116)  # 112 of 116 tokens
    assert not fits(1, 97, 115)
    assert not fits(2, 97, 116)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_prefill_has_a_number_of_repeats(plan):
    assert all(plan.repeats(length) >= 3 for length in plan.prefill_lengths)


def test_a_trace_is_read_in_the_order_of_first_submits(tmp_path):
    path = trace_file(
        tmp_path,
        "b,1,3.5,25,4,16,0.1,0.2,0",
        "a,0,2.0,10,5,0,0.1,0.2,0.5",
        "b,0,1.0,12,6,0,0.1,0.2,0.25",
    )
    b, a = read_trace(path, 100)
    assert (b.trajectory_id, a.trajectory_id) == ("b", "a")
    assert b.turns == (Turn(12, 6, 0.25), Turn(25, 4, 0.0))
    assert [b.new_tokens(0), b.new_tokens(1)] == [12, 7]


def test_a_trace_without_measurements_keeps_the_order_of_its_rows(tmp_path):
    header = "trajectory_id,turn,prompt_tokens,output_tokens,tool_latency_s"
    path = trace_file(tmp_path, "z,0,10,5,0", "a,0,10,5,0", header=header)
    assert [trajectory.trajectory_id for trajectory in read_trace(path, 100)] == ["z", "a"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["a,0,0,10,5,0,0,0,x"], "line 2 holds no numbers"),
        (["a,1,0,10,5,0,0,0,0"], "a lacks turns"),
        (["a,0,0,10,5,0,0,0,0", "a,0,0,10,5,0,0,0,0"], "a lacks turns or repeats one"),
        (["a,0,0,10,5,0,0,0,0", "a,1,1,14,5,0,0,0,0"], "a, turn 1 has no output, or less prompt"),
        (["a,0,0,10,0,0,0,0,0"], "a, turn 0 has no output"),
        (["a,0,0,96,5,0,0,0,0"], "a, turn 0 is longer than the 100 tokens"),
        ([], "no column trajectory_id"),
    ],
)
def test_a_bad_trace_is_one_line(tmp_path, lines, said):
    with pytest.raises(UserError, match=said) as caught:
        read_trace(trace_file(tmp_path, *lines), 100)
    assert "\n" not in str(caught.value)


def test_every_trace_needs_its_concurrency(tmp_path):
    path = str(trace_file(tmp_path, "a,0,0,10,5,0,0,0,0"))
    args = parser().parse_args(
        ["--out", "x", "--trace", path, path, "--concurrency", "4", "8", "--deadline", "9"]
    )
    assert [(play[2], play[3]) for play in plays(args)] == [(4, 9.0), (8, 9.0)]
    args = parser().parse_args(["--out", "x", "--trace", path, "--concurrency", "4", "8"])
    with pytest.raises(UserError, match="--concurrency: 2 values for 1 traces"):
        plays(args)
    with pytest.raises(UserError, match="no --trace"):
        plays(parser().parse_args(["--out", "x"]))
    with pytest.raises(UserError, match="cannot be read"):
        plays(parser().parse_args(["--out", "x", "--trace", str(tmp_path / "absent.csv")]))


def test_random_ids_are_repeatable_and_share_no_block():
    assert random_ids((1, 2), 64, 512) == random_ids((1, 2), 64, 512)
    assert random_ids((1, 2), 16, 512) != random_ids((1, 3), 16, 512)
    assert min(random_ids((1, 2), 5000, 512)) == 2
    assert random_ids((1, 2), 0, 512) == []


def test_a_table_is_on_disk_row_by_row(tmp_path):
    path = tmp_path / "table.csv"
    with Table(path, ("a", "b")) as table:
        table.add(1, "x, y")
        assert path.read_text() == 'a,b\n1,"x, y"\n'
        with pytest.raises(ValueError, match="3 values for 2 columns"):
            table.add(1, 2, 3)
    assert table.num_rows == 1


def test_a_request_tells_the_step_log_what_it_is_for():
    name = request_name("trace", "a~b,c_c4", "7")
    assert phase_and_case(f"{name}-1234abcd") == ("trace", "a-b-c_c4")  # vLLM appends to it
    assert phase_and_case("cmpl-17") == ("other", "")


def test_decodes_are_told_from_prefills():
    work = work_of(
        {"new": 512, "one": 1, "old": 1, "chunk": 100, "again": 40, "last": 1},
        [("new", 16), ("one", 15)],
        [("old", 2048, 3), ("chunk", 512, 0), ("again", 0, 7), ("last", 99, 0)],
    )
    # A last prompt token alone is a prefill, also where the prefix cache held the others.
    assert work.chunks == [(16, 512), (15, 1), (512, 100), (0, 40), (99, 1)]
    assert (work.num_decodes, work.context_tokens) == (1, 2048)


def make_step(number, start_s, decodes=0, chunks=()):
    work = work_of(
        {f"d{i}": 1 for i in range(decodes)} | {f"p{i}": tokens for i, (_, tokens) in enumerate(chunks)},
        [(f"p{i}", before) for i, (before, _) in enumerate(chunks)],
        [(f"d{i}", 10, 1) for i in range(decodes)],
    )
    return Step(("decode", "x"), number, start_s, start_s + 0.001, work, (len(chunks), 0, 0, 1, 0), 0.25)


def test_a_step_is_a_row_of_the_columns(tmp_path):
    log = StepLog(tmp_path / "steps.csv")
    log.add(make_step(1, 5.0, 2, [(0, 16), (32, 8)]).line(5.01, 5.02), idle=True)
    (row,) = csv.DictReader((tmp_path / "steps.csv").read_text().splitlines())
    assert list(row) == list(STEP_COLUMNS)
    assert row["prefills"] == "0:16 32:8"
    assert (row["num_decodes"], row["decode_context_tokens"], row["prefill_tokens"]) == ("2", "20", "24")
    assert (row["schedule_start_s"], row["update_end_s"], row["kv_usage"]) == (
        "5.000000",
        "5.020000",
        "0.25000",
    )


def test_the_step_log_writes_when_the_engine_is_idle_or_rows_have_gathered(tmp_path):
    path = tmp_path / "steps.csv"
    log = StepLog(path)

    def rows():
        return len(path.read_text().splitlines()) - 1

    log.add("a", idle=False)
    assert rows() == 0
    log.add("b", idle=True)
    assert rows() == 2
    for _ in range(FLUSH_ROWS):
        log.add("c", idle=False)
    assert rows() == 2 + FLUSH_ROWS
    log.add("d", idle=False)
    log.flush()
    log.flush()
    assert path.read_text().endswith("c\nd\n")
    assert rows() == 3 + FLUSH_ROWS


def served(first_s, step_s, count):
    one = Served(0.0, first_s, first_s + (count - 1) * step_s)
    one.arrivals = [(first_s + i * step_s, i + 1) for i in range(count)]
    return one


def test_the_steady_time_of_a_batch_leaves_out_its_ends():
    slow_start = served(1.0, 0.01, 20)
    slow_start.arrivals.insert(0, (0.0, 0))
    assert steady_s([served(1.0, 0.01, 20), slow_start]) == pytest.approx(0.01)
    assert steady_s([served(0.0, 0.01, 20), served(1.0, 0.01, 20)]) == -1  # never together
    assert steady_s([served(0.0, 0.01, 5), served(0.0, 0.01, 5)]) == -1  # too short


def write_run(folder, decode_tokens=3, ended="finished"):
    log = StepLog(folder / "steps.csv")
    log.add(make_step(1, 1.0, 0, [(0, 16)]).line(1.1, 1.11), idle=False)
    log.add(make_step(2, 1.05, 1).line(1.3, 1.31), idle=False)
    log.add(make_step(3, 2.0, 1).line(2.2, 2.21), idle=True)
    with Table(folder / "requests.csv", REQUEST_COLUMNS) as table:
        table.add("decode", "x", "1", 0.9, 1.12, 2.22, 16, 0, decode_tokens, ended)


def test_the_check_compares_steps_with_requests(tmp_path, capsys):
    write_run(tmp_path)
    assert main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "prefill tokens 16 in steps, 16 in requests; decodes 2, 2; preempted 0, aborted 0: equal" in shown
    assert "submission to the next step that admits: p10 100.000 ms" in shown
    write_run(tmp_path, decode_tokens=4)
    assert main([str(tmp_path)]) == 1
    assert "NOT EQUAL" in capsys.readouterr().out
    write_run(tmp_path, decode_tokens=4, ended="aborted")
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path / "absent")]) == 2


def test_a_step_that_was_scheduled_early_begins_when_the_one_before_has_its_tokens():
    rows = [
        {"schedule_start_s": 1.0, "update_start_s": 1.1},
        {"schedule_start_s": 1.05, "update_start_s": 1.3},
        {"schedule_start_s": 2.0, "update_start_s": 2.2},
    ]
    assert durations_s(rows) == pytest.approx([0.1, 0.2, 0.2])
    assert list(sums([], [])) == []
