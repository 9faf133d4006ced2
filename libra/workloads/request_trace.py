"""Request traces as workloads: one CSV row a request, each a trajectory of one turn that arrives by itself.

Shared prefixes. A trace such as Mooncake's says how many leading blocks of a prompt had been seen before, not
in which request. The link is a heuristic: the request reuses the latest earlier one with one block more than
that (a conversation's previous prompt, whose last block was not full), else the latest of those with the
fewest blocks that suffice. Links compose: what the earlier request had itself from others is taken from
there, so all users of one system prompt end at the same chain.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from libra.core.ids import Supply
from libra.errors import UserError
from libra.workloads.csv_table import CsvTable, read_csv
from libra.workloads.table import Chunk, Floats, Ints, Prefix

REQUESTS_PER_CHUNK = 1024
TIME_COLUMNS = ("t", "arrival_s")
BLOCK_TOKENS = 512
"""Tokens of a prefix block in the Mooncake trace (its data card)."""


@dataclass(frozen=True)
class RequestTraceWorkload:
    """A request trace on disk.

    path: CSV, relative to the configuration's directory. rate_scale: arrivals come this much faster. limit:
    use the first so many requests. block_tokens: tokens of a block in `reused_prefix_blocks`.
    """

    kind: Literal["requests"] = "requests"
    path: str = ""
    rate_scale: float = 1.0
    limit: int | None = None
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        """Raise `UserError` for a value out of its domain."""
        if not self.path:
            raise UserError("workload.path: missing; name the CSV file of the request trace")
        if not 0 < self.rate_scale < np.inf:
            raise UserError(f"workload.rate_scale: must be above 0, is {self.rate_scale}")
        for name in ("limit", "block_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"workload.{name}: must be at least 1, is {value}")


class RequestTraceSource:
    """The requests of a trace in order of arrival. `notes` says what was filled in."""

    supply = Supply.PUSH

    def __init__(self, config: RequestTraceWorkload, *, base_dir: Path) -> None:
        table = read_csv(base_dir / config.path)
        self._arrival_s, self._prompt, self._output, self.notes = read_requests(table)
        self._arrival_s = self._arrival_s / config.rate_scale
        self._prefixes = link_prefixes(table, self._prompt, self._output, config.block_tokens, self.notes)
        self._num = min(config.limit or table.num_rows, table.num_rows)
        self._next = 0

    def next_chunk(self) -> Chunk | None:
        """The next requests, at most 1,024, or `None` at the end."""
        start, stop = self._next, min(self._next + REQUESTS_PER_CHUNK, self._num)
        if start == stop:
            return None
        self._next = stop
        num = stop - start
        ids = np.arange(start, stop)
        zeros = np.zeros(num, dtype=np.int64)
        prefixes = self._prefixes[start:stop]
        return Chunk(
            trajectory_id=ids,
            group_id=ids,
            prompt_id=ids,
            sample_index=zeros,
            group_size=np.ones(num, dtype=np.int64),
            arrival_s=self._arrival_s[start:stop],
            start_latency_s=np.zeros(num),
            reward=np.full(num, np.nan),
            source_id=tuple(str(i) for i in ids.tolist()),
            prefix=tuple(prefixes),
            first_turn=np.arange(num + 1),
            prompt_tokens=self._prompt[start:stop],
            output_tokens=self._output[start:stop],
            prefix_tokens=np.array([sum(n for _, n in prefix) for prefix in prefixes], dtype=np.int64),
            tool=zeros,
            tool_latency_s=np.zeros(num),
            tool_status=zeros,
            payload_tokens=zeros,
            tool_names=("end",),
        )


def read_requests(table: CsvTable) -> tuple[Floats, Ints, Ints, list[str]]:
    """Arrival times, prompt and output tokens [n], and notes. Raises `UserError` for a wrong cell."""
    time_column = table.first_of(*TIME_COLUMNS)
    table.require(*(["t"] if time_column is None else []), "prompt_tokens", "output_tokens")
    column = time_column or "t"
    arrival_s = table.floats(column, required=True)
    back = np.flatnonzero(np.diff(arrival_s) < 0)
    if len(back):
        row = int(back[0]) + 1
        raise table.error(
            row,
            column,
            f"{arrival_s[row]:g} is before {arrival_s[row - 1]:g} of the request above; sort by arrival",
        )
    prompt, output = table.ints("prompt_tokens", minimum=1), table.ints("output_tokens")
    empty = int((output == 0).sum())
    notes = [f"{empty} requests with 0 output tokens count as 1"] if empty else []
    return arrival_s, prompt, np.maximum(output, 1), notes


def link_prefixes(
    table: CsvTable, prompt: Ints, output: Ints, block_tokens: int, notes: list[str]
) -> list[Prefix]:
    """Prefix of each request by the heuristic of this module; empty without `reused_prefix_blocks`."""
    num = len(prompt)
    if "reused_prefix_blocks" not in table.columns:
        return [()] * num
    reused = table.ints("reused_prefix_blocks").tolist()
    blocks = -(-prompt // block_tokens)
    if "blocks" in table.columns:
        blocks = table.ints("blocks")
    prefixes: list[Prefix] = []
    latest: dict[int, int] = {}
    sizes: list[int] = []
    unlinked = 0
    for row, (wanted, size) in enumerate(zip(reused, blocks.tolist(), strict=True)):
        prefix: Prefix = ()
        if wanted:
            at = bisect_left(sizes, wanted)
            parent = latest.get(wanted + 1, latest[sizes[at]] if at < len(sizes) else -1)
            if parent < 0:
                unlinked += 1
            else:
                context = int(prompt[parent] + output[parent])
                tokens = min(wanted * block_tokens, int(prompt[row]), context)
                prefix = _taken(prefixes[parent], parent, tokens)
        prefixes.append(prefix)
        if size not in latest:
            insort(sizes, size)
        latest[size] = row
    if unlinked:
        notes.append(f"{unlinked} requests reuse more blocks than any earlier request has: not linked")
    return prefixes


def _taken(inherited: Prefix, parent: int, tokens: int) -> Prefix:
    """The first `tokens` tokens of a request's context: first what it inherited, then its own chain."""
    parts: list[tuple[int, int]] = []
    for chain, length in inherited:
        take = min(length, tokens)
        if take:
            parts.append((chain, take))
        tokens -= take
    if tokens:
        parts.append((parent, tokens))
    return tuple(parts)
