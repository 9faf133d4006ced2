"""One serving replica: the contract that both engine implementations fulfil to the bit.

The model follows vLLM's V1 scheduler. Rules, in the order of a step boundary:

E1. A step ends: every decoding sequence of the step has one more token; a prefill that reached its last
    prompt token emits its first token and decodes from the next step on. A request of L output tokens takes
    its first token from its last prefill step and L - 1 decode steps. KV exists for all its tokens but the
    newest.
E2. Requests that have all their tokens finish, oldest running first; then aborted ones leave. Their blocks are
    released, last block first. Callbacks run now, and what they submit takes part in the scheduling of this
    boundary.
E3. Pause (weight load), when asked for, begins here. A paused engine holds its blocks and schedules nothing.
E4. Scheduling of the next step, with `max_num_batched_tokens` as budget: first the running sequences in the
    order of admission (a decode takes 1 token, a partial prefill min(rest, budget left)); each needs KV
    blocks for its computed tokens plus the new ones. If blocks lack, the newest running request is preempted
    (under `priority` order: the one with the highest (priority, arrival)) until there are enough or the
    request itself was the one. A preempted request loses its blocks (which stay in the prefix cache while
    nobody needs them), goes to the front of the waiting queue (under `priority`: to its place in it) and later
    prefills prompt + generated tokens again.
E5. If nobody was preempted in this boundary, waiting requests are admitted from the head of the queue while
    budget is left and fewer than `max_num_seqs` run: prefix-cache hits first, then a chunk of
    min(rest, budget left). The chunk's blocks must be available, `watermark_blocks` aside; if not, admission
    stops (the head blocks the queue).
E6. The step starts, with a duration from the cost table. No scheduled token: the engine is idle.

KV blocks hold `block_size` tokens. Prefix cache: the context of a request is a `path` of chains, e.g. the
prompt shared by its GRPO group, then its own trajectory. A block is known by (chain, index in the chain). A
full block can be hit as soon as it has been scheduled. A lookup walks the path from the start, stops at the
first block that is not resident, and never covers the last token of the context (one token must be computed).
Blocks that nobody references stay resident and are evicted least recently released first, within one release
from the last block of the context to the first; blocks that hold no cacheable content (not full) go back to
the free list at once, and the free list is used before anything is evicted. The last chain of a path is open:
it takes all full blocks after those of the chains before it.

Ties in time follow `sim.clock`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from libra.core.ids import FailureKind
from libra.cost.rollout import ReplicaCost
from sim.clock import TICKS_PER_S


class QueueOrder(StrEnum):
    """Order of the waiting queue."""

    FCFS = "fcfs"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Scheduler settings of a replica, with the names and defaults of vLLM."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 40960
    block_size: int = 16
    num_blocks: int = 16384
    enable_prefix_caching: bool = True
    queue_order: QueueOrder = QueueOrder.FCFS
    watermark_blocks: int = 0
    keep_cache_on_load: bool = False
    """Keep prefix blocks made by old weights over a weight load."""


class CostTable:
    """A replica's step times in ticks. Linear in its coefficients, so a slow replica is a scaled table.

    `base[B]` and `per_context[B]` give a decode step of B sequences with C context tokens:
    base[B] + per_context[B] * C. Coefficients are integers >= 0, every step takes at least one tick.
    """

    __slots__ = ("attention", "base", "floor", "per_context", "prefill_base", "prefill_token", "seq")

    def __init__(
        self,
        base: list[int],
        per_context: list[int],
        seq: int,
        prefill_base: int,
        prefill_token: int,
        attention: int,
        floor: int,
    ) -> None:
        self.base = base
        self.per_context = per_context
        self.seq = seq
        self.prefill_base = prefill_base
        self.prefill_token = prefill_token
        self.attention = attention  # femto-ticks (1e-3 tick) per (token x context token)
        self.floor = floor

    @classmethod
    def from_cost(cls, cost: ReplicaCost, max_num_seqs: int, slowdown: float = 1.0) -> "CostTable":
        """Quantise a cost in seconds; `slowdown` > 1 makes a straggler."""
        scale = TICKS_PER_S * slowdown
        seq = round(cost.decode_per_seq_s * scale)
        base = max(1, round(cost.decode_base_s * scale))
        context = round(cost.decode_per_context_token_s * scale)
        return cls(
            base=[base + seq * batch for batch in range(max_num_seqs + 1)],
            per_context=[context] * (max_num_seqs + 1),
            seq=seq,
            prefill_base=max(1, round(cost.prefill_base_s * scale)),
            prefill_token=round(cost.prefill_per_token_s * scale),
            attention=round(cost.prefill_per_attention_s * scale * 1000),
            floor=max(1, round(cost.prefill_floor_s * scale)),
        )

    def mixed(self, batch: int, context_tokens: int, prefill_tokens: int, attention_x2: int) -> int:
        """Ticks of a step with prefill; `attention_x2` = sum of chunk * (2 * tokens before + chunk)."""
        total = (
            self.prefill_base
            + self.seq * batch
            + self.per_context[batch] * context_tokens
            + self.prefill_token * prefill_tokens
            + self.attention * attention_x2 // 2000
        )
        return total if total > self.floor else self.floor


Path = tuple[tuple[int, int], ...]
"""Chains of a request's context, from the start: (chain id, full blocks taken from it). The last entry's count
is ignored: that chain is open."""


class Request:
    """One turn on an engine: what is asked, and after its end what was measured (ticks).

    `output_tokens` is how many tokens it will generate: known to the world, never shown to a policy.
    """

    __slots__ = (
        "arrival_index",
        "cached_tokens",
        "end_t",
        "first_token_t",
        "num_emitted",
        "num_preemptions",
        "output_tokens",
        "path",
        "priority",
        "prompt_tokens",
        "recomputed_tokens",
        "request_id",
        "started_t",
        "state",
        "submitted_t",
        "version_first",
        "version_last",
        "version_token_sum",
    )

    def __init__(
        self,
        request_id: int,
        prompt_tokens: int,
        output_tokens: int,
        path: Path,
        priority: int = 0,
    ) -> None:
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.path = path
        self.priority = priority
        self.arrival_index = -1
        self.submitted_t = -1
        self.started_t = -1
        self.first_token_t = -1
        self.end_t = -1
        self.num_emitted = 0
        self.cached_tokens = -1
        self.recomputed_tokens = 0
        self.num_preemptions = 0
        self.version_first = -1
        self.version_last = -1
        self.version_token_sum = 0
        self.state: object = None  # the implementation's own bookkeeping while the request is on it


OnEnd = Callable[[Request, FailureKind | None], None]
"""Called once per submitted request, at its end: `None` for success."""


@dataclass(slots=True)
class EngineCounters:
    """Deterministic totals of one engine; equal in both implementations except `num_wakes`."""

    busy_t: int = 0
    paused_t: int = 0
    num_steps: int = 0
    num_wakes: int = 0
    output_tokens: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    num_preemptions: int = 0
    num_refused: int = 0


class Engine(Protocol):
    """A replica of either implementation. All methods return at once."""

    counters: EngineCounters
    weight_version: int

    def submit(self, request: Request) -> None:
        """Queue a request. One that can never fit is refused: `on_end(request, PROMPT_TOO_LONG)` at once.

        It cannot fit when prompt + output tokens exceed `max_model_len` or the blocks for prompt + output - 1
        tokens exceed the replica's.
        """
        ...

    def abort(self, request: Request) -> None:
        """End a request: at once when it waits, at the next step boundary when it runs."""
        ...

    def load_weights(self, version: int, duration_t: int, on_loaded: Callable[[int], None]) -> None:
        """Pause at the next boundary for `duration_t`, then serve `version`; `on_loaded(start tick)`.

        Unless `keep_cache_on_load`, unreferenced prefix blocks are forgotten and referenced ones (and those
        that the requests running at the load add later) can no longer be hit: they were made by the old
        weights, at least in part. Running requests keep theirs. A second load queues behind the first.
        """
        ...

    def pause(self) -> None:
        """Hold after the step in flight until `resume`. Pauses nest."""
        ...

    def resume(self) -> None:
        """End one pause."""
        ...

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Call back once nothing runs or waits."""
        ...

    def stop(self, kind: FailureKind) -> None:
        """End at once: every request ends with `kind`, tokens of completed steps are kept."""
        ...

    def set_cost(self, cost: CostTable) -> None:
        """Change the step times from the next step on (straggler faults)."""
        ...

    def settle(self) -> None:
        """Bring `counters` up to the current tick, counting steps that have ended."""
        ...

    @property
    def num_running(self) -> int:
        """Requests admitted and not preempted."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests queued."""
        ...

    def used_blocks(self) -> int:
        """Blocks referenced by running requests at the current tick."""
        ...
