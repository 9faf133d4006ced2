"""What only a worker of the engine knows, by `worker_extension_cls`. Imports no vLLM."""

# pyright: reportMissingImports=false

from typing import Any


class WorkerFacts:
    """Mixed into vLLM's worker class; `collective_rpc("libra_facts")` asks every worker."""

    model_runner: Any
    vllm_config: Any

    def libra_facts(self) -> dict[str, Any]:
        """Device, attention backend and CUDA graphs of this worker, in JSON's types."""
        import torch

        cuda = torch.cuda.is_available()
        compilation = self.vllm_config.compilation_config
        return {
            "gpu": torch.cuda.get_device_name() if cuda else "cpu",
            "gpu_memory_gib": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 2)
            if cuda
            else 0,
            "torch_allocated_gib": round(torch.cuda.memory_allocated() / 2**30, 3) if cuda else 0,
            "model_runner": f"{type(self.model_runner).__module__}.{type(self.model_runner).__name__}",
            "attention_backends": _backends(self.model_runner),
            "cudagraph_mode": str(getattr(compilation.cudagraph_mode, "name", compilation.cudagraph_mode)),
            "cudagraph_capture_sizes": list(compilation.cudagraph_capture_sizes or []),
            "max_cudagraph_capture_size": getattr(compilation, "max_cudagraph_capture_size", None),
            "compilation_mode": str(compilation.mode),
            "splitting_ops": list(compilation.splitting_ops or []),
        }


def _backends(runner: Any) -> list[str]:
    """Names of the attention backends in use; the attribute is vLLM's own and may go."""
    groups = [group for groups in getattr(runner, "attn_groups", []) for group in groups]
    return sorted({group.backend.get_name() for group in groups})
