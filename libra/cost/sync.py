"""Weight movement and replica starts: seconds from bytes and bandwidths.

A version is published once by the trainer (device to host, each GPU its shard) and loaded by each replica
(network and host to device, each GPU its shard). Transfers overlap in a stage, so the slowest link counts.
"""

from dataclasses import dataclass

from libra.cost.hardware import GIB, Gpu, Model
from libra.errors import UserError


@dataclass(frozen=True, slots=True)
class SyncCostConfig:
    """Bandwidths and fixed parts. Measured: one and two H200, vLLM 0.26.0 (engine_facts of the H200 data).

    h2d_gib_per_s, d2h_gib_per_s: pinned host copies of one GPU, measured.
    network_gib_per_s: per GPU and direction; 0 takes the GPU's own figure from the catalogue.
    load_fixed_s: pause around a load; waking an engine whose weights were dropped took 0.57 and 0.64 s.
    publish_fixed_s: rendezvous and metadata; assumption.
    start_cold_s, start_warm_s: process start to ready, without and with a warm compile cache (Qwen3-4B TP 1).
    start_tp_extra_s: added when tp > 1 (Qwen3-14B: 77.8 s at TP 2 against 58.4 s at TP 1).
    """

    h2d_gib_per_s: float = 51.6
    d2h_gib_per_s: float = 51.4
    network_gib_per_s: float = 0.0
    load_fixed_s: float = 0.6
    publish_fixed_s: float = 0.5
    start_cold_s: float = 65.6
    start_warm_s: float = 13.6
    start_tp_extra_s: float = 19.4

    def __post_init__(self) -> None:
        if self.h2d_gib_per_s <= 0.0 or self.d2h_gib_per_s <= 0.0:
            raise UserError("sync cost: h2d_gib_per_s and d2h_gib_per_s must be positive")
        rest = (self.network_gib_per_s, self.load_fixed_s, self.publish_fixed_s)
        if min(*rest, self.start_cold_s, self.start_warm_s, self.start_tp_extra_s) < 0.0:
            raise UserError("sync cost: bandwidths and times must not be negative")


@dataclass(frozen=True, slots=True)
class SyncCost:
    """Costs of moving the weights of one model between GPUs of one kind."""

    gpu: Gpu
    model: Model
    config: SyncCostConfig = SyncCostConfig()

    def _slowest_gib_per_s(self, host_copy_gib_per_s: float) -> float:
        # The measured copies ran over PCIe 5; an older bus is the tighter limit.
        return min(host_copy_gib_per_s, self.gpu.pcie_bytes_per_s / GIB, self.network_gib_per_s)

    @property
    def network_gib_per_s(self) -> float:
        """Per GPU, after the override."""
        return self.config.network_gib_per_s or self.gpu.network_bytes_per_s / GIB

    def publish_s(self, num_gpus: int) -> float:
        """From a trainer of `num_gpus` (each holding a shard) to host memory and on to the network."""
        if num_gpus < 1:
            raise UserError(f"publishing needs at least one trainer GPU, not {num_gpus}")
        shard_gib = self.model.weight_bytes / GIB / num_gpus
        return self.config.publish_fixed_s + shard_gib / self._slowest_gib_per_s(self.config.d2h_gib_per_s)

    def load_s(self, tp: int) -> float:
        """One replica of `tp` GPUs fetches the weights and puts them in place; serving nothing meanwhile."""
        if tp < 1:
            raise UserError(f"tp must be at least 1, not {tp}")
        shard_gib = self.model.weight_bytes / GIB / tp
        return self.config.load_fixed_s + shard_gib / self._slowest_gib_per_s(self.config.h2d_gib_per_s)

    def start_s(self, tp: int, *, warm: bool) -> float:
        """Process start to ready of a replica of `tp` GPUs, with the initial weights."""
        if tp < 1:
            raise UserError(f"tp must be at least 1, not {tp}")
        base_s = self.config.start_warm_s if warm else self.config.start_cold_s
        return base_s + (self.config.start_tp_extra_s if tp > 1 else 0.0)
