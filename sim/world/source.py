"""Prompts out of a workload: pulled by the controller, or pushed at their own times. The `PromptSource` port.

Chunks are taken from the workload as they are needed, so a long run holds only what is in flight.
"""

from libra.core import events as ev
from libra.core.actions import FetchPrompts
from libra.core.ids import ActionId, FailureKind, GroupId, PromptId, Supply, TrajectoryId
from libra.ports import Emit
from libra.workloads.table import Chunk, WorkloadSource
from sim.clock import Clock, to_ticks
from sim.world.episodes import ChunkLists, Episode, path_of
from sim.world.faults import ToolFaults


class SimSource:
    """See the module."""

    def __init__(
        self,
        clock: Clock,
        workload: WorkloadSource,
        episodes: dict[int, Episode],
        block_size: int,
        tool_faults: ToolFaults,
        emit: Emit,
    ) -> None:
        self._clock = clock
        self._workload = workload
        self._episodes = episodes
        self._block_size = block_size
        self._tool_faults = tool_faults
        self._emit = emit
        self._arrivals: list[tuple[float, ev.TrajectoryArrived, Episode]] = []  # next one last
        self._exhausted = False
        self.supply: Supply = workload.supply

    def fetch(self, action_id: ActionId, action: FetchPrompts) -> None:
        """See `PromptSource`: whole groups, at least as many trajectories as asked for."""
        if self.supply is Supply.PUSH:
            self._emit(
                ev.ActionFailed(action_id, FailureKind.REFUSED, "this workload arrives at its own times")
            )
            return
        count = 0
        group_id = None
        while self._refill():
            arrival = self._arrivals[-1][1]
            if count >= action.num_trajectories and arrival.group_id != group_id:
                break
            group_id = arrival.group_id
            self._arrive()
            count += 1
        self._emit(ev.PromptsFetched(action_id, count, self._exhausted and not self._arrivals))

    def start_pushing(self) -> None:
        """Schedule the first arrival of a pushed workload; each arrival schedules the next."""
        if self.supply is Supply.PUSH:
            self._schedule_push()

    def _schedule_push(self) -> None:
        if self._refill():
            due_t = to_ticks(self._arrivals[-1][0])
            self._clock.call_later(max(0, due_t - self._clock.now), self._push)
        else:
            self._emit(ev.SourceExhausted())

    def _push(self) -> None:
        self._arrive()
        self._schedule_push()

    def _arrive(self) -> None:
        _, arrived, episode = self._arrivals.pop()
        self._episodes[episode.trajectory_id] = episode
        self._emit(arrived)

    def _refill(self) -> bool:
        while not self._arrivals:
            chunk = None if self._exhausted else self._workload.next_chunk()
            if chunk is None:
                self._exhausted = True
                return False
            self._arrivals = self._open(chunk)
            self._arrivals.reverse()
        return True

    def _open(self, chunk: Chunk) -> list[tuple[float, ev.TrajectoryArrived, Episode]]:
        columns = ChunkLists(chunk)
        self._tool_faults.apply(columns, int(chunk.trajectory_id[0]) if chunk.num_trajectories else 0)
        first_turn: list[int] = chunk.first_turn.tolist()
        rows = zip(
            chunk.trajectory_id.tolist(),
            chunk.group_id.tolist(),
            chunk.prompt_id.tolist(),
            chunk.sample_index.tolist(),
            chunk.group_size.tolist(),
            chunk.arrival_s.tolist(),
            chunk.start_latency_s.tolist(),
            chunk.reward.tolist(),
            chunk.prefix,
            strict=True,
        )
        opened: list[tuple[float, ev.TrajectoryArrived, Episode]] = []
        for i, (tid, gid, pid, sample, size, arrival_s, start_s, reward, prefix) in enumerate(rows):
            row = first_turn[i]
            path = path_of(prefix, tid, self._block_size)
            episode = Episode(
                TrajectoryId(tid), gid, columns, row, first_turn[i + 1] - row, start_s, reward, path
            )
            arrived = ev.TrajectoryArrived(
                episode.trajectory_id, GroupId(gid), PromptId(pid), sample, size, columns.prompt_tokens[row]
            )
            opened.append((arrival_s, arrived, episode))
        return opened
