"""Weight sync and changes of a cluster: measured engines, bytes by hand, published times, sources of figures."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.config.document import Document
from libra.config.resolve import resolve
from libra.config.schema import CostConfig
from libra.cost.hardware import GIB, find_gpu, find_model
from libra.cost.stamped import stamp, stamped_values
from libra.cost.sync import SyncCost, SyncCostConfig
from libra.cost.train_layout import TrainLayout
from libra.cost.transitions import DrainTime, TransitionCost, TransitionCostConfig
from libra.errors import UserError
from sim.cli.main import main


def sync(gpu="H200", model="Qwen3-14B", **config):
    return SyncCost(find_gpu(gpu), find_model(model), SyncCostConfig(**config))


def change(gpu="H200", model="Qwen3-14B", **config):
    return TransitionCost(sync(gpu, model), TransitionCostConfig(**config))


# Weight sync


def test_sync_through_host_memory_by_hand():
    """Each GPU its shard, over the slowest of bus and network."""
    gib = find_model("Qwen3-14B").weight_bytes / GIB
    fast = sync(network_gib_per_s=1000.0)
    assert fast.load_s(2) == pytest.approx(0.6 + gib / 2 / 51.6)
    assert fast.publish_s(8) == pytest.approx(0.5 + gib / 8 / 51.4)
    slow = sync("A800")  # one 200 Gb/s network for the eight GPUs of a node
    assert slow.load_s(1) == pytest.approx(0.6 + slow.model.weight_bytes / 3.125e9)
    assert slow.load_s(8) == pytest.approx(0.6 + slow.model.weight_bytes / 25e9)


def test_sync_over_storage_by_hand():
    gib = find_model("Qwen3-14B").weight_bytes / GIB
    disk = sync(mode="disk", storage_write_gib_per_s=2.0, storage_read_gib_per_s=4.0)
    assert disk.publish_s(8) == disk.publish_s(64) == pytest.approx(0.5 + gib / 2)
    assert disk.load_s(2) == pytest.approx(0.6 + gib / 4 + gib / 2 / 51.6)


def test_direct_sync_copies_nothing_first_and_gives_every_gpu_everything():
    """A lone GPU takes all of it off the network; two share what comes and pass it on over NVLink."""
    direct = sync(mode="direct")
    num_bytes = direct.model.weight_bytes
    assert direct.publish_s(8) == 0.5
    assert direct.load_s(1) == pytest.approx(0.6 + num_bytes / 50e9)
    assert direct.load_s(2) == pytest.approx(0.6 + num_bytes / 2 / 50e9)
    assert direct.load_s(8) == pytest.approx(0.6 + num_bytes / (450e9 * 0.818), rel=1e-3)


def test_a_model_of_32b_syncs_directly_in_about_two_seconds():
    """TRL after its fixes: 32B in about 2 s on four nodes of eight H200 (huggingface/trl#7103)."""
    direct = sync(model="Qwen3-32B", mode="direct")
    assert 1.0 < direct.publish_s(16) + direct.load_s(8) < 3.0


@pytest.mark.parametrize(("model", "seconds"), [("Qwen3-4B", 5.4), ("Qwen3-30B-A3B", 36.0)])
def test_publishing_to_storage_takes_what_lay_between_published_steps(model, seconds):
    """prime-rl, 8 H100 or H200, two micro-batches a step: loop time less step time, 5.1 to 5.9 s and 35 to 39 s."""
    assert sync("H100", model, mode="disk").publish_s(8) == pytest.approx(seconds, rel=0.12)


@given(
    st.sampled_from(["host", "direct", "disk"]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 8, 32])
)
def test_a_smaller_model_is_never_slower_to_sync(mode, tp, num_gpus):
    small, large = sync("A800", "Qwen3-4B", mode=mode), sync("A800", "Qwen3-32B", mode=mode)
    assert small.load_s(tp) < large.load_s(tp)
    assert small.publish_s(num_gpus) <= large.publish_s(num_gpus)
    assert large.load_s(2 * tp) <= large.load_s(tp) * (1 + 1e-3)
    assert large.publish_s(2 * num_gpus) <= large.publish_s(num_gpus)


# Changes


@pytest.mark.parametrize(
    ("model", "tp", "what", "measured_s", "within"),
    [
        ("Qwen3-4B", 1, lambda c: c.sleep_s(1, 1), 4.08, 0.13),
        ("Qwen3-14B", 2, lambda c: c.sleep_s(2, 1), 11.81, 0.13),
        ("Qwen3-4B", 1, lambda c: c.sleep_s(1, 2), 0.075, 0.04),
        ("Qwen3-14B", 2, lambda c: c.sleep_s(2, 2), 0.145, 0.04),
        ("Qwen3-4B", 1, lambda c: c.wake_s(1, 1), 0.69, 0.14),
        ("Qwen3-14B", 2, lambda c: c.wake_s(2, 1), 1.00, 0.14),
        ("Qwen3-4B", 1, lambda c: c.wake_s(1, 2), 0.57, 0.07),
        ("Qwen3-14B", 2, lambda c: c.wake_s(2, 2), 0.64, 0.07),
    ],
)
def test_sleep_and_wake_as_measured(model, tp, what, measured_s, within):
    assert what(change(model=model)) == pytest.approx(measured_s, rel=within)


@pytest.mark.parametrize(
    ("model", "tp", "warm", "measured_s"),
    [
        ("Qwen3-4B", 1, False, 65.6),
        ("Qwen3-14B", 1, False, 58.4),
        ("Qwen3-14B", 2, False, 77.8),
        ("Qwen3-4B", 1, True, 13.6),
    ],
)
def test_starts_as_measured_and_then_the_weights(model, tp, warm, measured_s):
    """Those engines made their weights up; reading real ones comes on top."""
    cost = change(model=model)
    read_s = cost.sync.weights_gib / 3.0
    assert cost.start_s(tp, warm=warm) - read_s == pytest.approx(measured_s, rel=0.07)


def test_draining_wastes_the_slots_that_empty_early():
    cost = change()
    assert cost.drain([10.0, 4.0, 1.0], 2) == DrainTime(10.0, 2 * (0 + 6 + 9) / 3)
    assert cost.drain([5.0, 5.0], 8) == DrainTime(5.0, 0.0)
    assert cost.drain([], 8) == DrainTime(0.0, 0.0)


def test_a_joining_replica_gets_weights_and_states():
    """14 bytes a parameter over each GPU's 50 GB/s; with the distributed optimizer its share of the new split."""
    cost = change(join_boot_s=10.0, join_quorum_s=1.0)
    params = cost.sync.model.num_params
    plain = cost.join(TrainLayout(dp=3, use_distributed_optimizer=False))
    assert plain.stall_s == pytest.approx(1.0 + 14 * params / 50e9)
    assert plain.total_s == pytest.approx(10.0 + plain.stall_s)
    split = cost.join(TrainLayout(dp=3))
    assert split.stall_s == pytest.approx(1.0 + (2 + 12 / 4) * params / 50e9)
    halves = cost.join(TrainLayout(tp=2, dp=3, use_distributed_optimizer=False))
    assert halves.stall_s - 1.0 == pytest.approx((plain.stall_s - 1.0) / 2, rel=1e-3)


def test_switching_roles_is_made_of_its_parts():
    cost, layout = change(), TrainLayout(tp=2)
    assert cost.to_trainer_s(2, layout) == pytest.approx(cost.sleep_s(2, 2) + cost.join(layout).total_s)
    assert cost.to_rollout_s(2) == pytest.approx(1.3 + cost.wake_s(2, 2) + cost.sync.load_s(2))
    assert cost.to_rollout_s(2, sleep_level=None, warm=False) == pytest.approx(
        1.3 + cost.start_s(2, warm=False) + cost.sync.load_s(2)
    )


def test_a_sleeping_engine_comes_back_within_the_published_overhead_of_switching():
    """Libra reports less than 3.5 % of a step of 454 s (48 A800, Qwen3-14B), 16 s; a cold start is beyond that."""
    cost = change("A800")
    for tp in (1, 2, 4, 8):
        assert cost.to_rollout_s(tp) < 0.035 * 454
        assert cost.to_rollout_s(tp, sleep_level=None, warm=False) > 0.035 * 454


def test_checkpoints_by_bytes():
    cost = change()
    gib = 14 * cost.sync.model.num_params / GIB
    assert cost.checkpoint_save_s() == pytest.approx(2.8 + gib / 1.5)
    assert cost.checkpoint_load_s() == pytest.approx(2.8 + gib / 3.0)


@given(st.sampled_from(["A800", "H100", "L40S"]), st.sampled_from([1, 2, 4, 8]))
def test_every_change_takes_time_and_a_larger_model_more(gpu, tp):
    small, large = change(gpu, "Qwen3-4B"), change(gpu, "Qwen3-32B")
    for what in (
        lambda c: c.start_s(tp, warm=True),
        lambda c: c.sleep_s(tp, 1),
        lambda c: c.wake_s(tp, 1),
        lambda c: c.join(TrainLayout(tp=tp)).stall_s,
        lambda c: c.to_rollout_s(tp),
        lambda c: c.checkpoint_save_s(),
    ):
        assert 0 < what(small) < what(large)


# Sources


def test_every_setting_has_a_source_and_listing_shows_it(capsys):
    values = stamped_values(CostConfig(), "cost.")
    assert len(values) > 35
    assert all(value.source for value in values)
    numbers = [
        f"{prefix}{field.name}"
        for prefix, config in (("cost.sync.", SyncCostConfig()), ("cost.transition.", TransitionCostConfig()))
        for field in dataclasses.fields(config)
        if field.name != "mode"
    ]
    assert set(numbers) <= {value.name for value in values}
    assert main(["list", "costs"]) == 0
    shown = capsys.readouterr().out
    for value in values:
        assert f"{value.name} " in shown
        assert value.source in shown


def test_a_setting_of_the_experiment_says_so():
    tree = {
        "name": "x",
        "workload": {"kind": "preset", "preset": "terminal_agent"},
        "heterogeneous_rollout": {"instances": [{"tp": 2}]},
        "cost": {
            "sync": {"mode": "direct", "load_fixed_s": 1.5},
            "train": {"compute": {"moe_factor": 0.4}},
            "transition": {"start_warm_s": 30.0},
        },
    }
    cost = resolve(Document(tree), {}).experiment.cost
    assert (cost.sync.mode, cost.train.compute.moe_factor) == ("direct", 0.4)
    found = {value.name: value for value in stamped_values(cost)}
    assert found["transition.start_warm_s"].value == 30.0
    assert found["transition.start_warm_s"].source.startswith(
        "set by the experiment; the default is 13.6 (measur"
    )
    assert found["sync.load_fixed_s"].source.startswith("set by the experiment; the default is 0.6")
    assert found["transition.start_cold_s"].source.startswith("measured: H200")


def test_only_stamped_fields_are_listed():
    @dataclasses.dataclass(frozen=True)
    class Inner:
        rate: float = stamp(2.0, "a ruler")
        plain: int = 1

    @dataclasses.dataclass(frozen=True)
    class Outer:
        inner: Inner = dataclasses.field(default_factory=Inner)

    (value,) = stamped_values(Outer())
    assert (value.name, value.value, value.source) == ("inner.rate", 2.0, "a ruler")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SyncCostConfig(h2d_gib_per_s=0.0), "must be positive"),
        (lambda: SyncCostConfig(storage_read_gib_per_s=0.0), "must be positive"),
        (lambda: SyncCostConfig(load_fixed_s=-0.1), "must not be negative"),
        (lambda: TransitionCostConfig(leave_s=-1.0), "leave_s must not be negative"),
        (lambda: sync().load_s(0), "tp must be at least 1"),
        (lambda: sync().publish_s(0), "at least one trainer GPU"),
        (lambda: change().start_s(0, warm=True), "tp must be at least 1"),
        (lambda: change().drain([1.0], 0), "tp must be at least 1"),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
