"""HTTP to one engine, with typed errors and no other exception of the HTTP library leaving here.

Guarantees: whatever goes wrong is an `EngineError` of one line that begins with the engine's address, or the
caller's own cancellation.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp

from executor.engines.errors import EngineTimeout, EngineUnreachable, RequestRefused
from executor.engines.wire import refusal

CONNECT_TIMEOUT_S: Final = 10.0
_IDLE_S: Final = 2.0
"""An idle connection is let go before the server loses patience with it (5 s for uvicorn): a request on one that is
being closed fails, and a POST must not be repeated blindly."""


def new_session() -> aiohttp.ClientSession:
    """A session for all engines: as many connections as there are turns, no overall time limit of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        trust_env=False,
    )


class EngineHttp:
    """Calls to one address."""

    def __init__(self, base_url: str, session: aiohttp.ClientSession) -> None:
        self.base_url = base_url.rstrip("/")
        self._session = session

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float | None,
        body: Any = None,
        params: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response with status 200, its content still to be read inside the block. Raises `EngineError`."""
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(method, self.base_url + path, json=body, params=params) as response,
            ):
                if response.status >= 400:
                    raise _refusal(self.base_url + path, response.status, await response.read())
                yield response
        except TimeoutError:
            raise EngineTimeout(f"{self.base_url}{path}: no answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, ConnectionError, OSError) as error:
            raise EngineUnreachable(f"{self.base_url}{path}: {_reason(error)}") from None

    async def read(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float | None,
        body: Any = None,
        params: Mapping[str, str] | None = None,
    ) -> bytes:
        """The whole answer. Raises `EngineError`."""
        async with self.open(method, path, timeout_s=timeout_s, body=body, params=params) as response:
            return await response.read()

    async def json(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float | None,
        body: Any = None,
        params: Mapping[str, str] | None = None,
    ) -> Any:
        """The whole answer as JSON, None where it is empty. Raises `EngineError`."""
        raw = await self.read(method, path, timeout_s=timeout_s, body=body, params=params)
        try:
            return json.loads(raw) if raw else None
        except ValueError:
            raise RequestRefused(f"{self.base_url}{path}: answered with no JSON", 200) from None


def _refusal(where: str, status: int, raw: bytes) -> RequestRefused:
    try:
        answer: object = json.loads(raw)
    except ValueError:
        answer = raw.decode(errors="replace")
    return refusal(where, answer, status)


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
