"""Multi-turn traces: reading them, and the token ids that a replay sends."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from libra.cost.points import TRACE_COLUMNS
from libra.errors import UserError

_NEEDED: Final = ("trajectory_id", "turn", "prompt_tokens", "output_tokens", "tool_latency_s")


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: lengths in tokens, and the tool wait in seconds that follows it."""

    prompt_tokens: int
    output_tokens: int
    tool_latency_s: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Turns in order; each prompt holds the prompt and the output of the turn before."""

    trajectory_id: str
    turns: tuple[Turn, ...]

    def new_tokens(self, turn: int) -> int:
        """Prompt tokens of `turn` that no earlier turn brought."""
        if turn == 0:
            return self.turns[0].prompt_tokens
        before = self.turns[turn - 1]
        return self.turns[turn].prompt_tokens - before.prompt_tokens - before.output_tokens


def read_trace(path: Path, max_model_len: int) -> list[Trajectory]:
    """Trajectories by their first submit_s (by their first row, where the file has none); turns by number.

    Columns as in TRACE_COLUMNS, of which those of the measurement may be absent. Raises UserError for a file that
    cannot be read, a turn that is missing, a prompt shorter than what came before it, and a turn of more tokens
    than max_model_len.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--trace {path}: cannot be read ({error}); name a CSV file") from None
    missing = [name for name in _NEEDED if not rows or rows[0].get(name) is None]
    if missing:
        raise UserError(f"--trace {path}: no column {', '.join(missing)}; wanted: {', '.join(TRACE_COLUMNS)}")
    found: dict[str, list[tuple[int, float, Turn]]] = {}
    for number, row in enumerate(rows, start=2):
        try:
            turn = Turn(int(row["prompt_tokens"]), int(row["output_tokens"]), float(row["tool_latency_s"]))
            entry = (int(row["turn"]), float(row.get("submit_s") or 0), turn)
        except (ValueError, TypeError):
            raise UserError(f"--trace {path}: line {number} holds no numbers; mend or remove it") from None
        found.setdefault(row["trajectory_id"], []).append(entry)
    made = [
        (_trajectory(path, name, entries, max_model_len), min(entries)[1]) for name, entries in found.items()
    ]
    return [trajectory for trajectory, _ in sorted(made, key=lambda pair: pair[1])]


def _trajectory(
    path: Path, name: str, entries: Sequence[tuple[int, float, Turn]], max_model_len: int
) -> Trajectory:
    ordered = sorted(entries, key=lambda entry: entry[0])
    if [number for number, _, _ in ordered] != list(range(len(ordered))):
        raise UserError(f"--trace {path}: {name} lacks turns or repeats one; number them 0, 1, 2, ...")
    made = Trajectory(name, tuple(turn for _, _, turn in ordered))
    for number, turn in enumerate(made.turns):
        place = f"--trace {path}: {name}, turn {number}"
        if turn.output_tokens < 1 or made.new_tokens(number) < (1 if number == 0 else 0):
            raise UserError(f"{place} has no output, or less prompt than came before it; mend its lengths")
        if turn.prompt_tokens + turn.output_tokens > max_model_len:
            raise UserError(f"{place} is longer than the {max_model_len} tokens of a request; cut it")
    return made


def random_ids(seed: Sequence[int], num_tokens: int, vocabulary: int) -> list[int]:
    """Token ids that are the same for the same seed and share no block with those of another; 0 and 1 stay out."""
    return np.random.default_rng(list(seed)).integers(2, vocabulary, num_tokens).tolist()
