"""What it costs to change a cluster: starting, sleeping, waking and draining engines, joining a trainer, switching
roles, checkpoints.

Durations come from two fixed parts and bytes over a rate; which of the two is the cause was read off measurements on
H200 (vLLM 0.26.0; Qwen3-4B at TP 1 and Qwen3-14B at TP 1 and 2, whose weights take 7.5 and 27.5 GiB):

- start: 65.6 s (4B) and 58.4 s (14B) without a compile cache, so not by bytes: fixed. The second GPU cost 19.4 s
  more. These engines had random weights, so reading real ones comes on top, by bytes.
- sleep 1 (weights to host): 4.08 s and 11.81 s. Per GPU that is 0.54 and 0.86 s/GiB, and a straight line through both
  begins below 0; over the whole replica 0.54 and 0.43 s/GiB. So it is by bytes of the replica, whichever GPU holds
  them: a host that pins memory for the copy (which itself would take 0.15 and 0.27 s). 0.475 is within 12 % of both.
- sleep 2 (weights dropped): 0.075 and 0.145 s: per GPU.
- wake 2: 0.57 and 0.64 s: fixed. wake 1: 0.69 and 1.00 s: the same and one GPU's share over the bus, within 14 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from libra.cost.hardware import BF16_BYTES, GIB
from libra.cost.stamped import stamp
from libra.cost.sync import H200, SyncCost
from libra.cost.train_layout import TrainLayout, stage_params
from libra.cost.train_memory import OPTIMIZER_BYTES
from libra.errors import UserError

TORCHFT = "measured: torchft 0.2.0 around Megatron groups of TP 2, gloo on two CPU cores"


@dataclass(frozen=True, slots=True)
class TransitionCostConfig:
    """Fixed parts and rates; each default carries its source (`sim list costs`).

    start_cold_s, start_warm_s: process start to ready without and with a compile cache, weights not read.
    start_tp_extra_s: added when tp > 1. sleep_weights_s_per_gib: level 1, per GiB of the replica's weights.
    sleep_per_gpu_s: levels 1 and 2. wake_fixed_s: both levels. join_boot_s: a joiner's start until it asks to join,
    while the others train on. join_quorum_s: agreeing on the members. leave_s: until those left go on without one.
    checkpoint_fixed_s: of a save or load, beside bytes.
    """

    start_cold_s: float = stamp(62.0, f"{H200}: 65.6 s (Qwen3-4B) and 58.4 s (Qwen3-14B), TP 1")
    start_warm_s: float = stamp(13.6, f"{H200}: Qwen3-4B, TP 1")
    start_tp_extra_s: float = stamp(19.4, f"{H200}: Qwen3-14B, 77.8 s at TP 2 against 58.4 s, both cold")
    sleep_weights_s_per_gib: float = stamp(
        0.475, f"{H200}: 4.08 s (7.5 GiB, TP 1) and 11.81 s (27.5 GiB, TP 2)"
    )
    sleep_per_gpu_s: float = stamp(0.073, f"{H200}: level 2 took 0.075 s at TP 1 and 0.145 s at TP 2")
    wake_fixed_s: float = stamp(0.6, f"{H200}: level 2 took 0.57 s at TP 1 and 0.64 s at TP 2")
    join_boot_s: float = stamp(15.0, f"{TORCHFT}: imports")
    join_quorum_s: float = stamp(0.5, f"{TORCHFT}: late join")
    leave_s: float = stamp(1.3, f"{TORCHFT}: the quorum after a kill, heartbeat timeout 1.5 s")
    checkpoint_fixed_s: float = stamp(2.8, "measured: Megatron-Core 0.19.2, 1.8 MB saved on two CPU cores")

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 0.0:
                raise UserError(f"transition cost: {name} must not be negative")


@dataclass(frozen=True, slots=True)
class DrainTime:
    """seconds: until the last turn has ended. idle_gpu_s: GPU-seconds of slots that were empty by then, over slots:
    what draining wastes, since turns still running are useful work."""

    seconds: float
    idle_gpu_s: float


@dataclass(frozen=True, slots=True)
class JoinTime:
    """A replica joins an elastic trainer. boot_s: only the joiner's. stall_s: everybody waits: quorum and state."""

    boot_s: float
    stall_s: float

    @property
    def total_s(self) -> float:
        """From the joiner's start to its first step."""
        return self.boot_s + self.stall_s


@dataclass(frozen=True, slots=True)
class TransitionCost:
    """Costs of changes, of the model and GPUs of `sync`."""

    sync: SyncCost
    config: TransitionCostConfig = TransitionCostConfig()

    def start_s(self, tp: int, *, warm: bool) -> float:
        """Process start to ready of a replica of `tp` GPUs, its weights read from storage."""
        _check_tp(tp)
        fixed_s = self.config.start_warm_s if warm else self.config.start_cold_s
        extra_s = self.config.start_tp_extra_s if tp > 1 else 0.0
        return fixed_s + extra_s + self.sync.weights_gib / self.sync.config.storage_read_gib_per_s

    def sleep_s(self, tp: int, level: Literal[1, 2]) -> float:
        """An idle engine gives its GPU memory back; level 1 keeps the weights in host memory, level 2 drops them."""
        _check_tp(tp)
        kept_s = self.config.sleep_weights_s_per_gib * self.sync.weights_gib if level == 1 else 0.0
        return kept_s + self.config.sleep_per_gpu_s * tp

    def wake_s(self, tp: int, level: Literal[1, 2]) -> float:
        """A sleeping engine takes its memory again; after level 2 it has no weights until a load."""
        _check_tp(tp)
        copy = self.sync.host_copy_gib_per_s(self.sync.config.h2d_gib_per_s)
        return self.config.wake_fixed_s + (self.sync.weights_gib / tp / copy if level == 1 else 0.0)

    def drain(self, remaining_s: Sequence[float], tp: int) -> DrainTime:
        """A replica of `tp` GPUs takes no new turn until those running, with so long to go, have ended."""
        _check_tp(tp)
        if not remaining_s:
            return DrainTime(0.0, 0.0)
        longest = max(remaining_s)
        idle = sum(longest - each for each in remaining_s) / len(remaining_s)
        return DrainTime(longest, tp * idle)

    def join(self, layout: TrainLayout) -> JoinTime:
        """One more data-parallel replica of `layout`: each of its GPUs gets weights and optimizer states from the GPU
        that holds the same shard, all at once over the network.

        With the distributed optimizer a replica's states are split over all; the joiner gets its share of the new
        split, and the weights.
        """
        params = stage_params(self.sync.model, layout, first=True, last=layout.pp == 1).total
        shards = layout.dp + 1 if layout.use_distributed_optimizer else 1
        num_bytes = params * (BF16_BYTES + OPTIMIZER_BYTES / shards)
        transfer_s = num_bytes / GIB / self.sync.network_gib_per_s
        return JoinTime(self.config.join_boot_s, self.config.join_quorum_s + transfer_s)

    def to_trainer_s(self, tp: int, layout: TrainLayout, *, sleep_level: Literal[1, 2] = 2) -> float:
        """A drained engine of `tp` GPUs goes to sleep and its GPUs join the trainer. What draining takes is apart."""
        return self.sleep_s(tp, sleep_level) + self.join(layout).total_s

    def to_rollout_s(self, tp: int, *, sleep_level: Literal[1, 2] | None = 2, warm: bool = True) -> float:
        """GPUs leave the trainer and serve as a replica of `tp` with the newest weights.

        sleep_level: of the engine that sleeps on them; None starts one, with a compile cache if `warm`.
        """
        ready_s = self.start_s(tp, warm=warm) if sleep_level is None else self.wake_s(tp, sleep_level)
        return self.config.leave_s + ready_s + self.sync.load_s(tp)

    @property
    def checkpoint_gib(self) -> float:
        """bf16 weights, fp32 weights and Adam's moments: 14 bytes a parameter."""
        return self.sync.model.num_params * (BF16_BYTES + OPTIMIZER_BYTES) / GIB

    def checkpoint_save_s(self) -> float:
        """Trainer's state to storage, all ranks writing."""
        return self.config.checkpoint_fixed_s + self.checkpoint_gib / self.sync.config.storage_write_gib_per_s

    def checkpoint_load_s(self) -> float:
        """And back."""
        return self.config.checkpoint_fixed_s + self.checkpoint_gib / self.sync.config.storage_read_gib_per_s


def _check_tp(tp: int) -> None:
    if tp < 1:
        raise UserError(f"tp must be at least 1, not {tp}")
