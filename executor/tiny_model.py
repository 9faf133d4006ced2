"""A tiny random Qwen3 with a byte-level tokenizer, made in an instant: `python -m executor.tiny_model OUT`.

Guarantees: the folder loads in transformers, vLLM and the trainer like any Hugging Face checkpoint; the same
arguments give the same bytes; every text is tokens and back without loss. Head sizes suit vLLM's CPU kernels (32),
and the weights are wide enough (`initializer_range`) that models of two seeds say different things. Needs numpy,
safetensors and tokenizers, not torch.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from libra.errors import UserError

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WORDS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_PAD_ID, _EOS_ID = 256, 258
_MADE_BY = "executor.tiny_model"
MIN_VOCAB_SIZE = 256 + len(_SPECIAL) + len(_WORDS)

_FIXED: dict[str, object] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "rope_theta": 10000.0,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "eos_token_id": _EOS_ID,
    "pad_token_id": _PAD_ID,
    "bos_token_id": None,
    "use_cache": True,
    "dtype": "float32",
    "torch_dtype": "float32",
}
_FIXED_MIXTURE: dict[str, object] = {
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "output_router_logits": False,
    "router_aux_loss_coef": 0.0,
}

_CHAT_TEMPLATE = """{%- if tools %}<|im_start|>system
# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content if message.content else '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def make_tiny_model(
    folder: str | Path,
    *,
    seed: int = 0,
    tied: bool = False,
    vocab_size: int = 512,
    hidden_size: int = 64,
    intermediate_size: int = 128,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    num_experts: int = 0,
    experts_per_token: int = 2,
    max_length_tokens: int = 4096,
    initializer_range: float = 0.2,
) -> Path:
    """Write the checkpoint into `folder` and return it; one that was made here before is overwritten.

    tied: the output layer is the embedding, as in small Qwen3. num_experts: above 0 a Qwen3-MoE.
    Raises UserError for a vocabulary that the tokenizer does not fit in, and for a folder with anything else in it.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise UserError(
            f"tiny model: vocab_size {vocab_size} is too small; the tokenizer needs {MIN_VOCAB_SIZE}"
        )
    out = Path(folder)
    _check_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    config: dict[str, object] = {
        **_FIXED,
        "architectures": ["Qwen3MoeForCausalLM" if num_experts else "Qwen3ForCausalLM"],
        "model_type": "qwen3_moe" if num_experts else "qwen3",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": max_length_tokens,
        "tie_word_embeddings": tied,
        "initializer_range": initializer_range,
    }
    if num_experts:
        config |= _FIXED_MIXTURE | {
            "num_experts": num_experts,
            "num_experts_per_tok": experts_per_token,
            "moe_intermediate_size": intermediate_size // 2,
        }
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", {"eos_token_id": _EOS_ID, "pad_token_id": _PAD_ID})
    _write_tokenizer(out, max_length_tokens)
    _write_weights(out, config, seed, initializer_range)
    return out


def _check_folder(out: Path) -> None:
    if not out.exists() or (out.is_dir() and (not any(out.iterdir()) or _is_ours(out))):
        return
    raise UserError(
        f"tiny model: {out} holds something that was not made here; name a new folder, or remove it"
    )


def _is_ours(out: Path) -> bool:
    """By the weights, not by a file beside them: a trained model has the small files of the one it began as."""
    try:
        with (out / "model.safetensors").open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return header["__metadata__"]["made_by"] == _MADE_BY
    except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        return False


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _write_tokenizer(out: Path, max_length_tokens: int) -> None:
    from tokenizers import (  # pyright: ignore[reportMissingImports]
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
    )

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in _WORDS])
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": max_length_tokens,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(out / "tokenizer_config.json", settings)
    (out / "chat_template.jinja").write_text(_CHAT_TEMPLATE)


def _write_weights(out: Path, config: dict[str, object], seed: int, scale: float) -> None:
    from safetensors.numpy import save_file  # pyright: ignore[reportMissingImports]

    rng = np.random.default_rng(seed)
    tensors = {
        name: np.ones(shape, np.float32)
        if name.endswith("norm.weight")
        else (rng.standard_normal(shape, np.float32) * np.float32(scale))
        for name, shape in _shapes(config)
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt", "made_by": _MADE_BY})


def _shapes(config: dict[str, object]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of every weight, in the order in which they are drawn."""

    def size(key: str) -> int:
        return int(str(config[key]))

    hidden, head_dim = size("hidden_size"), size("head_dim")
    q_rows, kv_rows = size("num_attention_heads") * head_dim, size("num_key_value_heads") * head_dim
    yield "model.embed_tokens.weight", (size("vocab_size"), hidden)
    for i in range(size("num_hidden_layers")):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (q_rows, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (kv_rows, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (kv_rows, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, q_rows)
        yield f"{layer}.self_attn.q_norm.weight", (head_dim,)
        yield f"{layer}.self_attn.k_norm.weight", (head_dim,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        if "num_experts" in config:
            yield f"{layer}.mlp.gate.weight", (size("num_experts"), hidden)
            prefixes = [f"{layer}.mlp.experts.{e}" for e in range(size("num_experts"))]
            width = size("moe_intermediate_size")
        else:
            prefixes, width = [f"{layer}.mlp"], size("intermediate_size")
        for prefix in prefixes:
            yield f"{prefix}.gate_proj.weight", (width, hidden)
            yield f"{prefix}.up_proj.weight", (width, hidden)
            yield f"{prefix}.down_proj.weight", (hidden, width)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (size("vocab_size"), hidden)


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m executor.tiny_model", description="Write a tiny random Qwen3."
    )
    parser.add_argument("folder", help="where to write it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tied", action="store_true", help="the output layer is the embedding")
    parser.add_argument("--vocab-size", type=int, default=512)
    parser.add_argument("--num-experts", type=int, default=0, help="above 0: a Qwen3-MoE")
    parser.add_argument("--initializer-range", type=float, default=0.2)
    args = vars(parser.parse_args())
    try:
        print(make_tiny_model(args.pop("folder"), **args))
    except UserError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    _main()
