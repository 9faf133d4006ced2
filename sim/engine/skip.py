"""The event-skipping engine: the steps between two changes of its batch in closed form, to the tick.

While only decoding sequences run, step j of a segment lasts alpha + beta * j: the batch is fixed and each step
adds one token to each context. So a segment of k steps is one wake. It ends where the first sequence finishes,
where KV blocks would run out, or at the next boundary after something that the boundary must see (a request
that may be admitted, an abort, a pause, a load, new costs). Steps with prefill are made one by one.

Nothing is written per token: a sequence remembers where it began to decode, and iteration counter, version sum
and block growth are totals of the engine. `growth[i % block_size]` decoding sequences need a new block when
iteration i is scheduled (kept twice in a row, so that a range never wraps).

Wakes carry a version; a cut raises the engine's version, so at most one wake is live.
"""

from heapq import heappop, heappush

from sim.engine.base import Request
from sim.engine.blocks import BlockPool
from sim.engine.flight import Flight
from sim.engine.holds import BUSY
from sim.engine.recount import recount
from sim.engine.segment import steps_until_blocks_lack
from sim.engine.skip_sequence import SkipSequence


class SkipEngine(Flight):
    """A replica that jumps from one change of its batch to the next. See `sim.engine.base.Engine`."""

    def settle(self) -> None:
        """Bring `counters` up to the current tick, counting steps that have ended."""
        self._catch_up()
        self._settle_rest()

    def used_blocks(self) -> int:
        """Blocks referenced by running requests at the current tick."""
        self._catch_up()
        return self._spec.num_blocks - self._pool.free - self._pool.evictable

    # E1

    def _complete(self) -> list[Request]:
        steps = self._steps
        if steps > 1:
            self._pool.take(self._growth_after(steps - 1))
        self._advance(steps)
        last = self._alpha - self._beta
        self._step_began_t = self._since - last
        if not self._prefilling:
            host = self._cost.decode_host[self._num_decoding]
            self._head_start = last - host if last > host else 0
        finished: list[Request] = []
        finishes = self._finishes
        while finishes and finishes[0][0] <= self._iteration:
            finish, admit_no, seq = heappop(finishes)
            if seq.decoding and seq.admit_no == admit_no and seq.finish == finish:
                self._leave(seq)
                finished.append(seq.request)
        if self._prefilling:
            self._complete_prefills(finished)
        return finished

    def _complete_prefills(self, finished: list[Request]) -> None:
        counters = self.counters
        version = self._step_version
        self._partial = None
        prefilling, self._prefilling = self._prefilling, []
        for seq, chunk in prefilling:
            computed = seq.computed
            counters.prefill_tokens += chunk
            if seq.lost > computed:
                again = min(seq.lost - computed, chunk)
                seq.request.recomputed_tokens += again
                counters.recomputed_tokens += again
            seq.computed = computed = computed + chunk
            if computed < seq.known:
                self._partial = seq
                continue
            counters.output_tokens += 1
            request = seq.request
            if request.first_token_t < 0:
                request.first_token_t = self._since
                request.version_first = version
            request.num_emitted += 1
            request.version_token_sum += version
            request.version_last = version
            rest = request.output_tokens - request.num_emitted
            if rest:
                self._join_decoding(seq, rest)
            else:
                self._leave(seq)
                finished.append(request)

    def _join_decoding(self, seq: SkipSequence, rest: int) -> None:
        iteration = self._iteration
        seq.decoding = True
        seq.begin = iteration
        seq.finish = finish = iteration + rest
        seq.version_base = self._version_sum
        seq.phase = phase = (iteration - seq.computed) % self._block_size
        self._growth[phase] += 1
        self._growth[phase + self._block_size] += 1
        self._num_decoding += 1
        self._context += seq.computed
        heappush(self._finishes, (finish, seq.admit_no, seq))

    def _leave(self, seq: SkipSequence, taken: int = 0) -> None:
        """Out of the running set at a boundary; `taken` blocks of the step being scheduled go back, too."""
        if seq.decoding:
            steps = self._iteration - seq.begin
            seq.decoding = False
            seq.computed = computed = seq.computed + steps
            request = seq.request
            if steps:
                request.num_emitted += steps
                request.version_token_sum += self._version_sum - seq.version_base
                request.version_last = self._ended_version
            phase = seq.phase
            self._growth[phase] -= 1
            self._growth[phase + self._block_size] -= 1
            self._num_decoding -= 1
            self._context -= computed
        elif seq is self._partial:
            self._partial = None
        seq.running = False
        del self._running[seq.admit_no]
        self._release(seq, taken)

    # E4

    def _schedule(self) -> bool:
        pool = self._pool
        iteration = self._iteration
        needed = self._growth[iteration % self._block_size]
        preempted = False
        partial = self._partial
        budget = self._spec.max_num_batched_tokens - self._num_decoding
        if partial is None:
            if needed:
                if needed <= pool.free + pool.evictable:
                    pool.take(needed)
                else:
                    preempted = self._schedule_tight()
        else:
            chunk = min(partial.known - partial.computed, budget)
            chunk_blocks = self._blocks_of_chunk(partial, chunk)
            if needed + chunk_blocks <= pool.free + pool.evictable:
                pool.take(needed)
                pool.take(chunk_blocks)
                self._schedule_chunk(partial, chunk)
                budget -= chunk
            else:
                preempted = self._schedule_tight()
        blocked = False
        if self._waiting and not preempted:
            blocked = self._admit(budget)
        return self._start_segment(preempted or (blocked and self._head_may_grow))

    def _start_segment(self, one_step: bool) -> bool:
        """Rule E6, and how many steps the segment has: one if the queue must be looked at after it."""
        batch = self._num_decoding
        cost = self._cost
        if self._prefilling:
            tokens = attention_x2 = num_prefills = 0
            for seq, chunk in self._prefilling:
                num_prefills += 1
                tokens += chunk
                attention_x2 += chunk * (2 * seq.computed + chunk)
            gpu = cost.mixed(batch, self._context + batch, tokens, attention_x2)
            alpha = self._with_host(gpu, batch + tokens, batch + num_prefills)
            beta = 0
            steps = 1
        elif batch:
            per_context = cost.per_context[batch]
            alpha = cost.base[batch] + per_context * (self._context + batch)
            beta = per_context * batch
            steps = 1 if one_step and self._waiting else self._segment_steps(batch)
            host = cost.decode_host[batch]
            if host > alpha:
                # The host is the slower one until the contexts have grown enough.
                if beta:
                    steps = min(steps, (host - alpha + beta - 1) // beta)
                alpha, beta = host, 0
        else:
            return False
        self._step_version = self.weight_version
        self._alpha = alpha
        self._beta = beta
        if steps > 1 and self._arriving and self._arrival_matters():
            steps = min(steps, self._steps_until_seen(self._clock.now))
        self._steps = steps
        self._wake_in(alpha if steps == 1 else alpha * steps + beta * (steps * (steps - 1) // 2))
        return True

    def _segment_steps(self, batch: int) -> int:
        """Steps until a sequence finishes or blocks lack."""
        finishes = self._finishes
        while True:
            finish, admit_no, seq = finishes[0]
            if seq.decoding and seq.admit_no == admit_no and seq.finish == finish:
                break
            heappop(finishes)
        steps = finish - self._iteration
        block_size = self._block_size
        available = self._pool.free + self._pool.evictable
        if available >= batch * (steps // block_size + 1):
            return steps
        return steps_until_blocks_lack(self._growth, self._iteration, batch, available, steps)

    # End of life, and what tests look at.

    def _halt(self) -> list[SkipSequence]:
        self._catch_up()
        if self._state == BUSY and not self._in_boundary:
            self.counters.busy_t += self._clock.now - self._since
        running = list(self._running.values())
        for seq in running:
            self._leave(seq)
        self._prefilling.clear()
        self._pool = BlockPool(self._spec.num_blocks)
        return running

    def check(self) -> None:
        """Recount all totals from the sequences; AssertionError if one is wrong. Ends no segment."""
        self._catch_up()
        recount(self, self._state == BUSY and not self._in_boundary)
