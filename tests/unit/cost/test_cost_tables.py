"""Which source prices a replica, and that one simulation has one source."""

from dataclasses import replace

import pytest

from libra.cost.analytic import SHARES
from libra.cost.calibration import load_calibration, to_yaml
from libra.cost.hardware import catalogue, find_gpu, find_model, gpu_names, kv_capacity_tokens, model_names
from libra.cost.tables import RolloutCostConfig, committed_calibrations, rollout_costs
from libra.errors import UserError
from tests.support.costs import calibration, round_cost


def method(cost):
    """Which source a cost says that it is from."""
    if cost.source.startswith("analytic"):
        return "analytic"
    return "table" if cost.source.startswith(("aiconfigurator", "two readings", "TP 1, with")) else "measured"


@pytest.fixture
def write(tmp_path):
    """Write a calibration; its path as text."""

    def write(name="cal.yaml", made=None, **stamp):
        path = tmp_path / name
        path.write_text(to_yaml(made or calibration(**stamp)))
        return str(path)

    return write


def named(*paths, **settings):
    return RolloutCostConfig(calibrations=paths, **settings)


class TestSourceOrder:
    @pytest.mark.parametrize(
        ("gpu", "model", "degrees", "source"),
        [
            ("H200", "Qwen3-14B", [1, 2], "measured"),
            ("H200", "Qwen3-14B", [2], "measured"),
            ("H200", "Qwen3-14B", [1, 2, 4], "table"),  # no calibration at tp 4, so none at all
            ("H200", "Qwen3-14B", [4], "table"),
            ("H100", "Qwen3-14B", [1, 2], "table"),
            ("A100", "Qwen3-30B-A3B", [1, 2, 4], "table"),
            ("A100", "Qwen3-30B-A3B", [2, 8], "analytic"),  # the table ends at tp 4
            ("RTX4090", "Llama-3.1-8B", [1], "measured"),
            ("RTX4090", "Llama-3.1-8B", [1, 2], "analytic"),
            ("L40S", "Qwen3-8B", [1, 2], "analytic"),
            ("CPU", "Qwen3-tiny", [1, 2], "table"),
        ],
    )
    def test_the_first_source_with_every_degree_prices_all(self, gpu, model, degrees, source):
        costs = rollout_costs(gpu, model, degrees)
        assert list(costs) == sorted(set(degrees))
        assert {method(cost) for cost in costs.values()} == {source}
        for tp, cost in costs.items():
            assert (cost.gpu, cost.model, cost.tp) == (gpu, model, tp)

    def test_degrees_may_repeat(self):
        assert list(rollout_costs("H100", "Qwen3-8B", [2, 1, 2])) == [1, 2]

    def test_a_named_calibration_comes_before_the_committed_one(self, write):
        path = write()
        (cost,) = rollout_costs("H200", "Qwen3-4B", [1], config=named(path)).values()
        assert cost == round_cost()
        assert cost.source.startswith(path)
        assert rollout_costs("H200", "Qwen3-4B", [1])[1] != cost

    def test_a_calibration_of_a_degree_that_nobody_asks_for_is_no_harm(self, write):
        one, two = write("1.yaml"), write("2.yaml", calibration(round_cost(tp=2)))
        costs = rollout_costs("H200", "Qwen3-4B", [2], config=named(one, two))
        assert list(costs) == [2]

    def test_a_row_that_was_fitted_to_nothing_per_sequence_prices(self):
        """Where a table's steps do not grow with the batch, its row says 0 and is used like any other."""
        costs = rollout_costs("A100", "Qwen3-4B", [1])
        assert (costs[1].decode_per_seq_s, method(costs[1])) == (0.0, "table")

    def test_the_tables_take_the_hosts_times_from_the_analytic_model(self):
        cost = rollout_costs("H100", "Qwen3-8B", [1])[1]
        assert cost.eager_host_s == pytest.approx(36 * SHARES.eager_layer_s)
        assert cost.dispersed_kv_factor == SHARES.dispersed_kv_factor
        cpu = rollout_costs("CPU", "Qwen3-tiny", [1])[1]
        assert (cpu.host_per_seq_s, cpu.async_scheduling, cpu.capture_tokens) == (0.0, False, 0)
        assert cpu.eager_host_s == 0.0011


class TestNamed:
    @pytest.mark.parametrize(
        ("stamp", "message"),
        [
            ({"model": "Qwen3-8B"}, "made for model Qwen3-8B, wanted for Qwen3-4B"),
            ({"gpu": "H100"}, "made for gpu H100, wanted for H200"),
        ],
    )
    def test_one_of_another_model_or_gpu_is_refused(self, write, stamp, message):
        path = write(**stamp)
        with pytest.raises(UserError, match=message) as caught:
            rollout_costs("H200", "Qwen3-4B", [1], config=named(path))
        assert str(caught.value).startswith(path)

    def test_another_model_stays_refused_under_allow_mixed(self, write):
        with pytest.raises(UserError, match="made for model Qwen3-8B"):
            rollout_costs("H200", "Qwen3-4B", [1], config=named(write(model="Qwen3-8B"), allow_mixed=True))

    @pytest.mark.parametrize(
        "stamp",
        [
            {"engine": "sglang"},
            {"engine_version": "0.27.0"},
            {"dtype": "fp8"},
            {"method": "transferred"},
        ],
    )
    def test_stamps_of_different_engines_do_not_mix(self, write, stamp):
        one, two = write("1.yaml"), write("2.yaml", calibration(round_cost(tp=2), **stamp))
        with pytest.raises(UserError, match=r"different engines cannot be compared .*allow_mixed") as caught:
            rollout_costs("H200", "Qwen3-4B", [1, 2], config=named(one, two))
        assert one in str(caught.value)
        assert two in str(caught.value)
        costs = rollout_costs("H200", "Qwen3-4B", [1, 2], config=named(one, two, allow_mixed=True))
        assert [cost.source.partition(":")[0] for cost in costs.values()] == [one, two]

    def test_two_of_one_degree_are_refused(self, write):
        one, two = write("1.yaml"), write("2.yaml")
        with pytest.raises(UserError, match="a second calibration of tp 1; give one per TP degree") as caught:
            rollout_costs("H200", "Qwen3-4B", [1], config=named(one, two))
        assert str(caught.value).startswith(two)

    def test_a_degree_without_one_is_refused_or_filled_in_by_estimates(self, write):
        path = write()
        with pytest.raises(UserError, match="no calibration of Qwen3-4B on H200 at tp 2 among those given"):
            rollout_costs("H200", "Qwen3-4B", [1, 2], config=named(path))
        costs = rollout_costs("H200", "Qwen3-4B", [1, 2], config=named(path, allow_mixed=True))
        assert costs[1].source.startswith(path)
        assert method(costs[2]) == "table"

    def test_what_fills_in_is_the_best_there_is(self, write):
        path = write(made=calibration(round_cost(model="Qwen3-14B")))
        costs = rollout_costs("H200", "Qwen3-14B", [1, 2, 4], config=named(path, allow_mixed=True))
        assert costs[1].source.startswith(path)
        assert costs[2].source.startswith("calibrations/")
        assert method(costs[4]) == "table"

    def test_a_broken_one_is_named(self, tmp_path):
        path = tmp_path / "none.yaml"
        with pytest.raises(UserError, match=r"none\.yaml: cannot be read"):
            rollout_costs("H200", "Qwen3-4B", [1], config=named(str(path)))


class TestKvCapacity:
    def test_the_measured_one_holds_at_the_measured_share_of_memory_only(self):
        (measured,) = (
            each
            for each in committed_calibrations()
            if (each.stamp.gpu, each.stamp.model) == ("H200", "Qwen3-4B")
        )
        usual = rollout_costs("H200", "Qwen3-4B", [1])[1]
        assert usual == measured.cost
        assert usual.kv_capacity_tokens == measured.settings.kv_capacity_tokens
        half = rollout_costs("H200", "Qwen3-4B", [1], 0.5)[1]
        computed = kv_capacity_tokens(find_gpu("H200"), find_model("Qwen3-4B"), 1, 0.5)
        assert half == replace(measured.cost, kv_capacity_tokens=computed)
        assert computed < 0.6 * usual.kv_capacity_tokens

    def test_the_same_for_a_named_one(self, write):
        config = named(write())
        assert rollout_costs("H200", "Qwen3-4B", [1], config=config)[1].kv_capacity_tokens == 100_000
        computed = kv_capacity_tokens(find_gpu("H200"), find_model("Qwen3-4B"), 1, 0.8)
        assert rollout_costs("H200", "Qwen3-4B", [1], 0.8, config)[1].kv_capacity_tokens == computed

    def test_another_gpus_is_not_taken_over(self, write):
        config = named(write(gpu="H100"), allow_mixed=True)
        computed = kv_capacity_tokens(find_gpu("H200"), find_model("Qwen3-4B"), 1)
        assert rollout_costs("H200", "Qwen3-4B", [1], config=config)[1].kv_capacity_tokens == computed

    def test_a_model_that_does_not_fit_says_needed_and_available(self):
        with pytest.raises(UserError, match=r"needs 60\.9 GiB .* and 39\.6 GiB are available"):
            rollout_costs("H100", "Qwen3-30B-A3B", [1], gpu_memory_utilization=0.5)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("B300", "Qwen3-8B", [1]), "gpu 'B300' is not in the cost catalogue; choose one of: A100, A800"),
        (("H100", "Qwen3-9B", [1]), "model 'Qwen3-9B' is not in the cost catalogue"),
        (("H100", "Qwen3-8B", [1, 3]), "tp 3 does not divide"),
        (("CPU", "Qwen3-tiny", [1, 4]), "no cost coefficients for Qwen3-tiny on CPU at tp 4; .* data: 1, 2"),
        (("CPU", "Qwen3-4B", [1]), "no cost coefficients for Qwen3-4B on CPU at tp 1; .* data: none"),
        (("H100", "Qwen3-8B", [1], 1.5), r"must lie in \(0, 1\]"),
    ],
)
def test_unknown_combinations_are_refused(args, message):
    with pytest.raises(UserError, match=message):
        rollout_costs(*args)


def test_every_gpu_prices_every_model_that_fits_and_wider_replicas_are_faster():
    """Long contexts and large batches: there the source does not matter."""
    num_priced = 0
    for gpu in gpu_names():
        for model in model_names():
            if "CPU" in gpu or "tiny" in model:
                continue
            degrees = []
            for tp in (1, 2, 4, 8):
                try:
                    kv_capacity_tokens(find_gpu(gpu), find_model(model), tp)
                except UserError:
                    continue
                degrees.append(tp)
            costs = list(rollout_costs(gpu, model, degrees).values()) if degrees else []
            num_priced += len(costs)
            assert all(cost.source for cost in costs)
            assert len({method(cost) for cost in costs}) <= 1
            steps = [cost.decode_s(32, 32 * 16_384) for cost in costs]
            assert steps == sorted(steps, reverse=True), (gpu, model)
            assert [c.kv_capacity_tokens for c in costs] == sorted(c.kv_capacity_tokens for c in costs)
    assert num_priced > 100


def test_every_row_of_the_tables_has_a_source_and_wider_ones_prefill_faster():
    rows = catalogue("rollout")["entries"]
    assert len(rows) == 62
    assert all(row["source"] for row in rows)
    for gpu, model in sorted({(row["gpu"], row["model"]) for row in rows}):
        per_token = [
            row["prefill_per_token_s"]
            for row in sorted(rows, key=lambda row: row["tp"])
            if (row["gpu"], row["model"]) == (gpu, model)
        ]
        assert per_token == sorted(per_token, reverse=True), (gpu, model)


def test_a_committed_calibration_is_what_its_file_says():
    for each in committed_calibrations():
        costs = rollout_costs(each.stamp.gpu, each.stamp.model, [each.stamp.tp])
        assert costs[each.stamp.tp] == each.cost


def test_a_written_calibration_prices_as_the_committed_one(tmp_path):
    """A committed file, copied by a user and named, gives the same costs."""
    for each in committed_calibrations():
        path = tmp_path / "copy.yaml"
        path.write_text(to_yaml(each))
        assert load_calibration(path).cost == each.cost


def test_eight_small_replicas_beat_one_large_on_short_contexts_and_lose_the_lead_on_long():
    """Direction of the published A800 comparison (arXiv 2606.03077): 3.1x for 0-2K, 1 / 2.8x for 16-32K.

    At most 128 sequences a replica, the largest batch in the data that the coefficients were fitted to.
    """
    costs = rollout_costs("A800", "Qwen3-14B", [1, 8])

    def tokens_per_s(tp, replicas, context):
        cost = costs[tp]
        batch = min(128, 512 // replicas, cost.kv_capacity_tokens // context)
        return replicas * batch / cost.decode_s(batch, batch * context)

    assert tokens_per_s(1, 8, 1024) / tokens_per_s(8, 1, 1024) > 1.2
    assert tokens_per_s(1, 8, 24_576) / tokens_per_s(8, 1, 24_576) < 0.8
