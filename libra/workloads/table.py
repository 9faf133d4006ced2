"""A workload: what the world will do, whatever the scheduler decides. Columns only, no behaviour.

These are the exogenous columns: which trajectories there are, how long their prompts and outputs are, what
their tools do and how long that takes. They are the same for every policy of a comparison. A policy never
sees them; it sees the events that follow from them, as they happen.

A workload comes in chunks (`WorkloadSource.next_chunk`), so a run of a million trajectories holds only those
in flight. Chunk boundaries are the source's own and do not depend on who asks, when or for how much.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from libra.core.ids import Supply

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

TOOL_STATUS_CODES = ("success", "failure", "timeout")
"""`Chunk.tool_status` holds indices into this."""

Prefix = tuple[tuple[int, int], ...]
"""Leading context that a trajectory shares with others: (chain id, tokens taken from it), in order.

Chain ids: `-1 - group_id` for the prompt that the samples of a GRPO group share; a trajectory id for the
context of that (earlier) trajectory's own part. What follows belongs to the trajectory's own chain."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some whole groups. n trajectories, m turns; turns of trajectory i are first_turn[i]:first_turn[i + 1].

    trajectory_id: unique over the run, increasing. group_size: samples in the group.
    arrival_s: when it may start (push supply; 0 for pull). start_latency_s: environment start.
    reward: nan where the workload has none. source_id: the data set's own name of the trajectory.
    prompt_tokens: whole prompt of the turn. output_tokens: tokens to generate, at least 1.
    prefix_tokens: leading tokens of this prompt equal to the context (prompt + output) of the previous turn;
        for the first turn equal to the sum of the `prefix` entry.
    tool: index into `tool_names`; what is called after the turn. The last turn's tool is the end of the
        episode (reward computation, submission), its latency passes before the trajectory finishes.
    tool_latency_s, tool_status (index into TOOL_STATUS_CODES), payload_tokens: of that call.
    """

    trajectory_id: Ints
    group_id: Ints
    prompt_id: Ints
    sample_index: Ints
    group_size: Ints
    arrival_s: Floats
    start_latency_s: Floats
    reward: Floats
    source_id: tuple[str, ...]
    prefix: tuple[Prefix, ...]
    first_turn: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    prefix_tokens: Ints
    tool: Ints
    tool_latency_s: Floats
    tool_status: Ints
    payload_tokens: Ints
    tool_names: tuple[str, ...]

    @property
    def num_trajectories(self) -> int:
        """Number of trajectories."""
        return len(self.trajectory_id)

    @property
    def num_turns(self) -> int:
        """Number of turns."""
        return len(self.prompt_tokens)


class WorkloadSource(Protocol):
    """Delivers a workload once, front to back."""

    supply: Supply

    def next_chunk(self) -> Chunk | None:
        """The next chunk in order, or `None` at the end."""
        ...
