"""The client of a trace, simulated: it submits what was recorded to one engine and notes when tokens came.

Closed loop: `concurrency` trajectories at once, in their order. The first ones start at their recorded times (a
client needs time to submit a hundred prompts), the others when one before them has ended and waited. A trajectory's
prompts extend one another, so its turns share one chain of the prefix cache and nothing else does. Open loop: every
request at its recorded time.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from libra.core.ids import FailureKind
from libra.workloads.table import Floats, Ints
from sim.clock import Clock, to_seconds, to_ticks
from sim.engine import make_engine
from sim.engine.base import CostTable, EngineCounters, EngineSpec, Request
from sim.traces.records import Trace


@dataclass(frozen=True, slots=True)
class Played:
    """What came out, arrays over the trace's turns: nan where the engine refused a turn or it never ran.

    counters: of the engine, at the end.
    """

    submit_s: Floats
    ttft_s: Floats
    latency_s: Floats
    cached_tokens: Ints
    counters: EngineCounters

    @property
    def end_s(self) -> Floats:
        """When each turn ended."""
        return self.submit_s + self.latency_s


def play(trace: Trace, spec: EngineSpec, cost: CostTable, concurrency: int) -> Played:
    """Simulate the trace; `concurrency` has no effect on an open loop."""
    return _Client(trace, spec, cost, concurrency).run()


class _Client:
    def __init__(self, trace: Trace, spec: EngineSpec, cost: CostTable, concurrency: int) -> None:
        self._clock = Clock()
        self._engine = make_engine("skip", self._clock, 0, spec, cost, self._on_end)
        count = len(trace.submit_s)
        self._prompt: list[int] = trace.prompt_tokens.tolist()
        self._output: list[int] = trace.output_tokens.tolist()
        self._wait_t = [to_ticks(seconds) for seconds in trace.wait_s.tolist()]
        self._submit_t = [to_ticks(seconds) for seconds in trace.submit_s.tolist()]
        self._first: list[int] = trace.first_turn.tolist()
        self._trajectory = np.repeat(np.arange(trace.num_trajectories), np.diff(trace.first_turn)).tolist()
        self._done: list[Request | None] = [None] * count
        at_once = trace.num_trajectories if trace.open_loop else min(concurrency, trace.num_trajectories)
        self._queue = deque(range(at_once, trace.num_trajectories))
        for trajectory in range(at_once):
            turn = self._first[trajectory]
            self._clock.call_later(self._submit_t[turn], lambda turn=turn: self._submit(turn))

    def run(self) -> Played:
        self._clock.env.run()
        self._engine.settle()
        known = [request if request is not None and request.end_t >= 0 else None for request in self._done]

        def seconds(ticks: list[int]) -> Floats:
            return np.array([to_seconds(t) if t >= 0 else np.nan for t in ticks])

        submit = seconds([-1 if r is None else r.submitted_t for r in known])
        whole = [None if r is None or r.num_emitted < r.output_tokens else r for r in known]
        return Played(
            submit_s=submit,
            ttft_s=seconds([-1 if r is None else r.first_token_t for r in whole]) - submit,
            latency_s=seconds([-1 if r is None else r.end_t for r in whole]) - submit,
            cached_tokens=np.array([-1 if r is None else r.cached_tokens for r in whole]),
            counters=self._engine.counters,
        )

    def _submit(self, turn: int) -> None:
        chain = self._trajectory[turn]
        request = Request(turn, self._prompt[turn], self._output[turn], ((chain, 0),))
        self._done[turn] = request
        self._engine.submit(request)

    def _on_end(self, request: Request, kind: FailureKind | None) -> None:
        turn = request.request_id
        trajectory = self._trajectory[turn]
        following = turn + 1
        if following == self._first[trajectory + 1] or kind is not None:
            if not self._queue:
                return
            following = self._first[self._queue.popleft()]
        self._clock.call_later(self._wait_t[turn], lambda: self._submit(following))
