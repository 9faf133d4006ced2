"""The simulator put to the contract: its ports on one clock, without controller and driver."""

from collections.abc import Callable

from libra.core.ids import NodeId, ReplicaId, Supply
from libra.ports import Ports
from sim.clock import Clock, to_seconds, to_ticks
from sim.config import SlowToolConfig
from sim.driver import SimClockPort
from sim.engine.base import CostTable, EngineSpec
from sim.world.engines import ReplicaPlan, SimEngines
from sim.world.environment import SimEnvironment
from sim.world.episodes import Episode
from sim.world.faults import ToolFaults
from sim.world.source import SimSource
from sim.world.trainer import SimTrainer
from tests.contract import script
from tests.contract.harness import World

STEP_T = to_ticks(0.01)
LOAD_S, START_S, TRAIN_S, PUBLISH_S, NOTICE_S = 2.0, 3.0, 4.0, 1.0, 0.5


class SimWorld(World):
    """`kind`: of the engine. A decode step takes 10 ms, so a first turn takes three seconds."""

    def __init__(self, kind: str, supply: Supply = Supply.PULL) -> None:
        super().__init__()
        self.clock = clock = Clock()
        episodes: dict[int, Episode] = {}
        environment = SimEnvironment(clock, episodes, script.TOOL_TIMEOUT_S, self.emit)
        trainer = SimTrainer(clock, lambda tokens, number: TRAIN_S, PUBLISH_S, self.emit)
        spec = EngineSpec(
            max_num_seqs=script.MAX_NUM_SEQS, max_model_len=script.MAX_MODEL_LEN, num_blocks=1_000
        )
        cost = CostTable(
            [STEP_T] * (script.MAX_NUM_SEQS + 1), [0] * (script.MAX_NUM_SEQS + 1), 0, STEP_T, 0, 0, 1
        )
        plans = [
            ReplicaPlan(ReplicaId(i), 1, NodeId(0), spec, cost, cost, to_ticks(LOAD_S), to_ticks(START_S))
            for i in range(2)
        ]
        self.engines = SimEngines(
            clock, kind, plans, episodes, self.emit, environment.after_turn, lambda: trainer.published_version
        )
        faults = ToolFaults(SlowToolConfig(), 0)
        self.source = SimSource(clock, script.Script(supply), episodes, spec.block_size, faults, self.emit)
        self.ports = Ports(self.source, environment, self.engines, trainer, SimClockPort(clock, self.emit))
        self.engines.boot()
        self.source.start_pushing()

    def run_until(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            assert self.clock.env.peek() < to_ticks(10_000), f"never; so far {self.events}"
            self.clock.env.step()

    def wait(self, seconds: float) -> None:
        if seconds > 0:
            self.clock.env.run(until=self.clock.now + to_ticks(seconds))

    def now_s(self) -> float:
        return to_seconds(self.clock.now)

    def die(self, replica_id: int) -> None:
        self.engines.lose(ReplicaId(replica_id), to_ticks(NOTICE_S))
