"""Rank 0's HTTP server: takes the driver's commands, answers when they are done.

Guarantees: commands that all ranks carry out go through one queue, in order; what only rank 0 does (health, transfers
to engines) is answered beside it, while training goes on. Errors are one line of JSON: 400 for what a user can mend.
"""

import contextlib
import json
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from executor.trainer.transfer import DirectTransfer
from libra.errors import UserError

COLLECTIVE = ("step", "publish", "save", "logprobs", "stop")
_MAX_BODY_BYTES = 16 * 1024**3


class Command(NamedTuple):
    """One order to all ranks. body: what cannot be JSON, such as a batch."""

    name: str
    arguments: dict[str, Any]
    body: bytes


class Server:
    """See the module. health() tells what `GET /health` answers."""

    def __init__(
        self, host: str, port: int, transfer: DirectTransfer, health: Callable[[], dict[str, Any]]
    ) -> None:
        self._queue: queue.Queue[tuple[Command, Future[Any]]] = queue.Queue()
        self._transfer = transfer
        self._health = health
        server = self

        class Handler(_Handler):
            owner = server

        self._http = ThreadingHTTPServer((host, port), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True, name="http").start()

    def next(self, timeout_s: float) -> tuple[Command, Future[Any]] | None:
        """The next command and where its answer goes; None when there was none for `timeout_s` seconds."""
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop answering."""
        self._http.shutdown()
        self._http.server_close()

    def answer(self, name: str, arguments: dict[str, Any], body: bytes) -> Any:
        """Carry out one request; JSON-able, or bytes."""
        transfer = self._transfer
        if name in COLLECTIVE:
            future: Future[Any] = Future()
            self._queue.put((Command(name, arguments, body), future))
            return future.result()
        if name == "health":
            return self._health()
        if name == "weight_info":
            held = transfer.weight_info()
            return {"version": held.version, "weights": held.info()}
        if name == "init_direct":
            transfer.init(**arguments)
            return {}
        if name == "push":
            return {"bytes": transfer.push(**arguments)}
        raise UserError(f"trainer: no command {name!r}")


class _Handler(BaseHTTPRequestHandler):
    """One request: the command is the path, its arguments are a JSON header, its body is bytes."""

    owner: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:
        """The log is for what goes wrong; each request would drown it."""

    def _serve(self) -> None:
        try:
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 <= length <= _MAX_BODY_BYTES:
                raise UserError(f"trainer: a body of {length} bytes is too large")
            body = self.rfile.read(length)
            arguments = json.loads(self.headers.get("X-Arguments") or "{}")
            result = self.owner.answer(urlsplit(self.path).path.strip("/"), arguments, body)
            self._reply(200, result)
        except UserError as error:
            self._reply(400, {"error": str(error)})
        except Exception as error:
            self._reply(
                500, {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
            )

    def _reply(self, status: int, result: Any) -> None:
        with contextlib.suppress(ConnectionError):  # nobody waits for the answer any more
            self._write(status, result)

    def _write(self, status: int, result: Any) -> None:
        data = result if isinstance(result, bytes) else json.dumps(result).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
