"""Random scripts of a small cluster's life (see `benchmarks.engine_script`): what there is to draw, drawn at once."""

from dataclasses import dataclass

import numpy as np

from sim.engine.base import CostTable, EngineSpec, Path, QueueOrder


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


def draw_decode_host(rng: np.random.Generator, max_num_seqs: int, most: int) -> list[int] | None:
    """None for half of the engines, else a least time that some contexts exceed and some do not."""
    if rng.random() < 0.5:
        return None
    return [int(rng.integers(0, most)) for _ in range(max_num_seqs + 1)]


def draw_cost(rng: np.random.Generator, max_num_seqs: int, tiny: bool) -> CostTable:
    """Realistic picoseconds, or integers so small that ticks collide."""
    batches = range(max_num_seqs + 1)
    late = rng.random() < 0.5  # arrivals are seen late
    lag = late and bool(rng.random() < 0.7)
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
            int(rng.integers(0, 12)) if late else 0,
            lag,
            eager=int(rng.integers(1, 30)),
            capture_tokens=int(rng.integers(0, 30)),
            least=int(rng.integers(0, 6)),
            host_seq=int(rng.integers(0, 3)),
            admission_seq=int(rng.integers(0, 3)) if late else 0,
            decode_host=draw_decode_host(rng, max_num_seqs, 150),
        )
    return CostTable(
        [int(9e9 + 13e7 * batch + 5e8 * (batch // 8)) for batch in batches],
        [73_001 + 17 * batch for batch in batches],
        int(rng.integers(1, 10**9)),
        10**10,
        int(rng.integers(1, 10**8)),
        2000 * 41,
        2 * 10**10,
        int(rng.integers(0, 10**11)) if late else 0,
        lag,
        eager=4 * 10**10,
        capture_tokens=40,
        least=9 * 10**9,
        host_seq=10**8,
        admission_seq=10**9 if late else 0,
        decode_host=draw_decode_host(rng, max_num_seqs, 2 * 10**10),
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
