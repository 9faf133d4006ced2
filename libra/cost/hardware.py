"""GPUs and models: their published figures, and what follows from them by arithmetic.

Guarantees that a number used by a cost model can be traced: the catalogue is data (`catalogue/*.yaml`), every
entry names its source, and parameter counts are computed from the model's shape instead of being typed in.
Memory questions are answered per GPU, because that is where a replica fails to fit.

A model is named by the catalogue or by the path of its `config.json` (`libra.cost.model_config`).
"""

from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, TypeAlias

import yaml

from libra.cost.model_config import is_model_path, read_model_config
from libra.errors import UserError

GIB: Final = 1024**3
BF16_BYTES: Final = 2

Dtype: TypeAlias = Literal["bf16", "fp8"]
DTYPE_BYTES: Final[dict[Dtype, int]] = {"bf16": BF16_BYTES, "fp8": 1}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU. Bandwidths in bytes/s per direction, peaks in FLOP/s (dense).

    memory_gib: what software sees (below the nominal size). peak_fp8_flops, nvlink_bytes_per_s: 0 where there is
    none. network_bytes_per_s: one GPU's share of its node's network. num_sms: multiprocessors.
    engine_workspace_gib: what a serving engine takes of each GPU beside weights and KV cache (activations, CUDA
    graphs, NCCL buffers); it depends on the version and settings of the engine, so callers may override it.
    """

    name: str
    memory_gib: float
    memory_bytes_per_s: float
    peak_bf16_flops: float
    peak_fp8_flops: float
    nvlink_bytes_per_s: float
    network_bytes_per_s: float
    pcie_bytes_per_s: float
    num_sms: int
    engine_workspace_gib: float
    source: str

    def peak_flops(self, dtype: Dtype) -> float:
        """Dense peak of matrix products in a dtype; `UserError` where the GPU has none."""
        peak = self.peak_fp8_flops if dtype == "fp8" else self.peak_bf16_flops
        if peak <= 0.0:
            raise UserError(f"{self.name} has no {dtype} matrix units; use bf16")
        return peak

    @property
    def node_bytes_per_s(self) -> float:
        """Between GPUs of one node, per direction: NVLink, or PCIe where there is none."""
        return self.nvlink_bytes_per_s or self.pcie_bytes_per_s


@dataclass(frozen=True, slots=True)
class Model:
    """Shape of a decoder with grouped-query attention and gated FFN. `num_experts` 0 means dense.

    ffn: width of the FFN, or of one expert. qkv_bias: Q, K and V projections have biases (Qwen2.5). qk_norm: an
    RMSNorm of head_dim over each head of Q and K (Qwen3).
    """

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
    qkv_bias: bool
    qk_norm: bool
    source: str

    @property
    def attention_params(self) -> int:
        """Projections of one layer's attention, biases included, norms not."""
        heads = self.num_heads + 2 * self.num_kv_heads
        biases = self.head_dim * heads if self.qkv_bias else 0
        return self.hidden * self.head_dim * (heads + self.num_heads) + biases

    @property
    def norm_params(self) -> int:
        """Norms of one layer: before attention and FFN, and of Q and K."""
        return 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def ffn_params(self) -> int:
        """One gated FFN block (gate, up, down): of a dense layer, or of one expert."""
        return 3 * self.hidden * self.ffn

    @property
    def router_params(self) -> int:
        """One layer's choice of experts; 0 for a dense model."""
        return self.hidden * self.num_experts

    @property
    def embedding_params(self) -> int:
        """The input embedding; the output layer has as many, unless it is tied to it."""
        return self.vocabulary * self.hidden

    def _params(self, experts: int) -> int:
        """All weights with `experts` FFN blocks a layer."""
        layer = self.attention_params + self.norm_params + self.ffn_params * experts + self.router_params
        ends = self.embedding_params * (1 if self.tied_embeddings else 2)
        return self.num_layers * layer + self.hidden + ends

    @property
    def num_params(self) -> int:
        """All parameters, exact: norms and biases included."""
        return self._params(max(1, self.num_experts))

    @property
    def num_active_params(self) -> int:
        """Parameters that one token passes through."""
        return self._params(max(1, self.experts_per_token))

    @property
    def weight_bytes(self) -> int:
        """Size of the bf16 weights."""
        return self.num_params * BF16_BYTES

    def kv_bytes_per_token(self, tp: int = 1, dtype: Dtype = "bf16") -> int:
        """KV cache of one token on ONE of `tp` GPUs; heads are copied where there are fewer than GPUs."""
        heads = -(-self.num_kv_heads // tp)
        return 2 * self.num_layers * heads * self.head_dim * DTYPE_BYTES[dtype]

    @property
    def attention_flops(self) -> int:
        """FLOPs of one (query token, context token) pair over all layers: QK and PV, two each."""
        return 4 * self.num_layers * self.num_heads * self.head_dim

    def same_shape(self, other: "Model") -> bool:
        """Whether two models cost the same: all but name and source are equal."""
        return replace(self, name="", source="") == replace(other, name="", source="")


@cache
def catalogue(name: str) -> dict[str, Any]:
    """The parsed content of `catalogue/<name>.yaml`; shared, not to be changed by the caller."""
    text = files("libra.cost").joinpath("catalogue", f"{name}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def _entry(kind: str, name: str, otherwise: str = "") -> dict[str, Any]:
    entries = catalogue(kind)
    if name not in entries:
        known = ", ".join(entries)
        raise UserError(
            f"{kind[:-1]} {name!r} is not in the cost catalogue; choose one of: {known}{otherwise}"
        )
    return entries[name]


def gpu_names() -> list[str]:
    """Names that `find_gpu` knows."""
    return list(catalogue("gpus"))


def model_names() -> list[str]:
    """Names that `find_model` knows, beside paths."""
    return list(catalogue("models"))


def find_gpu(name: str) -> Gpu:
    """The catalogue's GPU; `UserError` with the known names if there is none."""
    return Gpu(name=name, **_entry("gpus", name))


def find_model(name: str) -> Model:
    """The catalogue's model, or the one whose `config.json`, or folder with one, `name` is the path of.

    `UserError` with the known names if there is none, and with file and field where a config cannot be read.
    """
    if is_model_path(name):
        return Model(**read_model_config(name))
    return Model(name=name, **_entry("models", name, "; or give the path of a config.json"))


def require_tp(model: Model, tp: int) -> None:
    """`UserError` unless `tp` GPUs can share the model's heads evenly."""
    if tp < 1 or model.num_heads % tp != 0:
        degrees = ", ".join(str(degree) for degree in range(1, 17) if model.num_heads % degree == 0)
        raise UserError(
            f"tp {tp} does not divide the {model.num_heads} attention heads of {model.name}; use one of {degrees}"
        )


def kv_capacity_tokens(
    gpu: Gpu,
    model: Model,
    tp: int,
    gpu_memory_utilization: float = 0.9,
    *,
    kv_dtype: Dtype = "bf16",
    workspace_gib: float | None = None,
) -> int:
    """Tokens of KV cache that a replica of `tp` GPUs holds; bf16 weights, KV cache in `kv_dtype`.

    Per GPU: (utilization * memory - weights / tp - workspace) / KV bytes of a token on that GPU. Each GPU
    holds its share of every token, so the replica's capacity is that of one GPU. `workspace_gib`: None takes the
    GPU's own. `UserError` where the utilization is no fraction, `tp` does not divide the heads, or the model does
    not fit.
    """
    if not 0.0 < gpu_memory_utilization <= 1.0:
        raise UserError(f"gpu_memory_utilization {gpu_memory_utilization} must lie in (0, 1]; usual is 0.9")
    require_tp(model, tp)
    available_gib = gpu.memory_gib * gpu_memory_utilization
    workspace = gpu.engine_workspace_gib if workspace_gib is None else workspace_gib
    needed_gib = model.weight_bytes / tp / GIB + workspace
    tokens = int((available_gib - needed_gib) * GIB // model.kv_bytes_per_token(tp, kv_dtype))
    if tokens < 1:
        raise UserError(
            f"{model.name} at tp {tp} needs {needed_gib:.1f} GiB on each {gpu.name} before any KV cache and "
            f"{available_gib:.1f} GiB are available; use a larger tp or gpu_memory_utilization"
        )
    return tokens
