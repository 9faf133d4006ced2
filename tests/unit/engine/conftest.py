"""A single replica with costs that one can add up by hand, on either implementation."""

from collections.abc import Callable
from typing import Any

import pytest

from libra.core.ids import FailureKind
from sim.clock import Clock
from sim.engine import make_engine
from sim.engine.base import CostTable, Engine, EngineSpec, Path, Request


def plain_cost(max_num_seqs: int = 8, base: int = 100, attention: int = 0) -> CostTable:
    """Decode step: base + context tokens. Step with prefill: 50 + decoding context + 2 per prefill token."""
    return CostTable([base] * (max_num_seqs + 1), [1] * (max_num_seqs + 1), 0, 50, 2, attention, 1)


class Bench:
    """Engines on one clock, and what they reported."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.clock = Clock()
        self.ended: list[tuple[int, int, FailureKind | None]] = []  # (tick, request id, kind)
        self.then: dict[int, Callable[[], Any]] = {}  # request id -> call from within its callback
        self.engines: list[Engine] = []
        self.cost = plain_cost

    def engine(self, cost: CostTable | None = None, **settings: Any) -> Engine:
        """One more engine; its index is its place."""
        wanted = {"max_num_seqs": 8, "max_num_batched_tokens": 100, "block_size": 4, "num_blocks": 100}
        spec = EngineSpec(**{**wanted, **settings})  # type: ignore[arg-type]
        engine = make_engine(
            self.kind, self.clock, len(self.engines), spec, cost or plain_cost(), self._on_end
        )
        self.engines.append(engine)
        return engine

    def _on_end(self, request: Request, kind: FailureKind | None) -> None:
        self.ended.append((self.clock.now, request.request_id, kind))
        if request.request_id in self.then:
            self.then[request.request_id]()

    def at(self, tick: int, call: Callable[[], Any]) -> None:
        """Call at a tick, before its step boundaries."""
        self.clock.env.timeout(tick - self.clock.now).callbacks.append(lambda event: call())  # type: ignore[union-attr]

    def submit(
        self,
        tick: int,
        number: int,
        prompt: int,
        output: int,
        path: Path = (),
        priority: int = 0,
        engine: int = 0,
    ) -> Request:
        """Submit a request at a tick."""
        request = Request(number, prompt, output, path, priority)
        self.at(tick, lambda: self.engines[engine].submit(request))
        return request

    def run(self) -> None:
        """To the end, then recount."""
        self.clock.env.run()
        for engine in self.engines:
            engine.settle()
            engine.check()


@pytest.fixture(params=["reference", "skip"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """A fresh clock, once per implementation."""
    return Bench(request.param)
