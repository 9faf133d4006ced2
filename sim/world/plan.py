"""What the simulated cluster's replicas are made of."""

from dataclasses import dataclass

from libra.core.ids import NodeId, ReplicaId
from sim.engine.cost import CostTable
from sim.engine.spec import EngineSpec


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """What a replica is made of. load_t: ticks to load weights; start_t: ticks from start to ready."""

    replica_id: ReplicaId
    tp: int
    node_id: NodeId
    spec: EngineSpec
    cost: CostTable
    slow_cost: CostTable
    load_t: int
    start_t: int
