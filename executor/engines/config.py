"""Settings of the serving engines that only a real run has (`executor.engines` of an experiment)."""

import sys
from dataclasses import dataclass
from typing import Literal

from executor.engines.port_pool import parse_ports
from libra.errors import UserError


@dataclass(frozen=True, slots=True)
class EnginesConfig:
    """How engines are launched, watched and spoken to.

    python: interpreter of the environment that holds vLLM. host: where engines listen and are found.
    ports: `18100-18199`, or single ports with commas. dtype: of weights and activations; auto is the
    model's own, but half precision for a model of float32 (vLLM's rule).
    kv_cache_memory_bytes: of each GPU (of each engine on CPU); none = by `gpu_memory_utilization` on a GPU,
    256 MiB on CPU. startup_timeout_s: from launch to healthy. health_period_s: between health checks.
    request_timeout_s: of one turn, waiting included. stop_grace_s: from SIGTERM to SIGKILL.
    lost_after_failures: health checks in a row. stream_interval_tokens: an engine reports its first token at once
    and then every so many; what lies between is lost when it dies. extra_args: appended to its command line, without
    flags that the driver sets. endpoints: addresses of engines that somebody else started, each once, in the order of
    replicas; for `launcher: static` only.
    omp_threads: of each worker process on CPU.
    """

    python: str = sys.executable or ""
    host: str = "127.0.0.1"
    ports: str = "18100-18199"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    kv_cache_memory_bytes: int | None = None
    startup_timeout_s: float = 300.0
    health_period_s: float = 2.0
    request_timeout_s: float = 600.0
    stop_grace_s: float = 10.0
    extra_args: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    lost_after_failures: int = 3
    stream_interval_tokens: int = 16
    omp_threads: int = 1

    def __post_init__(self) -> None:
        for name in ("startup_timeout_s", "health_period_s", "request_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        for name in ("lost_after_failures", "stream_interval_tokens", "omp_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.stop_grace_s < 0:
            raise ValueError("stop_grace_s must not be negative")
        if self.kv_cache_memory_bytes is not None and self.kv_cache_memory_bytes < 1:
            raise ValueError("kv_cache_memory_bytes must be at least 1")
        for endpoint in self.endpoints:
            if not endpoint.startswith(("http://", "https://")):
                raise ValueError(f"endpoints: {endpoint!r} must begin with http:// or https://")
        known = [endpoint.rstrip("/").lower() for endpoint in self.endpoints]
        for i, endpoint in enumerate(known):
            if endpoint in known[:i]:
                raise ValueError(
                    f"endpoints: {endpoint} stands there twice; give each replica its own engine"
                )
        try:
            parse_ports(self.ports)
        except UserError as error:
            raise ValueError(str(error)) from None
