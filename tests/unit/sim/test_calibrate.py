"""Calibration from files whose engine is known: what made them comes back, and what cannot be right is refused."""

from dataclasses import replace

import pytest

from libra.cost.analytic import analytic_cost
from libra.cost.calibration import COEFFICIENTS, MAX_COEFFICIENTS, parse_calibration, to_yaml
from libra.cost.hardware import find_gpu, find_model, kv_capacity_tokens
from libra.errors import UserError
from libra.record.manifest import file_sha256
from sim.calibrate import ENGINE_WIDE, Target, calibrate, transfer
from sim.traces.fitting import MIN_REQUESTS, REQUEST_COEFFICIENTS
from tests.support import measured
from tests.support.measured import known_cost

TARGET = Target(gpu="H200", model="Qwen3-4B", tp=1, engine="vllm", engine_version="0.26.0", date="2026-11-30")
CONCURRENCY = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of one made-up engine."""
    folder = tmp_path_factory.mktemp("measured")
    cost = known_cost()
    measured.write_grid(folder / "grid.csv", cost)
    measured.write_mixed(folder / "mixed.csv", cost)
    measured.write_facts(folder / "facts.csv")
    trace = measured.trajectories(40, 4)
    measured.write_trace(folder / "trace.csv", trace, cost, CONCURRENCY)
    measured.write_trace(folder / "other.csv", measured.trajectories(10, 3, seed=1), cost, CONCURRENCY)
    measured.write_requests(folder / "requests.csv", measured.requests(120, 6.0), cost)
    return folder


@pytest.fixture(scope="module")
def whole(folder):
    """Fitted to everything that can be had of one engine."""
    names = ("grid.csv", "mixed.csv", "facts.csv", "trace.csv")
    return calibrate([folder / name for name in names], TARGET, concurrency=CONCURRENCY)


class TestFromPoints:
    @pytest.mark.parametrize(
        ("name", "within"),
        [
            ("decode_base_s", 1e-6),
            ("decode_per_seq_s", 1e-6),
            ("decode_per_context_token_s", 1e-6),
            ("prefill_base_s", 0.04),  # shows in prefills longer than the host only, behind the tokens' part
            ("prefill_per_token_s", 0.01),
            ("graph_host_s", 0.01),
            ("eager_host_s", 0.01),
            ("host_per_seq_s", 0.25),  # leans on the front end's part, which is fitted after it
            ("admission_per_seq_s", 0.06),
            ("dispersed_kv_factor", 0.03),
        ],
    )
    def test_every_coefficient_comes_back(self, whole, name, within):
        assert name in whole.fitted
        assert getattr(whole.cost, name) == pytest.approx(getattr(known_cost(), name), rel=within)

    def test_the_host_comes_back_to_its_grid_where_the_front_end_is_as_assumed(self, tmp_path):
        start = analytic_cost(find_gpu("H200"), find_model("Qwen3-4B"), 1, 1)
        cost = known_cost(admission_per_seq_s=start.admission_per_seq_s)
        files = [
            measured.write_grid(tmp_path / "grid.csv", cost),
            measured.write_mixed(tmp_path / "mixed.csv", cost),
        ]
        made = calibrate(files, replace(TARGET, kv_capacity_tokens=500_000))
        assert made.cost.host_per_seq_s == pytest.approx(cost.host_per_seq_s, abs=2.1e-5)  # its grid: 20 us
        assert made.errors["mixed_mean"] < 0.01

    def test_ten_are_fitted_and_the_rest_stands(self, whole):
        assert len(whole.fitted) == MAX_COEFFICIENTS
        assert whole.cost.admission_s == known_cost().admission_s
        assert whole.cost.prefill_per_attention_s == known_cost().prefill_per_attention_s

    def test_the_errors_that_remain_are_told(self, whole):
        assert whole.errors["decode_mean"] < 1e-6
        assert whole.errors["prefill_mean"] < 0.01
        assert whole.errors["mixed_mean"] < 0.06
        assert abs(whole.errors["trace_makespan_s"]) < 0.005
        assert abs(whole.errors["trace_mean_latency_s"]) < 0.005

    def test_the_stamp_says_what_it_is_of_and_what_it_was_fitted_to(self, whole, folder):
        stamp = whole.stamp
        assert (stamp.gpu, stamp.model, stamp.tp) == ("H200", "Qwen3-4B", 1)
        assert (stamp.method, stamp.date, stamp.engine_from) == ("measured", "2026-11-30", "")
        assert stamp.development_trace == "trace.csv"
        assert stamp.data == {
            name: file_sha256(folder / name) for name in ("grid.csv", "mixed.csv", "facts.csv", "trace.csv")
        }

    def test_the_measured_kv_capacity_is_taken(self, whole, folder):
        assert whole.settings.kv_capacity_tokens == whole.cost.kv_capacity_tokens == 500_000
        assert not any("kv_capacity" in note for note in whole.notes)
        computed = calibrate([folder / "grid.csv"], TARGET)
        assert computed.settings.kv_capacity_tokens == kv_capacity_tokens(
            find_gpu("H200"), find_model("Qwen3-4B"), 1
        )
        assert "kv_capacity_tokens: computed, not measured" in computed.notes
        given = calibrate([folder / "grid.csv"], replace(TARGET, kv_capacity_tokens=1234))
        assert given.settings.kv_capacity_tokens == 1234

    def test_a_grid_alone_leaves_the_engine_wide_ones_at_the_analytic_model(self, folder):
        made = calibrate([folder / "grid.csv"], TARGET)
        start = analytic_cost(find_gpu("H200"), find_model("Qwen3-4B"), 1, 1)
        for name in ENGINE_WIDE:
            assert name not in made.fitted
            assert getattr(made.cost, name) == getattr(start, name)

    def test_the_order_of_the_files_does_not_matter(self, folder):
        one, other = (
            calibrate([folder / name for name in names], TARGET)
            for names in (("grid.csv", "mixed.csv"), ("mixed.csv", "grid.csv"))
        )
        assert one == other

    def test_it_survives_its_file(self, whole):
        import yaml

        read = parse_calibration(yaml.safe_load(to_yaml(whole)), "a file")
        assert read.stamp == whole.stamp
        assert read.settings == whole.settings
        assert read.fitted == tuple(name for name in COEFFICIENTS if name in whole.fitted)
        for name in COEFFICIENTS:
            assert getattr(read.cost, name) == pytest.approx(getattr(whole.cost, name), rel=1e-4)

    def test_graphs_and_scheduling_are_the_targets(self, folder):
        made = calibrate([folder / "grid.csv"], replace(TARGET, capture_tokens=64, async_scheduling=False))
        assert (made.cost.capture_tokens, made.cost.async_scheduling) == (64, False)
        assert calibrate([folder / "grid.csv"], TARGET).cost.capture_tokens == 256

    def test_a_mixture(self, tmp_path):
        """Its experts stay at the analytic model; the base that the grid leaves is found beside them."""
        cost = known_cost("Qwen3-30B-A3B")
        path = measured.write_grid(tmp_path / "grid.csv", cost)
        made = calibrate([path], replace(TARGET, model="Qwen3-30B-A3B"))
        assert "experts_s" not in made.fitted
        assert made.cost.experts_s == cost.experts_s
        for name in ("decode_base_s", "decode_per_seq_s", "decode_per_context_token_s"):
            assert getattr(made.cost, name) == pytest.approx(getattr(cost, name), rel=1e-6)


class TestEngineFrom:
    @pytest.fixture
    def other(self, tmp_path):
        """The grid of a larger model on the same engine."""
        return measured.write_grid(tmp_path / "grid14.csv", known_cost("Qwen3-14B"))

    def test_takes_what_is_not_the_models_own(self, whole, other):
        made = calibrate([other], replace(TARGET, model="Qwen3-14B"), engine_from=whole)
        for name in ENGINE_WIDE:
            assert getattr(made.cost, name) == getattr(whole.cost, name)
            assert name not in made.fitted
        assert made.stamp.engine_from == str(whole.stamp)
        assert made.cost.decode_base_s == pytest.approx(known_cost("Qwen3-14B").decode_base_s)
        assert f"{', '.join(ENGINE_WIDE)}: from the calibration of {whole.stamp}" in made.notes

    def test_the_hosts_levels_start_from_there_by_the_layers(self, whole, tmp_path):
        """No short prompts: the graphs' level is taken over, for 40 layers instead of 36."""
        grid = measured.write_grid(
            tmp_path / "long.csv", known_cost("Qwen3-14B"), prefill=[2048, 4096, 8192, 16384, 32768]
        )
        made = calibrate([grid], replace(TARGET, model="Qwen3-14B"), engine_from=whole)
        assert "graph_host_s" not in made.fitted
        assert made.cost.graph_host_s == pytest.approx(whole.cost.graph_host_s * 40 / 36, rel=1e-3)

    def test_the_note_names_only_what_was_taken_over(self, whole, folder):
        made = calibrate([folder / "grid.csv", folder / "mixed.csv"], TARGET, engine_from=whole)
        (note,) = (note for note in made.notes if "from the calibration of" in note)
        assert note.startswith("admission_s, admission_per_seq_s, dispersed_kv_factor: ")
        assert "host_per_seq_s" in made.fitted

    @pytest.mark.parametrize(
        "changes", [{"gpu": "H100"}, {"engine": "sglang"}, {"engine_version": "0.27.0"}, {"dtype": "fp8"}]
    )
    def test_another_engine_is_refused(self, whole, other, changes):
        (name,) = changes
        with pytest.raises(UserError, match=f"made for {name} .*, wanted for {changes[name]}"):
            calibrate([other], replace(TARGET, model="Qwen3-14B", **changes), engine_from=whole)


class TestFromRequests:
    def test_what_the_latencies_say_comes_back(self, folder):
        """Nobody measured the steps, so single coefficients lean on their start; what they add up to does not."""
        settings_target = replace(TARGET, kv_capacity_tokens=500_000)
        made = calibrate([folder / "requests.csv"], settings_target)
        cost = known_cost()
        assert made.fitted == REQUEST_COEFFICIENTS
        assert made.cost.decode_base_s == pytest.approx(cost.decode_base_s, rel=0.04)
        assert made.cost.decode_s(16, 16_000) == pytest.approx(cost.decode_s(16, 16_000), rel=0.04)
        assert abs(made.errors["requests_mean_latency_s"]) < 0.02
        assert abs(made.errors["requests_makespan_s"]) < 0.01
        assert "held_out_mean_latency_s" not in {key.removeprefix("requests_") for key in made.errors}

    def test_the_rest_is_predicted_from_half(self, folder):
        made = calibrate([folder / "requests.csv"], TARGET, use=lambda index: index % 2 == 0)
        assert abs(made.errors["requests_held_out_mean_latency_s"]) < 0.03

    def test_too_few_requests(self, folder):
        with pytest.raises(
            UserError, match=f"10 requests are too few to fit to \\({MIN_REQUESTS} at least\\)"
        ):
            calibrate([folder / "requests.csv"], TARGET, use=lambda index: index < 10)

    def test_requests_of_another_engine(self, folder):
        with pytest.raises(
            UserError, match="no request of Qwen3-4B on H100 at tp 1; it holds Qwen3-4B on H200"
        ):
            calibrate([folder / "requests.csv"], replace(TARGET, gpu="H100"))


class TestRefused:
    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (
                ("grid.csv", "trace.csv", "other.csv"),
                "other.csv: a second trace; fit to one and keep the others",
            ),
            (("grid.csv", "requests.csv"), "requests.csv: a log of requests is fitted by itself"),
            (("mixed.csv", "requests.csv"), "requests.csv: a log of requests is fitted by itself"),
            (("trace.csv", "requests.csv"), "requests.csv: a log of requests is fitted by itself"),
            (("trace.csv",), "no decode points among the files; give a grid, or a log of requests"),
            (("facts.csv",), "no decode points among the files"),
            (("mixed.csv",), "no decode points among the files"),
            (("grid.csv", "trace.csv"), "trace.csv: how many trajectories ran at once? give --concurrency"),
            (("grid.csv", "grid.csv"), "grid.csv: two files of this name; rename one"),
            (("none.csv",), "none.csv: no such file"),
        ],
    )
    def test_files_that_do_not_go_together(self, folder, names, message):
        with pytest.raises(UserError) as caught:
            calibrate([folder / name for name in names], TARGET)
        assert message in str(caught.value)

    def test_a_file_of_no_known_form(self, folder, tmp_path):
        path = measured.write_csv(tmp_path / "odd.csv", ("a", "b"), [(1, 2)])
        with pytest.raises(
            UserError, match=r"odd\.csv, line 1: neither points, a trace, .* \(columns: a, b\)"
        ):
            calibrate([folder / "grid.csv", path], TARGET)

    def test_fewer_points_than_coefficients(self, tmp_path):
        cost = known_cost()
        few = measured.write_grid(tmp_path / "few.csv", cost, decode=[(1, 128), (4, 128), (8, 9000)])
        with pytest.raises(UserError, match="3 decode points cannot fix 3 coefficients"):
            calibrate([few], TARGET)
        none = measured.write_grid(tmp_path / "none.csv", cost, prefill=[64, 1024])
        with pytest.raises(UserError, match="2 prefill points cannot fix 4 coefficients"):
            calibrate([none], TARGET)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"gpu": "B300"}, "gpu 'B300' is not in the cost catalogue"),
            ({"model": "Qwen3-9B"}, "model 'Qwen3-9B' is not in the cost catalogue"),
            ({"tp": 0}, "tp 0 does not divide the 32 attention heads"),
            ({"tp": 3, "kv_capacity_tokens": 1000}, "tp 3 does not divide the 32 attention heads"),
            ({"max_num_seqs": 0}, "max_num_seqs is 0; give 1 or more"),
            ({"block_size": -16}, "block_size is -16; give 1 or more"),
        ],
    )
    def test_a_target_that_there_is_not(self, folder, changes, message):
        with pytest.raises(UserError, match=message):
            calibrate([folder / "grid.csv"], replace(TARGET, **changes))

    def test_facts_that_are_no_number(self, folder, tmp_path):
        path = measured.write_facts(tmp_path / "facts.csv", tokens="lots")
        with pytest.raises(
            UserError, match="line 3, column value: 'lots' is no number of tokens; correct it"
        ):
            calibrate([folder / "grid.csv", path], TARGET)


class TestTransfer:
    def test_every_coefficient_takes_the_analytic_ratio(self, whole):
        made = transfer(whole, "H100", "2026-12-01")
        old, new = (analytic_cost(find_gpu(gpu), find_model("Qwen3-4B"), 1, 1) for gpu in ("H200", "H100"))
        for name in COEFFICIENTS:
            ratio = getattr(new, name) / getattr(old, name) if getattr(old, name) else 1.0
            expected = ratio * getattr(whole.cost, name)
            assert getattr(made.cost, name) == pytest.approx(expected), name
        # Reading KV goes by the bandwidths, 4.8 against 3.35 TB/s, whatever the shares are.
        assert made.cost.decode_per_context_token_s == pytest.approx(
            whole.cost.decode_per_context_token_s
            * find_gpu("H200").memory_bytes_per_s
            / find_gpu("H100").memory_bytes_per_s
        )
        assert made.cost.eager_host_s == whole.cost.eager_host_s

    def test_it_says_that_it_was_not_measured(self, whole):
        made = transfer(whole, "H100", "2026-12-01")
        assert (made.stamp.gpu, made.stamp.method, made.stamp.date) == ("H100", "transferred", "2026-12-01")
        assert made.errors == {}
        assert made.notes == (
            f"transferred from {whole.stamp} by the analytic ratio of each coefficient; no data of H100",
        )
        assert made.stamp.engine_key != replace(whole.stamp, gpu="H100").engine_key

    def test_the_kv_capacity_is_the_other_gpus(self, whole):
        made = transfer(whole, "H100", "2026-12-01")
        capacity = kv_capacity_tokens(find_gpu("H100"), find_model("Qwen3-4B"), 1)
        assert made.cost.kv_capacity_tokens == made.settings.kv_capacity_tokens == capacity

    def test_there_and_back(self, whole):
        back = transfer(transfer(whole, "H100", "2026-12-01"), "H200", "2026-12-01")
        for name in COEFFICIENTS:
            assert getattr(back.cost, name) == pytest.approx(getattr(whole.cost, name))

    def test_to_itself_and_to_nowhere(self, whole):
        with pytest.raises(UserError, match="is of H200 already; give another --gpu"):
            transfer(whole, "H200", "2026-12-01")
        with pytest.raises(UserError, match="gpu 'B300' is not in the cost catalogue"):
            transfer(whole, "B300", "2026-12-01")
