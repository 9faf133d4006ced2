"""The reference engine: touches every token of every step and every KV block, one wake per step.

It is the yardstick for `sim.engine.skip`, so it follows the rules E1-E6 of `sim.engine.base` literally and
keeps no running totals that could drift: a step's batch and context are summed anew from its sequences.
"""

from collections import Counter
from typing import Any

from simpy.events import Event

from sim.clock import STEP, Clock
from sim.engine.base import CostTable, EngineSpec, OnEnd, QueueOrder, Request
from sim.engine.holds import BUSY
from sim.engine.queue import admission_order, rank
from sim.engine.reference_admission import ReferenceAdmission
from sim.engine.reference_blocks import Block
from sim.engine.reference_sequence import ReferenceSequence


class ReferenceEngine(ReferenceAdmission):
    """A replica, step by step. See `sim.engine.base.Engine`."""

    def __init__(
        self, clock: Clock, index: int, spec: EngineSpec, cost: CostTable, on_end: OnEnd, weight_version: int
    ) -> None:
        super().__init__(clock, index, spec, cost, on_end, weight_version)
        self._ended_version = self.weight_version  # weights of the latest step that has ended
        self._was_preempted = False  # anybody, in this boundary

    @property
    def num_running(self) -> int:
        """Requests admitted and not preempted."""
        return len(self._running())

    def used_blocks(self) -> int:
        """Blocks referenced by running requests at the current tick."""
        return self._spec.num_blocks - self._table.num_available

    def settle(self) -> None:
        """Bring `counters` up to the current tick; ended steps are counted already."""
        self._settle_rest()

    def _running(self) -> list[ReferenceSequence]:
        prefilling = [seq for seq, _ in self._prefilling]
        if self._partial is not None and self._partial not in prefilling:
            prefilling.append(self._partial)
        return self._decoding + [seq for seq in prefilling if seq.running]

    def _new_sequence(self, request: Request) -> ReferenceSequence:
        return ReferenceSequence(request)

    def _arrived(self, seq: Any) -> None:
        pass  # every boundary looks at the queue

    def _arrived_unseen(self, seq: Any) -> None:
        pass  # every boundary looks at the arrivals

    def _need_boundary(self) -> None:
        pass  # there is one after every step

    # E1

    def _on_step_end(self, event: Event) -> None:
        if self._state == BUSY:
            self._boundary()

    def _complete(self) -> list[Request]:
        now: int = self._env._now
        counters = self.counters
        counters.num_steps += 1
        counters.busy_t += now - self._since
        self._step_began_t = self._since
        if not self._prefilling:
            host = self._cost.decode_host[len(self._decoding)]
            self._head_start = max(0, now - self._since - host)
        self._since = now
        version = self.weight_version
        finished: list[ReferenceSequence] = []
        for seq in self._decoding:
            computed = seq.computed + 1
            seq.computed = computed
            seq.emitted_versions += version
            if computed == seq.end_computed:
                finished.append(seq)
        counters.output_tokens += len(self._decoding)
        self._ended_version = version
        if self._prefilling:
            prefilling, self._prefilling = self._prefilling, []
            self._partial = None
            for seq, chunk in prefilling:
                self._complete_chunk(seq, chunk, finished)
        if not finished:
            return []
        for seq in finished:
            self._leave(seq)
        return [seq.request for seq in finished]

    def _complete_chunk(self, seq: ReferenceSequence, chunk: int, finished: list[ReferenceSequence]) -> None:
        again = min(max(seq.lost - seq.computed, 0), chunk)
        seq.computed += chunk
        request = seq.request
        request.recomputed_tokens += again
        self.counters.recomputed_tokens += again
        self.counters.prefill_tokens += chunk
        if seq.computed < seq.known:
            self._partial = seq
            return
        seq.decoding = True
        self.counters.output_tokens += 1
        if request.first_token_t < 0:
            request.first_token_t = self._clock.now
            request.version_first = self.weight_version
        seq.emitted_versions += self.weight_version
        self._decoding.append(seq)
        if seq.computed == seq.end_computed:
            finished.append(seq)

    def _leave(self, seq: ReferenceSequence) -> None:
        """Out of the running set; blocks that its computed tokens do not fill can no longer be hit."""
        seq.running = False
        if seq is self._partial:
            self._partial = None
        elif seq in self._decoding:
            self._decoding.remove(seq)
        if seq.decoding:
            seq.decoding = False
            seq.known = seq.computed + 1
            seq.request.version_last = self._ended_version
        for block in seq.blocks[max(seq.computed // self._spec.block_size, seq.num_hits) :]:
            self._table.unregister(block)
        self._table.release(seq.blocks)
        seq.blocks = []
        request = seq.request
        if request.path and self._writers.get(request.path[-1][0]) is seq:
            del self._writers[request.path[-1][0]]
        request.num_emitted = seq.known - request.prompt_tokens
        request.version_token_sum = seq.emitted_versions

    # E4

    def _schedule(self) -> bool:
        context = self._schedule_decoding()
        budget = self._spec.max_num_batched_tokens - len(self._decoding)
        partial = self._partial
        if partial is not None and partial.running:
            chunk = min(partial.known - partial.computed, budget)
            if self._grow(partial, chunk):
                self._prefilling.append((partial, chunk))
                budget -= chunk
            if self._was_preempted:
                context = self._drop_preempted()
        if self._waiting and not self._was_preempted:
            self._admit(budget)
        return self._start_step(context)

    def _schedule_decoding(self) -> int:
        """Blocks for one more token of each decoding sequence; the tokens that the step attends to."""
        block_size = self._spec.block_size
        self._was_preempted = False
        context = len(self._decoding)  # the token that each one feeds
        for seq in self._decoding:
            computed = seq.computed
            context += computed
            if (computed + 1) % block_size < 2 and seq.running:  # needs a block, or fills its last one
                self._grow_one(seq, computed)
        return self._drop_preempted() if self._was_preempted else context

    def _drop_preempted(self) -> int:
        """Take the preempted out of the decoding ones; their context counted anew."""
        self._decoding = [seq for seq in self._decoding if seq.running]
        return sum([seq.computed + 1 for seq in self._decoding])

    def _grow_one(self, seq: ReferenceSequence, computed: int) -> None:
        """A new block for a decoding sequence whose blocks are full, or the hash entry of the one it fills."""
        block_size = self._spec.block_size
        offset = computed % block_size
        if not offset:
            if not self._table.free and not self._make_room(seq, 1):
                return
            seq.blocks.append(self._table.take_one())
        if offset == block_size - 1 and seq.generation == self._generation:
            position = computed // block_size
            if position < seq.private_from:
                chain, start, _ = seq.segments[-1]  # a decoding sequence is past its closed chains
                self._table.register(seq.blocks[position], chain, position - start)

    def _grow(self, seq: ReferenceSequence, tokens: int) -> bool:
        """Blocks for `tokens` more of a prefill; False if `seq` itself was preempted for them."""
        needed = -(-(seq.computed + tokens) // self._spec.block_size) - len(seq.blocks)
        if needed > 0:
            if not self._make_room(seq, needed):
                return False
            self._table.take(needed, seq.blocks)
        self._register_full(seq, tokens)
        return True

    def _make_room(self, seq: ReferenceSequence, needed: int) -> bool:
        """Preempt until `needed` blocks are available; False if `seq` itself was preempted."""
        while needed > self._table.num_available:
            victim = self._victim()
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _victim(self) -> ReferenceSequence:
        running = [seq for seq in self._running() if seq.running]
        return max(running, key=rank if self._spec.queue_order is QueueOrder.PRIORITY else admission_order)

    def _preempt(self, seq: ReferenceSequence) -> None:
        self._was_preempted = True
        seq.running = False
        decoding = self._decoding
        self._decoding = []  # `_schedule` is walking over the list: it drops the preempted ones afterwards
        self._leave(seq)
        self._decoding = decoding
        seq.lost = max(seq.lost, seq.computed)
        seq.computed = 0
        seq.request.num_preemptions += 1
        self.counters.num_preemptions += 1
        self._queue.push_back(seq)

    # E6

    def _start_step(self, context: int) -> bool:
        batch = len(self._decoding)
        if self._prefilling:
            tokens = attention_x2 = 0
            for seq, chunk in self._prefilling:
                tokens += chunk
                attention_x2 += chunk * (2 * seq.computed + chunk)
            gpu = self._cost.mixed(batch, context, tokens, attention_x2)
            duration = self._with_host(gpu, batch + tokens, batch + len(self._prefilling))
        elif batch:
            duration = self._cost.base[batch] + self._cost.per_context[batch] * context
            duration = max(duration, self._cost.decode_host[batch])
        else:
            return False
        self._clock.wake(self._on_step_end, STEP + self._index, duration)
        return True

    # Outside the steps.

    def _forget_cache(self) -> None:
        self._table.forget_all()
        self._writers.clear()
        self._generation += 1

    def _halt(self) -> list[ReferenceSequence]:
        running = self._running()
        if self._state == BUSY and not self._in_boundary:
            self.counters.busy_t += self._clock.now - self._since
        self._prefilling = []
        for seq in running:
            self._leave(seq)
        self._decoding = []
        self._partial = None
        return running

    def check(self) -> None:
        """Recount all blocks from the sequences; AssertionError if one is wrong."""
        in_flight = self._state == BUSY and not self._in_boundary
        after = {seq.admit_no: seq.computed + in_flight for seq in self._decoding}
        after |= {seq.admit_no: seq.computed + chunk for seq, chunk in self._prefilling}
        counts: Counter[Block] = Counter()
        for seq in self._running():
            assert seq.running
            tokens = after.get(seq.admit_no, seq.computed)
            assert len(seq.blocks) == max(-(-tokens // self._spec.block_size), seq.num_hits)
            counts.update(seq.blocks)
        self._table.check(counts)
