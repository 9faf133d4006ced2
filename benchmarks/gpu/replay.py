"""The phase `trace`: a closed loop of multi-turn trajectories, so many at once, tool waits slept."""

import asyncio
from collections.abc import Iterator, Sequence

from benchmarks.gpu.engine import Client
from benchmarks.gpu.forms import Table
from benchmarks.gpu.progress import Progress
from benchmarks.gpu.step_log import now_s
from benchmarks.gpu.trace import Trajectory, random_ids

_TRACE = 21


class Replay:
    """One run of a trace on an engine."""

    def __init__(self, client: Client, name: str, table: Table, progress: Progress) -> None:
        """`name` is the case in the step log."""
        self.num_mismatches = 0
        self._client = client
        self._name = name
        self._table = table
        self._progress = progress
        self._start_s = 0.0

    async def run(self, trajectories: Sequence[Trajectory], concurrency: int, deadline_s: float) -> float:
        """Play all, or as much as begins and ends within deadline_s (0: no bound); returns seconds from the start.

        A slot takes the next trajectory when the tool wait after its last turn is over.
        """
        waiting = iter(enumerate(trajectories))
        self._start_s = now_s()
        slots = [asyncio.create_task(self._slot(waiting)) for _ in range(concurrency)]
        try:
            async with asyncio.timeout(deadline_s or None):
                await asyncio.gather(*slots)
        except TimeoutError:
            self._progress.row("trace", f"cut off after {deadline_s:g} s")
        finally:
            for slot in slots:
                slot.cancel()
            await asyncio.gather(*slots, return_exceptions=True)
        return now_s() - self._start_s

    async def _slot(self, waiting: Iterator[tuple[int, Trajectory]]) -> None:
        for index, trajectory in waiting:
            await self._play(index, trajectory)

    async def _play(self, index: int, trajectory: Trajectory) -> None:
        context: list[int] = []
        for number, turn in enumerate(trajectory.turns):
            fresh = trajectory.new_tokens(number)
            context += random_ids((_TRACE, index, number), fresh, self._client.vocabulary)
            served = await self._client.serve("trace", self._name, context, turn.output_tokens)
            context += served.token_ids
            self.num_mismatches += (served.prompt_tokens, len(served.token_ids)) != (
                turn.prompt_tokens,
                turn.output_tokens,
            )
            self._table.add(
                trajectory.trajectory_id,
                number,
                round(served.submit_s - self._start_s, 5),
                served.prompt_tokens,
                len(served.token_ids),
                served.cached_tokens,
                round(served.ttft_s, 5),
                round(served.last_s - served.submit_s, 5),
                turn.tool_latency_s,
            )
            if self._table.num_rows % 250 == 0:
                self._progress.row("trace", f"{self._table.num_rows} turns")
            await asyncio.sleep(turn.tool_latency_s)
