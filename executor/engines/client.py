"""The client of one engine: everything that the executor asks of it, over HTTP.

Guarantees: token ids in and out, never text; errors are the types of `executor.engines.errors`; which endpoint is
used follows from what the engine offers (`features`), not from its version. Times are on the clock that the caller
gives.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from executor.engines.errors import EngineError, RequestRefused
from executor.engines.features import Features, from_openapi
from executor.engines.generation import Generation
from executor.engines.metrics import EngineMetrics, kv_capacity_tokens, read_metrics
from executor.engines.transport import EngineHttp
from executor.engines.wire import (
    GenerateRequest,
    GenerateResult,
    completions_body,
    generate_body,
    read_scores,
    read_version,
    score_body,
    score_completions_body,
)

_GENERATE = "/inference/v1/generate"
_COMPLETIONS = "/v1/completions"
_ABORT_PREFIX = (
    "generate-tokens-"  # what the engine puts before the id of a request to /inference/v1/generate
)
_HEALTH_TIMEOUT_S = 10.0
_CALL_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What an engine serves. kv_capacity_tokens: -1 where it does not tell."""

    name: str
    max_model_len: int
    kv_capacity_tokens: int


class EngineClient:
    """Speaks to the engine at `base_url`. The session is the caller's, to share and to close."""

    def __init__(self, base_url: str, session: aiohttp.ClientSession, now: Callable[[], float]) -> None:
        self.base_url = base_url.rstrip("/")
        self._http = EngineHttp(base_url, session)
        self._now = now
        self._features: Features | None = None
        self._model: ModelInfo | None = None

    # -- what it is ---------------------------------------------------------------------------------------

    async def health(self, timeout_s: float = _HEALTH_TIMEOUT_S) -> None:
        """Return if it is up and its engine process lives. Raises `EngineError`."""
        await self._http.read("GET", "/health", timeout_s=timeout_s)

    async def features(self) -> Features:
        """What it offers; asked once."""
        if self._features is None:
            self._features = from_openapi(await self._json("GET", "/openapi.json"))
        return self._features

    async def model_info(self) -> ModelInfo:
        """Which model, how long a context, how large a KV cache; asked once."""
        if self._model is None:
            models = (await self._json("GET", "/v1/models"))["data"]
            if not models:
                raise RequestRefused(f"{self.base_url}: it serves no model", 200)
            metrics = await self._http.read("GET", "/metrics", timeout_s=_CALL_TIMEOUT_S)
            self._model = ModelInfo(
                name=models[0]["id"],
                max_model_len=int(models[0].get("max_model_len") or 0),
                kv_capacity_tokens=kv_capacity_tokens(metrics.decode(errors="replace")),
            )
        return self._model

    async def metrics(self, timeout_s: float = _HEALTH_TIMEOUT_S) -> EngineMetrics:
        """Its counters now."""
        text = await self._http.read("GET", "/metrics", timeout_s=timeout_s)
        return read_metrics(text.decode(errors="replace"))

    # -- turns --------------------------------------------------------------------------------------------

    async def prepare(self) -> ModelInfo:
        """Learn what it is and offers; before the first `open`."""
        await self.features()
        return await self.model_info()

    def open(self, request: GenerateRequest) -> Generation:
        """A turn, not yet sent: `run` it. After `prepare`."""
        if self._features is None or self._model is None:
            raise RuntimeError("prepare() comes before open()")
        if self._features.generate:
            return Generation(self._http, _GENERATE, generate_body(request), request, self._now)
        body = completions_body(request, self._model.name)
        return Generation(self._http, _COMPLETIONS, body, request, self._now)

    async def generate(self, request: GenerateRequest, timeout_s: float | None = None) -> GenerateResult:
        """Generate a turn to its end. PromptTooLong, RequestRefused, EngineUnreachable, EngineTimeout."""
        await self.prepare()
        return await self.open(request).run(timeout_s)

    async def abort(self, request_id: str) -> None:
        """End a turn early: its open `generate` returns with `abort` and the tokens so far.

        Without effect on a turn that has ended, or has not yet reached the engine (then ask again).
        """
        features = await self.features()
        if features.generate and features.abort:
            body = {"request_ids": [_ABORT_PREFIX + request_id]}
            await self._http.read(
                "POST", "/inference/v1/abort_requests", timeout_s=_CALL_TIMEOUT_S, body=body
            )
            return
        features.need(self.base_url, "abort_any")
        name = _ABORT_PREFIX + request_id if features.generate else f"cmpl-{request_id}-0"
        await self._http.read(
            "POST", "/abort_requests", timeout_s=_CALL_TIMEOUT_S, body={"request_ids": [name]}
        )

    async def score(self, token_ids: Sequence[int], request_id: str = "score") -> list[float]:
        """Log-prob of each token but the first, given those before it, under the weights that it serves now."""
        if (await self.features()).generate:
            answer = await self._json("POST", _GENERATE, score_body(token_ids, request_id))
        else:
            name = (await self.model_info()).name
            answer = await self._json(
                "POST", _COMPLETIONS, score_completions_body(token_ids, request_id, name)
            )
        return read_scores(answer, token_ids)

    # -- weights ------------------------------------------------------------------------------------------

    async def pause(
        self, mode: Literal["keep", "wait", "abort"] = "keep", timeout_s: float | None = None
    ) -> None:
        """Stop stepping. keep: requests freeze and go on at `resume`; wait: once none runs; abort: they end."""
        await self._need("pause")
        params = {"mode": mode} if mode == "keep" else {"mode": mode, "clear_cache": "false"}
        await self._http.read("POST", "/pause", timeout_s=timeout_s, params=params)

    async def resume(self) -> None:
        """Go on."""
        await self._need("pause")
        await self._http.read("POST", "/resume", timeout_s=_CALL_TIMEOUT_S)

    async def reload_from_disk(self, path: str, timeout_s: float | None = None) -> None:
        """Replace the weights by those of a HF folder that the engine's machine sees. Pause it before."""
        await self._need("reload")
        body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        await self._http.read("POST", "/collective_rpc", timeout_s=timeout_s, body=body)

    async def init_weight_transfer(
        self,
        master_address: str,
        master_port: int,
        rank_offset: int,
        world_size: int,
        timeout_s: float | None = None,
    ) -> None:
        """Join the trainer's group; returns once the trainer (rank 0) and all workers have."""
        await self._need("transfer")
        info = {
            "master_address": master_address,
            "master_port": master_port,
            "rank_offset": rank_offset,
            "world_size": world_size,
        }
        await self._json("POST", "/init_weight_transfer_engine", {"init_info": info}, timeout_s)

    async def receive_weights(
        self,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        version: int,
        timeout_s: float | None = None,
    ) -> None:
        """Take what the trainer broadcasts meanwhile, in this order, and stamp it. Pause it before.

        dtypes: names of torch types, `float32`.
        """
        await self._need("transfer")
        info = {
            "names": list(names),
            "dtype_names": list(dtypes),
            "shapes": [list(shape) for shape in shapes],
        }
        await self._json("POST", "/start_weight_update", None, timeout_s)
        await self._json("POST", "/update_weights", {"update_info": info}, timeout_s)
        await self._json("POST", "/finish_weight_update", {"weight_version": str(version)}, timeout_s)

    async def set_version(self, version: int) -> None:
        """Stamp the weights that it serves; tokens made from now on carry it."""
        await self._need("weight_versions")
        await self._json("POST", "/update_weight_version", {"new_version": str(version)})

    async def version(self) -> int:
        """The stamp, -1 if there is none."""
        await self._need("weight_versions")
        return read_version((await self._json("GET", "/weight_info"))["weight_version"])

    async def reset_prefix_cache(self, running_too: bool = True) -> None:
        """Forget cached KV. running_too: also that of turns under way, which are computed again."""
        await self._need("reset_cache")
        params = {"reset_running_requests": "true" if running_too else "false"}
        answer = await self._json("POST", "/reset_prefix_cache", params=params)
        if isinstance(answer, dict) and answer.get("success") is False:
            raise RequestRefused(f"{self.base_url}: its prefix cache is in use and was not reset", 200)

    # -- inside -------------------------------------------------------------------------------------------

    async def _need(self, *names: str) -> None:
        (await self.features()).need(self.base_url, *names)

    async def _json(
        self,
        method: str,
        path: str,
        body: Any = None,
        timeout_s: float | None = _CALL_TIMEOUT_S,
        params: dict[str, str] | None = None,
    ) -> Any:
        return await self._http.json(method, path, timeout_s=timeout_s, body=body, params=params)


async def is_up(client: EngineClient, timeout_s: float = _HEALTH_TIMEOUT_S) -> bool:
    """Whether it answers that it is healthy."""
    try:
        await client.health(timeout_s)
    except EngineError:
        return False
    return True
