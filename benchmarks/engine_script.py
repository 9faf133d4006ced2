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

from benchmarks.engine_script_draws import Script, draw_script
from libra.core.ids import FailureKind
from sim.clock import Clock
from sim.engine import make_engine
from sim.engine.base import CostTable, Request
from sim.engine.holds import IDLE

HORIZON = 10**20  # ticks: long after the last event of any script
RESULT_FIELDS = sorted(name for name in dir(Request) if name[0] != "_" and name != "state")
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


def scaled(cost: CostTable, factor: int) -> CostTable:
    """A table whose steps take `factor` times as long (attention a multiple of 2,000: exactly)."""
    return CostTable(
        [factor * ticks for ticks in cost.base],
        [factor * ticks for ticks in cost.per_context],
        factor * cost.seq,
        [factor * ticks for ticks in cost.prefill_base],
        factor * cost.prefill_token,
        factor * cost.attention,
        factor * cost.floor,
        factor * cost.admission,
        cost.lag,
        eager=factor * cost.eager,
        capture_tokens=cost.capture_tokens,
        least=factor * cost.least,
        host_seq=factor * cost.host_seq,
        admission_seq=factor * cost.admission_seq,
        decode_host=[factor * ticks for ticks in cost.decode_host],
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
            if engine._state == IDLE and engine._kick_t < 0:
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
