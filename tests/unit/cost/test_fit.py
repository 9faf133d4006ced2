"""Fits find the coefficients that made the data, and the committed ones come from their sources."""

from pathlib import Path

import numpy as np
import pytest

from libra.cost.fit import fit_decode, fit_prefill, fit_relative, oracle_costs, scale_allreduce
from libra.cost.hardware import catalogue, find_gpu, find_model
from libra.cost.sources import fit_folder, read_grid, read_odd_batches, read_rows, to_yaml
from libra.errors import UserError

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_data = [
    pytest.mark.data,
    pytest.mark.skipif(
        not (DATA / "aic_oracle.csv").exists(), reason="no development data in ../shared/data"
    ),
]


def test_decode_fit_recovers_known_coefficients():
    batch = np.array([1, 8, 32, 64, 32, 8, 1])
    context = batch * np.array([100, 1000, 2000, 2000, 16000, 32000, 16000])
    seconds = 5e-3 + 2e-5 * batch + 3e-8 * context
    fit = fit_decode(batch.tolist(), context.tolist(), seconds.tolist())
    assert fit.coefficients == pytest.approx((5e-3, 2e-5, 3e-8), rel=1e-9)
    assert fit.mean_error < 1e-12


def test_prefill_fit_charges_each_chunk_its_base():
    tokens = [2048, 4096, 10_000, 32_768]
    base = 4e-3
    seconds = [base * -(-n // 2048) + 1e-5 * n + 9e-10 * n * n / 2 for n in tokens]
    fit = fit_prefill(tokens, seconds, base, 2048)
    assert fit.coefficients == pytest.approx((1e-5, 9e-10), rel=1e-9)


def test_relative_error_lets_a_short_step_count_as_much_as_a_long_one():
    # Two points, one constant: the relative optimum of sum((x / t - 1)^2) is sum(1/t) / sum(1/t^2).
    fit = fit_relative(np.ones((2, 1)), np.array([1.0, 10.0]))
    assert fit.coefficients[0] == pytest.approx(1.1 / 1.01)


def test_coefficients_are_never_negative():
    fit = fit_decode([1, 2, 3, 4], [10, 20, 30, 41], [4e-3, 3e-3, 2e-3, 1e-3])
    assert min(fit.coefficients) >= 0.0


@pytest.mark.parametrize("seconds", [[1.0, 0.0, 1.0], [1.0, -1.0, 1.0], [1.0, float("nan"), 1.0]])
def test_bad_times_are_refused(seconds):
    with pytest.raises(UserError, match="leave that row out"):
        fit_decode([1, 2, 3], [1, 2, 4], seconds)


def test_too_few_points_are_refused():
    with pytest.raises(UserError, match="2 points cannot fix 3"):
        fit_decode([1, 2], [1, 2], [1.0, 1.0])


def oracle_rows(ttft_ms):
    rows = [
        {
            "tp": "2",
            "mode": "static_gen",
            "ctx": str(c),
            "batch": str(b),
            "tpot_ms": str(5 + 0.01 * b + 3e-5 * b * c),
        }
        for b, c in [(1, 2048), (32, 2048), (128, 2048), (32, 16384)]
    ]
    return [*rows, {"tp": "2", "mode": "static_ctx", "ctx": "8192", "batch": "1", "ttft_ms": str(ttft_ms)}]


def test_oracle_entry_meets_its_prefill_row():
    (entry,) = oracle_costs(oracle_rows(200.0), find_gpu("H100"), find_model("Qwen3-14B"), "made up")
    total = (
        entry.decode_base_s + 8192 * entry.prefill_per_token_s + 8192**2 / 2 * entry.prefill_per_attention_s
    )
    assert total == pytest.approx(0.2, rel=1e-4)
    assert entry.decode_per_context_token_s == pytest.approx(3e-8, rel=1e-4)


def test_oracle_row_faster_than_its_attention_is_refused():
    with pytest.raises(UserError, match="below its attention"):
        oracle_costs(oracle_rows(6.0), find_gpu("H100"), find_model("Qwen3-14B"), "made up")


def test_slower_links_cost_more_per_token_only_above_one_gpu():
    model = find_model("Qwen3-14B")
    (entry,) = oracle_costs(oracle_rows(600.0), find_gpu("A100"), model, "made up")
    slow = scale_allreduce(entry, model, find_gpu("A800"), find_gpu("A100"), "derived")
    # 40 layers * 2 all-reduces * 2 * (1/2) * 5120 * 2 bytes at 200 instead of 300 GB/s
    extra = 40 * 2 * 5120 * 2 * (1 / 200e9 - 1 / 300e9)
    assert slow.decode_per_seq_s - entry.decode_per_seq_s == pytest.approx(extra, rel=1e-3)
    assert (slow.gpu, slow.decode_base_s) == ("A800", entry.decode_base_s)


class TestWithData:
    pytestmark = needs_data

    def test_committed_coefficients_come_from_the_sources(self):
        text = to_yaml(fit_folder(DATA))
        import yaml

        fresh, committed = yaml.safe_load(text)["entries"], catalogue("rollout")["entries"]
        assert [(r["gpu"], r["model"], r["tp"]) for r in fresh] == [
            (r["gpu"], r["model"], r["tp"]) for r in committed
        ]
        for new, old in zip(fresh, committed, strict=True):
            for key, value in new.items():
                assert old[key] == (pytest.approx(value, rel=2e-4) if isinstance(value, float) else value)

    def test_decode_error_against_every_oracle_row(self):
        """Against the rows themselves, through the committed coefficients; A100 and H100 are oracle only."""
        entries = {(r["gpu"], r["model"], r["tp"]): r for r in catalogue("rollout")["entries"]}
        errors, dense = [], []
        for row in read_rows(DATA / "aic_oracle.csv"):
            gpu = row["system"].split("_")[0].upper()
            if row["mode"] != "static_gen" or gpu == "H200":
                continue
            entry = entries[(gpu, row["model"], int(row["tp"]))]
            batch, context = int(row["batch"]), int(row["batch"]) * int(row["ctx"])
            step = entry["decode_base_s"] + entry["decode_per_seq_s"] * batch
            step += entry["decode_per_context_token_s"] * context
            error = abs(step / (float(row["tpot_ms"]) / 1e3) - 1)
            errors.append(error)
            if "A3B" not in row["model"]:
                dense.append(error)
        print(f"decode mean relative error: all {np.mean(errors):.4f}, dense {np.mean(dense):.4f}")
        assert len(errors) == 155
        assert np.mean(errors) <= 0.06
        assert np.mean(dense) <= 0.025

    def test_decode_error_against_the_measured_grids(self):
        entries = {(r["model"], r["tp"]): r for r in catalogue("rollout")["entries"] if r["gpu"] == "H200"}
        for model, tp, stem in [
            ("Qwen3-4B", 1, "q4b_tp1"),
            ("Qwen3-14B", 1, "q14b_tp1"),
            ("Qwen3-14B", 2, "q14b_tp2"),
        ]:
            rows, _ = read_grid(DATA / "h200" / f"grid_{stem}.csv")
            if stem == "q4b_tp1":
                rows += read_odd_batches(DATA / "h200" / "mixed_q4b_tp1.csv")
            e = entries[(model, tp)]
            errors = [
                (e["decode_base_s"] + e["decode_per_seq_s"] * b + e["decode_per_context_token_s"] * c) / s - 1
                for b, c, s in rows
            ]
            assert np.mean(np.abs(errors)) <= 0.03, model
