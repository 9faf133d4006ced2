"""Weight sync: how long a version takes from the trainer to the engines, from bytes and the links on its way.

A version is published once by the trainer and loaded by each replica, which serves nothing meanwhile. Three ways:

- `host`: each trainer GPU copies its shard to host memory; each engine GPU fetches its shard over the network and
  from there. Transfers overlap in a stage, so the slowest link counts.
- `direct`: nothing is copied at publication; all GPUs of a replica receive all weights by NCCL broadcast and keep
  their shard.
- `disk`: the trainer writes a checkpoint; each replica reads it. Replicas that read at once each get the full rate.
"""

from dataclasses import dataclass
from typing import Final, Literal

from libra.cost.collectives import Fabric, Group
from libra.cost.hardware import GIB, Gpu, Model
from libra.cost.stamped import stamp
from libra.errors import UserError

H200: Final = "measured: H200, vLLM 0.26.0, PyTorch 2.11"


@dataclass(frozen=True, slots=True)
class SyncCostConfig:
    """Bandwidths and fixed parts; each default carries its source (`sim list costs`).

    mode: see the module. h2d_gib_per_s, d2h_gib_per_s: pinned copies between host and one GPU. network_gib_per_s: per
    GPU and direction; 0 takes the GPU's own figure from the catalogue. storage_write_gib_per_s,
    storage_read_gib_per_s: of a checkpoint as a whole. load_fixed_s: pause around a load. publish_fixed_s: rendezvous
    and metadata.
    """

    mode: Literal["host", "direct", "disk"] = "host"
    h2d_gib_per_s: float = stamp(51.6, f"{H200}, pinned 1 GiB copies")
    d2h_gib_per_s: float = stamp(51.4, f"{H200}, pinned 1 GiB copies")
    network_gib_per_s: float = stamp(0.0, "the GPU's entry in the catalogue")
    storage_write_gib_per_s: float = stamp(
        1.5,
        "what lies between prime-rl's steps (baselines of 2026-01-15), over the weights: 1.5 to 1.75 GB/s",
    )
    storage_read_gib_per_s: float = stamp(3.0, "assumption: twice the writing")
    load_fixed_s: float = stamp(0.6, f"{H200}: waking an engine whose weights were dropped, 0.57 and 0.64 s")
    publish_fixed_s: float = stamp(0.5, "assumption")

    def __post_init__(self) -> None:
        rates = (
            self.h2d_gib_per_s,
            self.d2h_gib_per_s,
            self.storage_write_gib_per_s,
            self.storage_read_gib_per_s,
        )
        if min(rates) <= 0.0:
            raise UserError("sync cost: bandwidths of copies and storage must be positive")
        if min(self.network_gib_per_s, self.load_fixed_s, self.publish_fixed_s) < 0.0:
            raise UserError("sync cost: network_gib_per_s and times must not be negative")


@dataclass(frozen=True, slots=True)
class SyncCost:
    """Costs of moving the weights of one model between GPUs of one kind."""

    gpu: Gpu
    model: Model
    config: SyncCostConfig = SyncCostConfig()
    gpus_per_node: int = 8

    @property
    def network_gib_per_s(self) -> float:
        """Per GPU, after the override."""
        return self.config.network_gib_per_s or self.gpu.network_bytes_per_s / GIB

    @property
    def weights_gib(self) -> float:
        """All weights in bf16."""
        return self.model.weight_bytes / GIB

    def host_copy_gib_per_s(self, measured_gib_per_s: float) -> float:
        """One GPU's copies to or from the host: as measured over PCIe 5, or what an older bus carries."""
        return min(measured_gib_per_s, self.gpu.pcie_bytes_per_s / GIB)

    def publish_s(self, num_gpus: int) -> float:
        """From a trainer of `num_gpus` (each holding a shard) to where engines can fetch it."""
        if num_gpus < 1:
            raise UserError(f"publishing needs at least one trainer GPU, not {num_gpus}")
        fixed_s = self.config.publish_fixed_s
        match self.config.mode:
            case "direct":
                return fixed_s
            case "disk":
                return fixed_s + self.weights_gib / self.config.storage_write_gib_per_s
            case "host":
                copy = self.host_copy_gib_per_s(self.config.d2h_gib_per_s)
                return fixed_s + self.weights_gib / num_gpus / min(copy, self.network_gib_per_s)

    def load_s(self, tp: int) -> float:
        """One replica of `tp` GPUs gets the weights and puts them in place; serving nothing meanwhile."""
        if tp < 1:
            raise UserError(f"tp must be at least 1, not {tp}")
        fixed_s, shard_gib = self.config.load_fixed_s, self.weights_gib / tp
        copy = self.host_copy_gib_per_s(self.config.h2d_gib_per_s)
        match self.config.mode:
            case "direct":
                return fixed_s + self._broadcast_s(tp)
            case "disk":
                return fixed_s + self.weights_gib / self.config.storage_read_gib_per_s + shard_gib / copy
            case "host":
                return fixed_s + shard_gib / min(copy, self.network_gib_per_s)

    def _broadcast_s(self, tp: int) -> float:
        """From a trainer on another node: each GPU of the replica takes its part off the network, and all of them
        then share what came."""
        num_sharing = min(tp, self.gpus_per_node)
        between_s = self.weights_gib / num_sharing / self.network_gib_per_s
        inside_s = Fabric(self.gpu, self.gpus_per_node).broadcast_s(
            self.model.weight_bytes, Group(num_sharing, num_sharing)
        )
        return max(between_s, inside_s)
