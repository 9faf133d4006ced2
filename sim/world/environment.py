"""Episodes' environments: starts, tool calls with a timeout, rewards. The `EnvironmentPort` of the simulator."""

from typing import cast

from simpy.events import Event

from libra.core import events as ev
from libra.core.actions import DropTrajectory, StartTrajectory
from libra.core.ids import ActionId, ToolStatus
from libra.ports import Emit
from sim.clock import ARRIVAL, TICKS_PER_S, Clock, to_ticks
from sim.world.episodes import Episode


class SimEnvironment:
    """See the module. Latencies and outcomes come from the workload; a call longer than the timeout is one."""

    def __init__(self, clock: Clock, episodes: dict[int, Episode], tool_timeout_s: float, emit: Emit) -> None:
        self._clock = clock
        self._episodes = episodes
        self._timeout_s = tool_timeout_s
        self._emit = emit

    def start(self, action_id: ActionId, action: StartTrajectory) -> None:
        """See `EnvironmentPort`."""
        started = ev.TrajectoryStarted(action_id, action.trajectory_id)
        latency_s = self._episodes[action.trajectory_id].start_latency_s
        if latency_s > 0:
            self._clock.call_later(to_ticks(latency_s), lambda: self._emit(started))
        else:
            self._emit(started)

    def drop(self, action: DropTrajectory) -> None:
        """See `EnvironmentPort`."""
        episode = self._episodes.pop(action.trajectory_id, None)
        if episode is not None:  # one that has finished has no environment any more
            episode.dropped = True

    def after_turn(self, episode: Episode, turn: int) -> None:
        """The turn is over: call its tool, or end the episode."""
        latency_s = episode.columns.tool_latency_s[episode.row + turn]
        if latency_s > self._timeout_s:
            latency_s = self._timeout_s
        # The hot path of the world: one SimPy event per turn, without a closure.
        self._clock.wake(self._returned, ARRIVAL, round(latency_s * TICKS_PER_S), (episode, turn))

    def _returned(self, returns: Event) -> None:
        episode, turn = cast(tuple[Episode, int], returns._value)
        if episode.dropped:
            return
        columns, row = episode.columns, episode.row + turn
        trajectory_id = episode.trajectory_id
        if turn + 1 == episode.num_turns:
            del self._episodes[episode.trajectory_id]
            self._emit(ev.TrajectoryFinished(trajectory_id, episode.num_turns, episode.reward))
            return
        latency_s, status = columns.tool_latency_s[row], columns.tool_status[row]
        if latency_s > self._timeout_s:
            latency_s, status = self._timeout_s, ToolStatus.TIMEOUT
        self._emit(
            ev.ToolReturned(
                trajectory_id,
                turn,
                columns.tool_names[columns.tool[row]],
                status,
                columns.payload_tokens[row],
                latency_s,
                columns.prompt_tokens[row + 1],
            )
        )
