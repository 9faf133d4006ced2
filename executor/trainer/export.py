"""The trainer's weights as a Hugging Face checkpoint: gathered on rank 0, written whole or not at all.

Guarantees: every weight of the model under its Hugging Face name, once, equal to the bit to what the ranks hold; a
folder that bears its final name is complete.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from huggingface_hub import save_torch_state_dict
from megatron.core import parallel_state
from torch import Tensor

from executor.trainer import mapping
from executor.trainer.model import Place, named_weights
from executor.trainer.shape import ModelShape

_COPIED = (".json", ".jinja", ".txt", ".model")
"""Endings of the small files that go with the weights: configuration, tokenizer, chat template."""


@torch.no_grad()
def gather_hf(model: Any, shape: ModelShape, place: Place) -> dict[str, Tensor]:
    """All weights on the CPU of rank 0, {} elsewhere; every rank must call it. Holds one copy of the model there."""
    own: dict[str, Tensor] = {}
    if place.dp_rank == 0:  # the others hold the same
        for name, weight in named_weights(model):
            if name == mapping.OUTPUT and shape.tied_embeddings:
                continue  # the first stage gives the embedding, which is the same weight
            rule = mapping.rule_of(name, shape)
            parts = _all_parts(weight, place) if rule.split is not None else [weight]
            if place.tp_rank == 0:
                own |= {k: t.to("cpu", copy=True) for k, t in mapping.to_hf(rule, parts, shape).items()}
    return _to_first_stage(own, place) if place.pp_size > 1 else own


def _all_parts(weight: Tensor, place: Place) -> list[Tensor]:
    parts = [torch.empty_like(weight) for _ in range(place.tp_size)]
    dist.all_gather(parts, weight.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
    return parts


def _to_first_stage(own: dict[str, Tensor], place: Place) -> dict[str, Tensor]:
    """Send what other stages' speakers hold to rank 0, tensor by tensor."""
    sent = (
        {name: (tuple(t.shape), t.dtype) for name, t in own.items()}
        if place.rank and place.speaks_for_stage
        else {}
    )
    tables: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(tables, sent, group=place.control)
    if place.rank:
        for name in sent:
            dist.send(own[name], 0, group=place.control)
        return {}
    for rank, table in enumerate(tables):
        for name, (size, dtype) in table.items():
            own[name] = torch.empty(size, dtype=dtype)
            dist.recv(own[name], rank, group=place.control)
    return own


def write_hf(weights: dict[str, Tensor], model_path: str | Path, folder: str | Path) -> None:
    """Write `folder` with the weights and the small files of `model_path`; replaces one of that name."""
    final, source = Path(folder), Path(model_path)
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_torch_state_dict(weights, partial, max_shard_size="4GB", metadata={"format": "pt"})
    for path in source.iterdir():
        if path.suffix in _COPIED and not path.name.endswith(".index.json"):
            shutil.copy(path, partial / path.name)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
