"""The trainer's state on disk: weights and optimizer, in Megatron's distributed format.

Guarantees: a folder that bears its final name is complete; it can be loaded under another split (TP, DP) than it was
saved under, and training goes on as if it had not stopped, within rounding.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing

from executor.trainer.model import Place, unwrapped
from executor.trainer.optimizer import set_rates
from executor.trainer.spec import OptimizerConfig
from libra.errors import UserError

_FACTS = "trainer.json"


def save(model: Any, optimizer: Any, version: int, place: Place, folder: str | Path) -> None:
    """Write `folder`; every rank must call it. Replaces one of that name."""
    final = Path(folder)
    partial = final.with_name(f".{final.name}.partial")
    if place.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier(group=place.control)
    # Before the first step there are no moments to save.
    with_optimizer = _has_state(optimizer)
    dist_checkpointing.save(_tables(model, optimizer, with_optimizer, is_loading=False), str(partial))
    if place.rank == 0:
        facts = {"version": version, "with_optimizer": with_optimizer}
        (partial / _FACTS).write_text(json.dumps(facts) + "\n", encoding="utf-8")
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
    dist.barrier(group=place.control)


def load(model: Any, optimizer: Any, config: OptimizerConfig, folder: str | Path) -> int:
    """Take up what `save` wrote, at the rates of `config`; the version of its weights. Every rank must call it.

    Raises UserError where the folder is no checkpoint.
    """
    facts = read_facts(folder)
    tables = _tables(model, optimizer, facts["with_optimizer"], is_loading=True)
    found: Any = dist_checkpointing.load(tables, str(folder))
    unwrapped(model).load_state_dict(found["model"])
    if facts["with_optimizer"]:
        optimizer.load_state_dict(found["optimizer"])
    else:
        optimizer.reload_model_params()
    set_rates(optimizer, config)
    return facts["version"]


def read_facts(folder: str | Path) -> dict[str, Any]:
    """version and with_optimizer of a checkpoint. Raises UserError."""
    path = Path(folder) / _FACTS
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); name a folder that the trainer saved") from error


def _tables(model: Any, optimizer: Any, with_optimizer: bool, *, is_loading: bool) -> dict[str, Any]:
    weights = unwrapped(model).sharded_state_dict()
    tables: dict[str, Any] = {"model": weights}
    if with_optimizer:
        tables["optimizer"] = optimizer.sharded_state_dict(weights, is_loading=is_loading)
    return tables


def _has_state(optimizer: Any) -> bool:
    """Whether any rank has made a step; all answer the same."""
    inner = getattr(optimizer, "chained_optimizers", [optimizer])
    own = torch.tensor([float(any(part.optimizer.state for part in inner if part.optimizer is not None))])
    device = "cpu" if not torch.cuda.is_available() else "cuda"
    own = own.to(device)
    dist.all_reduce(own, dist.ReduceOp.MAX)
    return bool(own.item())
