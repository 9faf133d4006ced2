"""Identifiers and the small closed vocabularies that events and actions share.

Identifiers are plain integers under distinct static types. Names that a data set or a cluster uses (a task
id, a host) live in the record's tables, beside the integer they belong to.
"""

from enum import StrEnum
from typing import Final, NewType

TrajectoryId = NewType("TrajectoryId", int)
GroupId = NewType("GroupId", int)
PromptId = NewType("PromptId", int)
ReplicaId = NewType("ReplicaId", int)
NodeId = NewType("NodeId", int)
EventSeq = NewType("EventSeq", int)
ActionId = NewType("ActionId", int)
WeightVersion = NewType("WeightVersion", int)

NO_REPLICA: Final = ReplicaId(-1)
"""`replica_id` of a trajectory that lives on no replica: none has served it yet, the one that did is not ready
any more, or it is finished."""
NO_ACTION: Final = ActionId(-1)
"""`closes` of an event that no action asked for (a replica that was there when the run began)."""


class Word(StrEnum):
    """A closed vocabulary of texts.

    Members hash as the texts that they equal. `Enum.__hash__` is written in Python, and looking up places and
    states is among the most frequent things that the controller does.
    """

    __hash__ = str.__hash__


class Place(Word):
    """Where a trajectory is. It is in exactly one place at any time (invariant I2)."""

    BACKLOG = "backlog"
    STARTING = "starting"
    READY = "ready"
    GENERATING = "generating"
    IN_TOOL = "in_tool"
    FINISHED = "finished"
    TRAINING = "training"
    TRAINED = "trained"
    DROPPED = "dropped"


LIVE_PLACES: Final = tuple(p for p in Place if p not in (Place.TRAINED, Place.DROPPED))
"""Places of trajectories that the controller still keeps."""


class ReplicaStatus(Word):
    """Life of a replica as the controller sees it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    STOPPING = "stopping"
    STOPPED = "stopped"
    LOST = "lost"


class NextStep(Word):
    """What the environment does after a turn."""

    TOOL = "tool"
    END = "end"


class ToolStatus(Word):
    """Outcome of a tool call. A timeout is a result, not an error of the run."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"


class FailureKind(Word):
    """Why an action, a turn or a replica ended without success."""

    ABORTED = "aborted"
    PROMPT_TOO_LONG = "prompt_too_long"
    REPLICA_LOST = "replica_lost"
    TIMEOUT = "timeout"
    ENGINE_ERROR = "engine_error"
    REFUSED = "refused"


class DropReason(Word):
    """Why the controller gave a trajectory up."""

    PROMPT_TOO_LONG = "prompt_too_long"
    TOO_MANY_FAILURES = "too_many_failures"
    START_FAILED = "start_failed"
    STALE = "stale"
    SHORT_GROUP = "short_group"
    SURPLUS = "surplus"
    COLLECTION_TIMEOUT = "collection_timeout"


class EndReason(Word):
    """Why a run ended."""

    COMPLETED = "completed"
    STEPS_DONE = "steps_done"
    TIME_LIMIT = "time_limit"
    STALLED = "stalled"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class Supply(Word):
    """Who decides when a trajectory enters the run."""

    PULL = "pull"
    """The controller asks for prompts (`FetchPrompts`): agents, RL."""
    PUSH = "push"
    """Trajectories arrive at their own times: request traces, serving load."""
