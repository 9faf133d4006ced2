"""Small experiments drawn at random, with engines so small that they preempt, and how to run one."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest

from libra.config.document import Document
from libra.config.resolve import Resolved, resolve
from libra.core.ids import EndReason
from libra.cost.tables import rollout_costs
from sim.config import SimConfig
from sim.simulation import simulate

GRAIN_S = 1 / 64
"""Latencies are multiples of this, which is a whole number of ticks: twice the time is twice the ticks."""

PRIORITISED = "tests.support.priorities:YoungestFirst"

ROUTERS: list[dict[str, Any]] = [
    {"scheduler_type": PRIORITISED},
    {"scheduler_type": "load_balance"},
    {"scheduler_type": "load_balance", "sticky": False, "max_queue_length": 2},
    {"scheduler_type": "load_balance", "load_balance_strategy": "round_robin", "max_queue_length": 3},
    {"scheduler_type": "load_balance", "load_balance_strategy": "weighted", "max_queue_length": 1},
    {
        "scheduler_type": "length_aware",
        "length_thresholds": {"short": 100, "medium": 200, "long": 300},
        "max_queue_length": 2,
    },
]


@dataclasses.dataclass(frozen=True)
class Small:
    """An experiment, the CSV it plays and the KV memory of each replica in tokens."""

    tree: dict[str, Any]
    trace: str
    kv_tokens: int

    def with_sim(self, **changes: Any) -> "Small":
        """The same experiment in a world with other `sim:` settings."""
        return dataclasses.replace(self, tree=self.tree | {"sim": self.tree["sim"] | changes})


@st.composite
def trajectories(draw, *, arrivals: bool) -> str:
    """A turn table: contexts grow, some outputs are long, some tools slow."""
    rows = ["trajectory_id,turn,prompt_tokens,output_tokens,tool_name,tool_latency_s,task_id,arrival_s"]
    at = 0
    for trajectory in range(draw(st.integers(1, 6))):
        prompt = draw(st.integers(1, 90))
        at += draw(st.integers(0, 3 * 64))
        for turn in range(draw(st.integers(1, 4))):
            output = draw(st.sampled_from([1, 2, 7, 33, 60, 90]))
            latency_s = draw(st.integers(0, 128)) * GRAIN_S
            rows.append(
                f"t{trajectory},{turn},{prompt},{output},shell,{latency_s},k{trajectory},"
                + (str(at * GRAIN_S) if arrivals else "")
            )
            prompt += output + draw(st.integers(0, 60))
    if not arrivals:
        rows = [row.rpartition(",")[0] for row in rows]
    return "\n".join(rows) + "\n"


@st.composite
def requests(draw) -> str:
    """A request trace."""
    rows, at = ["t,prompt_tokens,output_tokens"], 0
    for _ in range(draw(st.integers(1, 10))):
        at += draw(st.integers(0, 16))
        rows.append(f"{at * GRAIN_S},{draw(st.integers(1, 150))},{draw(st.sampled_from([1, 5, 70]))}")
    return "\n".join(rows) + "\n"


def faults() -> st.SearchStrategy[dict[str, Any]]:
    """Some, all or none."""
    return st.fixed_dictionaries(
        {},
        optional={
            "replica_loss": st.fixed_dictionaries(
                {
                    "mean_time_between_losses_s": st.sampled_from([2.0, 10.0, 60.0]),
                    "detection_delay_s": st.sampled_from([0.0, 0.5, 5.0]),
                }
            ),
            "straggler": st.just({"fraction": 0.5, "slowdown": 3.0, "start_s": 1.0, "end_s": 6.0}),
            "slow_tool": st.just({"fraction": 0.3, "slowdown": 5.0, "hang_fraction": 0.1}),
        },
    )


@st.composite
def experiments(draw, *, faulty: bool = True, training: bool | None = None) -> Small:
    """See the module."""
    kind = draw(st.sampled_from(["pull", "push", "requests"]))
    trains = draw(st.booleans()) if training is None else training
    samples = 1 if kind == "requests" else draw(st.integers(1, 3))
    sync = draw(st.integers(1, 2))
    instances = st.builds(
        lambda tp, count: {"tp": tp, "count": count}, st.sampled_from([1, 2]), st.integers(1, 2)
    )
    router = draw(st.sampled_from(ROUTERS))
    workload: dict[str, Any] = {"kind": "requests" if kind == "requests" else "turns", "path": "trace.csv"}
    if kind == "pull":
        workload["repeat"] = samples * draw(st.integers(1, 2)) if draw(st.booleans()) else None
    tree = {
        "name": "small",
        "hardware_config": "H100",
        "model_arch_config": "Qwen3-8B",
        "seed": draw(st.integers(0, 99)),
        "cluster": {"num_nodes": 2, "gpus_per_node": 8},
        "train_gpus": 8 if trains else 0,
        "n_samples": samples,
        "batch_size": samples * draw(st.integers(1, 2)),
        "total_steps": draw(st.integers(1, 4)),
        "sync_interval": sync,
        "max_head_offpolicyness": draw(st.integers(sync - 1, 2)),
        "max_concurrent_rollouts": draw(st.integers(1, 8)),
        "partial_rollout": draw(st.booleans()),
        "rollout_weight_reload_strategy": draw(st.sampled_from(["parallel", "serial"])),
        "workload": workload,
        "heterogeneous_rollout": {
            "instances": draw(st.lists(instances, min_size=1, max_size=2)),
            "max_model_len": draw(st.sampled_from([250, 2_000])),
            "engine": {
                "max_num_seqs": draw(st.integers(1, 8)),
                "max_num_batched_tokens": draw(st.sampled_from([16, 64, 512])),
                "block_size": draw(st.sampled_from([4, 16])),
                "enable_prefix_caching": draw(st.booleans()),
                "scheduling_policy": draw(
                    st.sampled_from(
                        ["fcfs", "priority"] if router["scheduler_type"] == PRIORITISED else ["fcfs"]
                    )
                ),
                "keep_prefix_cache_on_load": draw(st.booleans()),
            },
            "scheduling": router,
        },
        "policies": {
            "admission": {
                "kind": "concurrency_and_staleness",
                "prefetch_trajectories": draw(st.integers(1, 5)),
            },
            "training": {
                "kind": "async_grpo",
                "on_stale": draw(st.sampled_from(["wait", "drop"])),
                "min_group_size": draw(st.integers(1, 2)),
            },
            "recovery": {"kind": "give_up_or_restart", "restart_delay_s": 1.0, "max_restarts": 2},
        },
        "sim": {
            "debug": True,
            "metrics_period_s": draw(st.sampled_from([0.0, 0.75])),
            "tool_timeout_s": 1.5,
            "max_sim_s": 300.0,
            "faults": draw(faults()) if faulty else {},
        },
    }
    trace = draw(requests() if kind == "requests" else trajectories(arrivals=kind == "push"))
    return Small(tree, trace, draw(st.sampled_from([130, 200, 300, 600, 1_500])))


def resolved_in(folder: Path, small: Small) -> Resolved:
    """Its trace written into `folder`, and the experiment validated."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trace.csv").write_text(small.trace, encoding="utf-8")
    return resolve(Document(small.tree, {}, folder), {"sim": SimConfig})


def with_small_memory(small: Small, call: Callable[[], Any]) -> Any:
    """`call()` while each replica has `kv_tokens` of KV cache, whatever its GPUs could hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "libra.config.schema.rollout_costs",
            lambda *args: {
                tp: dataclasses.replace(cost, kv_capacity_tokens=small.kv_tokens)
                for tp, cost in rollout_costs(*args).items()
            },
        )
        return call()


def run_in(folder: Path, small: Small, name: str = "run") -> tuple[EndReason, dict[str, float]]:
    """Simulate into `folder / name`: why it ended, and its figures."""
    resolved = resolved_in(folder, small)
    return with_small_memory(small, lambda: simulate(resolved, folder / name))
