"""Random scripts of a small cluster's life, and their run on either engine implementation.

A script holds trajectories of several turns in groups with a shared prompt, tool delays (zero and re-entrant
ones included), rewritten history, retries elsewhere, two requests on one open chain, aborts, pauses, weight
loads, stops, new costs, probes. Coefficients are either realistic or tiny integers, so that many things happen
at the same tick. Everything random is drawn before the run: no choice can depend on the implementation. The
property tests of the engine stand on this, and it finds a difference by itself:

    python -m benchmarks.engine_script FIRST_SEED END_SEED
"""

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from libra.core.ids import FailureKind
from sim.clock import Clock
from sim.engine import make_engine
from sim.engine.base import CostTable, EngineSpec, Path, QueueOrder, Request
from sim.engine.holds import IDLE

HORIZON = 10**20  # ticks: long after the last event of any script
RESULT_FIELDS = [name for name in Request.__slots__ if name != "state"]
COUNTERS = [
    "busy_t",
    "paused_t",
    "idle_t",
    "num_steps",
    "output_tokens",
    "prefill_tokens",
    "cached_tokens",
    "recomputed_tokens",
    "num_preemptions",
    "num_refused",
]


@dataclass
class Turn:
    """A request to come. `delay` ticks after the turn before it ended; -1: from within its callback."""

    prompt: int
    output: int
    path: Path
    priority: int
    engine: int
    delay: int
    retry_delay: int


@dataclass
class Script:
    """All that happens, but for what the engines make of it."""

    specs: list[EngineSpec]
    costs: list[CostTable]
    trajectories: list[tuple[int, list[Turn]]]  # (arrival, turns)
    faults: list[tuple[int, str, int, int, int]]  # (tick, what, engine, argument, duration)


@dataclass
class Outcome:
    """What a run of a script showed."""

    log: list[tuple[Any, ...]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    engines: list[Any] = field(default_factory=list)

    def visible(self) -> tuple[Any, ...]:
        """All that must be equal, in a comparable form."""
        results = [tuple(getattr(request, name) for name in RESULT_FIELDS) for request in self.requests]
        counters = [[getattr(engine.counters, name) for name in COUNTERS] for engine in self.engines]
        return counters, results, self.log


def draw_cost(rng: np.random.Generator, max_num_seqs: int, tiny: bool) -> CostTable:
    """Realistic picoseconds, or integers so small that ticks collide."""
    batches = range(max_num_seqs + 1)
    if tiny:
        a, b, c = (int(rng.integers(low, 4)) for low in (1, 0, 0))
        c = c if rng.random() < 0.5 else 0
        return CostTable(
            [a + b * batch for batch in batches],
            [c] * (max_num_seqs + 1),
            b,
            int(rng.integers(0, 4)),
            int(rng.integers(0, 2)),
            2000 * int(rng.integers(0, 2)),
            int(rng.integers(1, 9)),
        )
    return CostTable(
        [int(9e9 + 13e7 * batch + 5e8 * (batch // 8)) for batch in batches],
        [73_001 + 17 * batch for batch in batches],
        int(rng.integers(1, 10**9)),
        10**10,
        int(rng.integers(1, 10**8)),
        2000 * 41,
        2 * 10**10,
    )


def draw_spec(rng: np.random.Generator) -> EngineSpec:
    """From one sequence at a time to more than there are; blocks from barely enough to plenty."""
    block_size = int(rng.choice([1, 2, 4, 16]))
    max_num_seqs = int(rng.choice([1, 2, 3, 5, 8, 32]))
    budget = max_num_seqs + int(rng.choice([0, 1, 3, 10, 40, 200]))
    max_model_len = int(rng.choice([60, 150, 400]))
    num_blocks = int(max_model_len / block_size * rng.choice([0.9, 1.1, 1.5, 2.5, 6.0, 20.0])) + 1
    return EngineSpec(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=num_blocks,
        enable_prefix_caching=bool(rng.random() < 0.9),
        queue_order=QueueOrder.PRIORITY if rng.random() < 0.4 else QueueOrder.FCFS,
        watermark_blocks=int(rng.integers(0, max(1, num_blocks // 8))) if rng.random() < 0.3 else 0,
        keep_cache_on_load=bool(rng.random() < 0.3),
    )


def draw_turns(
    rng: np.random.Generator, script: Script, chains: list[int], prompt: int, scale: int
) -> list[Turn]:
    """One trajectory: chain 0 is its group's, the others its own."""
    turns: list[Turn] = []
    block_size = script.specs[0].block_size
    group, own, third = chains
    closed = prompt // block_size
    if rng.random() < 0.2:
        closed = int(rng.integers(0, closed + 1))
    path: Path = ((group, closed), (own, 0))
    if rng.random() < 0.1:
        path = ((own, 0),)
    if rng.random() < 0.05:
        path = ()
    context = prompt
    priority = int(rng.integers(0, 3))
    engine = int(rng.integers(len(script.specs)))
    for _ in range(int(rng.integers(1, 5))):
        output = int(rng.choice([1, 2, int(rng.integers(1, 12)), int(rng.integers(1, 90))]))
        if rng.random() < 0.15:
            engine = int(rng.integers(len(script.specs)))
        delays = [-1, 0, 0, 1, int(rng.integers(1, 10)) * scale, int(rng.integers(1, 200)) * scale]
        turns.append(
            Turn(
                context,
                output,
                path,
                priority,
                engine,
                int(rng.choice(delays)),
                int(rng.choice([-1, 0, 7 * scale])),
            )
        )
        context += output + int(rng.integers(0, 20))
        if rng.random() < 0.15 and len(path) == 2:
            keep = int(rng.integers(0, (context - closed * block_size) // block_size + 1))
            path = ((group, closed), (own, keep), (third, 0))
            if rng.random() < 0.5:
                context = max((closed + keep) * block_size + int(rng.integers(0, 20)), 1)
        elif rng.random() < 0.1 and len(path) == 2:
            context = max(prompt, context - int(rng.integers(0, 40)))  # the same chain, cut back
    return turns


def draw_faults(rng: np.random.Generator, script: Script, num_faults: int, horizon: int, tiny: bool) -> None:
    """Things that happen to engines, at random ticks."""
    kinds = ["abort", "abort", "pause", "load", "load", "cost", "drain", "probe", "probe", "settle", "burst"]
    for _ in range(num_faults):
        what = str(rng.choice(kinds)) if rng.random() < 0.97 else "stop"
        tick = int(rng.integers(0, horizon))
        duration = int(rng.choice([0, 1, int(rng.integers(1, max(2, horizon // 5)))]))
        engine = int(rng.integers(len(script.specs)))
        script.faults.append((tick, what, engine, int(rng.integers(0, 1000)), duration))
        if what == "cost":
            script.costs.append(draw_cost(rng, max(spec.max_num_seqs for spec in script.specs), tiny))
    # A replica's weight version never decreases (invariant I4): loads carry rising numbers in order of time.
    versions = iter(sorted(fault[3] for fault in script.faults if fault[1] == "load"))
    script.faults.sort(key=lambda fault: fault[0])
    script.faults = [(*f[:3], next(versions), f[4]) if f[1] == "load" else f for f in script.faults]


def draw_script(seed: int, num_engines: int, num_groups: int, num_faults: int, tiny: bool) -> Script:
    """A script from its seed and size."""
    rng = np.random.default_rng(seed)
    spec = draw_spec(rng)
    script = Script([spec], [], [], [])
    for _ in range(1, num_engines):
        other = draw_spec(rng)
        script.specs.append(other if rng.random() < 0.3 and other.block_size == spec.block_size else spec)
    script.costs = [draw_cost(rng, each.max_num_seqs, tiny) for each in script.specs]
    scale = 1 if tiny else 10**9
    horizon = int(rng.choice([60, 400, 2500])) * scale
    spread = int(rng.choice([1, 40, 1000])) * scale
    chain = 0
    for _ in range(num_groups):
        prompt = int(rng.integers(1, max(2, int(spec.max_model_len * rng.choice([0.1, 0.3, 0.7])))))
        group, chain = chain + 1, chain + 2
        for _ in range(int(rng.integers(1, 6))):
            if rng.random() < 0.9:
                chain += 2  # else the chains of the trajectory before: two on one open chain
            # A group's chain is negative, as in a workload.
            turns = draw_turns(rng, script, [-group, chain, chain + 1], prompt, scale)
            script.trajectories.append((int(rng.integers(0, spread)), turns))
            if rng.random() < 0.1:
                prompt = int(rng.integers(1, prompt + 1))
        chain += 2
    draw_faults(rng, script, num_faults, horizon, tiny)
    return script


def scaled(cost: CostTable, factor: int) -> CostTable:
    """A table whose steps take `factor` times as long (attention a multiple of 2,000: exactly)."""
    return CostTable(
        [factor * ticks for ticks in cost.base],
        [factor * ticks for ticks in cost.per_context],
        factor * cost.seq,
        factor * cost.prefill_base,
        factor * cost.prefill_token,
        factor * cost.attention,
        factor * cost.floor,
    )


class Run:
    """One script on one implementation."""

    def __init__(self, script: Script, kind: str, factor: int = 1) -> None:
        self.script = script
        self.factor = factor
        self.clock = Clock()
        self.out = Outcome()
        self.owner: dict[int, tuple[int, int, int]] = {}  # request id -> trajectory, turn, tries left
        self.current: dict[int, tuple[int, Request]] = {}  # trajectory -> engine, request
        self.costs = [scaled(cost, factor) for cost in script.costs]
        self.out.engines = [
            make_engine(kind, self.clock, index, spec, self.costs.pop(0), self.on_end)
            for index, spec in enumerate(script.specs)
        ]
        for number, (arrival, _) in enumerate(script.trajectories):
            self.later(arrival, lambda number=number: self.submit(number, 0, 2, 0))
        for fault in script.faults:
            self.later(fault[0], lambda fault=fault: self.fault(*fault[1:]))

    def later(self, delay: int, call: Any) -> None:
        self.clock.env.timeout(delay * self.factor).callbacks.append(lambda event: call())

    def submit(self, number: int, turn: int, tries: int, shift: int) -> None:
        plan = self.script.trajectories[number][1][turn]
        request = Request(len(self.out.requests), plan.prompt, plan.output, plan.path, plan.priority)
        self.out.requests.append(request)
        self.owner[request.request_id] = (number, turn, tries)
        engine = (plan.engine + shift) % len(self.out.engines)
        self.current[number] = (engine, request)
        self.out.engines[engine].submit(request)

    def on_end(self, request: Request, kind: FailureKind | None) -> None:
        number, turn, tries = self.owner[request.request_id]
        self.out.log.append((self.clock.now, "end", request.request_id, kind))
        plan = self.script.trajectories[number][1][turn]
        if kind is None:
            if turn + 1 == len(self.script.trajectories[number][1]):
                return
            delay, following = plan.delay, (number, turn + 1, 2, 0)
        elif kind is FailureKind.PROMPT_TOO_LONG or tries == 0:
            return
        else:
            delay, following = plan.retry_delay, (number, turn, tries - 1, 1)
        if delay < 0:
            self.submit(*following)
        else:
            self.later(delay, lambda: self.submit(*following))

    def fault(self, what: str, index: int, argument: int, duration: int) -> None:
        engine = self.out.engines[index]
        match what:
            case "abort" if self.current:
                numbers = list(self.current)
                at, request = self.current[numbers[argument % len(numbers)]]
                self.out.engines[at].abort(request)
            case "pause":
                engine.pause()
                self.later(duration, engine.resume)
            case "load":
                engine.load_weights(
                    argument,
                    duration * self.factor,
                    lambda start: self.out.log.append((self.clock.now, "loaded", index, argument, start)),
                )
            case "cost":
                engine.set_cost(self.costs.pop(0))
            case "drain":
                engine.drain(lambda: self.out.log.append((self.clock.now, "drained", index)))
            case "stop":
                engine.stop(FailureKind.REPLICA_LOST)
            case "settle":
                engine.settle()
                self.out.log.append((self.clock.now, [getattr(engine.counters, name) for name in COUNTERS]))
            case "burst":
                for number in range(argument % 4):
                    if number < len(self.script.trajectories):
                        self.submit(number, 0, 0, 0)
            case _:
                self.probe()

    def probe(self) -> None:
        """Record what a policy may ask at any time, and recount everything."""
        for index, engine in enumerate(self.out.engines):
            engine.check()
            if engine._state == IDLE and not engine._kick_pending:
                assert engine.num_running == engine.num_waiting == 0  # work conservation
            seen = (engine.used_blocks(), engine.num_running, engine.num_waiting, engine.weight_version)
            self.out.log.append((self.clock.now, "seen", index, seen))
            live = [
                entry
                for entry in self.clock.env._queue
                for call in entry[3].callbacks
                if getattr(call, "__self__", None) is engine
                and call.__name__ in ("_on_wake", "_on_step_end")
                and (call.__name__ == "_on_step_end" or entry[3]._value == engine._wake_version)
            ]
            assert len(live) <= 1

    def finish(self) -> Outcome:
        self.later(HORIZON, self.close)
        self.clock.env.run()
        return self.out

    def close(self) -> None:
        for engine in self.out.engines:
            engine.settle()
        self.probe()


def main() -> int:
    """Compare the implementations on scripts FIRST_SEED .. END_SEED - 1."""
    first, end = (int(word) for word in sys.argv[1:3])
    num_requests = num_preemptions = 0
    for seed in range(first, end):
        rng = np.random.default_rng([seed, 1])
        sizes = int(rng.integers(1, 4)), int(rng.integers(1, 7)), int(rng.choice([0, 0, 3, 10, 30]))
        script = draw_script(seed, *sizes, tiny=bool(rng.random() < 0.5))
        reference, skip = Run(script, "reference").finish(), Run(script, "skip").finish()
        if reference.visible() != skip.visible():
            print(
                f"benchmarks.engine_script: seed {seed}, sizes {sizes}: the implementations differ",
                file=sys.stderr,
            )
            return 1
        num_requests += len(reference.requests)
        num_preemptions += sum(engine.counters.num_preemptions for engine in reference.engines)
    print(f"{end - first} scripts equal: {num_requests} requests, {num_preemptions} preemptions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
