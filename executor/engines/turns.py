"""One turn on an engine, and the events that tell how it ended."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Protocol

from executor.engines.generation import Generation
from executor.engines.wire import GenerateResult, VersionSpan
from executor.episodes import TurnPrompt
from libra.core import events as ev
from libra.core.actions import SubmitTurn
from libra.core.ids import ActionId, FailureKind, NextStep, TrajectoryId, WeightVersion

NO_VERSION = WeightVersion(-1)


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """What the environment does after a turn. tool_name: empty where the episode ends."""

    next_step: NextStep
    tool_name: str = ""


class TurnStore(Protocol):
    """Who knows the episodes' tokens. Called from the event loop, and must not block it."""

    def prompt_of(self, trajectory_id: TrajectoryId) -> TurnPrompt:
        """What to ask of the engine; asked once for each submitted turn. max_tokens fits into the context."""
        ...

    def on_turn_end(self, trajectory_id: TrajectoryId, turn: int, result: GenerateResult) -> TurnOutcome:
        """The whole turn; before its `TurnFinished`. Every token's weight version is filled in."""
        ...

    def on_turn_failed(self, trajectory_id: TrajectoryId, turn: int, result: GenerateResult) -> None:
        """What there is of a turn that was aborted or lost, to be kept; before its `TurnFailed`."""
        ...

    def after_turn(self, trajectory_id: TrajectoryId, turn: int) -> None:
        """Its `TurnFinished` has been emitted: the environment goes on."""
        ...


@dataclass(frozen=True, slots=True)
class Mark:
    """A weight load that the turn went through: after how many messages, to which version, and at which cost."""

    num_messages: int
    version: WeightVersion
    recomputed: bool


@dataclass(slots=True, eq=False)
class Turn:
    """A turn under way. version: that of the weights that served when it was sent."""

    action_id: ActionId
    action: SubmitTurn
    prompt_tokens: int
    generation: Generation
    version: WeightVersion
    submitted_s: float
    task: "asyncio.Task[None] | None" = None
    marks: list[Mark] = field(default_factory=list)
    aborting: bool = False

    def note_load(self, version: WeightVersion, recomputed: bool) -> None:
        """New weights come under it now; recomputed: its KV is computed again."""
        self.marks.append(Mark(self.generation.num_messages, version, recomputed))

    def stamped(self, result: GenerateResult) -> GenerateResult:
        """The result with the weight version of each token, from the loads seen where the engine tells none.

        A mark lies where the driver had read so far, up to a message before where the engine was.
        """
        if not result.token_ids or (result.version_spans and -1 not in result.versions()):
            return result
        spans, start, version = [], 0, self.version
        for mark in self.marks:
            end = _tokens_at(result, mark.num_messages)
            if end > start:
                spans.append(VersionSpan(version, start, end))
            start, version = end, mark.version
        if len(result.token_ids) > start:
            spans.append(VersionSpan(version, start, len(result.token_ids)))
        return replace(result, version_spans=tuple(spans))

    def _costs(self, result: GenerateResult) -> tuple[int, int]:
        """Tokens computed again because of loads, and how often that was."""
        recomputed = [mark for mark in self.marks if mark.recomputed]
        tokens = sum(self.prompt_tokens + _tokens_at(result, mark.num_messages) for mark in recomputed)
        return tokens, len(recomputed)

    def finished_event(
        self, result: GenerateResult, outcome: TurnOutcome, started_s: float | None
    ) -> ev.TurnFinished:
        """It has all its tokens. started_s: when the driver thinks that it left the queue."""
        first_s = result.first_token_at if result.first_token_at >= 0 else result.ended_at
        if result.queue_s is not None:
            started_s = self.submitted_s + result.queue_s
        started_s = first_s if started_s is None else min(max(self.submitted_s, started_s), first_s)
        first_version, last_version, version_sum = _versions(result)
        recomputed_tokens, num_preemptions = self._costs(result)
        return ev.TurnFinished(
            self.action_id,
            self.action.trajectory_id,
            self.action.turn,
            self.action.replica_id,
            self.prompt_tokens,
            len(result.token_ids),
            max(0, result.cached_tokens),
            recomputed_tokens,
            num_preemptions,
            first_version,
            last_version,
            version_sum,
            self.submitted_s,
            started_s,
            first_s,
            result.ended_at,
            outcome.next_step,
            outcome.tool_name,
        )

    def failed_event(self, result: GenerateResult, kind: FailureKind, now_s: float) -> ev.TurnFailed:
        """It ended early."""
        first_version, last_version, version_sum = _versions(result)
        recomputed_tokens, num_preemptions = self._costs(result)
        return ev.TurnFailed(
            self.action_id,
            self.action.trajectory_id,
            self.action.turn,
            self.action.replica_id,
            kind,
            self.prompt_tokens,
            len(result.token_ids),
            max(0, result.cached_tokens),
            recomputed_tokens,
            num_preemptions,
            first_version,
            last_version,
            version_sum,
            self.submitted_s,
            now_s,
        )


def _tokens_at(result: GenerateResult, num_messages: int) -> int:
    ends = result.message_ends[:num_messages]
    return ends[-1] if ends else 0


def _versions(result: GenerateResult) -> tuple[WeightVersion, WeightVersion, int]:
    """Of the first token, of the last, and the sum over all."""
    versions = result.versions()
    if not versions:
        return NO_VERSION, NO_VERSION, 0
    return WeightVersion(versions[0]), WeightVersion(versions[-1]), sum(versions)
