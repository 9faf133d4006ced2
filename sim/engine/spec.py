"""A replica's scheduler settings."""

from dataclasses import dataclass
from enum import StrEnum

from libra.errors import UserError


class QueueOrder(StrEnum):
    """Order of the waiting queue."""

    FCFS = "fcfs"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Scheduler settings of a replica, with the names and defaults of vLLM."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 40960
    block_size: int = 16
    num_blocks: int = 16384
    enable_prefix_caching: bool = True
    queue_order: QueueOrder = QueueOrder.FCFS
    watermark_blocks: int = 0
    keep_cache_on_load: bool = False
    """Keep prefix blocks made by old weights over a weight load."""

    def __post_init__(self) -> None:
        """Refuse settings under which the rules above have no meaning."""
        for name in ("max_num_seqs", "max_model_len", "block_size", "num_blocks"):
            if getattr(self, name) < 1:
                raise UserError(f"engine: {name} is {getattr(self, name)}; set it to 1 or more")
        if not 0 <= self.watermark_blocks < self.num_blocks:
            raise UserError(
                f"engine: watermark_blocks is {self.watermark_blocks}; set it to 0 or more, below num_blocks "
                f"= {self.num_blocks}"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UserError(
                f"engine: max_num_batched_tokens is {self.max_num_batched_tokens}, so {self.max_num_seqs} "
                f"sequences (max_num_seqs) could not all decode in one step; raise it to {self.max_num_seqs} "
                "or more"
            )

    @property
    def longest_request(self) -> int:
        """Prompt and output tokens that a request may have in all: the newest token needs no KV."""
        return min(self.max_model_len, self.num_blocks * self.block_size + 1)
