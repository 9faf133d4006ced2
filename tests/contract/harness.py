"""What a contract test holds in its hands: a world's ports, what they reported, and the passing of time.

A world is put to the tests by a subclass of `World`; nothing else here or in the tests knows which one it is.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from libra.core import actions as act
from libra.core import events as ev
from libra.core.actions import CLOSING_EVENTS
from libra.core.ids import (
    NO_ACTION,
    ActionId,
    DropReason,
    FailureKind,
    ReplicaId,
    TrajectoryId,
    WeightVersion,
)
from libra.ports import Ports, dispatch
from tests.contract import script

E = TypeVar("E")


class World:
    """Replicas 0 and 1 (two turns at a time each) are up; the workload is `tests.contract.script`.

    react: called with every event, may `send`. Both `events` and `sent` are in order.

    Where worlds differ for a good reason, the tests ask here. knows_lengths: the length of a turn is known when it is
    submitted, so that one that fits nowhere is refused; else it is cut where the context ends.
    trains_what_has_finished: a step counts the finished trajectories that it finds, not what it was told to expect.
    stops_the_dead: a replica is stopped whether it answers or not; else that waits until its death is known.
    timers_may_be_late_s: a timer that was set so late still fires, at once: actions take time to be carried out.
    """

    ports: Ports
    knows_lengths = True
    trains_what_has_finished = False
    stops_the_dead = False
    timers_may_be_late_s = 0.0

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.sent: dict[ActionId, act.Action] = {}
        self.react: Callable[[ev.Event], None] = lambda event: None
        self._next_id = 0

    # -- of each implementation ---------------------------------------------------------------------------

    def run_until(self, predicate: Callable[[], bool]) -> None:
        """Let time pass until the predicate holds; AssertionError if it never does."""
        raise AssertionError("a world says how its time passes")

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        raise AssertionError("a world says how its time passes")

    def now_s(self) -> float:
        """Seconds since the start of the run."""
        raise AssertionError("a world has a clock")

    def die(self, replica_id: int) -> None:
        """A replica dies, and nobody knows yet."""
        raise AssertionError("a world can lose a replica")

    def close(self) -> None:
        """The test is over."""

    # -- of all -------------------------------------------------------------------------------------------

    def emit(self, event: ev.Event) -> None:
        """What the ports report to."""
        self.events.append(event)
        self.react(event)

    def send(self, action: act.Action) -> ActionId:
        """Hand an action to its port, under a new number."""
        action_id = ActionId(self._next_id)
        self._next_id += 1
        self.sent[action_id] = action
        dispatch(self.ports, action_id, action)
        return action_id

    def of(self, kind: type[E]) -> list[E]:
        """Events of a type."""
        return [event for event in self.events if type(event) is kind]

    def closing(self, action_id: ActionId) -> list[ev.Event]:
        """Events that close an action."""
        return [event for event in self.events if getattr(event, "closes", NO_ACTION) == action_id]

    def end_of(self, action_id: ActionId) -> ev.Event:
        """Wait for the event that closes an action."""
        self.run_until(lambda: bool(self.closing(action_id)))
        return self.closing(action_id)[0]

    def first(self, kind: type[E], trajectory_id: int) -> E:
        """Wait for an event of a type about a trajectory."""

        def found() -> list[E]:
            return [e for e in self.of(kind) if e.trajectory_id == trajectory_id]  # type: ignore[attr-defined]

        self.run_until(lambda: bool(found()))
        return found()[0]

    def check_closed(self) -> None:
        """I6: each event closes an action that was sent and lists its type, and no action is closed twice."""
        closed: set[ActionId] = set()
        for event in self.events:
            action_id = getattr(event, "closes", NO_ACTION)
            if action_id != NO_ACTION:
                assert type(event) in CLOSING_EVENTS[type(self.sent[action_id])], (
                    event,
                    self.sent[action_id],
                )
                assert action_id not in closed, f"{event} closes action {action_id} again"
                closed.add(action_id)

    def open_actions(self) -> list[act.Action]:
        """Actions that start work and have not been closed."""
        return [a for i, a in self.sent.items() if CLOSING_EVENTS[type(a)] and not self.closing(i)]

    # -- short cuts ---------------------------------------------------------------------------------------

    def fetch(self, number: int = script.NUM_TRAJECTORIES) -> ActionId:
        """Ask for prompts."""
        return self.send(act.FetchPrompts(number, ""))

    def begin(self, *trajectories: int) -> None:
        """Fetch everything and start these."""
        if not self.of(ev.TrajectoryArrived):
            self.end_of(self.fetch())
        started = [self.send(act.StartTrajectory(TrajectoryId(i), "")) for i in trajectories]
        for action_id in started:
            assert isinstance(self.end_of(action_id), ev.TrajectoryStarted)

    def submit(self, trajectory: int, replica: int = 0, turn: int = 0, more: int = 0) -> ActionId:
        """The turn of a trajectory; `more`: tokens that failed attempts have added to its prompt."""
        prompt = (script.FIRST_PROMPT, script.SECOND_PROMPT)[turn] + more
        return self.send(act.SubmitTurn(TrajectoryId(trajectory), turn, ReplicaId(replica), prompt, 0, ""))

    def drop(self, trajectory: int) -> None:
        """Give it up."""
        self.send(act.DropTrajectory(TrajectoryId(trajectory), DropReason.SURPLUS, ""))

    def abort(self, trajectory: int, submit_id: ActionId) -> None:
        """Abort a turn."""
        self.send(act.AbortTurn(TrajectoryId(trajectory), submit_id, ""))

    def load(self, replica: int = 0, version: int = 1) -> ActionId:
        """Refresh a replica."""
        return self.send(act.LoadWeights(ReplicaId(replica), WeightVersion(version), ""))

    def drain(self, replica: int = 0) -> ActionId:
        """Let a replica run dry."""
        return self.send(act.DrainReplica(ReplicaId(replica), ""))

    def stop(self, replica: int = 0) -> ActionId:
        """Stop a replica."""
        return self.send(act.StopReplica(ReplicaId(replica), ""))

    def start(self, replica: int = 0) -> ActionId:
        """Start a replica."""
        return self.send(act.StartReplica(ReplicaId(replica), 1, 0, ""))

    def lose(self, replica: int) -> None:
        """A replica dies and is found dead."""
        known = len(self.of(ev.ReplicaLost))
        self.die(replica)
        self.run_until(lambda: len(self.of(ev.ReplicaLost)) > known)

    def train(self, *groups: int) -> ActionId:
        """A step on some groups."""
        return self.send(act.StartTrainStep(groups, 2 * len(groups), 1000 * len(groups), ""))

    def publish(self, version: int = 1) -> ActionId:
        """Publish a version that was trained."""
        return self.send(act.PublishWeights(WeightVersion(version), ""))


def kinds(events: Iterable[ev.Event]) -> list[type]:
    """Their types."""
    return [type(event) for event in events]


def generating(world: World, *trajectories: int, replica: int = 0) -> list[ActionId]:
    """Turns that have produced tokens for a while."""
    world.begin(*trajectories)
    ids = [world.submit(i, replica) for i in trajectories]
    world.wait(1.0)
    assert not any(world.closing(i) for i in ids)
    return ids


def assert_failed(event: ev.Event, kind: FailureKind, what: type = ev.ActionFailed) -> None:
    """It is a failure of this kind."""
    assert (type(event), getattr(event, "kind", None)) == (what, kind)


def publish(world: World, version: int = 1) -> None:
    """Train and publish."""
    world.end_of(world.train(version - 1))
    world.end_of(world.publish(version))
