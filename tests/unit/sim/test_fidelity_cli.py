"""`sim calibrate` and `sim validate --trace/--requests`, end to end on small files of a made-up engine."""

import json
import os
from pathlib import Path

import pytest
import yaml

from libra.cost.calibration import load_calibration, to_yaml
from libra.cost.points import TRACE_COLUMNS
from sim.cli.main import main
from tests.support import measured
from tests.support.costs import calibration
from tests.support.measured import known_cost

COMMITTED = Path(__file__).parents[3] / "libra" / "cost" / "calibrations"
ERROR_KEYS = {"output_tokens_per_s", "makespan_s", "mean_latency_s", "mean_ttft_s", "mean_tpot_s"}
ENGINE = ("--gpu", "H200", "--model", "Qwen3-4B", "--engine-version", "0.26.0", "--date", "2026-11-30")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of one made-up engine, and a calibration made of them by the verb."""
    folder = tmp_path_factory.mktemp("fidelity")
    cost = known_cost()
    measured.write_grid(folder / "grid.csv", cost)
    measured.write_facts(folder / "facts.csv")
    measured.write_trace(folder / "trace.csv", measured.trajectories(30, 4), cost, 20)
    measured.write_trace(folder / "held.csv", measured.trajectories(20, 5, seed=7), cost, 16)
    measured.write_requests(folder / "requests.csv", measured.requests(40, 6.0), cost)
    files = [str(folder / name) for name in ("grid.csv", "facts.csv", "trace.csv")]
    argv = ["calibrate", *files, *ENGINE, "--concurrency", "20", "--out", str(folder / "cal.yaml")]
    assert main(argv) == 0
    return folder


def refused(capsys, *argv):
    """The one line that a verb ends with, without its `error: `."""
    capsys.readouterr()
    assert main([str(each) for each in argv]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def trace_lines(folder):
    return (folder / "held.csv").read_text().splitlines()


class TestCalibrate:
    def test_writes_what_it_prints(self, folder, tmp_path, capsys):
        out = tmp_path / "cal.yaml"
        argv = ("calibrate", folder / "grid.csv", folder / "facts.csv", *ENGINE, "--out", out)
        assert main([str(each) for each in argv]) == 0
        captured = capsys.readouterr()
        assert captured.err == f"calibration: {out}\n"
        made = load_calibration(out)
        assert captured.out.splitlines()[0] == str(made.stamp)
        for name in made.fitted:
            assert any(
                line.split()[:1] == [name] and line.split()[-1] == "fitted"
                for line in captured.out.splitlines()
            ), name
        assert "decode_leave_one_out_mean" in captured.out
        assert "note: prefill_per_attention_s: from FLOPs" in captured.out
        assert made.settings.kv_capacity_tokens == 500_000
        assert list(tmp_path.iterdir()) == [out]

    def test_the_trace_is_stamped_as_the_development_one(self, folder):
        assert load_calibration(folder / "cal.yaml").stamp.development_trace == "trace.csv"

    def test_settings_reach_the_file(self, folder, tmp_path):
        out = tmp_path / "cal.yaml"
        options = (
            "--max-num-seqs",
            "64",
            "--block-size",
            "32",
            "--no-async-scheduling",
            "--capture-tokens",
            "96",
        )
        options += ("--kv-capacity-tokens", "12345", "--tp", "1", "--engine", "other", "--dtype", "fp8")
        argv = ("calibrate", folder / "grid.csv", *ENGINE, *options, "--out", out)
        assert main([str(each) for each in argv]) == 0
        content = yaml.safe_load(out.read_text())
        settings, stamp = content["settings"], content["stamp"]
        assert (settings["max_num_seqs"], settings["block_size"], settings["capture_tokens"]) == (64, 32, 96)
        assert (settings["async_scheduling"], settings["kv_capacity_tokens"]) == (False, 12345)
        assert (stamp["engine"], stamp["dtype"], stamp["date"]) == ("other", "fp8", "2026-11-30")

    def test_the_same_files_make_the_same_calibration(self, folder, tmp_path):
        out = tmp_path / "again.yaml"
        files = [folder / name for name in ("grid.csv", "facts.csv", "trace.csv")]
        argv = ("calibrate", *files, *ENGINE, "--concurrency", "20", "--out", out)
        assert main([str(each) for each in argv]) == 0
        assert out.read_text() == (folder / "cal.yaml").read_text()

    def test_half_of_a_log_predicts_the_other(self, folder, tmp_path, capsys):
        out = tmp_path / "cal.yaml"
        argv = ("calibrate", folder / "requests.csv", *ENGINE, "--hold-out-half", "--out", out)
        assert main([str(each) for each in argv]) == 0
        assert "held_out_mean_latency_s" in capsys.readouterr().out
        assert abs(load_calibration(out).errors["requests_held_out_mean_latency_s"]) < 0.1

    def test_engine_from(self, folder, tmp_path):
        grid = measured.write_grid(tmp_path / "grid14.csv", known_cost("Qwen3-14B"))
        out = tmp_path / "cal.yaml"
        argv = ("calibrate", grid, *ENGINE, "--model", "Qwen3-14B", "--engine-from", folder / "cal.yaml")
        assert main([str(each) for each in (*argv, "--out", out)]) == 0
        made, known = load_calibration(out), load_calibration(folder / "cal.yaml")
        assert made.cost.dispersed_kv_factor == known.cost.dispersed_kv_factor
        assert made.stamp.engine_from == str(known.stamp)

    def test_transfer(self, folder, tmp_path, capsys):
        out = tmp_path / "h100.yaml"
        argv = ("calibrate", "--transfer-from", folder / "cal.yaml", "--gpu", "H100", "--out", out)
        assert main([str(each) for each in argv]) == 0
        assert "no data of H100" in capsys.readouterr().out
        assert load_calibration(out).stamp.method == "transferred"

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (
                ("{d}/grid.csv", "--model", "Qwen3-4B", "--engine-version", "1"),
                "--gpu is missing; a calibration says",
            ),
            (("{d}/grid.csv", "--gpu", "H200", "--engine-version", "1"), "--model is missing"),
            (("{d}/grid.csv", "--gpu", "H200", "--model", "Qwen3-4B"), "--engine-version is missing"),
            (ENGINE, "no measurements; give grids, a mixed table, a trace or a log of requests (CSV)"),
            (("{d}/none.csv", *ENGINE), "none.csv: no such file"),
            (("{d}/trace.csv", *ENGINE), "no decode points among the files"),
            (("{d}/grid.csv", "{d}/trace.csv", *ENGINE), "trace.csv: how many trajectories ran at once?"),
            (("{d}/grid.csv", "{d}/trace.csv", "{d}/held.csv", *ENGINE), "held.csv: a second trace"),
            (("{d}/grid.csv", *ENGINE, "--engine-from", "{d}/none.yaml"), "none.yaml: cannot be read"),
            (
                ("{d}/grid.csv", *ENGINE, "--gpu", "H100", "--engine-from", "{d}/cal.yaml"),
                "made for gpu H200",
            ),
            (("{d}/grid.csv", "--transfer-from", "{d}/cal.yaml", "--gpu", "H100"), "takes no measurements"),
            (("--transfer-from", "{d}/cal.yaml"), "--gpu is missing"),
            (("--transfer-from", "{d}/cal.yaml", "--gpu", "H200"), "is of H200 already"),
        ],
    )
    def test_one_line_and_no_file(self, folder, tmp_path, capsys, argv, message):
        argv = [each.format(d=folder) for each in argv]
        assert message in refused(capsys, "calibrate", *argv, "--out", tmp_path / "cal.yaml")
        assert list(tmp_path.iterdir()) == []

    def test_fewer_points_than_coefficients(self, tmp_path, capsys):
        few = measured.write_grid(tmp_path / "few.csv", known_cost(), decode=[(1, 128), (4, 128)])
        message = refused(capsys, "calibrate", few, *ENGINE, "--out", tmp_path / "cal.yaml")
        assert message.startswith("2 decode points cannot fix 3 coefficients")
        assert list(tmp_path.iterdir()) == [few]

    def test_a_missing_column(self, folder, tmp_path, capsys):
        bad = tmp_path / "grid.csv"
        bad.write_text((folder / "grid.csv").read_text().replace("output_tokens", "outputs"))
        message = refused(capsys, "calibrate", bad, *ENGINE, "--out", tmp_path / "cal.yaml")
        assert message.startswith(f"{bad}, line 1: neither points, a trace")

    def test_where_it_cannot_write_it_leaves_nothing(self, folder, tmp_path, capsys):
        taken = tmp_path / "taken"
        taken.mkdir()
        for out in (tmp_path / "none" / "cal.yaml", taken, folder / "grid.csv" / "cal.yaml"):
            message = refused(capsys, "calibrate", folder / "grid.csv", *ENGINE, "--out", out)
            assert message.startswith(f"{out}: cannot be written (")
        assert list(tmp_path.iterdir()) == [taken]
        assert list(taken.iterdir()) == []


class TestValidate:
    def on_trace(self, folder, *more):
        argv = ("validate", "--calibration", folder / "cal.yaml", "--trace", folder / "held.csv")
        return [str(each) for each in (*argv, "--concurrency", "16", *more)]

    def test_a_trace_that_was_not_fitted_is_met(self, folder, tmp_path, capsys):
        out = tmp_path / "v.json"
        assert main(self.on_trace(folder, "--json", out, "--max-error", "3")) == 0
        captured = capsys.readouterr()
        assert captured.out.splitlines()[0] == "held.csv: 100 turns of 20 trajectories"
        assert "note:" not in captured.out
        content = json.loads(out.read_text())
        assert set(content["signed_error"]) == ERROR_KEYS
        for name, error in content["signed_error"].items():
            assert error == pytest.approx(content["simulated"][name] / content["measured"][name] - 1)
            assert abs(error) < 0.05, name
        assert content["schema_version"] == 1
        assert (content["concurrency"], content["deadline_s"], content["num_refused"]) == (16, None, 0)
        assert content["simulated"]["prefix_hit_tokens"] == content["measured"]["prefix_hit_tokens"]
        assert captured.err == f"json: {out}\n"

    def test_the_exit_code_is_the_makespans(self, folder, tmp_path):
        """A calibration that is twice as slow in all decode steps: further off than 5 %, and not than 500 %."""
        known = load_calibration(folder / "cal.yaml")
        path = tmp_path / "slow.yaml"
        content = yaml.safe_load(to_yaml(known))
        content["coefficients"]["decode_base_s"] *= 2
        path.write_text(yaml.safe_dump(content))
        argv = [
            "validate",
            "--calibration",
            str(path),
            "--trace",
            str(folder / "held.csv"),
            "--concurrency",
            "16",
        ]
        assert main([*argv, "--max-error", "5"]) == 1
        assert main([*argv, "--max-error", "500"]) == 0
        assert main(argv) == 0

    def test_the_development_trace_is_named_as_such(self, folder, capsys):
        argv = ["validate", "--calibration", str(folder / "cal.yaml"), "--trace", str(folder / "trace.csv")]
        assert main([*argv, "--concurrency", "20"]) == 0
        assert "note: the calibration was fitted to this very file" in capsys.readouterr().out

    def test_a_deadline_adds_what_ended_in_time(self, folder, tmp_path, capsys):
        out = tmp_path / "v.json"
        assert main(self.on_trace(folder, "--deadline", "3", "--json", out)) == 0
        assert "turns_by_deadline" in capsys.readouterr().out
        content = json.loads(out.read_text())
        assert content["deadline_s"] == 3.0
        assert 0 < content["measured"]["turns_by_deadline"] < 100
        assert set(content["signed_error"]) == ERROR_KEYS

    def test_a_plot(self, folder, tmp_path):
        out = tmp_path / "turns.png"
        assert main(self.on_trace(folder, "--plot", out)) == 0
        assert out.read_bytes().startswith(b"\x89PNG")
        assert list(tmp_path.iterdir()) == [out]

    def test_requests(self, folder, tmp_path, capsys):
        out = tmp_path / "v.json"
        argv = [
            "validate",
            "--calibration",
            str(folder / "cal.yaml"),
            "--requests",
            str(folder / "requests.csv"),
        ]
        assert main([*argv, "--json", str(out)]) == 0
        content = json.loads(out.read_text())
        assert set(content["signed_error"]) == ERROR_KEYS
        assert content["concurrency"] is None
        assert "prefix_hit_tokens" not in content["measured"]
        assert abs(content["signed_error"]["mean_latency_s"]) < 0.1

    def test_a_turn_that_the_engine_would_refuse_is_an_error(self, tmp_path, capsys):
        """An engine of ten blocks fits no turn: nothing is compared, nothing is written."""
        cal = tmp_path / "cal.yaml"
        cal.write_text(to_yaml(calibration(known_cost(kv_capacity_tokens=160))))
        trace = tmp_path / "big.csv"
        measured.write_csv(trace, TRACE_COLUMNS, [("a", 0, 0.0, 5000, 10, 0, 0.1, 0.2, 0.0)])
        out = tmp_path / "v.json"
        argv = ["validate", "--calibration", cal, "--trace", trace, "--concurrency", "1", "--json", out]
        argv = [str(each) for each in argv]
        assert main(argv) == 2
        assert "big.csv: turn 1 in order of trajectories has 5,010 tokens" in capsys.readouterr().err
        assert not out.exists()

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (("--gpu", "H100"), "cal.yaml: made for gpu H200, wanted for H100"),
            (("--model", "Qwen3-8B"), "cal.yaml: made for model Qwen3-4B, wanted for Qwen3-8B"),
            (("--tp", "2"), "cal.yaml: made for tp 1, wanted for 2"),
            (("--engine", "sglang"), "cal.yaml: made for engine vllm, wanted for sglang"),
            (("--engine-version", "0.19.0"), "cal.yaml: made for engine_version 0.26.0, wanted for 0.19.0"),
            (("--concurrency", "0"), "--concurrency: how many trajectories ran at once? give 1 or more"),
            (("--deadline", "0"), "--deadline 0: give seconds above 0"),
            (("--max-error", "-1"), "--max-error -1: give a percentage of 0 or more"),
            (("--fit", "run"), "--fit and --out belong to a RUN"),
            (("--out", "folder"), "--fit and --out belong to a RUN"),
            (
                ("--calibration", "{d}/cal.yaml"),
                "one --calibration CAL.yaml is needed (a trace is of one engine)",
            ),
            (
                ("--requests", "{d}/requests.csv"),
                "trace and requests to validate on; give one of RUN, --trace",
            ),
            (("{d}",), "run and trace to validate on; give one of RUN, --trace CSV, --requests CSV"),
        ],
    )
    def test_one_line(self, folder, capsys, argv, message):
        argv = [each.format(d=folder) for each in argv]
        assert message in refused(capsys, *self.on_trace(folder, *argv))

    def test_nothing_to_validate_on(self, folder, capsys):
        assert "nothing to validate on" in refused(capsys, "validate", "--calibration", folder / "cal.yaml")

    def test_no_calibration(self, folder, capsys):
        argv = ("validate", "--trace", folder / "held.csv", "--concurrency", "16")
        assert "one --calibration CAL.yaml is needed" in refused(capsys, *argv)
        assert "none.yaml: cannot be read" in refused(capsys, *argv, "--calibration", folder / "none.yaml")
        assert "grid.csv: no calibration" in refused(capsys, *argv, "--calibration", folder / "grid.csv")

    def test_a_plot_of_a_run_is_not_what_there_is(self, folder, tmp_path, capsys):
        message = refused(capsys, "validate", tmp_path, "--plot", tmp_path / "p.png")
        assert message.startswith("--plot belongs to a trace")

    @pytest.mark.parametrize(
        ("broken", "message"),
        [
            (lambda lines: [*lines[:3], *lines[4:]], "line 4, column turn: 3 where turn 2 of 't0' belongs"),
            (lambda lines: [lines[0].replace("ttft_s", "first_s"), *lines[1:]], "line 1: no column 'ttft_s'"),
            (
                lambda lines: [*lines[:2], backwards(lines[2]), *lines[3:]],
                "line 3, column submit_s: before the end",
            ),
            (lambda lines: lines[:1], "line 1: no rows below the header"),
        ],
    )
    def test_a_broken_trace_is_named_and_nothing_is_written(self, folder, tmp_path, capsys, broken, message):
        path = tmp_path / "held.csv"
        path.write_text("\n".join(broken(trace_lines(folder))) + "\n")
        argv = self.on_trace(folder, "--trace", path, "--json", tmp_path / "v.json")
        line = refused(capsys, *argv)
        assert line.startswith(str(path))
        assert message in line
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("option", ["--json", "--plot"])
    def test_where_it_cannot_write_it_leaves_nothing(self, folder, tmp_path, capsys, option):
        taken = tmp_path / "taken"
        taken.mkdir()
        for out in (tmp_path / "none" / "v", taken):
            message = refused(capsys, *self.on_trace(folder, option, out))
            assert message.startswith(f"{out}: cannot be written (")
        assert list(tmp_path.iterdir()) == [taken]

    @pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
    def test_a_folder_that_may_not_be_written(self, folder, tmp_path, capsys):
        tmp_path.chmod(0o500)
        try:
            message = refused(capsys, *self.on_trace(folder, "--json", tmp_path / "v.json"))
        finally:
            tmp_path.chmod(0o700)
        assert "cannot be written (Permission denied)" in message


def backwards(line):
    """The turn, submitted at 0 s."""
    cells = line.split(",")
    cells[TRACE_COLUMNS.index("submit_s")] = "0"
    return ",".join(cells)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    experiment = folder / "one.yaml"
    experiment.write_text(
        "name: one\nhardware_config: H200\nmodel_arch_config: Qwen3-4B\ntrain_gpus: 0\n"
        "workload: {kind: preset, preset: tau_dialogue, num_prompts: 4}\n"
        "heterogeneous_rollout: {instances: [{tp: 1}]}\n",
        encoding="utf-8",
    )
    assert main(["run", str(experiment), "--out", str(folder / "run")]) == 0
    return folder / "run"


class TestValidateRunOnCalibrations:
    """A RUN takes calibrations as an experiment does: the same look-up, the same refusals."""

    def test_the_costs_that_made_a_run_give_it_again(self, run, capsys):
        argv = ["validate", str(run), "--calibration", str(COMMITTED / "h200_qwen3-4b_tp1_vllm0.26.0.yaml")]
        assert main([*argv, "--max-error", "0.1"]) == 0
        capsys.readouterr()

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (("h200_qwen3-4b_tp1_vllm0.26.0",) * 2, "a second calibration of tp 1; give one per TP degree"),
            (("h200_qwen3-14b_tp1_vllm0.26.0",), "made for model Qwen3-14B, wanted for Qwen3-4B"),
            (("no_such",), "cannot be read"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, run, names, message, capsys):
        files = [word for name in names for word in ("--calibration", str(COMMITTED / f"{name}.yaml"))]
        assert main(["validate", str(run), *files]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert message in line
