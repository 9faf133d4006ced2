"""What an engine does outside its steps: queueing, aborts, callbacks, drain, stop.

Both implementations stand on this shell (and on `sim.engine.holds`), so what happens at the same tick happens
in the same order; how a step is scheduled, how long it lasts and what it changes is theirs alone.
"""

from abc import abstractmethod
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from libra.core.ids import FailureKind
from libra.errors import UserError
from sim.clock import Clock
from sim.engine.base import CostTable, EngineSpec, OnEnd, Request
from sim.engine.holds import BUSY, IDLE, STOPPED, Holds
from sim.engine.queue import make_queue

by_arrival = attrgetter("arrival_index")


class Sequence:
    """A request on an engine: the part of its state that the shell reads."""

    __slots__ = ("aborted", "admit_no", "request", "running", "visible_t")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.running = False
        self.aborted = False
        self.visible_t = -1  # while it is arriving: when the scheduler may see it
        self.admit_no = -1  # number of its latest admission on this engine: the order of the running


class EngineShell(Holds):
    """Life of an engine between its steps; see `sim.engine.base.Engine` for the methods."""

    def __init__(
        self,
        clock: Clock,
        index: int,
        spec: EngineSpec,
        cost: CostTable,
        on_end: OnEnd,
        weight_version: int = 0,
    ) -> None:
        super().__init__(clock, index, spec, weight_version)
        self._cost = self._covering(cost)
        self._on_end = on_end
        self._queue = make_queue(spec.queue_order)
        self._waiting = self._queue.items
        self._aborted: list[Any] = []
        self._on_drained: list[Callable[[], None]] = []
        self._num_arrivals = 0
        self._stop_kind = FailureKind.REFUSED
        self._longest_request = spec.longest_request
        self._step_began_t = -1  # start of the latest step that has ended

    # What an implementation gives.

    @abstractmethod
    def _new_sequence(self, request: Request) -> Any:
        """State of a new request."""

    @abstractmethod
    def _arrived(self, seq: Any) -> None:
        """A request was queued while a step is in flight."""

    @abstractmethod
    def _arrived_unseen(self, seq: Any) -> None:
        """A request arrived while a step is in flight; it will be visible at a later boundary."""

    @abstractmethod
    def _leave(self, seq: Any) -> None:
        """Take a running sequence out, release its blocks, write its results."""

    @abstractmethod
    def _complete(self) -> list[Request]:
        """Rule E1 for the step that ends now; the requests that have all their tokens, out, oldest first."""

    @abstractmethod
    def _halt(self) -> list[Any]:
        """Count what ended of the step in flight, drop the rest; all running sequences, oldest first, out."""

    @property
    def num_waiting(self) -> int:
        """Requests queued, those that the scheduler cannot see yet included."""
        return len(self._waiting) + len(self._arriving)

    # Requests.

    def submit(self, request: Request) -> None:
        """Queue a request, or end it at once if it can never fit or the engine has stopped."""
        request.arrival_index = self._num_arrivals
        self._num_arrivals += 1
        request.submitted_t = self._env._now
        failure = self._refusal(request)
        if failure is not None:
            self._end(request, failure)
            return
        seq = self._new_sequence(request)
        request.state = seq
        cost = self._cost
        if cost.admission or cost.lag or cost.admission_seq or self._arriving:
            self._submit_unseen(seq)
            return
        self._queue.push(seq)
        if self._in_boundary:
            return
        state = self._state
        if state == BUSY:
            self._arrived(seq)
        elif state == IDLE:
            self._kick()

    def _submit_unseen(self, seq: Any) -> None:
        """Rule E5: the scheduler sees it later, and no earlier than what was submitted before it."""
        cost = self._cost
        visible_t = self._clock.now + cost.admission + cost.admission_seq * self.num_running
        arriving = self._arriving
        if arriving:
            visible_t = max(visible_t, arriving[-1].visible_t)
        seq.visible_t = visible_t
        arriving.append(seq)
        if self._in_boundary:
            return
        if self._state == BUSY:
            self._arrived_unseen(seq)
        elif self._state == IDLE:
            self._await_arrival()

    def _push(self, seq: Any) -> None:
        self._queue.push(seq)

    def _refusal(self, request: Request) -> FailureKind | None:
        prompt, output = request.prompt_tokens, request.output_tokens
        if prompt < 1 or output < 1:
            raise ValueError(f"request {request.request_id}: prompt and output need at least one token each")
        closed = 0
        for _, count in request.path[:-1]:
            closed += count
        if closed * self._spec.block_size > prompt:
            raise ValueError(f"request {request.request_id}: its path has more closed blocks than its prompt")
        if self._state == STOPPED:
            return self._stop_kind
        if prompt + output > self._longest_request:
            self.counters.num_refused += 1
            return FailureKind.PROMPT_TOO_LONG
        return None

    def abort(self, request: Request) -> None:
        """End a request: at once when it waits or no step is in flight, else at the next boundary."""
        seq: Any = request.state
        if seq is None:
            return
        if seq.visible_t >= 0:
            self._arriving.remove(seq)
            self._end(request, FailureKind.ABORTED)
            self._check_drained()
        elif not seq.running:
            was_head = self._waiting[0] is seq
            self._queue.remove(seq)
            if was_head and self._state == BUSY and not self._in_boundary:
                self._need_boundary()  # the next in the queue may fit where this one did not
            self._end(request, FailureKind.ABORTED)
            self._check_drained()
        elif self._state != BUSY:
            self._leave(seq)
            self._end(request, FailureKind.ABORTED)
            self._check_drained()
        elif not seq.aborted:
            seq.aborted = True
            self._aborted.append(seq)
            if not self._in_boundary:
                self._need_boundary()

    def _end(self, request: Request, kind: FailureKind | None) -> None:
        request.state = None
        request.end_t = self._clock.now
        self._on_end(request, kind)

    def _end_requests(self, finished: list[Request]) -> None:
        """Rule E2 for requests that have left already: aborted ones leave, callbacks run."""
        ended: list[tuple[Request, FailureKind | None]] = [(request, None) for request in finished]
        now = self._clock.now
        while True:
            for seq in self._aborted:
                if seq.running:  # else it has finished at this very boundary
                    self._leave(seq)
                    ended.append((seq.request, FailureKind.ABORTED))
            self._aborted.clear()
            if not ended:
                return
            for request, _ in ended:
                request.state = None
                request.end_t = now
            calls, ended = ended, []
            for request, kind in calls:
                self._on_end(request, kind)

    def _boundary(self) -> None:
        """A step has ended: the rules in their order. `_complete` and `_schedule` are the implementation's."""
        self._clock.enter_step(self._index)
        self.counters.num_wakes += 1
        self._in_boundary = True
        finished = self._complete()
        if finished or self._aborted:
            self._end_requests(finished)
        if self._on_drained:
            self._run_drained()
        self._in_boundary = False
        if self._arriving:
            self._see(self._step_began_t if self._cost.lag else self._clock.now)
        if self._state == STOPPED or ((self._loads or self._num_pauses) and self._held()):
            return
        if not self._schedule():
            self._enter(IDLE)
            if self._arriving:
                self._await_arrival()

    def _with_host(self, gpu: int, tokens: int, num_seqs: int) -> int:
        """Rule E6: ticks of a step with prefill that begins now; what the host has left of it, it has for the
        next.
        """
        cost = self._cost
        # `cost.host`, without the call: this runs once a step with prefill.
        wait = (cost.floor if tokens <= cost.capture_tokens else cost.eager) + cost.host_seq * num_seqs
        if cost.lag:
            wait -= self._head_start
        duration = gpu if gpu > wait else wait
        self._head_start = duration - wait if wait > 0 else duration
        return duration

    # End of life.

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Call back once nothing runs or waits."""
        self._on_drained.append(on_drained)
        self._check_drained()

    def _check_drained(self) -> None:
        if not self._in_boundary:  # a boundary looks at its end
            self._run_drained()

    def _run_drained(self) -> None:
        while self._on_drained and not (self.num_waiting or self.num_running):
            self._on_drained.pop(0)()

    def stop(self, kind: FailureKind) -> None:
        """End at once: every request ends with `kind`, tokens of completed steps are kept."""
        if self._state == STOPPED:
            return
        running = self._halt()
        self._enter(STOPPED)
        self._stop_kind = kind
        ended = [seq.request for seq in running]
        others = [seq.request for seq in (*self._waiting, *self._arriving)]
        ended += sorted(others, key=by_arrival)
        self._waiting.clear()
        self._arriving.clear()
        self._aborted.clear()
        self._loads.clear()
        for request in ended:
            request.state = None
            request.end_t = self._clock.now
        for request in ended:
            self._on_end(request, kind)
        self._check_drained()

    def set_cost(self, cost: CostTable) -> None:
        """Change the step times from the next step on."""
        self._cost = self._covering(cost)
        if self._state == BUSY and not self._in_boundary:
            self._need_boundary()

    def _covering(self, cost: CostTable) -> CostTable:
        """The cost table, if it has an entry for every batch."""
        wanted = self._spec.max_num_seqs + 1
        if min(len(cost.base), len(cost.per_context)) < wanted:
            raise UserError(
                f"engine cost: base and per_context hold {len(cost.base)} and {len(cost.per_context)} batch sizes; "
                f"give {wanted} (0 to max_num_seqs)"
            )
        return cost
