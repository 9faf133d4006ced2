"""Episodes: the world's knowledge of what each live trajectory will do.

This is the oracle side. Nothing here is reachable from a policy: it learns the length of a turn when the turn
ends and the latency of a tool when the tool returns.
"""

import itertools

from libra.core.ids import ToolStatus, TrajectoryId
from libra.workloads.table import TOOL_STATUS_CODES, Chunk
from sim.engine.base import Path

_STATUS = tuple(ToolStatus(code) for code in TOOL_STATUS_CODES)


class ChunkLists:
    """A chunk's turn columns as lists: reading one number out of an array costs ten times more."""

    __slots__ = (
        "output_tokens",
        "payload_tokens",
        "prefix_tokens",
        "prompt_tokens",
        "tool",
        "tool_latency_s",
        "tool_names",
        "tool_status",
    )

    def __init__(self, chunk: Chunk) -> None:
        self.prompt_tokens: list[int] = chunk.prompt_tokens.tolist()
        self.output_tokens: list[int] = chunk.output_tokens.tolist()
        self.prefix_tokens: list[int] = chunk.prefix_tokens.tolist()
        self.payload_tokens: list[int] = chunk.payload_tokens.tolist()
        self.tool: list[int] = chunk.tool.tolist()
        self.tool_latency_s: list[float] = chunk.tool_latency_s.tolist()
        self.tool_status: list[ToolStatus] = [_STATUS[code] for code in chunk.tool_status.tolist()]
        self.tool_names = chunk.tool_names


class Episode:
    """One trajectory: its columns, where it stands, and the chains that its context consists of.

    row: index of turn 0 in `columns`. num_generated: tokens of the current turn that failed attempts have
    left in the context.
    """

    __slots__ = (
        "columns",
        "dropped",
        "group_id",
        "num_generated",
        "num_turns",
        "path",
        "reward",
        "row",
        "start_latency_s",
        "trajectory_id",
    )

    def __init__(
        self,
        trajectory_id: TrajectoryId,
        group_id: int,
        columns: ChunkLists,
        row: int,
        num_turns: int,
        start_latency_s: float,
        reward: float,
        path: Path,
    ) -> None:
        self.trajectory_id = trajectory_id
        self.group_id = group_id
        self.columns = columns
        self.row = row
        self.num_turns = num_turns
        self.start_latency_s = start_latency_s
        self.reward = reward
        self.path = path
        self.num_generated = 0
        self.dropped = False


class Forks:
    """Chain ids for contexts that leave their history (a rewritten prompt)."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids = itertools.count(-(1 << 60))

    def enter_turn(self, episode: Episode, turn: int, block_size: int) -> None:
        """Where turn `turn`'s prompt no longer starts with all of the context so far, branch off the path."""
        columns, row = episode.columns, episode.row + turn
        kept = columns.prefix_tokens[row]
        if kept < columns.prompt_tokens[row - 1] + columns.output_tokens[row - 1]:
            episode.path = (*_truncated(episode.path, kept // block_size), (next(self._ids), 0))


def path_of(prefix: tuple[tuple[int, int], ...], own_chain: int, block_size: int) -> Path:
    """Chains of a first prompt: shared ones with their number of full blocks, then the trajectory's own.

    A block that straddles two chains counts to the later one.
    """
    path: list[tuple[int, int]] = []
    tokens = blocks = 0
    for chain, chain_tokens in prefix:
        tokens += chain_tokens
        full = tokens // block_size
        path.append((chain, full - blocks))
        blocks = full
    path.append((own_chain, 0))
    return tuple(path)


def _truncated(path: Path, num_blocks: int) -> Path:
    kept: list[tuple[int, int]] = []
    for i, (chain, blocks) in enumerate(path):
        if i == len(path) - 1 or blocks >= num_blocks:
            return (*kept, (chain, num_blocks))
        kept.append((chain, blocks))
        num_blocks -= blocks
    return tuple(kept)
