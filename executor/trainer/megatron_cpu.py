"""Lets Megatron-Core, which is written for GPUs, run on a machine that has none.

Guarantees: where CUDA exists nothing is changed (`install` says so by False); where it does not, only Megatron's ways
of naming a GPU are redirected, none of its arithmetic. Call `install` in each thread that runs Megatron, before
anything is built: the redirection of tensor functions belongs to a thread.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


def install() -> bool:
    """Redirect GPU names to the CPU in this thread; whether anything was changed."""
    if torch.cuda.is_available():
        return False
    cuda: Any = torch.cuda
    cuda.current_device = lambda: _CPU
    cuda.synchronize = lambda *_: None
    cuda.manual_seed = lambda *_: None
    cuda.Stream = cuda.current_stream = lambda *_, **__: _NoStream()
    cuda.nvtx.range_push = lambda *_: None
    cuda.nvtx.range_pop = lambda *_: None
    _GpuNamesOnCpu().__enter__()
    _install_rng_tracker()
    return True


class _NoStream:
    """Work on a CPU is done when it is called, so there is nothing to wait for."""

    def wait_stream(self, stream: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self) -> "_NoStream":
        return self


class _GpuNamesOnCpu(TorchFunctionMode):
    """While entered: `device="cuda"` means the CPU, `.cuda()` changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            # Megatron's optimizers assert on this text; the one place where a tensor is called what it is not.
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if _is_gpu(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        if func is torch.Tensor.to and any(_is_gpu(arg) for arg in args[1:]):
            args = tuple(_CPU if _is_gpu(arg) else arg for arg in args)
        return func(*args, **kwargs)


def _is_gpu(device: Any) -> bool:
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, torch.device) and device.type == "cuda"


def _install_rng_tracker() -> None:
    """Megatron keeps random states per GPU. Nothing drawn matters here (no dropout, weights are loaded)."""
    from megatron.core.tensor_parallel import random as megatron_random

    class OneState(megatron_random.CudaRNGStatesTracker):
        """Names of states without states."""

        def add(self, name: str, seed: int) -> None:
            self._is_initialized = True
            self.seeds_.add(seed)
            self.states_[name] = torch.empty(0)

        @contextlib.contextmanager
        def fork(self, name: str = "") -> Iterator[None]:
            yield

    namespace: Any = megatron_random
    namespace._CUDA_RNG_STATE_TRACKER = OneState()
    namespace._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
