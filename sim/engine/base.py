"""One serving replica: the contract that both engine implementations fulfil to the bit.

The model follows vLLM's V1 scheduler. Rules, in the order of a step boundary:

E1. A step ends: every decoding sequence of the step has one more token; a prefill that reached its last
    prompt token emits its first token and decodes from the next step on. A request of L output tokens takes
    its first token from its last prefill step and L - 1 decode steps. KV exists for all its tokens but the
    newest.
E2. Requests that have all their tokens finish, oldest running first; then aborted ones leave, in the order of
    the aborts. All their blocks are released, last block first, before the first callback. Callbacks run now,
    and what they submit or abort takes part in this boundary.
E3. Pause (`pause`, weight load), when asked for, begins here. A paused engine holds its blocks and schedules
    nothing. Loads go before the rest of the pause.
E4. Scheduling of the next step, with `max_num_batched_tokens` as budget: first the running sequences in the
    order of admission (a decode takes 1 token, a partial prefill min(rest, budget left)); each needs KV
    blocks for its computed tokens plus the new ones. If blocks lack, the newest running request is preempted
    (under `priority` order: the one with the highest (priority, arrival)) until there are enough or the
    request itself was the one. A preempted request loses its blocks (which stay in the prefix cache while
    nobody needs them) and what this boundary had already scheduled for it, goes to the front of the waiting
    queue (under `priority`: to its place in it) and later prefills prompt + generated tokens again.
E5. A request becomes visible to the scheduler `admission` ticks after its submission, and `admission_seq` more for
    each request that runs then (what the engine spends on it outside the steps: transport, tokenizer, a front end
    that also streams the tokens of the others), and no earlier than those submitted before it. A
    boundary queues what became visible by then; with `lag`, only what had become visible by the start of the
    step that ends: an engine that schedules a step while the one before it runs decides that early. An engine
    at rest starts at once.
    If nobody was preempted in this boundary, waiting requests are admitted from the head of the queue while
    budget is left and fewer than `max_num_seqs` run: prefix-cache hits first, then a chunk of
    min(rest, budget left). The chunk's blocks must be available, `watermark_blocks` aside (unless nothing
    runs); if not, admission stops (the head blocks the queue).
E6. The step starts, with a duration from the cost table, which holds the host's least time of a decode step where
    there is one. A decoding sequence counts with all its tokens, the
    one that the step feeds included. A step with prefill also waits for the host to launch it: it ends no sooner
    than `host` ticks after the host began. That is the step's start; with `lag`, the host may have begun before, as
    soon as it was done with the step that ended (a decode step took it decode_host) and no sooner than that one's
    start. No scheduled token: the engine
    is idle.

KV blocks hold `block_size` tokens. Prefix cache: the context of a request is a `path` of distinct chains, e.g.
the prompt shared by its GRPO group, then its own trajectory. A block is known by (chain, index in the chain).
A full block can be hit as soon as it has been scheduled. A lookup walks the path from the start and stops at
the first block that is not resident. The last token of the context is always computed: the block that holds it
may be shared, but its tokens are computed again.
Blocks that nobody references stay resident and are evicted least recently released first, within one release
from the last block of the context to the first; blocks that hold no cacheable content (not full) go back to
the free list at once, and the free list is used before anything is evicted. The last chain of a path is open:
it takes all full blocks after those of the chains before it.

Who may add to a chain. A request admitted with its hits ending at index x of a chain will add the chain's
blocks from x on. What is resident from x on is then another, older continuation: it is forgotten, and its
blocks go to the free list. Where that may not be (a running request references a block from x on, or has this
chain as its own open chain), the newcomer's blocks from there to its end are private: never hit, freed at
release. vLLM would keep both continuations, which takes block identity by content; with this rule a chain's
resident blocks are always [0, n) and every request references a leading range of them.

Ties in time follow `sim.clock`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from libra.core.ids import FailureKind
from sim.engine.cost import CostTable
from sim.engine.spec import EngineSpec as EngineSpec
from sim.engine.spec import QueueOrder as QueueOrder

Path = tuple[tuple[int, int], ...]
"""Chains of a request's context, from the start: (chain id, full blocks taken from it). Chain ids are integers
>= 0, no chain twice. The last entry's count is ignored: that chain is open. The counts before it fit in the
prompt. An empty path is a context that nobody shares."""


class Request:
    """One turn on an engine: what is asked, and after its end what was measured (ticks).

    `output_tokens` is how many tokens it will generate: known to the world, never shown to a policy.
    Results (valid from its end on; -1 where it never got so far):
    `started_t` first admission; `first_token_t`; `end_t`; `num_emitted` tokens generated;
    `cached_tokens` prompt tokens found in the prefix cache at the first admission;
    `recomputed_tokens` tokens prefilled whose KV it had had before a preemption;
    `version_first`, `version_last`, `version_token_sum`: weight versions of its tokens, summed over them.
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
    """Deterministic totals of one engine; equal in both implementations except `num_wakes`.

    `busy_t`, `paused_t`, `idle_t`: ticks in steps (a step that a stop cuts off counts up to there), held by a
    pause or load, and neither; they sum to the engine's life up to the last `settle` if no step is in flight.
    `prefill_tokens` are those of ended steps, recomputed ones included; `cached_tokens` the prefix hits of all
    admissions, those after a preemption included.
    """

    busy_t: int = 0
    paused_t: int = 0
    idle_t: int = 0
    num_steps: int = 0
    num_wakes: int = 0
    output_tokens: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    num_preemptions: int = 0
    num_refused: int = 0


class Engine(Protocol):
    """A replica of either implementation. All methods return at once and may be called from any callback."""

    counters: EngineCounters
    weight_version: int

    def submit(self, request: Request) -> None:
        """Queue a request. One that can never fit is refused: `on_end(request, PROMPT_TOO_LONG)` at once.

        It cannot fit when prompt + output tokens exceed `max_model_len` or the blocks for prompt + output - 1
        tokens exceed the replica's. After a stop it ends at once with the stop's kind.
        """
        ...

    def abort(self, request: Request) -> None:
        """End a request: at once when it waits or no step is in flight, else at the next step boundary.

        No effect on a request that has ended; one that finishes at that boundary ends with success.
        """
        ...

    def load_weights(self, version: int, duration_t: int, on_loaded: Callable[[int], None]) -> None:
        """Pause at the next boundary for `duration_t`, then serve `version`; `on_loaded(start tick)`.

        Unless `keep_cache_on_load`, at the end of the load unreferenced prefix blocks are forgotten and
        referenced ones (and those that the requests running at the load add later) can no longer be hit: they
        were made by the old weights, at least in part. Running requests keep theirs. A second load queues
        behind the first. A stopped engine ends no load.
        """
        ...

    def pause(self) -> None:
        """Hold after the step in flight until `resume`. Pauses nest."""
        ...

    def resume(self) -> None:
        """End one pause. Before the step in flight has ended: as if it had never been asked for."""
        ...

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Call back once nothing runs or waits; at once where that is so. In E2: after the callbacks."""
        ...

    def stop(self, kind: FailureKind) -> None:
        """End at once: every request ends with `kind`, tokens of completed steps are kept.

        Running ones first, in the order of admission, then the others in that of arrival. Final; the step in
        flight is lost.
        """
        ...

    def set_cost(self, cost: CostTable) -> None:
        """Change the step times from the next step on (straggler faults)."""
        ...

    def settle(self) -> None:
        """Bring `counters` up to the current tick, counting steps that have ended."""
        ...

    def check(self) -> None:
        """Recount all state from the sequences and blocks; AssertionError if a total is wrong. Slow."""
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
