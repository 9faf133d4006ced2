"""Model shapes that an engine can be started with, random weights and all: a folder with only a config.json."""

import json
from pathlib import Path
from typing import Final

from libra.cost.hardware import Model, find_model
from libra.errors import UserError

MAX_MODEL_LEN: Final = 40960
"""Prompt and output of one request, tokens: max_position_embeddings of every published Qwen3 config.json."""


SHAPES: Final = {
    "qwen3-0.6b": "Qwen3-0.6B",
    "qwen3-1.7b": "Qwen3-1.7B",
    "qwen3-4b": "Qwen3-4B",
    "qwen3-8b": "Qwen3-8B",
    "qwen3-14b": "Qwen3-14B",
    "tiny": "Qwen3-tiny",
}
"""What the command line calls the dense Qwen3 models of the catalogue."""


def shape_of(name: str) -> Model:
    """The shape called `name`; UserError if there is none."""
    if name not in SHAPES:
        raise UserError(f"--model-shape {name}: unknown; choose one of {', '.join(SHAPES)}")
    return find_model(SHAPES[name])


def model_config(shape: Model, dtype: str) -> dict[str, object]:
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


def write_model(folder: Path, shape: Model, dtype: str) -> Path:
    """Write the config.json into `folder`, which is made, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model_config(shape, dtype), indent=2) + "\n")
    return folder
