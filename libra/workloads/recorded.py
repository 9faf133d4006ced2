# pyarrow and pandas ship no types: what comes out of them is unknown to the type checker in this file.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A recorded run as a workload: its exogenous columns, whichever world wrote them.

Trajectories whose episode came to its end are played again, with the lengths, tools and outcomes that they had;
the others (dropped, or cut off by the end of the run) are left out and counted in `notes`. Attempts of one turn
are put together: the prompt of the first, the tokens of all. What a record does not say is filled by a rule:

- the samples of a group share the shortest of their first prompts;
- a prompt shares all of the context before it, as far as it is long enough;
- a group has as many samples as came to their end.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from libra.core.ids import Place, Supply
from libra.errors import UserError
from libra.workloads.table import TOOL_STATUS_CODES, Chunk

GROUPS_PER_CHUNK = 64
_ENDED = [Place.FINISHED.value, Place.TRAINING.value, Place.TRAINED.value]
_TRAJECTORIES = [
    "trajectory_id",
    "group_id",
    "prompt_id",
    "sample_index",
    "arrival_s",
    "start_latency_s",
    "reward",
    "place",
    "num_turns",
]
_TURNS = [
    "trajectory_id",
    "turn",
    "attempt",
    "prompt_tokens",
    "output_tokens",
    "prefix_tokens",
    "status",
    "tool_name",
    "tool_status",
    "tool_latency_s",
    "payload_tokens",
]


def is_recorded_run(directory: Path) -> bool:
    """Whether the directory holds a run's tables (and not a workload written by `write_chunks`)."""
    return (directory / "events.parquet").is_file() and not (directory / "workload").is_dir()


class RecordedSource:
    """See the module. Pull or push as the run was."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        trajectories = self._read("trajectories", _TRAJECTORIES)
        ended = trajectories["place"].isin(_ENDED)
        self.notes = (
            [f"{(~ended).sum()} trajectories did not come to their end: left out"] if not ended.all() else []
        )
        self._trajectories = trajectories[ended].sort_values("trajectory_id", ignore_index=True)
        if self._trajectories.empty:
            raise UserError(
                f"{directory}: no trajectory of this run came to its end; there is nothing to play"
            )
        self._turns = self._merged_turns(self._read("turns", _TURNS))
        names = [name for name in self._turns["tool_name"].unique() if isinstance(name, str)]
        self._tool_names = tuple(sorted(names)) or ("",)
        self._groups = self._trajectories["group_id"].unique()
        self._next = 0
        supply = pq.ParquetFile(directory / "events.parquet").read_row_group(0, columns=["supply"])
        self.supply = Supply(supply.column("supply").drop_null()[0].as_py())

    def next_chunk(self) -> Chunk | None:
        """The next groups, in order of trajectory id."""
        groups = self._groups[self._next : self._next + GROUPS_PER_CHUNK]
        if not len(groups):
            return None
        self._next += len(groups)
        rows = self._trajectories[self._trajectories["group_id"].isin(groups)]
        rows = rows.sort_values(["group_id", "trajectory_id"], kind="stable")
        turns = rows[["trajectory_id"]].merge(self._turns, on="trajectory_id", how="left", sort=False)
        counts = rows["num_turns"].to_numpy(np.int64)
        if len(turns) != counts.sum():
            raise UserError(f"{self._directory}/turns.parquet: turns are missing; run it again")
        first_turn = np.append(0, np.cumsum(counts))
        prompt, output = turns["prompt_tokens"].to_numpy(np.int64), turns["output_tokens"].to_numpy(np.int64)
        first_prompt = pd.Series(prompt[first_turn[:-1]], index=rows["group_id"].to_numpy())
        shared = first_prompt.groupby(level=0).transform("min").to_numpy(np.int64)
        group_ids = rows["group_id"].to_numpy(np.int64)
        prefix_tokens = np.minimum(np.append(0, (prompt + output)[:-1]), prompt)
        prefix_tokens[first_turn[:-1]] = shared
        codes = {name: code for code, name in enumerate(self._tool_names)}
        statuses = {name: code for code, name in enumerate(TOOL_STATUS_CODES)}
        return Chunk(
            trajectory_id=rows["trajectory_id"].to_numpy(np.int64),
            group_id=group_ids,
            prompt_id=rows["prompt_id"].to_numpy(np.int64),
            sample_index=rows["sample_index"].to_numpy(np.int64),
            group_size=rows.groupby("group_id")["group_id"].transform("size").to_numpy(np.int64),
            arrival_s=rows["arrival_s"].to_numpy(np.float64),
            start_latency_s=np.nan_to_num(rows["start_latency_s"].to_numpy(np.float64)),
            reward=rows["reward"].to_numpy(np.float64),
            source_id=tuple(rows["trajectory_id"].astype(str)),
            prefix=tuple(((-1 - int(g), int(n)),) for g, n in zip(group_ids, shared, strict=True)),
            first_turn=first_turn,
            prompt_tokens=prompt,
            output_tokens=output,
            prefix_tokens=prefix_tokens,
            tool=turns["tool_name"].map(codes).fillna(0).to_numpy(np.int64),
            tool_latency_s=np.nan_to_num(turns["tool_latency_s"].to_numpy(np.float64)),
            tool_status=turns["tool_status"].map(statuses).fillna(0).to_numpy(np.int64),
            payload_tokens=turns["payload_tokens"].fillna(0).to_numpy(np.int64),
            tool_names=self._tool_names,
        )

    def _read(self, name: str, columns: list[str]) -> Any:
        path = self._directory / f"{name}.parquet"
        try:
            return pq.read_table(path, columns=columns).to_pandas()
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; name the directory of a finished run") from None
        except (pa.ArrowInvalid, KeyError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path}: cannot be read as a run's table ({reason}); run it again") from None

    def _merged_turns(self, turns: Any) -> Any:
        turns = turns.astype({"tool_name": object, "tool_status": object})
        turns = turns.sort_values(["trajectory_id", "turn", "attempt"], ignore_index=True)
        keys = turns.groupby(["trajectory_id", "turn"], sort=False)
        merged = turns[turns["status"] == "finished"].drop_duplicates(["trajectory_id", "turn"], keep="last")
        sums = keys.agg(prompt_tokens=("prompt_tokens", "first"), output_tokens=("output_tokens", "sum"))
        merged = merged.drop(columns=["prompt_tokens", "output_tokens"])
        return merged.merge(sums.reset_index(), on=["trajectory_id", "turn"], how="left")
