"""A stand-in for a vLLM server, with its endpoints and without a model: for tests and for measuring the driver.

`python -m executor.engines.fake_server --port 18150 --tokens-per-s 100` serves until it is stopped. In tests it runs
on the test's own event loop: `async with FakeServer(FakeConfig()) as server`.
"""

import argparse
import asyncio
import contextlib
import json
import re
import socket
import sys
from types import TracebackType
from typing import Any

from aiohttp import web

from executor.engines.fake_engine import FakeConfig, FakeEngine, Faults, Stream, logprob_of

_NAME = "fake"


class FakeServer:
    """Serves one `FakeEngine` on 127.0.0.1. port 0: any free one. `calls`: paths of weight calls, in order."""

    def __init__(self, config: FakeConfig, port: int = 0) -> None:
        self.engine = FakeEngine(config)
        self.faults = Faults()
        self.calls: list[str] = []
        self.received: list[dict[str, Any]] = []
        self.base_url = ""
        self._config = config
        self._port = port
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Listen; the address."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        self._runner = web.AppRunner(
            self._app(), shutdown_timeout=0.0, access_log=None, handler_cancellation=True
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listener, backlog=1024).start()
        self.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        return self.base_url

    async def stop(self) -> None:
        """Break all connections and listen no more."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def __aenter__(self) -> "FakeServer":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._fault], client_max_size=2**26)
        post, get = app.router.add_post, app.router.add_get
        get("/health", self._health)
        get("/openapi.json", self._openapi)
        get("/v1/models", self._models)
        get("/metrics", self._metrics)
        post("/v1/completions", self._generate)
        post("/pause", self._pause)
        post("/resume", self._resume)
        post("/abort_requests", self._abort)
        post("/reset_prefix_cache", self._reset)
        post("/collective_rpc", self._rpc)
        post("/init_weight_transfer_engine", self._received)
        post("/start_weight_update", self._received)
        post("/update_weights", self._received)
        post("/finish_weight_update", self._finish_update)
        if self._config.generate:
            post("/inference/v1/generate", self._generate)
            post("/inference/v1/abort_requests", self._abort)
        if self._config.versions:
            get("/weight_info", self._weight_info)
            post("/update_weight_version", self._set_version)
        return app

    # -- what it is ---------------------------------------------------------------------------------------

    @web.middleware
    async def _fault(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.faults.hang or request.path in self.faults.stuck:
            await asyncio.Event().wait()
        if request.path in self.faults.slow:
            await asyncio.sleep(self.faults.slow[request.path])
        if request.path in self.faults.failing:
            return web.json_response({"error": {"message": "made to fail", "code": 500}}, status=500)
        return await handler(request)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.faults.unhealthy else 200)

    async def _openapi(self, request: web.Request) -> web.Response:
        paths = {route.resource.canonical: {} for route in request.app.router.routes() if route.resource}
        return web.json_response({"paths": paths})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": _NAME, "max_model_len": self._config.max_model_len}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        engine, config = self.engine, self._config
        used = sum(len(s.context) // config.block_size + 1 for s in engine.running.values())
        labels = f'{{engine="0",model_name="{_NAME}"}}'
        lines = [
            f"vllm:num_requests_running{labels} {len(engine.running) - engine.num_waiting}",
            f"vllm:num_requests_waiting{labels} {engine.num_waiting}",
            f"vllm:kv_cache_usage_perc{labels} {used / config.num_blocks}",
            f"vllm:num_preemptions_total{labels} {engine.num_preemptions}",
            f"vllm:prefix_cache_queries_total{labels} {engine.prefix_queries}",
            f"vllm:prefix_cache_hits_total{labels} {engine.prefix_hits}",
            f"vllm:generation_tokens_total{labels} {engine.num_generated}",
            f'vllm:cache_config_info{{block_size="{config.block_size}",num_gpu_blocks="{config.num_blocks}"}} 1.0',
        ]
        return web.Response(text="\n".join(lines) + "\n")

    # -- turns --------------------------------------------------------------------------------------------

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        native = request.path != "/v1/completions"
        sampling = body["sampling_params"] if native else body
        prompt = body["token_ids"] if native else body["prompt"]
        if self.faults.refuse is not None:
            return _error("made to refuse", self.faults.refuse)
        if len(prompt) >= self._config.max_model_len:
            return _error(
                f"The decoder prompt (length {len(prompt)}) is longer than the maximum model length of "
                f"{self._config.max_model_len}.",
                400,
            )
        if sampling.get("prompt_logprobs") is not None:
            return _scores(prompt)
        identity = f"generate-tokens-{body['request_id']}" if native else f"cmpl-{body['request_id']}-0"
        room = self._config.max_model_len - len(prompt)
        sequence = Stream(
            request_id=identity,
            context=list(prompt),
            num_prompt=len(prompt),
            max_tokens=min(sampling["max_tokens"], room),
            stop=frozenset(sampling.get("stop_token_ids") or ()),
        )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):  # the client has gone
            await self._stream(sequence, response, native, request.transport)
        return response

    async def _stream(
        self,
        sequence: Stream,
        response: web.StreamResponse,
        native: bool,
        transport: asyncio.Transport | None,
    ) -> None:
        async with contextlib.aclosing(self.engine.run(sequence)) as messages:
            async for tokens, reason in messages:
                choice = _choice(tokens, reason, native)
                if reason is not None and native and self._config.versions:
                    choice["weight_versions"] = sequence.version_spans()
                await _send(response, {"choices": [choice]})
                if transport is not None and _reached(sequence, self.faults.break_after_tokens):
                    transport.abort()
                    return
                if _reached(sequence, self.faults.error_after_tokens):
                    await _send(response, {"error": {"message": "made to fail", "code": 500}})
                    break
        usage = {"prompt_tokens_details": {"cached_tokens": sequence.cached_tokens}}
        metrics = {} if native else {"metrics": {"queue_time_ms": sequence.queue_s * 1e3}}
        await _send(response, {"choices": [], "usage": usage, **metrics})
        await response.write(b"data: [DONE]\n\n")

    async def _abort(self, request: web.Request) -> web.Response:
        self.engine.abort((await request.json())["request_ids"])
        return web.Response()

    # -- weights ------------------------------------------------------------------------------------------

    async def _pause(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        self.engine.set_paused(True)
        if request.query.get("mode", "abort") == "abort":
            self.engine.abort(list(self.engine.running))
        return web.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        self.engine.set_paused(False)
        return web.json_response({"status": "resumed"})

    async def _reset(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        self.engine.reset_prefix_cache()
        return web.json_response({"success": True})

    async def _rpc(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        path = (await request.json())["kwargs"]["weights_path"]
        numbers = re.findall(r"\d+", path.rpartition("/")[2])
        self.engine.weights = int(numbers[-1]) if numbers else 0
        return web.json_response({"results": [None]})

    async def _received(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        if request.can_read_body:
            self.received.append(await request.json())
        return web.json_response({"message": "done"})

    async def _finish_update(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        self.engine.version = (await request.json())["weight_version"]
        self.engine.weights = int(self.engine.version)
        return web.json_response({"message": "done"})

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.engine.version})

    async def _set_version(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        self.engine.version = (await request.json())["new_version"]
        return web.json_response({"success": True})


def _reached(sequence: Stream, tokens: int | None) -> bool:
    return tokens is not None and sequence.num_output >= tokens


def _choice(tokens: list[int], reason: str | None, native: bool) -> dict[str, Any]:
    values = [logprob_of(token) for token in tokens]
    table: dict[str, Any] = {"token_logprobs": values}
    if native:
        table = {"content": [{"token_id": t, "logprob": v} for t, v in zip(tokens, values, strict=True)]}
    return {"index": 0, "token_ids": tokens, "logprobs": table, "finish_reason": reason}


async def _send(response: web.StreamResponse, message: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(message).encode() + b"\n\n")


def _error(message: str, status: int) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


def _scores(prompt: list[int]) -> web.Response:
    table = [None, *({str(token): {"logprob": logprob_of(token)}} for token in prompt[1:])]
    return web.json_response({"choices": [{"prompt_logprobs": table}], "prompt_logprobs": table})


async def _serve(server: FakeServer) -> None:
    sys.stdout.write(await server.start() + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tokens-per-s", type=float, default=float("inf"), help="of each stream")
    parser.add_argument("--prefill-tokens-per-s", type=float, default=float("inf"))
    parser.add_argument("--stream-interval", type=int, default=16)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-model-len", type=int, default=4096)
    given = parser.parse_args()
    config = FakeConfig(
        max_model_len=given.max_model_len,
        max_num_seqs=given.max_num_seqs,
        stream_interval_tokens=given.stream_interval,
        tokens_per_s=given.tokens_per_s,
        prefill_tokens_per_s=given.prefill_tokens_per_s,
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(FakeServer(config, given.port)))


if __name__ == "__main__":
    main()
