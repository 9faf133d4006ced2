"""The shape of a model from its published `config.json`, in the terms of `libra.cost.hardware.Model`.

Guarantees that a model whose costs the formulas do not describe (another architecture, quantised weights, sliding
windows, layers that differ) is refused with file and field instead of being priced as something else.

Keys and defaults are those of Hugging Face transformers 5 (`configuration_qwen2.py`, `_qwen3.py`, `_qwen3_moe.py`,
`_llama.py`). Sizes have no defaults here: a file that lacks one was cut.
"""

import json
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from libra.errors import UserError

_ARCHITECTURES: Final = {
    "Qwen2ForCausalLM": "Qwen2",
    "Qwen3ForCausalLM": "Qwen3",
    "Qwen3MoeForCausalLM": "Qwen3Moe",
    "LlamaForCausalLM": "Llama",
}

_ONLY: Final[tuple[tuple[str, tuple[Any, ...]], ...]] = (
    ("quantization_config", (None,)),
    ("use_sliding_window", (False, None)),
    ("hidden_act", ("silu",)),
    ("mlp_bias", (False,)),
    ("decoder_sparse_step", (1,)),
    ("mlp_only_layers", ([], None)),
)
"""Values of fields that change what a layer costs; absent means the first."""


def is_model_path(name: str) -> bool:
    """Whether a model's name is the path of a `config.json` or of the folder of one: it has a slash or ends so."""
    return "/" in name or "\\" in name or name.endswith(".json")


def read_model_config(name: str) -> dict[str, Any]:
    """Fields of `Model` from a `config.json`, or the folder that holds one. Raises UserError with file and field."""
    given = Path(name)
    path = given if given.suffix == ".json" else given / "config.json"
    config = _Config(path)
    kind = config.architecture()
    for key, accepted in _ONLY:
        value = config.fields.get(key, accepted[0])
        if value not in accepted:
            config.refuse(
                key, f"{json.dumps(value)[:40]} is not supported; only {json.dumps(accepted[0])} is"
            )
    layers = cast(list[Any], config.fields.get("layer_types") or [])
    if any(layer != "full_attention" for layer in layers):
        config.refuse("layer_types", "only full_attention is supported")
    if config.fields.get("attention_bias", kind == "Qwen2") != (kind == "Qwen2"):
        config.refuse("attention_bias", "biases of the projections are those of Qwen2 only here")
    mixture = kind == "Qwen3Moe"
    hidden, num_heads = config.size("hidden_size"), config.size("num_attention_heads")
    num_kv_heads = config.size("num_key_value_heads")
    if num_heads % num_kv_heads:
        config.refuse("num_key_value_heads", f"{num_kv_heads} must divide {num_heads} attention heads")
    fields: dict[str, Any] = {
        "num_layers": config.size("num_hidden_layers"),
        "hidden": hidden,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": _head_dim(config, kind, hidden, num_heads),
        "ffn": config.size("moe_intermediate_size" if mixture else "intermediate_size"),
        "num_experts": config.size("num_experts") if mixture else 0,
        "experts_per_token": config.size("num_experts_per_tok") if mixture else 0,
        "vocabulary": config.size("vocab_size"),
        "tied_embeddings": config.flag("tie_word_embeddings"),
    }
    if fields["experts_per_token"] > fields["num_experts"]:
        config.refuse("num_experts_per_tok", f"must be at most num_experts, {fields['num_experts']}")
    return {
        "name": path.resolve().parent.name,
        **fields,
        "qkv_bias": kind == "Qwen2",
        "qk_norm": kind.startswith("Qwen3"),
        "source": str(path),
    }


def _head_dim(config: "_Config", kind: str, hidden: int, num_heads: int) -> int:
    """Qwen3 always says it, and it is not hidden / heads there; the older two may leave it out."""
    if kind.startswith("Qwen3") or config.fields.get("head_dim") is not None:
        return config.size("head_dim")
    if hidden % num_heads:
        config.refuse("num_attention_heads", f"{num_heads} must divide hidden_size {hidden}")
    return hidden // num_heads


class _Config:
    """One file's fields, checked as they are read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path}: there is no such file; give a config.json or its folder") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); give a config.json") from error
        except ValueError as error:
            raise UserError(f"{path}: is not JSON ({error}); give a model's config.json") from error
        if not isinstance(content, dict):
            raise UserError(f"{path}: must be a mapping; give a model's config.json")
        self.fields = cast(dict[str, Any], content)

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raise, naming file and field."""
        raise UserError(f"{self._path}: {key}: {why}")

    def architecture(self) -> str:
        """Which of the supported families."""
        named = self.fields.get("architectures")
        known = ", ".join(_ARCHITECTURES)
        if not isinstance(named, list) or not named:
            self.refuse("architectures", f"is missing; supported: {known}")
        name = str(cast(list[Any], named)[0])
        if name not in _ARCHITECTURES:
            self.refuse("architectures", f"{name} is not supported; supported: {known}")
        return _ARCHITECTURES[name]

    def size(self, key: str) -> int:
        """A whole number above 0."""
        value = self.fields.get(key)
        if value is None:
            self.refuse(key, "is missing; take a complete config.json")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.refuse(key, f"must be a whole number above 0, not {json.dumps(value)[:40]}")
        return value

    def flag(self, key: str) -> bool:
        """True or false; false where it is absent."""
        value = self.fields.get(key, False)
        if not isinstance(value, bool):
            self.refuse(key, f"must be true or false, not {json.dumps(value)[:40]}")
        return value
