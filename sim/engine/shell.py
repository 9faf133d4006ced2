"""What an engine does outside its steps: queueing, aborts, callbacks, drain, stop.

Both implementations stand on this shell (and on `sim.engine.holds`), so what happens at the same tick happens
in the same order; how a step is scheduled, how long it lasts and what it changes is theirs alone.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from libra.core.ids import FailureKind
from libra.errors import UserError
from sim.clock import Clock
from sim.engine.base import CostTable, EngineSpec, OnEnd, Request
from sim.engine.holds import BUSY, IDLE, STOPPED, Holds
from sim.engine.queue import make_queue


class Sequence:
    """A request on an engine: the part of its state that the shell reads."""

    __slots__ = ("aborted", "admit_no", "request", "running")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.running = False
        self.aborted = False
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

    # What an implementation gives.

    @abstractmethod
    def _new_sequence(self, request: Request) -> Any:
        """State of a new request."""

    @abstractmethod
    def _arrived(self, seq: Any) -> None:
        """A request was queued while a step is in flight."""

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
        """Requests queued."""
        return len(self._waiting)

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
        self._queue.push(seq)
        if self._in_boundary:
            return
        state = self._state
        if state == BUSY:
            self._arrived(seq)
        elif state == IDLE and not self._kick_pending:
            self._kick()

    def _refusal(self, request: Request) -> FailureKind | None:
        prompt, output = request.prompt_tokens, request.output_tokens
        spec = self._spec
        if prompt < 1 or output < 1:
            raise ValueError(f"request {request.request_id}: prompt and output need at least one token each")
        closed = 0
        for _, count in request.path[:-1]:
            closed += count
        if closed * spec.block_size > prompt:
            raise ValueError(f"request {request.request_id}: its path has more closed blocks than its prompt")
        if self._state == STOPPED:
            return self._stop_kind
        if prompt + output > spec.max_model_len or prompt + output - 1 > spec.num_blocks * spec.block_size:
            self.counters.num_refused += 1
            return FailureKind.PROMPT_TOO_LONG
        return None

    def abort(self, request: Request) -> None:
        """End a request: at once when it waits or no step is in flight, else at the next boundary."""
        seq: Any = request.state
        if seq is None:
            return
        if not seq.running:
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
        if self._state == STOPPED or ((self._loads or self._num_pauses) and self._held()):
            return
        if not self._schedule():
            self._enter(IDLE)

    # End of life.

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Call back once nothing runs or waits."""
        self._on_drained.append(on_drained)
        self._check_drained()

    def _check_drained(self) -> None:
        if not self._in_boundary:  # a boundary looks at its end
            self._run_drained()

    def _run_drained(self) -> None:
        while self._on_drained and not (self._waiting or self.num_running):
            self._on_drained.pop(0)()

    def stop(self, kind: FailureKind) -> None:
        """End at once: every request ends with `kind`, tokens of completed steps are kept."""
        if self._state == STOPPED:
            return
        running = self._halt()
        self._enter(STOPPED)
        self._stop_kind = kind
        ended = [seq.request for seq in (*running, *self._waiting)]
        self._waiting.clear()
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
