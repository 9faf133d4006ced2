"""Seeded faults: replicas that die, replicas that are slow, tools that are slow or hang.

Each kind draws from its own stream, indexed by what it hits (replica, chunk), so that switching one on or off
moves no other draw and every policy of a comparison meets the same faults.
"""

import numpy as np

from libra.core.ids import ReplicaId, ToolStatus
from libra.core.streams import stream
from sim.clock import Clock, to_ticks
from sim.config import FaultConfig, SlowToolConfig
from sim.world.engines import SimEngines
from sim.world.episodes import ChunkLists


class ToolFaults:
    """Slows tool calls in a chunk's columns before the run sees them."""

    def __init__(self, config: SlowToolConfig, seed: int) -> None:
        self._config = config
        self._seed = seed

    def apply(self, columns: ChunkLists, first_trajectory_id: int) -> None:
        """Change latencies (and, for a hang, the outcome) in place."""
        config = self._config
        if not config.fraction and not config.hang_fraction:
            return
        draws = stream(self._seed, "faults.tools", first_trajectory_id).random((2, len(columns.tool)))
        for row in np.flatnonzero(draws[0] < config.fraction).tolist():
            columns.tool_latency_s[row] *= config.slowdown
        for row in np.flatnonzero(draws[1] < config.hang_fraction).tolist():
            columns.tool_latency_s[row] = float("inf")
            columns.tool_status[row] = ToolStatus.TIMEOUT


class ReplicaFaults:
    """Kills and slows replicas at drawn times."""

    def __init__(self, clock: Clock, config: FaultConfig, seed: int, engines: SimEngines) -> None:
        self._clock = clock
        self._config = config
        self._seed = seed
        self._engines = engines

    def schedule(self) -> None:
        """Arm all faults; call once, before the run."""
        loss = self._config.replica_loss
        mean_s = loss.mean_time_between_losses_s
        if mean_s > 0:
            for replica_id in self._engines.replicas:
                rng = stream(self._seed, "faults.replica_loss", replica_id)
                self._arm_loss(replica_id, rng, mean_s, to_ticks(loss.detection_delay_s))
        straggler = self._config.straggler
        if straggler.fraction > 0:
            ids = list(self._engines.replicas)
            count = straggler.num_slow(len(ids))
            for i in stream(self._seed, "faults.straggler").permutation(len(ids))[:count].tolist():
                self._arm_slow(ids[i], straggler.start_s, slow=True)
                if straggler.end_s > straggler.start_s:
                    self._arm_slow(ids[i], straggler.end_s, slow=False)

    def _arm_loss(
        self, replica_id: ReplicaId, rng: np.random.Generator, mean_s: float, notice_t: int
    ) -> None:
        def strike() -> None:
            self._engines.lose(replica_id, notice_t)
            self._arm_loss(replica_id, rng, mean_s, notice_t)

        self._clock.call_later(max(1, to_ticks(rng.exponential(mean_s))), strike)

    def _arm_slow(self, replica_id: ReplicaId, at_s: float, *, slow: bool) -> None:
        self._clock.call_later(to_ticks(at_s), lambda: self._engines.set_slow(replica_id, slow))
