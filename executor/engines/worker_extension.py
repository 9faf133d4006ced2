"""What Libra adds to vLLM's workers: a weight-transfer backend over gloo, for engines without a GPU.

vLLM imports this module in every worker when it is named by `--worker-extension-cls`, before the workers look for
their weight-transfer backend; importing it registers `libra_gloo`. GPUs use vLLM's own `nccl`. The engine's HTTP
interface is the same for both: /init_weight_transfer_engine, then for each refresh /start_weight_update,
/update_weights (while the trainer broadcasts), /finish_weight_update.

The trainer is rank 0 of the group and broadcasts tensor by tensor, under names and shapes of the HF checkpoint, in
the order of `names`; each worker cuts out its own tensor-parallel share. Never imported by the driver.
"""

# pyright: reportMissingImports=false

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "libra_gloo"


@dataclass
class GlooInit(WeightTransferInitInfo):
    """Where the trainer waits, the rank of this engine's first worker, and the size of the whole group."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int


@dataclass
class GlooUpdate(WeightTransferUpdateInfo):
    """What the trainer is going to broadcast, in this order."""

    names: list[str] = field(default_factory=list)
    dtype_names: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)


class GlooTransfer(WeightTransferEngine):
    """Receives broadcasts on CPU tensors and loads them layer by layer, in place."""

    init_info_cls = GlooInit
    update_info_cls = GlooUpdate
    group: Any = None

    def init_transfer_engine(self, init_info: GlooInit) -> None:
        """Join the group; blocks until the trainer and all workers of this engine have."""
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self.group = stateless_init_torch_distributed_process_group(
            init_info.master_address, init_info.master_port, rank, init_info.world_size, backend="gloo"
        )

    def start_weight_update(self) -> None:
        """Make the model ready to take checkpoint tensors again."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, without waiting for an accelerator that is not there."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooUpdate) -> None:
        """Take part in one broadcast per tensor."""
        if self.group is None:
            raise RuntimeError("init_weight_transfer_engine must come first")
        load_weights: Any = self.model.load_weights  # of vLLM's model classes
        options = torch.distributed.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        for name, dtype, shape in zip(
            update_info.names, update_info.dtype_names, update_info.shapes, strict=True
        ):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast([tensor], options).wait()
            load_weights([(name, tensor)])

    def finish_weight_update(self) -> None:
        """Bring the tensors into the form that the kernels use."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Leave the group."""
        self.group = None


def _register() -> None:
    with contextlib.suppress(ValueError):  # it is there: this worker was forked from one that had it
        WeightTransferEngineFactory.register_engine(BACKEND, GlooTransfer)


class WorkerExtension:
    """Mixed into vLLM's worker class; its methods can be called through /collective_rpc."""

    rank: int

    def libra_ping(self) -> dict[str, Any]:
        """Which worker answers, and with which weight-transfer backends."""
        return {"rank": self.rank, "backend": BACKEND}


_register()
