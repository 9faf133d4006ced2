"""Models by the path of their `config.json`: the same shape as the catalogue's, and everything else refused."""

import json

import pytest

from libra.config.document import load_document
from libra.config.resolve import resolve
from libra.cost.hardware import find_model
from libra.cost.tables import rollout_costs
from libra.errors import UserError

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
MIXTURE = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}


def write(folder, config):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "name"),
    [(QWEN3, "Qwen3-4B"), (QWEN2, "Qwen2.5-7B"), (MIXTURE, "Qwen3-30B-A3B"), (LLAMA, "Llama-3.1-8B")],
)
def test_published_configs_give_the_shapes_of_the_catalogue(tmp_path, config, name):
    folder = write(tmp_path / "mine", config)
    for path in (folder, folder / "config.json"):
        model = find_model(str(path))
        assert model.same_shape(find_model(name))
        assert (model.name, model.source) == ("mine", str(folder / "config.json"))
    assert not find_model(str(folder)).same_shape(find_model("Qwen3-8B"))


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (
            QWEN3,
            {"architectures": ["GptOssForCausalLM"]},
            "architectures: GptOssForCausalLM is not supported; supp",
        ),
        (QWEN3, {"architectures": None}, "architectures: is missing"),
        (QWEN3, {"head_dim": None}, "head_dim: is missing; take a complete config.json"),
        (QWEN3, {"hidden_size": "2560"}, 'hidden_size: must be a whole number above 0, not "2560"'),
        (QWEN3, {"num_hidden_layers": 0}, "num_hidden_layers: must be a whole number above 0, not 0"),
        (QWEN3, {"vocab_size": True}, "vocab_size: must be a whole number above 0, not true"),
        (QWEN3, {"num_key_value_heads": 5}, "num_key_value_heads: 5 must divide 32 attention heads"),
        (QWEN3, {"attention_bias": True}, "attention_bias: biases of the projections"),
        (QWEN3, {"tie_word_embeddings": 1}, "tie_word_embeddings: must be true or false, not 1"),
        (QWEN3, {"use_sliding_window": True}, "use_sliding_window: true is not supported; only false is"),
        (QWEN3, {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types: only full_attention"),
        (QWEN3, {"quantization_config": {"quant_method": "fp8"}}, "quantization_config: .* is not supported"),
        (MIXTURE, {"mlp_only_layers": [0]}, r"mlp_only_layers: \[0\] is not supported; only \[\] is"),
        (MIXTURE, {"moe_intermediate_size": None}, "moe_intermediate_size: is missing"),
        (MIXTURE, {"num_experts_per_tok": 256}, "num_experts_per_tok: must be at most num_experts, 128"),
        (LLAMA, {"mlp_bias": True}, "mlp_bias: true is not supported"),
        (LLAMA, {"num_attention_heads": 24}, "num_attention_heads: 24 must divide hidden_size 4096"),
    ],
)
def test_what_the_formulas_do_not_describe_is_refused(tmp_path, config, change, message):
    folder = write(tmp_path / "bad", {**config, **change})
    with pytest.raises(UserError, match=f"bad/config.json: {message}"):
        find_model(str(folder))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json: is not JSON"),
        ("[]", "config.json: must be a mapping"),
        (None, "there is no such file"),
    ],
)
def test_files_that_are_no_config(tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=message):
        find_model(str(tmp_path / "config.json"))


def test_a_relative_path_belongs_to_the_file_that_gives_it(tmp_path, monkeypatch):
    """Whatever folder the program runs in; and the refusal of a bad one names the experiment's line."""
    write(tmp_path / "models", QWEN3)
    experiment = tmp_path / "one.yaml"
    text = "name: one\nmodel_arch_config: models/config.json\n"
    rest = "workload: {kind: preset, preset: terminal_agent}\nheterogeneous_rollout: {instances: [{tp: 1}]}\n"
    experiment.write_text(text + "hardware_config: H100\n" + rest)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    priced = rollout_costs("H100", "Qwen3-4B", [1])
    monkeypatch.setattr("libra.config.schema.rollout_costs", lambda *args: priced)
    path = tmp_path / "models" / "config.json"
    assert resolve(load_document(experiment), {}).experiment.model_arch_config == str(path)
    path.unlink()
    with pytest.raises(
        UserError, match=r"one.yaml:2: model_arch_config: .*config.json: there is no such file"
    ):
        resolve(load_document(experiment), {})
