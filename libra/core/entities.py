"""The controller's own records of what it manages. Mutable, and written only by `reduce` and `apply`."""

from collections.abc import Iterator

from libra.core.ids import (
    NO_ACTION,
    NO_REPLICA,
    ActionId,
    GroupId,
    NodeId,
    Place,
    PromptId,
    ReplicaId,
    ReplicaStatus,
    TrajectoryId,
    WeightVersion,
)
from libra.core.views import SampledMetrics

NO_VERSION = WeightVersion(-1)


class Trajectory:
    """See `TrajectoryView`."""

    __slots__ = (
        "group",
        "group_id",
        "num_failures",
        "output_tokens",
        "place",
        "prompt_id",
        "prompt_tokens",
        "replica_id",
        "sample_index",
        "submit_id",
        "trajectory_id",
        "turn",
        "version_min",
        "version_min_settled",
    )

    def __init__(
        self,
        trajectory_id: TrajectoryId,
        group: "Group",
        prompt_id: PromptId,
        sample_index: int,
        prompt_tokens: int,
    ) -> None:
        self.trajectory_id = trajectory_id
        self.group = group
        self.group_id = group.group_id
        self.prompt_id = prompt_id
        self.sample_index = sample_index
        self.place = Place.BACKLOG
        self.turn = 0
        self.prompt_tokens = prompt_tokens
        self.output_tokens = 0
        self.replica_id: ReplicaId = NO_REPLICA
        self.submit_id: ActionId = NO_ACTION
        self.version_min: WeightVersion = NO_VERSION
        self.version_min_settled: WeightVersion = NO_VERSION  # the same without the turn in flight
        self.num_failures = 0

    def settle_version(self, version: WeightVersion) -> None:
        """A turn has ended: what might have made it gives way to what did, the version of its first token.

        That is the turn's oldest (I4). It is newer than the replica's at submission where a load came between; -1 of
        a turn without a token.
        """
        settled = self.version_min_settled
        if version >= 0 and (version < settled or settled < 0):
            settled = self.version_min_settled = version
        if self.version_min != settled:
            self.version_min = settled
            self.group.update_version()


class Group:
    """See `GroupView`."""

    __slots__ = (
        "group_id",
        "live",
        "num_dropped",
        "num_finished",
        "num_started",
        "num_tokens",
        "prompt_id",
        "size",
        "version_min",
    )

    def __init__(self, group_id: GroupId, prompt_id: PromptId, size: int) -> None:
        self.group_id = group_id
        self.prompt_id = prompt_id
        self.size = size
        self.num_started = 0
        self.num_finished = 0
        self.num_dropped = 0
        self.num_tokens = 0
        self.version_min: WeightVersion = NO_VERSION
        self.live: dict[TrajectoryId, Trajectory] = {}

    def members(self) -> Iterator[Trajectory]:
        """Live members, in order of arrival."""
        return iter(self.live.values())

    @property
    def is_complete(self) -> bool:
        """Every member is finished or dropped."""
        return self.num_finished + self.num_dropped == self.size

    def update_version(self) -> None:
        """Recompute `version_min`, the oldest of the live members; -1 if none has one."""
        oldest = NO_VERSION
        for member in self.live.values():
            version = member.version_min
            if version >= 0 and (oldest < 0 or version < oldest):
                oldest = version
        self.version_min = oldest


class Replica:
    """See `ReplicaView`."""

    __slots__ = (
        "kv_capacity_tokens",
        "loading",
        "max_model_len",
        "max_num_seqs",
        "node_id",
        "num_resident",
        "num_turns",
        "replica_id",
        "sampled",
        "status",
        "tp",
        "weight_version",
    )

    def __init__(self, replica_id: ReplicaId, tp: int, node_id: NodeId, status: ReplicaStatus) -> None:
        self.replica_id = replica_id
        self.tp = tp
        self.node_id = node_id
        self.status = status
        self.weight_version: WeightVersion = WeightVersion(0)
        self.loading = False
        self.kv_capacity_tokens = 0
        self.max_num_seqs = 0
        self.max_model_len = 0
        self.num_turns = 0
        self.num_resident = 0
        self.sampled: SampledMetrics | None = None


class Trainer:
    """See `TrainerView`."""

    __slots__ = ("published_version", "publishing", "stepping", "version")

    def __init__(self) -> None:
        self.version: WeightVersion = WeightVersion(0)
        self.published_version: WeightVersion = WeightVersion(0)
        self.stepping = False
        self.publishing = False
