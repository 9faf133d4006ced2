"""Scheduling of the skipping engine at one boundary: rules E4 (where blocks lack) and E5, block ranges.

Everything here costs a few operations per chain of a path, except a boundary that preempts, which walks over
the running sequences as the reference does.
"""

from abc import abstractmethod

from sim.clock import Clock
from sim.engine.base import CostTable, EngineSpec, OnEnd, QueueOrder, Request
from sim.engine.blocks import BlockPool, Chain
from sim.engine.queue import rank
from sim.engine.shell import EngineShell
from sim.engine.skip_sequence import SkipSequence

Hits = list[tuple[Chain, int]]


class Admission(EngineShell):
    """The part of `SkipEngine` that deals with blocks and the queue."""

    def __init__(
        self, clock: Clock, index: int, spec: EngineSpec, cost: CostTable, on_end: OnEnd, weight_version: int
    ) -> None:
        super().__init__(clock, index, spec, cost, on_end, weight_version)
        self._block_size = self._spec.block_size
        self._pool = BlockPool(self._spec.num_blocks)
        self._running: dict[int, SkipSequence] = {}  # by admission number: oldest first
        self._prefilling: list[tuple[SkipSequence, int]] = []  # of the step in flight: (sequence, chunk)
        self._partial: SkipSequence | None = None  # running, not yet decoding; newer than all decoding
        self._num_decoding = 0
        self._most_decoding = min(self._spec.max_num_seqs, self._spec.max_num_batched_tokens)
        self._context = 0  # computed tokens of the decoding sequences
        self._iteration = 0  # steps ended
        self._growth = [0] * (2 * self._block_size)
        self._finishes: list[
            tuple[int, int, SkipSequence]
        ] = []  # heap: (iteration, admission number, sequence)
        self._num_admitted = 0
        self._head_may_grow = False  # hits of the blocked head may become more without a change of the batch

    @property
    def num_running(self) -> int:
        """Requests admitted and not preempted."""
        return len(self._running)

    def _new_sequence(self, request: Request) -> SkipSequence:
        return SkipSequence(request)

    @abstractmethod
    def _leave(self, seq: SkipSequence, taken: int = 0) -> None:
        """Out of the running set at a boundary; `taken` blocks of the step being scheduled go back, too."""

    def _arrival_matters(self) -> bool:
        """Whether an arrival could be admitted before the batch changes."""
        if self._waiting and self._spec.queue_order is QueueOrder.FCFS:
            return False
        return self._num_decoding < self._most_decoding

    def _growth_after(self, steps: int) -> int:
        """Blocks that iterations _iteration + 1 .. _iteration + steps take; that of _iteration is counted."""
        block_size = self._block_size
        cycles, rest = divmod(steps, block_size)
        first = (self._iteration + 1) % block_size
        return self._num_decoding * cycles + sum(self._growth[first : first + rest])

    # E4 where blocks lack

    def _schedule_tight(self) -> bool:
        """Walk over the running sequences in order, preempting; whether anybody was preempted."""
        pool = self._pool
        now_phase = self._iteration % self._block_size
        taken: dict[int, int] = {}
        preempted = False
        for seq in list(self._running.values()):
            if not seq.running:
                continue
            chunk = 0
            if seq.decoding:
                needed = 1 if seq.phase == now_phase else 0
            else:
                chunk = min(seq.known - seq.computed, self._spec.max_num_batched_tokens - self._num_decoding)
                needed = self._blocks_of_chunk(seq, chunk)
            while seq.running and needed > pool.free + pool.evictable:
                victim = self._victim()
                self._preempt(victim, taken.get(victim.admit_no, 0))
                preempted = True
            if seq.running:
                pool.take(needed)
                taken[seq.admit_no] = needed
                if chunk:
                    self._schedule_chunk(seq, chunk)
        return preempted

    def _victim(self) -> SkipSequence:
        running = self._running
        if self._spec.queue_order is QueueOrder.PRIORITY:
            return max(running.values(), key=rank)
        return running[next(reversed(running))]

    def _preempt(self, seq: SkipSequence, taken: int) -> None:
        self._leave(seq, taken)
        request = seq.request
        seq.lost = max(seq.lost, seq.computed)
        seq.known = request.prompt_tokens + request.num_emitted
        request.num_preemptions += 1
        self.counters.num_preemptions += 1
        self._queue.push_back(seq)

    # E5

    def _admit(self, budget: int) -> bool:
        """Admit from the head of the queue; whether it is blocked with requests left in it."""
        waiting = self._waiting
        running = self._running
        spec = self._spec
        pool = self._pool
        block_size = self._block_size
        self._head_may_grow = False
        while waiting:
            if budget <= 0 or len(running) >= spec.max_num_seqs:
                return True
            seq: SkipSequence = waiting[0]
            known = seq.known
            hits, num_hits, unreferenced = self._lookup(seq)
            last_block = (known - 1) // block_size
            cached = (num_hits if num_hits < last_block else last_block) * block_size
            chunk = known - cached
            if chunk > budget:
                chunk = budget
            needed = (cached + chunk + block_size - 1) // block_size - num_hits
            if needed < 0:
                needed = 0
            watermark = spec.watermark_blocks if running else 0
            if needed > pool.free + pool.evictable - unreferenced - watermark:
                return True
            self._head_may_grow = False
            self._queue.pop_head()
            self._start_running(seq, hits, num_hits, cached)
            pool.take(needed)
            self._schedule_chunk(seq, chunk)
            budget -= chunk
        return False

    def _lookup(self, seq: SkipSequence) -> tuple[Hits, int, int]:
        """Resident ranges at the start of the context, their blocks, and how many of them nobody references."""
        hits: Hits = []
        num_hits = unreferenced = 0
        if not self._spec.enable_prefix_caching:
            return hits, 0, 0
        chains = self._pool.chains
        path = seq.request.path
        left = seq.known // self._block_size
        rest = len(path)
        for chain_id, count in path:
            rest -= 1
            wanted = count if rest else left
            chain = chains.get(chain_id)
            found = 0
            if chain is not None:
                writer = chain.writer
                if writer is None:
                    found = chain.resident
                    if found > wanted:
                        found = wanted
                    if found > chain.top:
                        unreferenced += found - chain.top
                else:
                    self._head_may_grow = True
                    found = min(self._scheduled_end(writer, chain), wanted)
                if found:
                    hits.append((chain, found))
                    num_hits += found
            if found < wanted:
                break
            left -= wanted
        return hits, num_hits, unreferenced

    def _scheduled_end(self, writer: SkipSequence, chain: Chain) -> int:
        """Full blocks of a chain that its writer will have filled when the step being scheduled ends."""
        tokens = writer.computed
        if writer.decoding:
            tokens += self._iteration - writer.begin + 1
        else:
            tokens = next(seq.computed + chunk for seq, chunk in self._prefilling if seq is writer)
        start = next(start for claimed, start, _ in writer.claims if claimed is chain)
        return max(tokens // self._block_size - start, chain.resident)

    def _start_running(self, seq: SkipSequence, hits: Hits, num_hits: int, cached: int) -> None:
        request = seq.request
        seq.running = True
        seq.admit_no = admit_no = self._num_admitted
        self._num_admitted = admit_no + 1
        self._running[admit_no] = seq
        seq.computed = cached
        seq.num_hits = num_hits
        self._claim(seq, hits, num_hits)
        self.counters.cached_tokens += cached
        if request.started_t < 0:
            request.started_t = self._clock.now
            request.cached_tokens = cached

    def _claim(self, seq: SkipSequence, hits: Hits, num_hits: int) -> None:
        """Reference the hits; find the chains that `seq` will add to, and where it may not."""
        pool = self._pool
        seq.private_from = None
        seq.ranges = ranges = []
        seq.claims = claims = []
        path = seq.request.path
        if not path or not self._spec.enable_prefix_caching:
            seq.private_from = num_hits
            return
        found_of = dict(hits)
        start = 0
        rest = len(path)
        for chain_id, count in path:
            rest -= 1
            end = start + count if rest else None
            if end is not None and end <= num_hits:
                if count:
                    chain = pool.chains[chain_id]
                    pool.reference(chain, count)
                    ranges.append((chain, count))
            elif count or not rest:
                # The first chain that is not found whole, or one after it, of which nothing is found.
                chain = pool.chain(chain_id)
                found = found_of.get(chain, 0)
                if chain.writer is not None or chain.top > found:
                    seq.private_from = start + found
                    if found:
                        pool.reference(chain, found)
                        ranges.append((chain, found))
                    return
                pool.claim(chain, found, seq)
                claims.append((chain, start, end))
            start += count

    # Block ranges

    def _blocks_of_chunk(self, seq: SkipSequence, chunk: int) -> int:
        """New blocks that `chunk` more prefill tokens need."""
        block_size = self._block_size
        held = max(-(-seq.computed // block_size), seq.num_hits)
        return max(-(-(seq.computed + chunk) // block_size) - held, 0)

    def _schedule_chunk(self, seq: SkipSequence, chunk: int) -> None:
        """Put a chunk into the step; with the last one the closed chains of the path are complete."""
        self._prefilling.append((seq, chunk))
        claims = seq.claims
        if claims and claims[0][2] is not None and seq.computed + chunk == seq.known:
            seq.claims = []
            for claim in claims:
                chain, start, end = claim
                if end is None:
                    seq.claims = [claim]
                else:
                    self._pool.settle_claim(chain, end - start)
                    seq.ranges.append((chain, end - start))

    def _release(self, seq: SkipSequence, taken: int) -> None:
        """Give all blocks back, last block first: private and partly filled ones, then chain by chain."""
        pool = self._pool
        block_size = self._block_size
        computed = seq.computed
        num_hits = seq.num_hits
        held = (computed + block_size - 1) // block_size
        full = computed // block_size
        if full < num_hits:
            full = num_hits
            if held < full:
                held = full
        private_from = seq.private_from
        if private_from is not None and full > private_from:
            full = private_from
        pool.free += held + taken - full
        for chain, start, end in reversed(seq.claims):
            filled = (full if end is None or full < end else end) - start
            pool.release_claim(chain, filled if filled > 0 else 0)
        for chain, end in reversed(seq.ranges):
            pool.release(chain, end)

    def _forget_cache(self) -> None:
        self._pool.forget_all()
