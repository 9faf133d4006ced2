"""GPUs and models: their published figures, and what follows from them by arithmetic.

Guarantees that a number used by a cost model can be traced: the catalogue is data (`catalogue/*.yaml`), every
entry names its source, and parameter counts are computed from the model's shape instead of being typed in.
Memory questions are answered per GPU, because that is where a replica fails to fit.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml

from libra.errors import UserError

GIB: Final = 1024**3
BF16_BYTES: Final = 2

WORKSPACE_GIB: Final = 5.1
"""Per GPU, beside weights and KV: activations, CUDA graphs, NCCL buffers. Chosen so that the three measured
KV capacities (vLLM 0.26.0 on H200, max_num_batched_tokens 2048) come out within 0.6 %. aiconfigurator-core
0.12.0 has 3.5 GB + 0.4 GB of NCCL buffers and starts from the datasheet's memory as we do."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU. Bandwidths in bytes/s per direction, memory in GiB, peak in FLOP/s (bf16, dense)."""

    name: str
    memory_gib: float
    memory_bytes_per_s: float
    peak_bf16_flops: float
    nvlink_bytes_per_s: float
    network_bytes_per_s: float
    pcie_bytes_per_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Model:
    """Shape of a decoder with grouped-query attention and gated FFN. `num_experts` 0 means dense."""

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    num_experts: int
    experts_per_token: int
    vocabulary: int
    tied_embeddings: bool
    source: str

    def _params(self, experts: int) -> int:
        """Weights with `experts` FFN blocks a layer; norms (below 0.1 %) are left out."""
        attention = self.hidden * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        ffn = 3 * self.hidden * self.ffn * experts + self.hidden * self.num_experts
        embeddings = self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)
        return self.num_layers * (attention + ffn) + embeddings

    @property
    def num_params(self) -> int:
        """All parameters."""
        return self._params(max(1, self.num_experts))

    @property
    def num_active_params(self) -> int:
        """Parameters that one token passes through."""
        return self._params(max(1, self.experts_per_token))

    @property
    def weight_bytes(self) -> int:
        """Size of the bf16 weights."""
        return self.num_params * BF16_BYTES

    def kv_bytes_per_token(self, tp: int = 1) -> int:
        """KV cache of one token on ONE of `tp` GPUs; heads are copied where there are fewer than GPUs."""
        heads = max(1, self.num_kv_heads // tp)
        return 2 * self.num_layers * heads * self.head_dim * BF16_BYTES

    @property
    def attention_flops(self) -> int:
        """FLOPs of one (query token, context token) pair over all layers: QK and PV, two each."""
        return 4 * self.num_layers * self.num_heads * self.head_dim


@cache
def catalogue(name: str) -> dict[str, Any]:
    """The parsed content of `catalogue/<name>.yaml`; shared, not to be changed by the caller."""
    text = files("libra.cost").joinpath("catalogue", f"{name}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def _entry(kind: str, name: str) -> dict[str, Any]:
    entries = catalogue(kind)
    if name not in entries:
        known = ", ".join(entries)
        raise UserError(f"{kind[:-1]} {name!r} is not in the cost catalogue; choose one of: {known}")
    return entries[name]


def gpu_names() -> list[str]:
    """Names that `find_gpu` knows."""
    return list(catalogue("gpus"))


def model_names() -> list[str]:
    """Names that `find_model` knows."""
    return list(catalogue("models"))


def find_gpu(name: str) -> Gpu:
    """The catalogue's GPU; `UserError` with the known names if there is none."""
    return Gpu(name=name, **_entry("gpus", name))


def find_model(name: str) -> Model:
    """The catalogue's model; `UserError` with the known names if there is none."""
    return Model(name=name, **_entry("models", name))


def kv_capacity_tokens(gpu: Gpu, model: Model, tp: int, gpu_memory_utilization: float = 0.9) -> int:
    """Tokens of KV cache that a replica of `tp` GPUs holds.

    Per GPU: (utilization * memory - weights / tp - workspace) / KV bytes of a token on that GPU. Each GPU
    holds its share of every token, so the replica's capacity is that of one GPU. `UserError` where the
    utilization is no fraction, `tp` does not divide the heads, or the model does not fit.
    """
    if not 0.0 < gpu_memory_utilization <= 1.0:
        raise UserError(f"gpu_memory_utilization {gpu_memory_utilization} must lie in (0, 1]; usual is 0.9")
    if tp < 1 or model.num_heads % tp != 0:
        raise UserError(
            f"tp {tp} does not divide the {model.num_heads} attention heads of {model.name}; use 1, 2, 4 or 8"
        )
    available_gib = gpu.memory_gib * gpu_memory_utilization
    needed_gib = model.weight_bytes / tp / GIB + WORKSPACE_GIB
    tokens = int((available_gib - needed_gib) * GIB // model.kv_bytes_per_token(tp))
    if tokens < 1:
        raise UserError(
            f"{model.name} at tp {tp} needs {needed_gib:.1f} GiB on each {gpu.name} before any KV cache and "
            f"{available_gib:.1f} GiB are available; use a larger tp or gpu_memory_utilization"
        )
    return tokens
