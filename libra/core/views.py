"""What a policy may see: read-only windows on the controller's state.

Nothing is copied: the state's own objects satisfy these protocols, and the type checker refuses a policy that
writes to them. Values that a live controller can only get by polling are in `ReplicaView.sampled` and are as
old as the last `MetricsSampled`; everything else the controller knows at first hand.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from libra.core.actions import Action
from libra.core.ids import (
    ActionId,
    GroupId,
    NodeId,
    Place,
    PromptId,
    ReplicaId,
    ReplicaStatus,
    Supply,
    TrajectoryId,
    WeightVersion,
)
from libra.core.value import value


@value
class SampledMetrics:
    """A replica's own counters at `sampled_s`."""

    sampled_s: float
    num_running: int
    num_waiting: int
    kv_used_fraction: float


class TrajectoryView(Protocol):
    """One trajectory."""

    @property
    def trajectory_id(self) -> TrajectoryId: ...
    @property
    def group_id(self) -> GroupId: ...
    @property
    def prompt_id(self) -> PromptId: ...
    @property
    def sample_index(self) -> int: ...
    @property
    def place(self) -> Place: ...
    @property
    def turn(self) -> int:
        """Index of the turn that is next or under way."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Length of that turn's prompt."""
        ...

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far, all turns."""
        ...

    @property
    def replica_id(self) -> ReplicaId:
        """Where it is or was last served; its prefix cache is there.

        `NO_REPLICA` before the first turn, once it has come to rest after that replica went away, and when finished.
        """
        ...

    @property
    def submit_id(self) -> ActionId:
        """The pending `SubmitTurn`, or `NO_ACTION`."""
        ...

    @property
    def version_min(self) -> WeightVersion:
        """Oldest weight version among its tokens and those that a turn in flight may make; -1 where there are none.

        It falls when a turn goes to a replica whose weights lag, and rises again if that turn makes no token there.
        """
        ...

    @property
    def num_failures(self) -> int:
        """Failed turns, aborted ones aside, since the last one that succeeded."""
        ...


class GroupView(Protocol):
    """The samples of one prompt that GRPO compares with each other."""

    @property
    def group_id(self) -> GroupId: ...
    @property
    def size(self) -> int: ...
    @property
    def num_started(self) -> int: ...
    @property
    def num_finished(self) -> int: ...
    @property
    def num_dropped(self) -> int: ...
    @property
    def num_tokens(self) -> int:
        """Context tokens (prompt + output) of its finished trajectories: what the trainer processes."""
        ...

    @property
    def version_min(self) -> WeightVersion:
        """Oldest `version_min` among its trajectories that are not dropped; -1 where none has any."""
        ...

    def members(self) -> Iterator[TrajectoryView]:
        """Its live trajectories."""
        ...


class ReplicaView(Protocol):
    """One serving engine."""

    @property
    def replica_id(self) -> ReplicaId: ...
    @property
    def tp(self) -> int: ...
    @property
    def node_id(self) -> NodeId: ...
    @property
    def status(self) -> ReplicaStatus: ...
    @property
    def weight_version(self) -> WeightVersion: ...
    @property
    def loading(self) -> bool:
        """A `LoadWeights` is pending."""
        ...

    @property
    def kv_capacity_tokens(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def num_turns(self) -> int:
        """Turns submitted and not ended."""
        ...

    @property
    def num_resident(self) -> int:
        """Unfinished trajectories whose `replica_id` this is, those in a tool included."""
        ...

    @property
    def sampled(self) -> SampledMetrics | None: ...


class TrainerView(Protocol):
    """The trainer."""

    @property
    def version(self) -> WeightVersion:
        """Optimizer steps made."""
        ...

    @property
    def published_version(self) -> WeightVersion: ...
    @property
    def stepping(self) -> bool: ...
    @property
    def publishing(self) -> bool: ...


class ClusterView(Protocol):
    """Everything the controller knows."""

    @property
    def supply(self) -> Supply: ...
    @property
    def first_version(self) -> WeightVersion:
        """The weight version with which the run began."""
        ...

    @property
    def source_exhausted(self) -> bool: ...
    @property
    def fetching(self) -> bool:
        """A `FetchPrompts` is pending."""
        ...

    @property
    def trajectories(self) -> Mapping[TrajectoryId, TrajectoryView]:
        """Live trajectories: those not yet trained on or dropped."""
        ...

    @property
    def backlog(self) -> Mapping[TrajectoryId, TrajectoryView]:
        """Arrived and not started, oldest first; members of a group are neighbours."""
        ...

    @property
    def groups(self) -> Mapping[GroupId, GroupView]: ...
    @property
    def complete_groups(self) -> Mapping[GroupId, GroupView]:
        """Groups with every member finished or dropped and not yet trained on, in order of completion."""
        ...

    @property
    def replicas(self) -> Mapping[ReplicaId, ReplicaView]: ...
    @property
    def trainer(self) -> TrainerView: ...
    @property
    def num_active(self) -> int:
        """Trajectories started and not finished."""
        ...

    @property
    def num_groups_started(self) -> int:
        """Groups of which a member was started, over the whole run."""
        ...

    @property
    def num_groups_discarded(self) -> int:
        """Started groups that were given up without training on them."""
        ...

    @property
    def serving_version(self) -> WeightVersion:
        """Oldest weight version among replicas that serve."""
        ...

    @property
    def num_pending(self) -> int:
        """Actions that have not been closed."""
        ...

    @property
    def closed(self) -> Action | None:
        """The action that the event being handled has closed."""
        ...

    def count(self, place: Place) -> int:
        """Trajectories in a place."""
        ...

    def tp_degrees(self) -> tuple[int, ...]:
        """TP degrees of the replicas that are ready, ascending."""
        ...

    def least_resident(self, tp: int | None = None) -> tuple[ReplicaId, int] | None:
        """Ready replica with the fewest resident trajectories (of one TP degree, or of all) and that number.

        Constant time in the number of replicas; linear in the number of TP degrees when `tp` is None.
        """
        ...

    def least_turns(self, tp: int | None = None) -> tuple[ReplicaId, int] | None:
        """The same by turns in flight."""
        ...
