"""The committed tables come from their source, and describe it."""

import csv

import numpy as np
import pytest
import yaml

from libra.cost.hardware import catalogue, find_gpu, find_model
from libra.cost.oracle import fit_tables, oracle_costs, read_rows, scale_allreduce, to_yaml
from libra.cost.points import read_points
from libra.cost.rollout import ReplicaCost
from libra.cost.tables import rollout_costs
from libra.errors import UserError
from tests.support.costs import DATA, needs_data


def oracle_rows(ttft_ms, step_ms=lambda batch, context: 5 + 0.01 * batch + 3e-5 * batch * context):
    """Four decode steps and one prefill of a made-up table."""
    rows = [
        {"tp": "2", "mode": "static_gen", "ctx": str(c), "batch": str(b), "tpot_ms": str(step_ms(b, c))}
        for b, c in [(1, 2048), (32, 2048), (128, 2048), (32, 16384), (8, 512)]
    ]
    return [*rows, {"tp": "2", "mode": "static_ctx", "ctx": "8192", "batch": "1", "ttft_ms": str(ttft_ms)}]


def test_an_entry_recovers_the_decode_coefficients_and_meets_its_prefill_row():
    (entry,) = oracle_costs(oracle_rows(200.0), find_gpu("H100"), find_model("Qwen3-14B"), "made up")
    assert (entry.gpu, entry.model, entry.tp, entry.source) == ("H100", "Qwen3-14B", 2, "made up")
    assert entry.decode_base_s == pytest.approx(5e-3, rel=1e-4)
    assert entry.decode_per_seq_s == pytest.approx(1e-5, rel=1e-4)
    assert entry.decode_per_context_token_s == pytest.approx(3e-8, rel=1e-4)
    assert entry.experts_s == 0.0
    assert entry.decode_mean_error == 0.0
    attention_s = 8192**2 / 2 * entry.prefill_per_attention_s
    total_s = entry.prefill_base_s + 8192 * entry.prefill_per_token_s + attention_s
    assert total_s == pytest.approx(0.2, rel=1e-4)


def test_a_mixtures_experts_are_told_from_its_base():
    model = find_model("Qwen3-30B-A3B")

    def step_ms(batch, context):
        return 5 + 20 * (1 - (1 - 8 / 128) ** batch) + 0.01 * batch + 3e-5 * batch * context

    (entry,) = oracle_costs(oracle_rows(200.0, step_ms), find_gpu("H100"), model, "made up")
    assert entry.decode_base_s == pytest.approx(5e-3, rel=1e-4)
    assert entry.experts_s == pytest.approx(20e-3, rel=1e-4)


def test_a_row_faster_than_its_attention_is_refused():
    with pytest.raises(UserError, match="H100 Qwen3-14B tp 2: prefill row is below its attention"):
        oracle_costs(oracle_rows(6.0), find_gpu("H100"), find_model("Qwen3-14B"), "made up")


def test_slower_links_cost_more_per_token_only():
    model = find_model("Qwen3-14B")
    (entry,) = oracle_costs(oracle_rows(600.0), find_gpu("A100"), model, "made up")
    slow = scale_allreduce(entry, model, find_gpu("A800"), find_gpu("A100"), "derived")
    # 40 layers * 2 all-reduces * 2 * (1/2) * 5120 * 2 bytes at 200 instead of 300 GB/s
    extra_s = 40 * 2 * 5120 * 2 * (1 / 200e9 - 1 / 300e9)
    assert slow.decode_per_seq_s - entry.decode_per_seq_s == pytest.approx(extra_s, rel=1e-3)
    assert slow.prefill_per_token_s - entry.prefill_per_token_s == pytest.approx(extra_s, rel=1e-2)
    assert (slow.gpu, slow.decode_base_s, slow.source) == ("A800", entry.decode_base_s, "derived")


def test_no_table(tmp_path):
    with pytest.raises(UserError, match=r"cannot be read .*; give a CSV file"):
        read_rows(tmp_path / "none.csv")


class TestWithData:
    pytestmark = needs_data

    def test_committed_tables_come_from_the_source(self):
        fresh = yaml.safe_load(to_yaml(fit_tables(DATA / "aic_oracle.csv")))["entries"]
        committed = catalogue("rollout")["entries"]
        key = ("gpu", "model", "tp")
        assert [[row[k] for k in key] for row in fresh] == [[row[k] for k in key] for row in committed]
        assert len(committed) > 50
        for new, old in zip(fresh, committed, strict=True):
            assert new.keys() == old.keys()
            for name, value in new.items():
                assert old[name] == (pytest.approx(value, rel=2e-4) if isinstance(value, float) else value)

    def test_decode_error_against_every_row(self):
        costs: dict[tuple[str, str, int], ReplicaCost] = {}
        errors, dense = [], []
        with (DATA / "aic_oracle.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["mode"] == "static_gen"]
        for row in rows:
            key = (row["system"].split("_")[0].upper(), row["model"], int(row["tp"]))
            if key not in costs:
                costs[key] = table_cost(*key)
            batch, context = int(row["batch"]), int(row["ctx"])
            features = unpadded_s(costs[key], batch, batch * context)
            error = abs(features / (float(row["tpot_ms"]) / 1e3) - 1)
            errors.append(error)
            if "A3B" not in row["model"]:
                dense.append(error)
        print(f"decode mean relative error: all {np.mean(errors):.4f}, dense {np.mean(dense):.4f}")
        assert len(errors) > 200
        assert np.mean(errors) <= 0.02
        assert np.mean(dense) <= 0.02

    def test_the_estimates_are_near_the_measured_grids(self):
        """Estimates of H200 against steps of a real engine: they have no scheduler and are a little too fast."""
        for model, tp, stem in [
            ("Qwen3-4B", 1, "q4b_tp1"),
            ("Qwen3-14B", 1, "q14b_tp1"),
            ("Qwen3-14B", 2, "q14b_tp2"),
        ]:
            cost = table_cost("H200", model, tp)
            rows = read_points(DATA / "h200" / f"grid_{stem}.csv").decode
            errors = [cost.decode_s(batch, round(context)) / seconds - 1 for batch, context, seconds in rows]
            print(f"{model} tp {tp}: mean {np.mean(errors):+.3f}, absolute {np.mean(np.abs(errors)):.3f}")
            assert np.mean(np.abs(errors)) <= 0.08, model


def table_cost(gpu, model, tp):
    """The row of the tables, whatever is measured."""
    (row,) = (
        r for r in catalogue("rollout")["entries"] if (r["gpu"], r["model"], r["tp"]) == (gpu, model, tp)
    )
    shape = find_model(model)
    names = [name for name in row if name.endswith("_s")]
    (host,) = rollout_costs("H100", "Qwen3-4B", [1]).values()
    return ReplicaCost(
        gpu=gpu,
        model=model,
        tp=tp,
        graph_host_s=host.graph_host_s,
        eager_host_s=host.eager_host_s,
        kv_capacity_tokens=1,
        num_experts=shape.num_experts,
        experts_per_token=shape.experts_per_token,
        **{name: row[name] for name in names},
    )


def unpadded_s(cost, batch, context):
    """A decode step without CUDA graphs, which the estimates do not know."""
    return (
        cost.decode_base_s
        + cost.decode_per_seq_s * batch
        + cost.experts_read_s(batch)
        + cost.decode_per_context_token_s * context
    )
