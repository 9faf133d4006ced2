"""The controller's state: the single place where facts about the cluster are kept.

`ClusterState` satisfies `ClusterView`; policies read it through that protocol and never write. Its two writers
are `libra.core.reduce` (events) and `libra.core.apply` (actions). It holds live trajectories only: one that
was trained on or dropped leaves a count behind, so memory follows what is in flight, not what has been.
"""

from libra.core.actions import Action
from libra.core.entities import Group, Replica, Trainer, Trajectory
from libra.core.ids import (
    NO_REPLICA,
    ActionId,
    EndReason,
    GroupId,
    Place,
    ReplicaId,
    ReplicaStatus,
    Supply,
    TrajectoryId,
    WeightVersion,
)
from libra.core.invariants import MOVES, InvariantViolation
from libra.core.load_index import LoadIndex

_ACTIVE = (Place.STARTING, Place.READY, Place.GENERATING, Place.IN_TOOL)


class ClusterState:
    """All that the controller knows. See `ClusterView` for the public part."""

    def __init__(self, *, training: bool, max_head_offpolicyness: int) -> None:
        self.training = training
        self.max_head_offpolicyness = max_head_offpolicyness
        self.now = 0.0
        self.supply = Supply.PULL
        self.first_version = WeightVersion(0)
        self.source_exhausted = False
        self.fetching = False
        self.trajectories: dict[TrajectoryId, Trajectory] = {}
        self.backlog: dict[TrajectoryId, Trajectory] = {}
        self.groups: dict[GroupId, Group] = {}
        self.complete_groups: dict[GroupId, Group] = {}
        self.replicas: dict[ReplicaId, Replica] = {}
        self.trainer = Trainer()
        self.pending: dict[ActionId, Action] = {}
        self.closed: Action | None = None
        self.num_arrived = 0
        self.num_groups_started = 0
        self.num_groups_discarded = 0
        self.counts: dict[Place, int] = dict.fromkeys(Place, 0)
        self.num_timers = 0
        self.num_started_work = 0  # pending actions that the world is busy with (timers apart)
        self.end_reason: EndReason | None = None
        self._resident: dict[int, LoadIndex[ReplicaId]] = {}
        self._turns: dict[int, LoadIndex[ReplicaId]] | None = None

    # -- what policies ask --------------------------------------------------------------------------------

    @property
    def num_active(self) -> int:
        """Trajectories started and not finished."""
        counts = self.counts
        return counts[Place.STARTING] + counts[Place.READY] + counts[Place.GENERATING] + counts[Place.IN_TOOL]

    @property
    def num_pending(self) -> int:
        """Actions not yet closed."""
        return len(self.pending)

    @property
    def serving_version(self) -> WeightVersion:
        """Oldest version among serving replicas; the published one where none serves."""
        oldest = self.trainer.published_version
        for replica in self.replicas.values():
            if replica.status is ReplicaStatus.READY and replica.weight_version < oldest:
                oldest = replica.weight_version
        return oldest

    def count(self, place: Place) -> int:
        """Trajectories in a place (for TRAINED and DROPPED: over the whole run)."""
        return self.counts[place]

    def tp_degrees(self) -> tuple[int, ...]:
        """TP degrees of ready replicas, ascending."""
        return tuple(tp for tp, index in sorted(self._resident.items()) if len(index))

    def least_resident(self, tp: int | None = None) -> tuple[ReplicaId, int] | None:
        """Ready replica with the fewest resident trajectories."""
        return _least(self._resident, tp)

    def least_turns(self, tp: int | None = None) -> tuple[ReplicaId, int] | None:
        """Ready replica with the fewest turns in flight. The index is kept from the first call on."""
        if self._turns is None:
            self._turns = {}
            for replica in self.replicas.values():
                if replica.status is ReplicaStatus.READY:
                    _index_of(self._turns, replica.tp).set(replica.replica_id, replica.num_turns)
        return _least(self._turns, tp)

    # -- what reduce and apply use ------------------------------------------------------------------------

    def begin(self, supply: Supply, version: WeightVersion) -> None:
        """The run has started, with these weights on trainer and replicas."""
        self.supply = supply
        self.first_version = version
        self.trainer.version = self.trainer.published_version = version

    def move(self, trajectory: Trajectory, target: Place) -> None:
        """Change a trajectory's place (I2)."""
        place = trajectory.place
        if target not in MOVES[place]:
            raise InvariantViolation(2, f"trajectory {trajectory.trajectory_id}: {place} -> {target}")
        counts = self.counts
        counts[place] -= 1
        counts[target] += 1
        trajectory.place = target

    def change_residence(self, trajectory: Trajectory, replica: Replica | None) -> None:
        """The trajectory's prefix now lives on `replica`, or nowhere."""
        old = self.replicas.get(trajectory.replica_id)
        if old is replica:
            return
        if old is not None:
            old.num_resident -= 1
            if old.status is ReplicaStatus.READY:
                self._resident[old.tp].set(old.replica_id, old.num_resident)
        if replica is None:
            trajectory.replica_id = NO_REPLICA
        else:
            trajectory.replica_id = replica.replica_id
            replica.num_resident += 1
            if replica.status is ReplicaStatus.READY:
                self._resident[replica.tp].set(replica.replica_id, replica.num_resident)

    def add_turns(self, replica: Replica, change: int) -> None:
        """Count turns in flight on a replica."""
        replica.num_turns += change
        if self._turns is not None and replica.status is ReplicaStatus.READY:
            self._turns[replica.tp].set(replica.replica_id, replica.num_turns)

    def set_status(self, replica: Replica, status: ReplicaStatus) -> None:
        """Change a replica's status and whether the load indexes offer it."""
        replica.status = status
        if status is ReplicaStatus.READY:
            _index_of(self._resident, replica.tp).set(replica.replica_id, replica.num_resident)
            if self._turns is not None:
                _index_of(self._turns, replica.tp).set(replica.replica_id, replica.num_turns)
            return
        for indexes in (self._resident, self._turns or {}):
            if replica.tp in indexes:
                indexes[replica.tp].discard(replica.replica_id)

    def leave(self, trajectory: Trajectory, target: Place) -> None:
        """A trajectory ends for good: trained on or dropped."""
        self.move(trajectory, target)
        self.change_residence(trajectory, None)
        del self.trajectories[trajectory.trajectory_id]
        del trajectory.group.live[trajectory.trajectory_id]

    def close_group(self, group: Group) -> None:
        """Forget a group none of whose members is live or to come."""
        del self.groups[group.group_id]
        self.complete_groups.pop(group.group_id, None)

    def settle_group(self, group: Group) -> None:
        """After a member finished or was dropped: note completion, forget a group that came to nothing."""
        if not group.is_complete:
            return
        if group.num_finished == 0:
            if group.num_started:
                self.num_groups_discarded += 1
            self.close_group(group)
        else:
            self.complete_groups[group.group_id] = group

    # -- checks -------------------------------------------------------------------------------------------

    def recount(self) -> None:
        """Check every total against a count from scratch (I1, I2, I5, I7). Linear; for tests and `debug`."""
        live = dict.fromkeys(Place, 0)
        resident: dict[ReplicaId, int] = {}
        generating: dict[ReplicaId, int] = {}
        for trajectory in self.trajectories.values():
            live[trajectory.place] += 1
            settled = trajectory.version_min == trajectory.version_min_settled
            _demand(
                settled or trajectory.place is Place.GENERATING, 5, "a trajectory's oldest version is off"
            )
            if trajectory.replica_id != NO_REPLICA and trajectory.place in _ACTIVE:
                resident[trajectory.replica_id] = resident.get(trajectory.replica_id, 0) + 1
            if trajectory.place is Place.GENERATING:
                generating[trajectory.replica_id] = generating.get(trajectory.replica_id, 0) + 1
        gone = self.counts[Place.TRAINED] + self.counts[Place.DROPPED]
        _demand(len(self.trajectories) + gone == self.num_arrived, 1, "arrived != live + trained + dropped")
        for place in Place:
            if place not in (Place.TRAINED, Place.DROPPED):
                _demand(live[place] == self.counts[place], 2, f"count of {place} is off")
        _demand(len(self.backlog) == live[Place.BACKLOG], 2, "backlog is off")
        for replica in self.replicas.values():
            _demand(replica.num_resident == resident.get(replica.replica_id, 0), 7, "residents are off")
            _demand(replica.num_turns == generating.get(replica.replica_id, 0), 7, "turns are off")
        for group in self.groups.values():
            version = group.version_min
            group.update_version()
            _demand(group.version_min == version, 5, "a group's oldest version is off")
            _demand(
                (group.group_id in self.complete_groups) <= group.is_complete, 1, "incomplete group is listed"
            )


def _demand(holds: bool, number: int, message: str) -> None:
    if not holds:
        raise InvariantViolation(number, message)


def _index_of(indexes: dict[int, LoadIndex[ReplicaId]], tp: int) -> LoadIndex[ReplicaId]:
    index = indexes.get(tp)
    if index is None:
        index = indexes[tp] = LoadIndex()
    return index


def _least(indexes: dict[int, LoadIndex[ReplicaId]], tp: int | None) -> tuple[ReplicaId, int] | None:
    if tp is not None:
        index = indexes.get(tp)
        return None if index is None else index.least()
    best: tuple[ReplicaId, int] | None = None
    for degree in sorted(indexes) if len(indexes) > 1 else indexes:
        found = indexes[degree].least()
        if found is not None and (best is None or found[1] < best[1]):
            best = found
    return best
