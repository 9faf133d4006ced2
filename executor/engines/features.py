"""What an engine can do, read from the paths in its `/openapi.json`; a version string says too little.

A disabled group of endpoints (dev mode, scale-out) is not listed there, so that what is listed works.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from executor.engines.errors import FeatureMissing

_DEV = "start it with VLLM_SERVER_DEV_MODE=1"
_SCALE_OUT = "start it with --enable-scale-out"
_NEWER = "use a vLLM that has it"


@dataclass(frozen=True, slots=True)
class Features:
    """One field for each thing the executor asks for.

    generate: token ids in and out (`/inference/v1/generate`), else `/v1/completions` serves. weight_versions: it
    tells which weights made each token. abort, abort_any: end one request early, by the paths of scale-out and dev
    mode. pause, reload (from disk), transfer (from the trainer), reset_cache: parts of an in-place refresh.
    """

    generate: bool = False
    completions: bool = False
    weight_versions: bool = False
    abort: bool = False
    abort_any: bool = False
    pause: bool = False
    reload: bool = False
    transfer: bool = False
    reset_cache: bool = False

    def missing(self, *names: str) -> list[str]:
        """One line for each of the named features that is absent: what is missing and the mend."""
        return [f"no {_WHAT[name]}; {_MEND[name]}" for name in names if not getattr(self, name)]

    def need(self, base_url: str, *names: str) -> None:
        """FeatureMissing where one is absent."""
        missing = self.missing(*names)
        if missing:
            raise FeatureMissing(f"{base_url}: {missing[0]}")


_WHAT = {
    "generate": "/inference/v1/generate",
    "completions": "/v1/completions",
    "weight_versions": "weight versions (/weight_info)",
    "abort": "/inference/v1/abort_requests",
    "abort_any": "/abort_requests",
    "pause": "/pause and /resume",
    "reload": "/collective_rpc",
    "transfer": "weight transfer (/init_weight_transfer_engine, /update_weights)",
    "reset_cache": "/reset_prefix_cache",
}
_MEND = {
    "generate": _SCALE_OUT,
    "completions": _NEWER,
    "weight_versions": f"{_NEWER}, and {_DEV}",
    "abort": _SCALE_OUT,
    "abort_any": _DEV,
    "pause": _DEV,
    "reload": _DEV,
    "transfer": _DEV,
    "reset_cache": _DEV,
}
_PATHS = {
    "generate": ("/inference/v1/generate",),
    "completions": ("/v1/completions",),
    "weight_versions": ("/weight_info", "/update_weight_version"),
    "abort": ("/inference/v1/abort_requests",),
    "abort_any": ("/abort_requests",),
    "pause": ("/pause", "/resume"),
    "reload": ("/collective_rpc",),
    "transfer": (
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
    ),
    "reset_cache": ("/reset_prefix_cache",),
}


def from_openapi(document: Mapping[str, Any]) -> Features:
    """The features that an engine's own description shows."""
    paths = document.get("paths", {})
    return Features(**{name: all(path in paths for path in wanted) for name, wanted in _PATHS.items()})
