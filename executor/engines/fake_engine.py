"""The engine behind `fake_server`: what it generates, how fast, and what it remembers. No HTTP here.

Guarantees: tokens are a fixed function of the context and of the weights, so that equal requests get equal answers,
a resumed turn goes on as it would have, and new weights show at once. Rates are those of each stream by itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FakeConfig:
    """How the stand-in behaves.

    tokens_per_s: of each stream; prefill_tokens_per_s: of its prompt. generate, versions: whether it offers
    `/inference/v1/generate` and weight versions, as newer vLLM does.
    """

    max_model_len: int = 4096
    max_num_seqs: int = 256
    block_size: int = 16
    num_blocks: int = 4096
    vocab_size: int = 512
    stream_interval_tokens: int = 16
    tokens_per_s: float = float("inf")
    prefill_tokens_per_s: float = float("inf")
    generate: bool = True
    versions: bool = True


@dataclass(slots=True)
class Faults:
    """What goes wrong, to be switched while it runs.

    unhealthy: `/health` says 503. hang: no request is answered any more. break_after_tokens: streams end without
    their end mark after so many. error_after_tokens: they end with an error message. refuse: status of every
    generate request. stuck: paths that never answer. slow: paths that answer so many seconds late. failing: paths
    that answer 500.
    """

    unhealthy: bool = False
    hang: bool = False
    break_after_tokens: int | None = None
    error_after_tokens: int | None = None
    refuse: int | None = None
    stuck: set[str] = field(default_factory=set)
    slow: dict[str, float] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Stream:
    """A request under way. `wake` is set when it has a reason to look around."""

    request_id: str
    context: list[int]
    num_prompt: int
    max_tokens: int
    stop: frozenset[int]
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    aborted: bool = False
    cached_tokens: int = 0
    spans: list[list[object]] = field(default_factory=list)  # [version, start]
    queue_s: float = 0.0

    @property
    def num_output(self) -> int:
        """Tokens generated."""
        return len(self.context) - self.num_prompt

    def version_spans(self) -> list[dict[str, object]]:
        """As vLLM tells them."""
        if not self.spans:  # it was aborted before it began
            return []
        ends = [span[1] for span in self.spans[1:]] + [self.num_output]
        return [
            {"version": span[0], "start": span[1], "end": end}
            for span, end in zip(self.spans, ends, strict=True)
        ]


def next_token(context: Sequence[int], weights: int, vocab_size: int) -> int:
    """What the weights say after a context."""
    return (31 * context[-1] + 7 * len(context) + 13 * weights + 5) % vocab_size


def logprob_of(token: int) -> float:
    """A log-prob that depends on the token alone."""
    return -(token % 8 + 1) / 4.0


class FakeEngine:
    """hold_after_tokens: streams stand still after so many output tokens until it is set to None again."""

    def __init__(self, config: FakeConfig) -> None:
        self.config = config
        self.weights = 0
        self.version = "default"
        self.paused = False
        self.hold_after_tokens: int | None = None
        self.running: dict[str, Stream] = {}
        self.num_waiting = 0
        self.num_preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.num_generated = 0
        self._slots = asyncio.Semaphore(config.max_num_seqs)
        self._blocks: set[int] = set()

    def wake_all(self) -> None:
        """Something has changed that a stream may wait for."""
        for sequence in self.running.values():
            sequence.wake.set()

    def hold(self, after_tokens: int | None) -> None:
        """See the class."""
        self.hold_after_tokens = after_tokens
        self.wake_all()

    def set_paused(self, paused: bool) -> None:
        """Freeze or go on."""
        self.paused = paused
        self.wake_all()

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these early; unknown ones are ignored, as vLLM does."""
        for request_id in request_ids:
            sequence = self.running.get(request_id)
            if sequence is not None:
                sequence.aborted = True
                sequence.wake.set()

    def reset_prefix_cache(self) -> None:
        """Forget all."""
        self._blocks.clear()
        self.num_preemptions += len(self.running)

    async def run(self, sequence: Stream) -> AsyncGenerator[tuple[list[int], str | None], None]:
        """Yields the new tokens of each message and, with the last, why it ended."""
        loop = asyncio.get_running_loop()
        self.running[sequence.request_id] = sequence
        queued_s = loop.time()
        self.num_waiting += 1
        try:
            async with self._slots:
                self.num_waiting -= 1
                sequence.queue_s = loop.time() - queued_s
                try:
                    async for item in self._steps(sequence, loop):
                        yield item
                finally:
                    self._remember(sequence.context)
        except asyncio.CancelledError:
            if self._slots.locked() and not sequence.spans:
                self.num_waiting = max(0, self.num_waiting - 1)
            raise
        finally:
            self.running.pop(sequence.request_id, None)

    async def _steps(
        self, sequence: Stream, loop: asyncio.AbstractEventLoop
    ) -> AsyncGenerator[tuple[list[int], str | None], None]:
        config = self.config
        sequence.cached_tokens = self._lookup(sequence.context)
        due_s = loop.time() + (sequence.num_prompt - sequence.cached_tokens) / config.prefill_tokens_per_s
        unsent: list[int] = []
        while True:
            due_s = await self._until(sequence, due_s, loop)
            if sequence.aborted:
                yield unsent, "abort"
                return
            count = 1 if not sequence.num_output else config.stream_interval_tokens
            count = min(count, sequence.max_tokens - sequence.num_output)
            if self.hold_after_tokens is not None:
                count = min(count, max(1, self.hold_after_tokens - sequence.num_output))
            reason = self._generate(sequence, count, unsent)
            due_s += count / config.tokens_per_s
            yield unsent, reason
            if reason is not None:
                return
            unsent = []

    async def _until(self, sequence: Stream, due_s: float, loop: asyncio.AbstractEventLoop) -> float:
        """Wait until the stream may go on; when its next message was due, pauses added."""
        while not sequence.aborted:
            hold = self.hold_after_tokens
            if self.paused or (hold is not None and sequence.num_output >= hold):
                stopped_s = loop.time()
                await sequence.wake.wait()
                sequence.wake.clear()
                due_s = max(due_s, loop.time()) if due_s < stopped_s else due_s + loop.time() - stopped_s
                continue
            delay_s = due_s - loop.time()
            if delay_s <= 0:
                await asyncio.sleep(0)
                return due_s
            timer = loop.call_later(delay_s, sequence.wake.set)
            await sequence.wake.wait()
            timer.cancel()
            sequence.wake.clear()
        return due_s

    def _generate(self, sequence: Stream, count: int, unsent: list[int]) -> str | None:
        if not sequence.spans or sequence.spans[-1][0] != self.version:
            sequence.spans.append([self.version, sequence.num_output])
        for _ in range(count):
            token = next_token(sequence.context, self.weights, self.config.vocab_size)
            sequence.context.append(token)
            unsent.append(token)
            self.num_generated += 1
            if token in sequence.stop:
                return "stop"
        return "length" if sequence.num_output >= sequence.max_tokens else None

    def _hashes(self, context: Sequence[int]) -> list[int]:
        size, value, hashes = self.config.block_size, 0, []
        for start in range(0, len(context) - size + 1, size):
            value = hash((value, tuple(context[start : start + size])))
            hashes.append(value)
        return hashes

    def _lookup(self, context: Sequence[int]) -> int:
        """Tokens of the context that are cached; the last one is always computed."""
        hits = 0
        for value in self._hashes(context[:-1]):
            if value not in self._blocks:
                break
            hits += self.config.block_size
        self.prefix_queries += len(context)
        self.prefix_hits += hits
        return hits

    def _remember(self, context: Sequence[int]) -> None:
        self._blocks.update(self._hashes(context[:-1]))
