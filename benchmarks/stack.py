"""The whole stack on the engine benchmarks' workloads: controller, policies, world and recording.

The same draws as `benchmarks.cases`, made a chunk at a time, so that a hundred steps hold only what is in
flight; routing by load for weight and sticky, as the script does there.
"""

import gc
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from benchmarks.cases import GROUP_SIZE, TPS_48, draw, replica_parts
from libra.controller import Controller, ControllerConfig
from libra.core.ids import EndReason, NodeId, ReplicaId, Supply
from libra.core.streams import stream
from libra.policies.admission import Admission, AdmissionConfig
from libra.policies.load_balance import LoadBalance, LoadBalanceConfig
from libra.policies.recovery import Recovery, RecoveryConfig
from libra.policies.train_loop import TrainLoop, TrainLoopConfig
from libra.record.manifest import RunInfo
from libra.record.writer import RunWriter
from libra.workloads.table import Chunk
from sim.clock import TICKS_PER_S
from sim.config import SimConfig
from sim.driver import SimDriver, World
from sim.world.engines import ReplicaPlan

CHUNK_TRAJECTORIES: Final = 2048

Recording = Literal["full", "summary", "none"]


@dataclass(frozen=True)
class StackCase:
    """num_steps train steps of batch_size trajectories; 0 steps: rollout only of batch_size trajectories."""

    name: str
    tps: list[int]
    batch_size: int
    num_steps: int = 0
    seed: int = 80

    @property
    def num_trajectories(self) -> int:
        """All that the source holds."""
        return self.batch_size * max(1, self.num_steps)


STACK_CASES: Final = {
    "step48": StackCase("step48", TPS_48, 2048),
    "steps100": StackCase("steps100", TPS_48, 2048, num_steps=100),
    "gpus1008": StackCase("gpus1008", TPS_48 * 21, 43_008, seed=51),
    "gpus240": StackCase("gpus240", TPS_48 * 5, 10_240, seed=52),
}


class CaseSource:
    """The draws of `benchmarks.cases`, in chunks.

    The first chunk is drawn at construction, so that a one-step case is timed without drawing its workload, as in
    `benchmarks.engine`.
    """

    supply = Supply.PULL

    def __init__(self, case: StackCase) -> None:
        self._case = case
        self._made = 0
        self._first = self._draw()

    def next_chunk(self) -> Chunk | None:
        """See `WorkloadSource`."""
        chunk, self._first = self._first, None
        return chunk or self._draw()

    def _draw(self) -> Chunk | None:
        count = min(CHUNK_TRAJECTORIES, self._case.num_trajectories - self._made)
        if count <= 0:
            return None
        chunk = _chunk(self._case, self._made, count)
        self._made += count
        return chunk


def _chunk(case: StackCase, first: int, count: int) -> Chunk:
    seed = case.seed if first == 0 else int(stream(case.seed, "bench.chunk", first).integers(1 << 31))
    drawn = draw(count, seed)
    ids = first + np.arange(count)
    groups = ids // GROUP_SIZE
    prompt, output = drawn.prompt_tokens, drawn.output_tokens
    first_turn = np.append(drawn.first_row, len(prompt))
    shared = drawn.shared_tokens[np.arange(count) // GROUP_SIZE]
    prefix = np.append(0, (prompt + output)[:-1])
    prefix[drawn.first_row] = shared
    zeros = np.zeros(len(prompt), dtype=np.int64)
    return Chunk(
        trajectory_id=ids,
        group_id=groups,
        prompt_id=groups,
        sample_index=ids % GROUP_SIZE,
        group_size=np.full(count, GROUP_SIZE),
        arrival_s=np.zeros(count),
        start_latency_s=np.zeros(count),
        reward=np.zeros(count),
        source_id=tuple(map(str, ids.tolist())),
        prefix=tuple(((-1 - g, n),) for g, n in zip(groups.tolist(), shared.tolist(), strict=True)),
        first_turn=first_turn,
        prompt_tokens=prompt,
        output_tokens=output,
        prefix_tokens=prefix,
        tool=zeros,
        tool_latency_s=np.maximum(drawn.tool_t, 0) / TICKS_PER_S,
        tool_status=zeros,
        payload_tokens=zeros,
        tool_names=("tool",),
    )


def build(case: StackCase, engine: str, record: Any) -> SimDriver:
    """A driver ready to run."""
    training = case.num_steps > 0
    rng = np.random.default_rng(0)
    shared: dict[str, Any] = {
        "training": training,
        "batch_size": case.batch_size,
        "n_samples": GROUP_SIZE,
        "max_head_offpolicyness": 1,
    }
    policies = [
        Recovery(RecoveryConfig(), rng),
        TrainLoop(TrainLoopConfig(total_steps=max(1, case.num_steps), **shared), rng),
        Admission(AdmissionConfig(max_concurrent_rollouts=case.batch_size, **shared), rng),
        LoadBalance(LoadBalanceConfig(load_balance_strategy="weighted", max_queue_length=10**6), rng),
    ]
    config = ControllerConfig(training, max(1, case.num_steps), max_head_offpolicyness=1)
    plans = [_plan(i, tp) for i, tp in enumerate(case.tps)]
    world = World(plans, lambda tokens, _: 20.0 + tokens * 1e-6, 1.0, CaseSource(case), seed=0)
    return SimDriver(Controller(config, policies), world, SimConfig(engine=engine), record)  # type: ignore[arg-type]


def _plan(index: int, tp: int) -> ReplicaPlan:
    spec, table = replica_parts(tp)
    second = TICKS_PER_S
    return ReplicaPlan(ReplicaId(index), tp, NodeId(index // 8), spec, table, table, 2 * second, 30 * second)


@dataclass(frozen=True)
class Measured:
    """One run of the stack. cpu_s covers simulation, decisions and (if any) recording."""

    cpu_s: float
    output_tokens: int
    num_turns: int
    num_steps: int
    makespan_s: float
    rss_mib: float


def run_once(case: StackCase, engine: str, recording: Recording) -> Measured:
    """Simulate once; the record goes to a temporary folder."""
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        writer = None
        if recording != "none":
            writer = RunWriter(Path(folder) / "run", recording, training=case.num_steps > 0)
        driver = build(case, engine, writer.append if writer else lambda step: None)
        begin = time.process_time()
        reason = driver.run()
        if writer:
            writer.close(RunInfo(world="sim", config={}, seed=0, exit_reason=reason))
        cpu_s = time.process_time() - begin
    assert reason in (EndReason.COMPLETED, EndReason.STEPS_DONE), reason
    counters = [e.counters for r in driver.engines.replicas.values() for _, _, e in r.totals]
    return Measured(
        cpu_s=cpu_s,
        output_tokens=sum(c.output_tokens for c in counters),
        num_turns=driver.engines.num_ended,
        num_steps=sum(c.num_steps for c in counters),
        makespan_s=driver.clock.now / TICKS_PER_S,
        rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )
