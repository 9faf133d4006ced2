"""Model shapes that an engine can be started with, random weights and all: a folder with only a config.json."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from libra.errors import UserError

MAX_MODEL_LEN: Final = 40960
"""Prompt and output of one request, tokens: max_position_embeddings of every published Qwen3 config.json."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a dense Qwen3; ffn is intermediate_size; head_dim is the model's own, not hidden / num_heads."""

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    tied_embeddings: bool


SHAPES: Final = {
    "qwen3-0.6b": Shape(28, 1024, 16, 8, 128, 3072, 151936, True),
    "qwen3-1.7b": Shape(28, 2048, 16, 8, 128, 6144, 151936, True),
    "qwen3-4b": Shape(36, 2560, 32, 8, 128, 9728, 151936, True),
    "qwen3-8b": Shape(36, 4096, 32, 8, 128, 12288, 151936, False),
    "qwen3-14b": Shape(40, 5120, 40, 8, 128, 17408, 151936, False),
    "tiny": Shape(2, 64, 4, 2, 32, 128, 512, False),
}
"""From config.json of Qwen/Qwen3-0.6B, -1.7B, -4B, -8B, -14B; tiny is that of `executor.tiny_model`."""


def shape_of(name: str) -> Shape:
    """The shape called `name`; UserError if there is none."""
    if name not in SHAPES:
        raise UserError(f"--model-shape {name}: unknown; choose one of {', '.join(SHAPES)}")
    return SHAPES[name]


def model_config(shape: Shape, dtype: str) -> dict[str, object]:
    """The config.json of a Qwen3 of this shape; rope and norm settings are those of the published ones."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": MAX_MODEL_LEN,
        "max_window_layers": shape.num_layers,
        "tie_word_embeddings": shape.tied_embeddings,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_sliding_window": False,
        "sliding_window": None,
        "use_cache": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def write_model(folder: Path, shape: Shape, dtype: str) -> Path:
    """Write the config.json into `folder`, which is made, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model_config(shape, dtype), indent=2) + "\n")
    return folder
