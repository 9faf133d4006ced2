"""Names and layouts of one model's weights in Hugging Face's and in Megatron's terms, both ways.

Guarantees: going there and back is equal to the bit, for any tensor-parallel size; nothing is computed, only cut and
joined. Megatron names here carry global layer numbers (its own start at 0 in each pipeline stage).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from executor.trainer.shape import ModelShape

EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.(.+)")
_ENDS = {
    EMBEDDING: ("model.embed_tokens.weight", 0),
    "decoder.final_layernorm.weight": ("model.norm.weight", None),
    OUTPUT: ("lm_head.weight", 0),
}
_PLAIN = {
    "input_layernorm.weight": ("input_layernorm.weight", None),
    "pre_mlp_layernorm.weight": ("post_attention_layernorm.weight", None),
    "self_attention.q_layernorm.weight": ("self_attn.q_norm.weight", None),
    "self_attention.k_layernorm.weight": ("self_attn.k_norm.weight", None),
    "self_attention.linear_proj.weight": ("self_attn.o_proj.weight", 1),
    "mlp.router.weight": ("mlp.gate.weight", None),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """How one Megatron weight is made.

    hf_names: what it is made from, in order. split: dimension that tensor-parallel ranks share out, None: each holds
    it whole. layout: `qkv` interleaves by KV group, `gate_up` stacks both per rank.
    """

    hf_names: tuple[str, ...]
    split: int | None
    layout: Literal["plain", "qkv", "gate_up"] = "plain"


def rule_of(name: str, shape: ModelShape) -> Rule:
    """The rule of the Megatron weight `name`. Raises KeyError for a name that no Qwen3 has."""
    if name in _ENDS:
        hf_name, split = _ENDS[name]
        # A tied model has one weight; a last pipeline stage holds a copy of it as its output layer.
        return Rule((_ENDS[EMBEDDING][0] if shape.tied_embeddings and name == OUTPUT else hf_name,), split)
    match = _LAYER.fullmatch(name)
    if match is None:
        raise KeyError(name)
    layer, rest = f"model.layers.{match[1]}", match[2]
    if rest in _PLAIN:
        hf_name, split = _PLAIN[rest]
        return Rule((f"{layer}.{hf_name}",), split)
    if rest == "self_attention.linear_qkv.weight":
        return Rule(tuple(f"{layer}.self_attn.{x}_proj.weight" for x in "qkv"), 0, "qkv")
    expert = _EXPERT.fullmatch(rest)
    ffn, part = (
        (f"{layer}.mlp.experts.{expert[1]}", expert[2]) if expert else (f"{layer}.mlp", rest[len("mlp.") :])
    )
    if part == "linear_fc1.weight":
        return Rule((f"{ffn}.gate_proj.weight", f"{ffn}.up_proj.weight"), 0, "gate_up")
    if part == "linear_fc2.weight":
        return Rule((f"{ffn}.down_proj.weight",), 1)
    raise KeyError(name)


def to_megatron(
    rule: Rule, weights: Sequence[Tensor], shape: ModelShape, tp_rank: int = 0, tp_size: int = 1
) -> Tensor:
    """This rank's part of a Megatron weight, out of the Hugging Face weights `rule.hf_names`."""
    if rule.layout == "gate_up":
        return torch.cat([weight.chunk(tp_size)[tp_rank] for weight in weights])
    if rule.layout == "qkv":
        groups = [weight.unflatten(0, (shape.num_kv_heads, -1)) for weight in weights]
        return torch.cat(groups, dim=1).chunk(tp_size)[tp_rank].flatten(0, 1)
    (weight,) = weights
    return weight if rule.split is None else weight.chunk(tp_size, dim=rule.split)[tp_rank]


def to_hf(rule: Rule, parts: Sequence[Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """The Hugging Face weights, out of all ranks' parts of a Megatron weight, in order of rank."""
    if rule.layout == "gate_up":
        halves = [part.chunk(2) for part in parts]
        tensors = [torch.cat([half[i] for half in halves]) for i in (0, 1)]
    elif rule.layout == "qkv":
        heads = shape.num_heads // shape.num_kv_heads
        groups = torch.cat(tuple(parts)).unflatten(0, (shape.num_kv_heads, heads + 2, shape.head_dim))
        cuts = (groups[:, :heads], groups[:, heads], groups[:, heads + 1])
        tensors = [cut.reshape(-1, groups.shape[-1]) for cut in cuts]
    else:
        tensors = [parts[0] if rule.split is None else torch.cat(tuple(parts), dim=rule.split)]
    return {name: tensor.contiguous() for name, tensor in zip(rule.hf_names, tensors, strict=True)}
