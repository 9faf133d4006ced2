"""Seconds of collective operations between GPUs, from bytes, group and links: alpha-beta, chunks pipelined.

    seconds = max(floor, latency + slowest of (bytes over a link / what the link really carries))

Bytes over a link follow NCCL's definition of bus bandwidth (nccl-tests, PERFORMANCE.md) for n ranks and a buffer of
B bytes: all-reduce 2 (n-1)/n B, all-gather and reduce-scatter (n-1)/n B, all-to-all (n-1)/n B, broadcast and
point-to-point B. B is the whole buffer: what all-gather ends with, what reduce-scatter and all-to-all start with.

A group that spans nodes works on two levels, as NCCL's rings and trees do: the `per_node` ranks of a node share the
traffic between nodes, each over its own part of the network, while NVLink (or PCIe) carries the node's own part;
chunks flow through both, so the slower level counts.

Anchor: PyTorch 2.11 with NCCL on two H200 (NVLink, multicast off); see `CollectiveConfig` for what was measured and
what is assumed. Groups of more than two GPUs, PCIe and networks have not been measured here.
"""

from dataclasses import dataclass
from typing import Final

from libra.cost.hardware import Gpu
from libra.cost.stamped import stamp
from libra.errors import UserError

NCCL: Final = "measured: two H200 over NVLink, NCCL"


@dataclass(frozen=True, slots=True)
class CollectiveConfig:
    """Shares of the datasheet's bandwidth and latencies; each default carries its source (`sim list costs`).

    nvlink_reduce_efficiency: all-reduce, reduce-scatter, all-gather. nvlink_copy_efficiency: broadcast, all-to-all,
    point-to-point. latency_s, copy_latency_s: fixed, of the same two kinds. hop_s, network_hop_s: per step of a ring
    (2 (n-1) of an all-reduce), inside and between nodes. floor_s, copy_floor_s: least time of an operation.
    """

    nvlink_reduce_efficiency: float = stamp(
        0.733, f"{NCCL}: 1 GiB in 3.26 ms, 256 MiB in 0.90 ms, 32 MiB in 0.138 ms, each within 9 %"
    )
    nvlink_copy_efficiency: float = stamp(0.818, f"{NCCL}: broadcast of 1 GiB in 2.91 ms")
    pcie_efficiency: float = stamp(0.5, "assumption: peers share a host bridge")
    network_efficiency: float = stamp(0.85, "assumption: headers and congestion of RDMA")
    latency_s: float = stamp(21e-6, f"{NCCL}: leaves 4 MiB, which ran at the floor, within 12 %")
    copy_latency_s: float = stamp(14e-6, f"{NCCL}: the same of broadcasts")
    hop_s: float = stamp(2e-6, f"{NCCL}: not to be told from latency_s there; 2 us of the 25")
    network_hop_s: float = stamp(14e-6, "NCCL's tuning table, simple protocol over a network")
    floor_s: float = stamp(35e-6, f"{NCCL}: 34 to 44 us up to 4 MiB")
    copy_floor_s: float = stamp(24e-6, f"{NCCL}: broadcasts of 64 KiB to 4 MiB, 22 to 26 us")

    def __post_init__(self) -> None:
        shares = (
            self.nvlink_reduce_efficiency,
            self.nvlink_copy_efficiency,
            self.pcie_efficiency,
            self.network_efficiency,
        )
        if not all(0.0 < share <= 1.0 for share in shares):
            raise UserError("collectives cost: efficiencies must lie in (0, 1]")
        times = (self.latency_s, self.copy_latency_s, self.hop_s, self.network_hop_s)
        if min(*times, self.floor_s, self.copy_floor_s) < 0.0:
            raise UserError("collectives cost: times must not be negative")


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of one communicator: `size` in all, at most `per_node` of them on one node."""

    size: int
    per_node: int

    def __post_init__(self) -> None:
        if self.size < 1 or not 1 <= self.per_node <= self.size:
            raise UserError(
                f"a group of {self.size} ranks with {self.per_node} a node; give at least 1, and no more a node than "
                "there are"
            )

    @property
    def num_nodes(self) -> int:
        """Nodes that the group spans."""
        return -(-self.size // self.per_node)


@dataclass(frozen=True, slots=True)
class Fabric:
    """The links of a cluster of nodes with `gpus_per_node` GPUs of one kind. Every method returns seconds."""

    gpu: Gpu
    gpus_per_node: int = 8
    config: CollectiveConfig = CollectiveConfig()

    def __post_init__(self) -> None:
        if self.gpus_per_node < 1:
            raise UserError(f"gpus_per_node must be at least 1, not {self.gpus_per_node}")

    def group(self, size: int, stride: int = 1) -> Group:
        """The ranks 0, stride, 2 stride, ... of a cluster filled node by node.

        Ranks of a dimension of a layout lie as far apart as the dimensions inside it are large.
        """
        if size < 1 or stride < 1:
            raise UserError(f"a group of {size} ranks {stride} apart; both must be at least 1")
        return Group(size, min(size, max(1, self.gpus_per_node // stride)))

    def all_reduce_s(self, num_bytes: float, group: Group) -> float:
        """Every rank ends with the sum of all buffers of `num_bytes`."""
        return self._ring_s(num_bytes, group, passes=2)

    def all_gather_s(self, num_bytes: float, group: Group) -> float:
        """Every rank ends with `num_bytes`, of which it had its share."""
        return self._ring_s(num_bytes, group, passes=1)

    def reduce_scatter_s(self, num_bytes: float, group: Group) -> float:
        """Every rank starts with `num_bytes` and ends with its share of the sum."""
        return self._ring_s(num_bytes, group, passes=1)

    def broadcast_s(self, num_bytes: float, group: Group) -> float:
        """One rank's `num_bytes` reach all; ranks of a node share what comes over the network."""
        if self._nothing(num_bytes, group):
            return 0.0
        inside = num_bytes if group.per_node > 1 else 0.0
        between = num_bytes / group.per_node if group.num_nodes > 1 else 0.0
        return self._copy_s(inside, between, group.per_node - 1, group.num_nodes - 1)

    def all_to_all_s(self, num_bytes: float, group: Group) -> float:
        """Every rank starts with `num_bytes` and sends an equal part of it to each."""
        if self._nothing(num_bytes, group):
            return 0.0
        inside = num_bytes * (group.per_node - 1) / group.size
        between = num_bytes * (group.size - group.per_node) / group.size
        return self._copy_s(inside, between, min(1, group.per_node - 1), min(1, group.num_nodes - 1))

    def point_to_point_s(self, num_bytes: float, *, same_node: bool) -> float:
        """One rank's `num_bytes` to one other."""
        pair = Group(2, 2 if same_node else 1)
        if self._nothing(num_bytes, pair):
            return 0.0
        return self._copy_s(*((num_bytes, 0.0, 1, 0) if same_node else (0.0, num_bytes, 0, 1)))

    def _ring_s(self, num_bytes: float, group: Group, passes: int) -> float:
        if self._nothing(num_bytes, group):
            return 0.0
        per_node, nodes = group.per_node, group.num_nodes
        inside = passes * num_bytes * (per_node - 1) / per_node
        between = passes * (num_bytes / per_node) * (nodes - 1) / nodes
        return max(
            self.config.floor_s,
            self.config.latency_s
            + self._hops_s(passes * (per_node - 1), passes * (nodes - 1))
            + self._slowest_s(inside, between, self.config.nvlink_reduce_efficiency),
        )

    def _copy_s(self, inside: float, between: float, hops: int, network_hops: int) -> float:
        latency_s = self.config.copy_latency_s + self._hops_s(hops, network_hops)
        slowest_s = self._slowest_s(inside, between, self.config.nvlink_copy_efficiency)
        return max(self.config.copy_floor_s, latency_s + slowest_s)

    def _hops_s(self, hops: int, network_hops: int) -> float:
        return hops * self.config.hop_s + network_hops * self.config.network_hop_s

    def _slowest_s(self, inside: float, between: float, nvlink_efficiency: float) -> float:
        """Bytes over the node's links and over one GPU's share of the network, at the same time."""
        config, gpu = self.config, self.gpu
        efficiency = nvlink_efficiency if gpu.nvlink_bytes_per_s else config.pcie_efficiency
        inside_s = inside / (gpu.node_bytes_per_s * efficiency)
        return max(inside_s, between / (gpu.network_bytes_per_s * config.network_efficiency))

    def _nothing(self, num_bytes: float, group: Group) -> bool:
        if num_bytes < 0:
            raise UserError(f"a collective of {num_bytes} bytes; give 0 or more")
        return group.size == 1 or num_bytes == 0
