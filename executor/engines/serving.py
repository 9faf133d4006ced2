"""Turns on engines: sent, awaited, aborted, and told of.

Guarantees: each turn ends by exactly one event; before it the store has every token that had arrived; a turn whose
engine cannot be reached waits for the verdict on the replica, so that a loss is told first.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from executor.engines.errors import (
    EngineError,
    EngineTimeout,
    EngineUnreachable,
    PromptTooLong,
    RequestRefused,
)
from executor.engines.lives import Life
from executor.engines.replica import RealReplica
from executor.engines.tasks import Tasks
from executor.engines.turns import Turn, TurnStore
from executor.engines.wire import GenerateRequest
from libra.core import actions as act
from libra.core.ids import ActionId, FailureKind
from libra.ports import Emit, turn_unserved

_ABORT_PATIENCE_S: Final = (0.2, 1.0, 3.0)
"""An abort that overtakes its own request has no effect, so it is repeated; then the connection is closed."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the engines' port is given by the driver.

    now: seconds since the start of the run. note: gets a line for the person who watches, such as why a replica was
    lost.
    """

    now: Callable[[], float]
    emit: Emit
    note: Callable[[str], None]


class TurnServer:
    """after_end: called when a turn has ended and been told of."""

    def __init__(
        self,
        store: TurnStore,
        around: Surroundings,
        tasks: Tasks,
        *,
        timeout_s: float,
        by_priority: bool,
        after_end: Callable[[Life], None],
    ) -> None:
        self._turns = store
        self._now = around.now
        self._emit = around.emit
        self._note = around.note
        self._tasks = tasks
        self._timeout_s = timeout_s
        self._by_priority = by_priority
        self._after_end = after_end
        self._by_action: dict[ActionId, tuple[Life, Turn]] = {}

    def submit(self, life: Life, action_id: ActionId, action: act.SubmitTurn) -> None:
        """See `RolloutEngines`."""
        replica, now_s = life.replica, self._now()
        if replica is None:  # it died while the action was under way
            self._emit(turn_unserved(action_id, action, FailureKind.REPLICA_LOST, now_s, now_s))
            return
        prompt = self._turns.prompt_of(action.trajectory_id)
        if len(prompt.token_ids) + prompt.max_tokens > life.max_model_len:
            self._emit(turn_unserved(action_id, action, FailureKind.PROMPT_TOO_LONG, now_s, now_s))
            return
        request = GenerateRequest(
            request_id=f"{action.trajectory_id}.{action.turn}.{action_id}",
            token_ids=prompt.token_ids,
            max_tokens=prompt.max_tokens,
            temperature=prompt.temperature,
            top_p=prompt.top_p,
            seed=prompt.seed,
            priority=action.priority if self._by_priority else 0,
            stop_token_ids=prompt.stop_token_ids,
            allowed_token_ids=prompt.allowed_token_ids,
        )
        generation = replica.client.open(request)
        turn = Turn(action_id, action, len(prompt.token_ids), generation, replica.version, now_s)
        life.turns[action_id] = turn
        life.slots.enter(action_id, request.priority, now_s)
        self._by_action[action_id] = life, turn
        turn.task = self._tasks.spawn(self._run(life, replica, turn))

    def abort(self, action: act.AbortTurn) -> None:
        """See `RolloutEngines`. A turn that has ended already is left alone."""
        life, turn = self._by_action.get(action.submit_id, (None, None))
        if life is not None and turn is not None and life.replica is not None and not turn.aborting:
            turn.aborting = True
            self._tasks.spawn(self._abort(life, life.replica, turn))

    async def _run(self, life: Life, replica: RealReplica, turn: Turn) -> None:
        """A turn to its end. Cancelled where somebody else has ended it."""
        try:
            result = await turn.generation.run(self._timeout_s)
        except PromptTooLong:
            self._end_badly(life, turn, FailureKind.PROMPT_TOO_LONG)
        except EngineTimeout:
            self._end_badly(life, turn, FailureKind.TIMEOUT)
        except RequestRefused as error:
            self._note(f"{replica.name}: turn of trajectory {turn.action.trajectory_id}: {error}")
            if error.status >= 500:  # its engine process may be dead
                await replica.suspect()
            self._end_badly(life, turn, FailureKind.ENGINE_ERROR)
        except EngineUnreachable:
            await replica.suspect()  # if it is lost, the turn ends with it
            self._end_badly(life, turn, FailureKind.ENGINE_ERROR)
        else:
            if result.finish_reason in ("abort", "error", "broken"):
                aborted = result.finish_reason == "abort"
                self._end_badly(life, turn, FailureKind.ABORTED if aborted else FailureKind.ENGINE_ERROR)
                return
            result = turn.stamped(result)
            started_s = self._forget(life, turn)
            trajectory_id, number = turn.action.trajectory_id, turn.action.turn
            outcome = self._turns.on_turn_end(trajectory_id, number, result)
            self._emit(turn.finished_event(result, outcome, started_s))
            self._turns.after_turn(trajectory_id, number)
            self._after_end(life)

    async def _abort(self, life: Life, replica: RealReplica, turn: Turn) -> None:
        assert turn.task is not None
        for patience_s in _ABORT_PATIENCE_S:
            with contextlib.suppress(EngineError):  # closing the connection ends it too
                await replica.client.abort(turn.generation.request.request_id)
            await asyncio.wait({turn.task}, timeout=patience_s)
            if turn.action_id not in life.turns:
                return
        turn.task.cancel()
        self._end_badly(life, turn, FailureKind.ABORTED)

    def _end_badly(self, life: Life, turn: Turn, kind: FailureKind) -> None:
        self._forget(life, turn)
        self._report_failure(turn, kind)
        self._after_end(life)

    def take_down(self, turns: list[Turn], kind: FailureKind) -> None:
        """Their replica is down: end them, in this order."""
        for turn in turns:
            del self._by_action[turn.action_id]
            if turn.task is not None:
                turn.task.cancel()
        for turn in turns:
            self._report_failure(turn, kind)

    def _report_failure(self, turn: Turn, kind: FailureKind) -> None:
        """Hand over what there is of it, then tell."""
        result = turn.stamped(turn.generation.so_far())
        self._turns.on_turn_failed(turn.action.trajectory_id, turn.action.turn, result)
        self._emit(turn.failed_event(result, kind, self._now()))

    def _forget(self, life: Life, turn: Turn) -> float | None:
        """It has ended; when it left the engine's queue."""
        del life.turns[turn.action_id]
        del self._by_action[turn.action_id]
        return life.slots.leave(turn.action_id, self._now())
