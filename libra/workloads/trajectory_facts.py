"""What is known of whole trajectories in a turn table: task, reward, arrival.

Rewards and tasks may stand in the turn table itself or in a second table beside it, one row a trajectory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from libra.errors import UserError
from libra.workloads.csv_table import CsvTable, read_csv
from libra.workloads.table import Floats, Ints
from libra.workloads.turn_columns import TurnColumns

TASK_COLUMNS = ("prompt_id", "task_id", "task_index", "task", "group_id", "group")
REWARD_COLUMNS = ("reward", "resolved")


@dataclass(frozen=True)
class TrajectoryFacts:
    """By trajectory, [n]: prompt_id (0-based, by first appearance), reward (nan: unknown), arrival_s or `None`."""

    prompt_id: Ints
    reward: Floats
    arrival_s: Floats | None
    notes: tuple[str, ...]


def read_facts(table: CsvTable, turns: TurnColumns, beside: Path | None) -> TrajectoryFacts:
    """Facts of the trajectories of `table`, from it and from the trajectories table (`None`: look beside)."""
    own = _OwnColumns(table, turns)
    other = facts_beside(table.path) if beside is None else beside
    second = None if other is None else read_csv(other)
    if second is not None:
        second.require("trajectory_id")
    notes: list[str] = []
    tasks = own.text(TASK_COLUMNS) or _looked_up(second, turns.names, TASK_COLUMNS)
    if tasks is None:
        prompt_id = np.arange(len(turns.names))
        notes.append("no task column: every trajectory is its own prompt")
    else:
        index: dict[str, int] = {}
        codes = [index.setdefault(task or f"\0{row}", len(index)) for row, task in enumerate(tasks)]
        prompt_id = np.array(codes, dtype=np.int64)
    reward = own.floats(REWARD_COLUMNS)
    if reward is None:
        reward = _looked_up_rewards(second, turns.names)
    missing = int(np.isnan(reward).sum())
    if missing:
        notes.append(f"{missing} trajectories without reward")
    return TrajectoryFacts(prompt_id, reward, own.arrival(), tuple(notes))


class _OwnColumns:
    """Columns of the turn table that are constant over a trajectory, read at its first turn."""

    def __init__(self, table: CsvTable, turns: TurnColumns) -> None:
        self._table = table
        self._turns = turns
        self._rows = turns.rows[turns.first_turn[:-1]]

    def text(self, names: tuple[str, ...]) -> Sequence[str] | None:
        """First of these columns that is there."""
        name = self._table.first_of(*names)
        if name is None:
            return None
        cells = self._table.columns[name]
        rows: list[int] = self._rows.tolist()
        return [cells[row] for row in rows]

    def floats(self, names: tuple[str, ...]) -> Floats | None:
        """First of these columns that is there, as numbers (any sign)."""
        name = self._table.first_of(*names)
        if name is None:
            return None
        return self._table.floats(name, required=False, minimum=-np.inf)[self._rows]

    def arrival(self) -> Floats | None:
        """`arrival_s`, checked to be complete and in order of the file."""
        if "arrival_s" not in self._table.columns:
            return None
        values = self._table.floats("arrival_s", required=True)[self._rows]
        back = np.flatnonzero(np.diff(values) < 0)
        if len(back):
            row = int(self._rows[back[0] + 1])
            raise self._table.error(
                row,
                "arrival_s",
                f"{values[back[0] + 1]:g} is before {values[back[0]]:g} of the trajectory above; "
                "sort the trajectories by arrival",
            )
        return values


def facts_beside(path: Path) -> Path | None:
    """The trajectories table that stands beside a turn table, by its name."""
    stem = path.stem.removesuffix("_turns")
    names = [f"{stem}_trajs.csv", f"{stem}_trajectories.csv"]
    if path.stem == "turns":
        names += ["trajs.csv", "trajectories.csv"]
    return next((path.with_name(name) for name in names if path.with_name(name).is_file()), None)


def _lookup(table: CsvTable) -> dict[str, int]:
    rows: dict[str, int] = {}
    for row, name in enumerate(table.text("trajectory_id")):
        if name in rows:
            line = table.lines[rows[name]]
            raise table.error(row, "trajectory_id", f"{name} stands already on line {line}; remove one")
        rows[name] = row
    return rows


def _looked_up(
    table: CsvTable | None, names: Sequence[str], columns: tuple[str, ...]
) -> Sequence[str] | None:
    column = None if table is None else table.first_of(*columns)
    if table is None or column is None:
        return None
    rows, cells = _lookup(table), table.columns[column]
    for name in names:
        if name not in rows:
            raise UserError(f"{table.path}: no row for trajectory {name}; add it")
    return [cells[rows[name]] for name in names]


def _looked_up_rewards(table: CsvTable | None, names: Sequence[str]) -> Floats:
    column = None if table is None else table.first_of(*REWARD_COLUMNS)
    if table is None or column is None:
        return np.full(len(names), np.nan)
    rows = _lookup(table)
    values = np.append(table.floats(column, required=False, minimum=-np.inf), np.nan)
    return values[[rows.get(name, -1) for name in names]]
