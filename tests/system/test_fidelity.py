"""The simulator against recorded engines: committed calibrations are what their files give, and errors keep within
their targets.

Data: `../shared/data` (H200 with vLLM 0.26.0; RTX 4090 and RTX PRO 6000 with vLLM 0.19.0). Errors are signed
fractions, simulated / measured - 1.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from libra.cost.calibration import COEFFICIENTS
from libra.cost.points import read_points
from libra.cost.tables import committed_calibrations
from sim.calibrate import Target, calibrate, transfer
from sim.traces.fitting import replay
from sim.traces.records import read_request_log, read_turn_trace
from sim.traces.scores import score
from tests.support.costs import DATA, needs_data

pytestmark = needs_data

H200 = DATA / "h200"
LOG = DATA / "vllm_measured_requests.csv"
MODELS = (("Qwen3-4B", 1), ("Qwen3-14B", 1), ("Qwen3-14B", 2))
TAU, TERMINAL = "trace_q4b_tp1_taubench_c96.csv", "trace_q4b_tp1_terminalbench_c64.csv"
LLAMA_TARGETS = {
    "RTX4090": {"max_num_seqs": 256, "kv_capacity_tokens": 41_408},
    "RTXPRO6000": {"max_num_seqs": 128},
}


def committed(gpu, model, tp=1):
    """The committed calibration of an engine."""
    (found,) = (
        each
        for each in committed_calibrations()
        if (each.stamp.gpu, each.stamp.model, each.stamp.tp) == (gpu, model, tp)
    )
    return found


def grid_of(model, tp):
    return H200 / f"grid_q{model.removeprefix('Qwen3-').lower()}_tp{tp}.csv"


def h200_target(model, tp):
    return Target("H200", model, tp, "vllm", "0.26.0", "2026-11-30")


def llama_target(gpu):
    return Target(gpu, "Llama-3.1-8B", 1, "vllm", "0.19.0", "2026-11-30", **LLAMA_TARGETS[gpu])


@cache
def from_half(gpu):
    """Llama on a GPU, fitted to every second request."""
    return calibrate([LOG], llama_target(gpu), use=lambda index: index % 2 == 0)


def assert_same(fresh, known):
    assert fresh.stamp == known.stamp
    assert fresh.settings == known.settings
    assert set(fresh.fitted) == set(known.fitted)
    assert fresh.notes == known.notes
    for name in COEFFICIENTS:
        assert getattr(known.cost, name) == pytest.approx(getattr(fresh.cost, name), rel=2e-3), name
    assert fresh.errors.keys() == known.errors.keys()
    for name, error in fresh.errors.items():
        assert known.errors[name] == pytest.approx(error, abs=2e-3), name


class TestCommittedCalibrations:
    def test_qwen3_4b_comes_from_grid_mixed_table_and_development_trace(self):
        names = ("grid_q4b_tp1.csv", "mixed_q4b_tp1.csv", "engine_facts.csv", TERMINAL)
        fresh = calibrate([H200 / name for name in names], h200_target("Qwen3-4B", 1), concurrency=64)
        assert_same(fresh, committed("H200", "Qwen3-4B"))

    @pytest.mark.parametrize("tp", [1, 2])
    def test_qwen3_14b_comes_from_its_grid_and_the_engine_of_4b(self, tp):
        files = [grid_of("Qwen3-14B", tp), H200 / "engine_facts.csv"]
        wide = committed("H200", "Qwen3-4B")
        fresh = calibrate(files, h200_target("Qwen3-14B", tp), engine_from=wide)
        assert_same(fresh, committed("H200", "Qwen3-14B", tp))

    @pytest.mark.parametrize("gpu", LLAMA_TARGETS)
    def test_llama_comes_from_the_log_of_requests(self, gpu):
        assert_same(calibrate([LOG], llama_target(gpu)), committed(gpu, "Llama-3.1-8B"))


@pytest.mark.parametrize(("model", "tp"), MODELS)
class TestGridPoints:
    def test_decode_steps(self, model, tp):
        cost = committed("H200", model, tp).cost
        points = read_points(grid_of(model, tp)).decode
        errors = [cost.decode_s(batch, round(context)) / seconds - 1 for batch, context, seconds in points]
        print(f"{model} tp {tp}: {len(errors)} decode points, mean {np.mean(np.abs(errors)):.4f}")
        assert len(errors) >= 10
        assert np.mean(np.abs(errors)) <= 0.03

    def test_prefills(self, model, tp):
        cost = committed("H200", model, tp).cost
        points = read_points(grid_of(model, tp)).prefill
        errors = [cost.prompt_s(tokens, 2048) / seconds - 1 for tokens, seconds in points]
        print(f"{model} tp {tp}: {len(errors)} prefills, mean {np.mean(np.abs(errors)):.4f}")
        assert len(errors) >= 7
        assert np.mean(np.abs(errors)) <= 0.10


@pytest.mark.parametrize(("name", "concurrency", "held_out"), [(TAU, 96, True), (TERMINAL, 64, False)])
def test_traces_of_qwen3_4b(name, concurrency, held_out):
    """Agents in a closed loop: taubench was held out of every fit, terminalbench is the development trace."""
    known = committed("H200", "Qwen3-4B")
    assert (known.stamp.development_trace == name) is not held_out
    assert (name in known.stamp.data) is not held_out
    trace = read_turn_trace(H200 / name)
    scored = score(trace, replay(trace, known.cost, known.settings, concurrency))
    errors = {key: scored.error(key) for key in scored.measured}
    print(name, {key: round(error, 4) for key, error in errors.items()})
    assert abs(errors["makespan_s"]) <= 0.05
    assert abs(errors["output_tokens_per_s"]) <= 0.05
    assert abs(errors["mean_latency_s"]) <= 0.08
    assert abs(errors["mean_tpot_s"]) <= 0.08
    assert abs(errors["mean_ttft_s"]) <= 0.15
    assert errors["prefix_hit_tokens"] == 0.0


@pytest.mark.parametrize("gpu", LLAMA_TARGETS)
def test_the_other_half_of_a_log_of_requests(gpu):
    """Fitted to requests 0, 2, 4, ...; compared on 1, 3, 5, ..."""
    made = from_half(gpu)
    trace = read_request_log(LOG, gpu, "Llama-3.1-8B", 1)
    played = replay(trace, made.cost, made.settings, 1)
    odd = np.arange(len(trace.submit_s)) % 2 == 1
    latency, ttft = (
        float(simulated[odd].mean() / measured[odd].mean() - 1)
        for simulated, measured in ((played.latency_s, trace.latency_s), (played.ttft_s, trace.ttft_s))
    )
    preemptions = played.counters.num_preemptions
    print(f"{gpu}: mean latency {latency:+.4f}, mean ttft {ttft:+.4f}, {preemptions} preemptions")
    assert odd.sum() >= 100
    assert abs(latency) <= 0.10
    assert made.errors["requests_held_out_mean_latency_s"] == pytest.approx(latency)
    # 41,408 tokens of KV cache are too few for what comes; the larger GPU has room.
    assert (preemptions > 0) is (gpu == "RTX4090")


@pytest.mark.xfail(
    strict=True,
    reason="the RTX 4090 reaches more of its datasheet's bandwidth than the RTX PRO 6000: latency 31 % too low",
)
def test_another_gpu_without_data_by_the_analytic_ratio():
    assert abs(transferred_error("RTX4090", "RTXPRO6000")) <= 0.20


@pytest.mark.parametrize(("source", "target"), [("RTX4090", "RTXPRO6000"), ("RTXPRO6000", "RTX4090")])
def test_a_transfer_is_nearer_than_taking_the_other_gpus_calibration(source, target):
    """The least that a ratio has to do."""
    known, trace = committed(source, "Llama-3.1-8B"), read_request_log(LOG, target, "Llama-3.1-8B", 1)
    settings = committed(target, "Llama-3.1-8B").settings
    plain = score(trace, replay(trace, known.cost, settings, 1)).error("mean_latency_s")
    moved = transferred_error(source, target)
    print(f"{source} to {target}: transferred {moved:+.3f}, as it is {plain:+.3f}")
    assert abs(moved) < abs(plain)


def transferred_error(source, target):
    """Signed error of the mean latency on `target`, with its engine's settings and another GPU's coefficients."""
    made = transfer(committed(source, "Llama-3.1-8B"), target, "2026-11-30")
    settings = committed(target, "Llama-3.1-8B").settings
    trace = read_request_log(LOG, target, "Llama-3.1-8B", 1)
    cost = replace(made.cost, kv_capacity_tokens=settings.kv_capacity_tokens)
    return score(trace, replay(trace, cost, settings, 1)).error("mean_latency_s")
