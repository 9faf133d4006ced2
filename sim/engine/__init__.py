"""Serving replicas: a contract (`base`), a literal implementation and an event-skipping one, equal to the bit."""

from typing import Final

from libra.errors import UserError
from sim.clock import Clock
from sim.engine.base import CostTable, Engine, EngineSpec, OnEnd
from sim.engine.reference import ReferenceEngine
from sim.engine.skip import SkipEngine

ENGINE_KINDS: Final = {"skip": SkipEngine, "reference": ReferenceEngine}


def make_engine(
    kind: str,
    clock: Clock,
    index: int,
    spec: EngineSpec,
    cost: CostTable,
    on_end: OnEnd,
    weight_version: int = 0,
) -> Engine:
    """A replica of implementation `kind`; `index` is its place among the engines of the clock, each its own."""
    engine = ENGINE_KINDS.get(kind)
    if engine is None:
        raise UserError(f"engine kind {kind!r} is not known; choose one of {', '.join(ENGINE_KINDS)}")
    return engine(clock, index, spec, cost, on_end, weight_version)
