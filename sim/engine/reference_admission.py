"""Admission on the reference engine (rule E5): prefix hits block by block, and who may add to which chain."""

from sim.clock import Clock
from sim.engine.base import CostTable, EngineSpec, OnEnd
from sim.engine.reference_blocks import Block, BlockTable
from sim.engine.reference_sequence import ReferenceSequence
from sim.engine.shell import EngineShell


class ReferenceAdmission(EngineShell):
    """The part of `ReferenceEngine` that deals with the queue and the hash table."""

    def __init__(
        self, clock: Clock, index: int, spec: EngineSpec, cost: CostTable, on_end: OnEnd, weight_version: int
    ) -> None:
        super().__init__(clock, index, spec, cost, on_end, weight_version)
        self._table = BlockTable(self._spec.num_blocks)
        self._decoding: list[ReferenceSequence] = []  # oldest first
        self._prefilling: list[tuple[ReferenceSequence, int]] = []  # of the step in flight: (sequence, chunk)
        self._partial: ReferenceSequence | None = None  # running, not yet decoding; newer than all decoding
        self._writers: dict[int, ReferenceSequence] = {}  # open chain -> the running request that adds to it
        self._generation = 0
        self._num_admitted = 0

    def _admit(self, budget: int) -> None:
        spec = self._spec
        while (
            self._waiting and budget > 0 and len(self._decoding) + len(self._prefilling) < spec.max_num_seqs
        ):
            seq: ReferenceSequence = self._waiting[0]
            hits = self._lookup(seq)
            cached = min(len(hits), (seq.known - 1) // spec.block_size) * spec.block_size
            chunk = min(seq.known - cached, budget)
            needed = max(-(-(cached + chunk) // spec.block_size) - len(hits), 0)
            available = self._table.num_available
            if self._decoding or self._prefilling:
                available -= spec.watermark_blocks
            if needed > available - len(hits):  # hits that nobody references are not available for new tokens
                unreferenced = [block.references for block in hits].count(0)
                if needed > available - unreferenced:
                    return
            self._queue.pop_head()
            self._start_running(seq, hits, cached)
            self._table.take(needed, seq.blocks)
            self._register_full(seq, chunk)
            self._prefilling.append((seq, chunk))
            budget -= chunk

    def _lookup(self, seq: ReferenceSequence) -> list[Block]:
        """Resident blocks at the start of the context."""
        hits: list[Block] = []
        if not self._spec.enable_prefix_caching:
            return hits
        full = seq.known // self._spec.block_size
        for chain, start, end in seq.segments:
            wanted = (full if end is None else end) - start
            run = self._table.hit_run(chain, wanted)
            hits += run
            if len(run) < wanted:
                break
        return hits

    def _start_running(self, seq: ReferenceSequence, hits: list[Block], cached: int) -> None:
        request = seq.request
        seq.running = True
        seq.admit_no = self._num_admitted
        self._num_admitted += 1
        seq.computed = cached
        seq.generation = self._generation
        self._table.reference(hits)
        seq.blocks = hits
        seq.num_hits = len(hits)
        self._claim_chains(seq, len(hits))
        self.counters.cached_tokens += cached
        if request.started_t < 0:
            request.started_t = self._clock.now
            request.cached_tokens = cached

    def _claim_chains(self, seq: ReferenceSequence, num_hits: int) -> None:
        """Forget other continuations where `seq` will add blocks; find where it may not add."""
        table = self._table
        seq.private_from = num_hits
        if not self._spec.enable_prefix_caching:
            return
        for chain, start, end in seq.segments:
            if end is not None and (end <= num_hits or end == start):
                continue
            first = max(start, num_hits)
            block = table.get(chain, first - start)
            # A hit block that `seq` itself references lies before `first`.
            if chain in self._writers or (block is not None and block.references):
                seq.private_from = first
                return
            table.forget_from(chain, first - start)
            if end is None:
                self._writers[chain] = seq
                seq.private_from = self._spec.num_blocks + 1

    def _register_full(self, seq: ReferenceSequence, tokens: int) -> None:
        """Enter the blocks that `tokens` more will fill, as far as they are not private, in the hash table."""
        if seq.generation != self._generation:
            return
        block_size = self._spec.block_size
        end = min((seq.computed + tokens) // block_size, seq.private_from)
        position = seq.computed // block_size
        for chain, start, segment_end in seq.segments:
            while position < end and (segment_end is None or position < segment_end):
                block = seq.blocks[position]
                if block.chain is None:  # else it was a hit whose tokens are computed again
                    self._table.register(block, chain, position - start)
                position += 1
