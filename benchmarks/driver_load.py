"""The load of `benchmarks.driver`, its stand-in endpoints, and the side without a controller.

Endpoints generate at a fixed rate for each stream, so all that a client can add is waiting. `Measured` holds what
shows that two clients made the same requests and got the same tokens.
"""

import asyncio
import contextlib
import gc
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import aiohttp
import numpy as np

from executor.engines.client import EngineClient, is_up
from executor.engines.config import EnginesConfig
from executor.engines.port_pool import PortPool
from executor.engines.transport import new_session
from executor.engines.wire import GenerateRequest, generate_body
from executor.launchers.local import ManagedProcess
from executor.world.source import TaskOrder

GROUP_SIZE: Final = 8
VOCAB_SIZE: Final = 512
_POLL_S: Final = 0.1


@dataclass(frozen=True)
class Load:
    """num_turns of each trajectory, each of min_tokens to max_tokens; tokens_per_s of each stream."""

    num_trajectories: int = 512
    num_turns: int = 2
    in_flight: int = 64
    prompt_tokens: int = 256
    payload_tokens: int = 64
    min_tokens: int = 32
    max_tokens: int = 64
    tokens_per_s: float = 100.0
    num_endpoints: int = 2
    seed: int = 0

    @cached_property
    def lengths(self) -> list[list[int]]:
        """Tokens of each turn of each trajectory."""
        rng = np.random.default_rng(self.seed)
        shape = (self.num_trajectories, self.num_turns)
        return rng.integers(self.min_tokens, self.max_tokens + 1, shape).tolist()

    @property
    def num_turns_in_all(self) -> int:
        """Requests of a run."""
        return self.num_trajectories * self.num_turns

    @property
    def max_model_len(self) -> int:
        """Of the endpoints."""
        return self.prompt_tokens + self.num_turns * (self.max_tokens + self.payload_tokens)

    @property
    def payload(self) -> tuple[int, ...]:
        """What the tool says after each turn."""
        return tuple(7 * i % VOCAB_SIZE for i in range(self.payload_tokens))

    def prompt(self, index: int) -> tuple[int, ...]:
        """First prompt of task `index`."""
        return tuple((31 * index + 7 * i) % VOCAB_SIZE for i in range(self.prompt_tokens))

    @property
    def order(self) -> TaskOrder:
        """In which tasks come, group by group."""
        num_tasks = self.num_trajectories // GROUP_SIZE
        return TaskOrder(num_tasks, self.seed, num_tasks)


@dataclass
class Measured:
    """One run. checksum: of all generated tokens. num_events: that the controller handled, 0 without one."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    num_turns: int = 0
    output_tokens: int = 0
    checksum: int = 0
    num_events: int = 0

    def count(self, token_ids: Sequence[int]) -> None:
        """A turn has ended."""
        self.num_turns += 1
        self.output_tokens += len(token_ids)
        self.checksum += sum(i * token for i, token in enumerate(token_ids, 1))

    @property
    def answers(self) -> tuple[int, int, int]:
        """Equal for equal requests."""
        return self.num_turns, self.output_tokens, self.checksum


@contextlib.contextmanager
def timed(measured: Measured) -> Iterator[None]:
    """Fill in what the block costs this process."""
    gc.collect()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    yield
    measured.cpu_s = time.process_time() - cpu_s
    measured.wall_s = time.perf_counter() - wall_s


@contextlib.asynccontextmanager
async def endpoints(load: Load, folder: Path) -> AsyncIterator[tuple[str, ...]]:
    """Stand-in engines in processes of their own; their addresses."""
    ports = PortPool(EnginesConfig().ports, "127.0.0.1")
    async with contextlib.AsyncExitStack() as stack:
        addresses: list[str] = []
        session = await stack.enter_async_context(new_session())
        for i in range(load.num_endpoints):
            port = ports.take()
            argv = [sys.executable, "-m", "executor.engines.fake_server", "--port", str(port)]
            argv += ["--tokens-per-s", str(load.tokens_per_s), "--max-num-seqs", str(load.in_flight)]
            argv += ["--max-model-len", str(load.max_model_len)]
            process = await ManagedProcess.start(f"endpoint {i}", argv, {}, folder / f"endpoint_{i}.log")
            stack.push_async_callback(process.stop, 2.0)
            addresses.append(f"http://127.0.0.1:{port}")
            client = EngineClient(addresses[-1], session, time.monotonic)
            while not await is_up(client):
                if process.returncode is not None:
                    raise RuntimeError(f"endpoint {i} ended: {process.log_tail(5)}")
                await asyncio.sleep(_POLL_S)
        yield tuple(addresses)


async def run_bare(load: Load, addresses: Sequence[str]) -> Measured:
    """As many workers as are in flight, each playing one trajectory after another."""
    measured = Measured()
    order, numbers = load.order, iter(range(load.num_trajectories))
    async with new_session() as session:
        with timed(measured):
            workers = [
                _worker(load, order, numbers, session, addresses[i % len(addresses)], measured)
                for i in range(load.in_flight)
            ]
            await asyncio.gather(*workers)
    return measured


async def _worker(
    load: Load,
    order: TaskOrder,
    numbers: Iterator[int],
    session: aiohttp.ClientSession,
    address: str,
    measured: Measured,
) -> None:
    for number in numbers:
        index = order.task_of(number // GROUP_SIZE)
        assert index is not None
        context = list(load.prompt(index))
        for turn, length in enumerate(load.lengths[number]):
            request = GenerateRequest(f"{number}.{turn}", context, length, seed=number)
            async with session.post(
                f"{address}/inference/v1/generate", json=generate_body(request)
            ) as answer:
                lines = (await answer.read()).splitlines()
            token_ids = [token for line in lines for token in _tokens_of(line)]
            measured.count(token_ids)
            context += (*token_ids, *load.payload)


def _tokens_of(line: bytes) -> list[int]:
    if not line.startswith(b"data: {"):
        return []
    return [token for choice in json.loads(line[6:])["choices"] for token in choice["token_ids"]]
