"""A model's shape, read from a Hugging Face folder without loading torch.

Guarantees: a folder that the trainer could not train exactly is refused here, in one line, before anything starts.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libra.errors import UserError

_KNOWN = ("qwen3", "qwen3_moe")
_REFUSED_UNLESS: tuple[tuple[str, Any], ...] = (
    ("attention_bias", False),
    ("use_sliding_window", False),
    ("hidden_act", "silu"),
    ("mlp_only_layers", []),
    ("decoder_sparse_step", 1),
)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a Qwen3 decoder. `num_experts` 0: dense, with `ffn_size` its width; else that of one expert."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    tied_embeddings: bool
    num_experts: int
    experts_per_token: int
    normalize_expert_weights: bool
    rope_theta: float
    norm_epsilon: float
    max_length_tokens: int

    @property
    def layer_params(self) -> int:
        """Weights of one layer, norms included."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        ffn = 3 * self.hidden_size * self.ffn_size * max(1, self.num_experts)
        return attention + ffn + self.hidden_size * (self.num_experts + 2) + 2 * self.head_dim

    @property
    def num_params(self) -> int:
        """All weights; a tied embedding counts once."""
        ends = (1 if self.tied_embeddings else 2) * self.vocab_size * self.hidden_size
        return self.num_layers * self.layer_params + ends + self.hidden_size


def read_shape(folder: str | Path) -> ModelShape:
    """The shape of the model in `folder`. Raises UserError where it is absent, of another kind, or inconsistent."""
    path = Path(folder)
    if not path.is_dir():
        raise UserError(
            f"model {path}: no such folder; name a folder with config.json, weights and tokenizer"
        )
    config = _read_json(path / "config.json")
    kind = config.get("model_type")
    if kind not in _KNOWN:
        raise UserError(
            f"model {path}: model_type {kind!r} cannot be trained; take one of {', '.join(_KNOWN)}"
        )
    for key, wanted in _REFUSED_UNLESS:
        if config.get(key, wanted) != wanted:
            raise UserError(f"model {path}: {key} {config[key]!r} cannot be trained; only {wanted!r} can")
    is_moe = kind == "qwen3_moe"
    try:
        shape = ModelShape(
            num_layers=int(config["num_hidden_layers"]),
            hidden_size=int(config["hidden_size"]),
            num_heads=int(config["num_attention_heads"]),
            num_kv_heads=int(config["num_key_value_heads"]),
            head_dim=int(config["head_dim"]),
            ffn_size=int(config["moe_intermediate_size" if is_moe else "intermediate_size"]),
            vocab_size=int(config["vocab_size"]),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            num_experts=int(config["num_experts"]) if is_moe else 0,
            experts_per_token=int(config["num_experts_per_tok"]) if is_moe else 0,
            normalize_expert_weights=bool(config.get("norm_topk_prob", False)),
            rope_theta=_rope_theta(config, path),
            norm_epsilon=float(config["rms_norm_eps"]),
            max_length_tokens=int(config["max_position_embeddings"]),
        )
    except KeyError as error:
        raise UserError(
            f"{path / 'config.json'}: key {error.args[0]} is missing; take a complete model"
        ) from error
    _check_vocabulary(path, shape)
    return shape


def weight_files(folder: str | Path) -> dict[str, Path]:
    """Name of every weight in `folder`, with the file that holds it. Raises UserError where there are none."""
    path = Path(folder)
    index = path / "model.safetensors.index.json"
    if index.exists():
        return {name: path / file for name, file in _read_json(index)["weight_map"].items()}
    single = path / "model.safetensors"
    if not single.exists():
        raise UserError(f"model {path}: no model.safetensors in it; save the model in that format")
    return {name: single for name in _header(single) if name != "__metadata__"}


def _rope_theta(config: dict[str, Any], path: Path) -> float:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(f"model {path}: rope scaling {kind!r} cannot be trained; take a model without")
    return float(rope.get("rope_theta", config.get("rope_theta", 10_000.0)))


def _check_vocabulary(path: Path, shape: ModelShape) -> None:
    """The embedding's rows and the tokenizer's ids must fit the vocabulary of config.json."""
    name = "model.embed_tokens.weight"
    file = weight_files(path).get(name)
    if file is None:
        raise UserError(f"model {path}: its weights lack {name}; take a complete model")
    if not file.exists():
        raise UserError(f"model {path}: {file.name} is missing; take a complete model")
    rows = _header(file)[name]["shape"][0]
    if rows != shape.vocab_size:
        raise UserError(
            f"model {path}: config.json says vocab_size {shape.vocab_size}, its embedding has {rows} rows; "
            "take config and weights of one model"
        )
    tokenizer = path / "tokenizer.json"
    if not tokenizer.exists():
        return
    content = _read_json(tokenizer)
    vocabulary = content.get("model", {}).get("vocab", {})
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    ids += [token["id"] for token in content.get("added_tokens", ())]
    if ids and max(ids) >= shape.vocab_size:
        raise UserError(
            f"model {path}: tokenizer.json has token {max(ids)}, config.json a vocabulary of {shape.vocab_size}; "
            "take the tokenizer of this model"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; take a complete model") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); take a complete model") from error


def _header(path: Path) -> dict[str, Any]:
    """The table of contents at the start of a safetensors file: names, types, shapes."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            return json.loads(file.read(length))
    except (OSError, ValueError, struct.error, MemoryError) as error:
        raise UserError(f"{path}: is no safetensors file ({error}); copy it again") from error
