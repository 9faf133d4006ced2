"""Scripted rollout workloads for the engine benchmarks: numpy-drawn once, the same for every implementation.

No controller: a trajectory goes to the replica with the fewest trajectories per GPU and stays there. So what
is measured is the engine model, SimPy, and about two microseconds of script per turn.

The cases:
    step48  one training step: 2,048 trajectories at once on 48 GPUs (6 x TP4, 8 x TP2, 8 x TP1)
    loop48  a closed loop on the same GPUs: 10,000 trajectories, 2,048 in flight
    tail48  200 trajectories on the same GPUs: small batches, long tail
    loop1k  1,008 GPUs (21 times the replicas), 43,008 trajectories at once
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from simpy.events import Event

from libra.core.ids import FailureKind
from libra.cost.rollout import ReplicaCost
from sim.clock import Clock, to_ticks
from sim.engine import make_engine
from sim.engine.base import CostTable, Engine, EngineSpec, Path, Request

GROUP_SIZE: Final = 8
BLOCK_SIZE: Final = 16
MAX_MODEL_LEN: Final = 65536


@dataclass(frozen=True)
class Case:
    """A workload and the replicas that serve it. Rows are turns, trajectory by trajectory."""

    name: str
    tps: list[int]
    in_flight: int
    first_row: list[int]  # of each trajectory
    prompt_tokens: list[int]
    output_tokens: list[int]
    tool_t: list[int]  # ticks of the tool call after the turn; -1 after the last one
    paths: list[Path]  # of each trajectory
    trajectory: list[int]  # of each row

    @property
    def num_turns(self) -> int:
        """Turns in all."""
        return len(self.prompt_tokens)


def replica_cost(tp: int) -> ReplicaCost:
    """A dense 32 B bf16 model on cards of 141 GB.

    First-guess coefficients of a roofline: weights 64 GB at 3.6 TB/s = 18 ms / TP and 1.5 ms of overhead a
    step; 64 GFLOP a token at half of 989 TFLOP/s = 0.13 ms / TP; KV of 262 kB a token at 3.6 TB/s = 73 ns / TP;
    attention of 2 x 64 layers x 5,120 FLOP x 2 at the same rate = 2.6 ns / TP a pair. KV capacity: 90 % of the
    memory less the weights.
    """
    return ReplicaCost(
        gpu="141 GB",
        model="dense 32B",
        tp=tp,
        decode_base_s=0.0015 + 0.018 / tp,
        decode_per_seq_s=0.00013 / tp,
        decode_per_context_token_s=73e-9 / tp,
        prefill_base_s=0.0015 + 0.018 / tp,
        prefill_per_token_s=0.00013 / tp,
        prefill_per_attention_s=2.6e-9 / tp,
        graph_host_s=0.0015 + 0.018 / tp,
        eager_host_s=0.0015 + 0.018 / tp,
        async_scheduling=False,
        kv_capacity_tokens=int((0.9 * 141e9 * tp - 64e9) / 262_144),
        source="roofline first guess, for speed benchmarks only",
    )


def replica_parts(tp: int) -> tuple[EngineSpec, CostTable]:
    """Settings and step times of a replica of `tp` GPUs."""
    cost = replica_cost(tp)
    spec = EngineSpec(
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
        num_blocks=cost.kv_capacity_tokens // BLOCK_SIZE,
    )
    return spec, CostTable.from_cost(cost, spec.max_num_seqs)


Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Draws:
    """The columns of a case: one row a turn, `first_row` and `shared_tokens` one a trajectory and a group."""

    trajectory: Ints
    first_row: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    tool_t: Ints
    shared_tokens: Ints


def draw(num_trajectories: int, seed: int) -> Draws:
    """Geometric turns (mean 5), lognormal outputs (mean 400, cap 8,192), lognormal tools (median 1.5 s, sigma
    1.2, cap 600 s), group prompts (lognormal, mean 500) and tool results (exponential, mean 300 tokens)."""
    rng = np.random.default_rng(seed)
    turns = rng.geometric(0.2, num_trajectories)
    num_rows = int(turns.sum())
    sigma = 1.0
    output = np.clip(rng.lognormal(np.log(402) - sigma**2 / 2, sigma, num_rows).astype(np.int64), 1, 8192)
    result = 1 + rng.exponential(300, num_rows).astype(np.int64)
    tool_s = np.minimum(rng.lognormal(np.log(1.5), 1.2, num_rows), 600.0)
    group_prompt = 16 + rng.lognormal(np.log(500) - 0.125, 0.5, -(-num_trajectories // GROUP_SIZE)).astype(
        np.int64
    )

    trajectory = np.repeat(np.arange(num_trajectories), turns)
    first_row = np.concatenate([[0], np.cumsum(turns)[:-1]])
    grown = np.cumsum(output + result) - (output + result)  # tokens before each row, over all trajectories
    prompt = group_prompt[trajectory // GROUP_SIZE] + grown - grown[first_row][trajectory]
    output = np.minimum(output, np.maximum(MAX_MODEL_LEN - prompt, 1))
    tool_t = np.rint(tool_s * 1e12).astype(np.int64)
    tool_t[np.concatenate([first_row[1:], [num_rows]]) - 1] = -1
    return Draws(trajectory, first_row, prompt, output, tool_t, group_prompt // BLOCK_SIZE * BLOCK_SIZE)


def draw_case(name: str, tps: list[int], num_trajectories: int, in_flight: int, seed: int) -> Case:
    """A case out of `draw`."""
    drawn = draw(num_trajectories, seed)
    num_groups = len(drawn.shared_tokens)
    shared = (drawn.shared_tokens // BLOCK_SIZE).tolist()
    return Case(
        name=name,
        tps=tps,
        in_flight=in_flight,
        first_row=drawn.first_row.tolist(),
        prompt_tokens=drawn.prompt_tokens.tolist(),
        output_tokens=drawn.output_tokens.tolist(),
        tool_t=drawn.tool_t.tolist(),
        paths=[
            ((number // GROUP_SIZE, shared[number // GROUP_SIZE]), (num_groups + number, 0))
            for number in range(num_trajectories)
        ],
        trajectory=drawn.trajectory.tolist(),
    )


TPS_48: Final = [4] * 6 + [2] * 8 + [1] * 8
CASES: Final[dict[str, Callable[[], Case]]] = {
    "step48": lambda: draw_case("step48", TPS_48, 2048, 2048, seed=80),
    "loop48": lambda: draw_case("loop48", TPS_48, 10_000, 2048, seed=49),
    "tail48": lambda: draw_case("tail48", TPS_48, 200, 200, seed=50),
    "loop1k": lambda: draw_case("loop1k", TPS_48 * 21, 43_008, 43_008, seed=51),
}


class CaseRun:
    """One case on one implementation: `run`, then `end_t` of every turn, `engines`, `num_events`."""

    def __init__(self, case: Case, kind: str) -> None:
        self.case = case
        self.clock = Clock()
        self.end_t = [-1] * case.num_turns
        self.engines: list[Engine] = [self._engine(kind, index, tp) for index, tp in enumerate(case.tps)]
        self._load = [0] * len(case.tps)
        self._by_load = [(0.0, index) for index in range(len(case.tps))]  # heap; entries of old loads stay
        self._home = [-1] * len(case.first_row)
        self._next = 0
        self.num_events = 0

    def _engine(self, kind: str, index: int, tp: int) -> Engine:
        spec, costs = replica_parts(tp)
        return make_engine(kind, self.clock, index, spec, costs, self._on_end)

    def run(self) -> None:
        """Simulate to the end."""
        for _ in range(min(self.case.in_flight, len(self.case.first_row))):
            self._start_next()
        self.clock.env.run()
        for engine in self.engines:
            engine.settle()
        self.num_events = next(self.clock.env._eid)

    def _start_next(self) -> None:
        number = self._next
        self._next = number + 1
        load, by_load = self._load, self._by_load
        while True:
            per_gpu, index = heappop(by_load)
            if per_gpu == load[index] / self.case.tps[index]:
                break
        self._home[number] = index
        self._add_load(index, 1)
        self._submit(self.case.first_row[number])

    def _add_load(self, index: int, change: int) -> None:
        self._load[index] += change
        heappush(self._by_load, (self._load[index] / self.case.tps[index], index))

    def _submit(self, row: int) -> None:
        case = self.case
        number = case.trajectory[row]
        request = Request(row, case.prompt_tokens[row], case.output_tokens[row], case.paths[number])
        self.engines[self._home[number]].submit(request)

    def _on_tool(self, event: Event) -> None:
        self._submit(event._value)  # type: ignore[arg-type]

    def _on_end(self, request: Request, kind: FailureKind | None) -> None:
        row = request.request_id
        self.end_t[row] = request.end_t
        case = self.case
        tool_t = case.tool_t[row]
        if tool_t >= 0:
            self.clock.env.timeout(tool_t, row + 1).callbacks.append(self._on_tool)  # type: ignore[union-attr]
            return
        self._add_load(self._home[case.trajectory[row]], -1)
        if self._next < len(case.first_row):
            self._start_next()

    def totals(self) -> dict[str, Any]:
        """Sums over the engines."""
        counters = [engine.counters for engine in self.engines]
        names = (
            "num_steps",
            "num_wakes",
            "output_tokens",
            "cached_tokens",
            "prefill_tokens",
            "num_preemptions",
        )
        return {name: sum(getattr(each, name) for each in counters) for name in names}


SIM_SECOND: Final = to_ticks(1.0)
