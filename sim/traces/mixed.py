"""The measurement of mixed steps, simulated: a batch decodes while single prefills follow one another."""

from libra.core.ids import FailureKind
from sim.clock import Clock, to_seconds, to_ticks
from sim.engine import make_engine
from sim.engine.base import CostTable, EngineSpec, Request

WINDOW_S = 0.45
"""As long as the measured windows are (the table's notes)."""


def mixed_step_s(
    spec: EngineSpec, cost: CostTable, batch: int, context_tokens: int, prefill_tokens: int
) -> float:
    """Mean step time (s) while `batch` requests decode at `context_tokens` and prefills of `prefill_tokens` follow
    one another; without prefills where `prefill_tokens` is 0.
    """
    return _Bench(spec, cost, batch, context_tokens, prefill_tokens).run()


class _Bench:
    def __init__(
        self, spec: EngineSpec, cost: CostTable, batch: int, context_tokens: int, prefill_tokens: int
    ) -> None:
        self._clock = Clock()
        self._engine = make_engine("skip", self._clock, 0, spec, cost, self._on_end)
        self._prefill_tokens = prefill_tokens
        self._num_chains = batch
        for chain in range(batch):
            self._warm(chain, context_tokens)
        self._clock.env.run()
        # Long enough that none ends within the window, whatever its steps take.
        for chain in range(batch):
            output = min(10_000, spec.max_model_len - context_tokens)
            self._engine.submit(Request(chain, context_tokens, output, ((chain, 0),)))

    def run(self) -> float:
        env = self._clock.env
        env.run(until=self._clock.now + to_ticks(0.2))
        if self._prefill_tokens:
            self._prefill()
            env.run(until=self._clock.now + to_ticks(0.1))
        counters = self._engine.counters
        self._engine.settle()
        steps, busy_t = counters.num_steps, counters.busy_t
        env.run(until=self._clock.now + to_ticks(WINDOW_S))
        self._engine.settle()
        # Of whole steps: a window over the steps in it would be off by up to one in twenty.
        return to_seconds(counters.busy_t - busy_t) / (counters.num_steps - steps)

    def _warm(self, chain: int, context_tokens: int) -> None:
        """Leave the context in the prefix cache, as the measurement did."""
        self._engine.submit(Request(-1, context_tokens, 1, ((chain, 0),)))

    def _prefill(self) -> None:
        self._num_chains += 1
        self._engine.submit(Request(-2, self._prefill_tokens, 1, ((self._num_chains, 0),)))

    def _on_end(self, request: Request, kind: FailureKind | None) -> None:
        if request.request_id == -2:
            self._prefill()
