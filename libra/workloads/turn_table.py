"""Agent traces as workloads: one CSV row a turn.

Every turn of the file appears exactly once for each repetition asked for, with the recorded lengths, outcomes
and times. What a trace leaves out is filled by a stated rule and counted in `notes`:

- no tool latency: 0 s. No outcome: success. No payload: the growth of the prompt that follows.
- an output of 0 tokens counts as 1 (a turn generates at least one token).
- a prompt shorter than the context before it was rewritten. Up to 2 tokens short is rounding of a token
  estimate, so all of the prompt is shared; else if it is no shorter than the previous prompt, that prompt is
  (the output was dropped, for example its reasoning); else the trajectory's first prompt is (compaction).
- the samples of a group share the shortest of their first prompts.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from libra.core.ids import Supply
from libra.core.streams import stream
from libra.errors import UserError
from libra.workloads.csv_table import read_csv
from libra.workloads.table import Chunk, Prefix
from libra.workloads.trajectory_facts import TrajectoryFacts, read_facts
from libra.workloads.turn_columns import read_columns

GROUPS_PER_CHUNK = 64


@dataclass(frozen=True)
class TurnTableWorkload:
    """A turn table on disk.

    path: CSV, relative to the configuration's directory. trajectories_path: CSV with rewards and groups;
    `None` looks for one beside `path` (x_turns.csv: x_trajs.csv or x_trajectories.csv). limit: use the first
    so many trajectories. repeat: play each trajectory so often inside its recorded group; `None` makes
    groups of exactly `n_samples`, the recorded trajectories of a task first, the last group filled by playing
    them again. A table with `arrival_s` is load, not training data: each trajectory is a group by itself,
    and `repeat=None` plays it once. order: of the groups; `shuffle` is seeded. tool_timeout_s: a call that
    took at least this long timed out, besides those that the trace marks.
    """

    kind: Literal["turns"] = "turns"
    path: str = ""
    trajectories_path: str | None = None
    limit: int | None = None
    repeat: int | None = None
    order: Literal["file", "shuffle"] = "file"
    tool_timeout_s: float | None = None

    def __post_init__(self) -> None:
        """Raise `UserError` for a value out of its domain."""
        if not self.path:
            raise UserError("workload.path: missing; name the CSV file of the turn table")
        for name in ("limit", "repeat"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"workload.{name}: must be at least 1, is {value}")
        if self.tool_timeout_s is not None and not self.tool_timeout_s > 0:
            raise UserError(f"workload.tool_timeout_s: must be above 0, is {self.tool_timeout_s}")


class TurnTableSource:
    """The trajectories of a turn table, group by group. `notes` says what was filled in.

    Push supply where the table has `arrival_s`, else pull.
    """

    def __init__(self, config: TurnTableWorkload, *, seed: int, n_samples: int, base_dir: Path) -> None:
        table = read_csv(base_dir / config.path)
        self._turns = read_columns(table, tool_timeout_s=config.tool_timeout_s)
        facts_path = None if config.trajectories_path is None else base_dir / config.trajectories_path
        self._facts: TrajectoryFacts = read_facts(table, self._turns, facts_path)
        self.notes: list[str] = [*self._turns.notes, *self._facts.notes]
        self.supply = Supply.PULL if self._facts.arrival_s is None else Supply.PUSH
        if self.supply is Supply.PUSH and config.order == "shuffle":
            raise UserError("workload.order: a trace with arrival_s has its own order; use 'file'")
        self._groups = self._arrange(config, seed, n_samples)
        self._next = 0
        self._next_trajectory = 0

    def next_chunk(self) -> Chunk | None:
        """The next groups, at most 64, or `None` at the end."""
        groups = self._groups[self._next : self._next + GROUPS_PER_CHUNK]
        if not groups:
            return None
        chunk = self._chunk(groups, first_group=self._next, first_trajectory=self._next_trajectory)
        self._next += len(groups)
        self._next_trajectory += chunk.num_trajectories
        return chunk

    def _arrange(self, config: TurnTableWorkload, seed: int, n_samples: int) -> list[list[int]]:
        """Trajectory rows of each group, in the order of the run."""
        limit = min(config.limit or len(self._turns.names), len(self._turns.names))
        if self._facts.arrival_s is not None:
            return [[row] * (config.repeat or 1) for row in range(limit)]
        by_prompt: dict[int, list[int]] = {}
        for row, prompt in enumerate(self._facts.prompt_id[:limit].tolist()):
            by_prompt.setdefault(prompt, []).append(row)
        groups: list[list[int]] = []
        for members in by_prompt.values():
            if config.repeat is not None:
                groups.append([row for row in members for _ in range(config.repeat)])
                continue
            for start in range(0, len(members), n_samples):
                group = members[start : start + n_samples]
                short = n_samples - len(group)
                groups.append(group + [members[i % len(members)] for i in range(short)])
        if config.order == "shuffle":
            order = stream(seed, "workload.order").permutation(len(groups))
            return [groups[i] for i in order.tolist()]
        return groups

    def _chunk(self, groups: list[list[int]], *, first_group: int, first_trajectory: int) -> Chunk:
        turns, facts = self._turns, self._facts
        rows = np.array([row for group in groups for row in group])
        sizes = np.array([len(group) for group in groups])
        group_id = np.repeat(first_group + np.arange(len(groups)), sizes)
        counts = np.diff(turns.first_turn)[rows]
        first_turn = np.concatenate([[0], np.cumsum(counts)])
        shift = np.repeat(turns.first_turn[rows] - first_turn[:-1], counts)
        pick = shift + np.arange(len(shift))
        first_prompt = turns.prompt_tokens[turns.first_turn[rows]]
        shared = np.repeat(np.minimum.reduceat(first_prompt, np.cumsum(sizes) - sizes), sizes)
        prefix: list[Prefix] = [
            ((-1 - group, tokens),) for group, tokens in zip(group_id.tolist(), shared.tolist(), strict=True)
        ]
        prefix_tokens = turns.prefix_tokens[pick]
        prefix_tokens[first_turn[:-1]] = shared
        return Chunk(
            trajectory_id=first_trajectory + np.arange(len(rows)),
            group_id=group_id,
            prompt_id=facts.prompt_id[rows],
            sample_index=np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes),
            group_size=np.repeat(sizes, sizes),
            arrival_s=np.zeros(len(rows)) if facts.arrival_s is None else facts.arrival_s[rows],
            start_latency_s=np.zeros(len(rows)),
            reward=facts.reward[rows],
            source_id=tuple(turns.names[row] for group in groups for row in group),
            prefix=tuple(prefix),
            first_turn=first_turn,
            prompt_tokens=turns.prompt_tokens[pick],
            output_tokens=turns.output_tokens[pick],
            prefix_tokens=prefix_tokens,
            tool=turns.tool[pick],
            tool_latency_s=turns.tool_latency_s[pick],
            tool_status=turns.tool_status[pick],
            payload_tokens=turns.payload_tokens[pick],
            tool_names=turns.tool_names,
        )
