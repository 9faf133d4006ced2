"""A Megatron GPT model of a Qwen3, spread over the ranks, with the weights of a Hugging Face folder.

Guarantees: only Megatron's own ("local") layers, so nothing needs TransformerEngine; weights are copied, never drawn;
ranks are numbered tensor-parallel first, then data, then pipeline, so rank 0 holds the first of each.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import moe_utils
from safetensors import safe_open
from torch import Tensor

from executor.trainer import mapping
from executor.trainer.shape import ModelShape, weight_files
from executor.trainer.spec import TrainerConfig
from libra.errors import UserError


@dataclass(frozen=True, slots=True)
class Place:
    """This rank's place, and the group over which ranks agree on what to do next (gloo, CPU tensors)."""

    rank: int
    tp_rank: int
    tp_size: int
    dp_rank: int
    dp_size: int
    pp_rank: int
    pp_size: int
    control: Any

    @property
    def is_last_stage(self) -> bool:
        """Whether logits and losses are computed here."""
        return self.pp_rank == self.pp_size - 1

    @property
    def speaks_for_stage(self) -> bool:
        """One rank of each pipeline stage."""
        return self.tp_rank == 0 and self.dp_rank == 0


def init_ranks(config: TrainerConfig, timeout_s: float) -> Place:
    """Make Megatron's groups; the default process group must be there."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=config.train_tp_size,
        pipeline_model_parallel_size=config.train_pp_size,
        distributed_timeout_minutes=max(1, round(timeout_s / 60)),
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(config.seed)
    return Place(
        rank=dist.get_rank(),
        tp_rank=parallel_state.get_tensor_model_parallel_rank(),
        tp_size=config.train_tp_size,
        dp_rank=parallel_state.get_data_parallel_rank(),
        dp_size=parallel_state.get_data_parallel_world_size(),
        pp_rank=parallel_state.get_pipeline_model_parallel_rank(),
        pp_size=config.train_pp_size,
        control=dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s)),
    )


def build_model(shape: ModelShape, config: TrainerConfig, place: Place, folder: str | Path) -> Any:
    """This rank's part of the model as Megatron's schedules take it, with the weights of `folder`."""
    on_cpu = not torch.cuda.is_available()
    settings = _settings(shape, config, on_cpu)
    model: Any = GPTModel(
        config=settings,
        transformer_layer_spec=get_gpt_layer_local_spec(
            num_experts=shape.num_experts or None, qk_layernorm=True, normalization="RMSNorm"
        ),
        vocab_size=shape.vocab_size,
        max_sequence_length=config.max_seq_length_tokens,
        pre_process=place.pp_rank == 0,
        post_process=place.is_last_stage,
        share_embeddings_and_output_weights=shape.tied_embeddings,
        position_embedding_type="rope",
        rotary_base=shape.rope_theta,  # type: ignore[arg-type]  # a float is what it computes with
    )
    if not on_cpu:
        model.cuda()
    if settings.bf16:
        model = Float16Module(settings, model)
    load_hf(model, shape, place, folder)
    return model


def for_training(model: Any, use_distributed_optimizer: bool) -> Any:
    """`model` with gradient buffers that are summed over data-parallel ranks at the end of a step, in float32."""
    settings = unwrapped(model).config
    wrapped = DistributedDataParallel(
        config=settings,
        ddp_config=DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, use_distributed_optimizer=use_distributed_optimizer
        ),
        module=model,
    )
    settings.finalize_model_grads_func = finalize_model_grads
    wrapped.train()
    return wrapped


def unwrapped(model: Any) -> Any:
    """The GPTModel inside."""
    while not isinstance(model, GPTModel):
        model = model.module
    return model


def named_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """This rank's weights, named with global layer numbers."""
    gpt = unwrapped(model)
    numbers = [layer.layer_number - 1 for layer in gpt.decoder.layers]
    for name, weight in gpt.named_parameters():
        if name.startswith("decoder.layers."):
            local, rest = name.removeprefix("decoder.layers.").split(".", 1)
            name = f"decoder.layers.{numbers[int(local)]}.{rest}"
        yield name, weight


@torch.no_grad()
def load_hf(model: Any, shape: ModelShape, place: Place, folder: str | Path) -> None:
    """Copy the weights of `folder` into this rank's part. Raises UserError where one is missing or misshapen."""
    files = weight_files(folder)
    with ExitStack() as stack:
        opened: dict[Path, Any] = {}
        for name, weight in named_weights(model):
            rule = mapping.rule_of(name, shape)
            tensors = []
            for hf_name in rule.hf_names:
                if hf_name not in files:
                    raise UserError(f"model {folder}: its weights lack {hf_name}; take a complete model")
                file = files[hf_name]
                if file not in opened:
                    opened[file] = stack.enter_context(safe_open(file, framework="pt"))
                tensors.append(opened[file].get_tensor(hf_name))
            part = mapping.to_megatron(rule, tensors, shape, place.tp_rank, place.tp_size)
            if part.shape != weight.shape:
                raise UserError(
                    f"model {folder}: {rule.hf_names[0]} makes {tuple(part.shape)} where config.json asks for "
                    f"{tuple(weight.shape)}; take config and weights of one model"
                )
            weight.copy_(part)


def _settings(shape: ModelShape, config: TrainerConfig, on_cpu: bool) -> TransformerConfig:
    dtype = getattr(torch, config.dtype)
    mixture: dict[str, Any] = {}
    if shape.num_experts:
        # Megatron 0.16 asks this name whether TransformerEngine is there, and forgets to define it where it is not.
        namespace: Any = moe_utils
        namespace.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
        mixture = {
            "num_moe_experts": shape.num_experts,
            "moe_ffn_hidden_size": shape.ffn_size,
            "moe_router_topk": shape.experts_per_token,
            # Softmax over the chosen experts equals softmax over all, normalised over the chosen.
            "moe_router_pre_softmax": not shape.normalize_expert_weights,
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
            "moe_router_dtype": "fp32",
            "moe_token_dispatcher_type": "alltoall",
        }
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_heads,
        num_query_groups=shape.num_kv_heads,
        kv_channels=shape.head_dim,
        ffn_hidden_size=shape.ffn_size,
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_epsilon,
        qk_layernorm=True,
        gated_linear_unit=True,
        activation_func=functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        tensor_model_parallel_size=config.train_tp_size,
        pipeline_model_parallel_size=config.train_pp_size,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=config.dtype == "bfloat16",
        use_cpu_initialization=on_cpu,
        # Fused kernels need Apex or TransformerEngine, or a GPU; without them the results are exact against HF.
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        batch_p2p_comm=True,
        batch_p2p_sync=not on_cpu,
        deallocate_pipeline_outputs=False,
        **mixture,
    )
