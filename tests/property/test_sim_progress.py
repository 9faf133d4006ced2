"""No setting of staleness, batch and length may stall a run, or have it train on what is too old."""

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from libra.config.document import Document
from libra.config.resolve import resolve
from libra.core.ids import EndReason
from sim.config import SimConfig
from sim.simulation import simulate


def end_of(directory, preset, seed, bound, steps, router=None, **changes):
    """How the run ends. The record, which knows the versions of every turn, says that the bound held."""
    tree = {
        "name": "progress",
        "seed": seed,
        "hardware_config": "H100",
        "model_arch_config": "Qwen3-8B",
        "cluster": {"num_nodes": 2},
        "train_gpus": 8,
        "batch_size": 32,
        "n_samples": 4,
        "total_steps": steps,
        "max_concurrent_rollouts": 96,
        "max_head_offpolicyness": bound,
        "heterogeneous_rollout": {"instances": [{"tp": 4}, {"tp": 2}, {"tp": 1, "count": 2}]}
        | ({"scheduling": router} if router else {}),
        "workload": {"kind": "preset", "preset": preset, "num_prompts": 96, "max_context_tokens": 16384},
    } | changes
    reason, figures = simulate(
        resolve(Document(tree), {"sim": SimConfig}), directory, level="summary", overwrite=True
    )
    assert figures["staleness_max"] <= bound
    return reason


PRESETS = ["search_r1", "dapo_math", "tau_dialogue", "r2e_gym"]
ROUTERS = [
    None,
    {"scheduler_type": "load_balance", "max_queue_length": 6},
    {"scheduler_type": "load_balance", "load_balance_strategy": "round_robin", "sticky": False},
    {"scheduler_type": "length_aware"},
]
FULL = ROUTERS[1]
"""Trajectories wait for a place that one has to give up, and begin long after they were admitted."""
LAGGING = {
    "bound": 3,
    "on_stale": "drop",
    "partial": False,
    "reload": "parallel",
    "sync": 1,
    "concurrent": 40,
}
"""Trained on tokens one version too old, while only the first token of a trajectory counted."""


@settings(max_examples=25, deadline=None)
@given(preset=st.sampled_from(PRESETS), seed=st.integers(0, 999), bound=st.integers(0, 5))
def test_a_trainer_that_waits_is_never_left_waiting(tmp_path_factory, preset, seed, bound):
    directory = tmp_path_factory.mktemp("progress") / "run"
    assert end_of(directory, preset, seed, bound, 10) is EndReason.STEPS_DONE


@settings(max_examples=40, deadline=None)
@given(
    preset=st.sampled_from(PRESETS),
    seed=st.integers(0, 999),
    bound=st.integers(0, 3),
    on_stale=st.sampled_from(["wait", "drop"]),
    partial=st.booleans(),
    reload=st.sampled_from(["parallel", "serial"]),
    sync=st.integers(1, 3),
    concurrent=st.sampled_from([5, 40, 96]),
    loss_s=st.sampled_from([0.0, 40.0, 300.0]),
    router=st.sampled_from(ROUTERS),
)
@example(preset="r2e_gym", seed=860, loss_s=300.0, router=None, **LAGGING)
@example(preset="r2e_gym", seed=30, loss_s=40.0, router=FULL, **LAGGING | {"bound": 2, "concurrent": 96})
@example(
    preset="r2e_gym", seed=22, loss_s=40.0, router=FULL, **LAGGING | {"on_stale": "wait", "reload": "serial"}
)
def test_no_setting_of_the_train_loop_stalls_a_run(
    tmp_path_factory, preset, seed, bound, on_stale, partial, reload, sync, concurrent, loss_s, router
):
    """Few prompts and many steps: the run goes on into what is left when the source has no more."""
    reason = end_of(
        tmp_path_factory.mktemp("settings") / "run",
        preset,
        seed,
        max(bound, sync - 1),
        14,
        router,
        max_concurrent_rollouts=concurrent,
        sync_interval=sync,
        partial_rollout=partial,
        rollout_weight_reload_strategy=reload,
        policies={
            "training": {"kind": "async_grpo", "on_stale": on_stale},
            "recovery": {"kind": "give_up_or_restart", "max_restarts": 10_000, "max_turn_failures": 1_000},
        },
        sim={
            "metrics_period_s": 0.0,
            "faults": {"replica_loss": {"mean_time_between_losses_s": loss_s}},
        },
    )
    assert reason in (EndReason.STEPS_DONE, EndReason.COMPLETED)


@pytest.mark.parametrize("seed", [0, 2])
def test_younger_groups_do_not_crowd_out_old_ones(tmp_path, seed):
    """Looking one step ahead stalled here after two of four steps."""
    assert end_of(tmp_path / "run", "search_r1", seed, 2, 8) is EndReason.STEPS_DONE
