"""Costs of the machine that a run was recorded on: from its tables to coefficients, with what they leave unexplained.

Pure functions over columns (name to array, as the tables of a run have them). What is fitted:

- per TP degree, the engine's step: `A + b * B + p * P` seconds, with B turns decoding beside and P prompt tokens
  prefilled in the step. A record shows turns, not steps. A turn of n tokens takes part in n steps (its first token
  comes from the step that ends its prefill), so its time from admission to its last token, weight loads taken out, is
  n A + b (turns decoding on the replica, summed over those steps) + p (tokens prefilled there meanwhile, its own
  included). Least squares over all turns, coefficients >= 0;
- the train step: seconds fixed and per token. Publication: the mean. Loads: the mean of the TP degree.

Turns are fitted as a whole because of what real records hold: a driver hears of the first tokens of short answers
together with the last, so time to the first token and time per token are not to be told apart there.

What a turn of a real run waits for (HTTP, tokenizer, the event loops of driver and engine, a machine with other work)
is inside of its times, so it shows up here as part of the step time. The result describes a stack on a machine at a
load, not a GPU: it predicts runs of the same stack at about that load. Context length and a least time of steps that
prefill have no coefficients of their own; their mean effect is in A, b and p. Where all turns of a record meet the
same concurrency, A and b cannot be told apart, and only their sum at that concurrency means something.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls  # pyright: ignore[reportUnknownVariableType, reportMissingTypeStubs]

from libra.errors import UserError

Floats: TypeAlias = npt.NDArray[np.float64]
Columns: TypeAlias = Mapping[str, Any]
"""Arrays of equal length by name; times in seconds."""

MIN_TURNS: Final = 8
"""Fewer turns of a TP degree fix no three coefficients worth the name."""

SAME_SIZE: Final = 0.05
"""Train steps whose tokens differ by less than this share of their mean say nothing about a cost per token."""


@dataclass(frozen=True, slots=True)
class StepFit:
    """Step time of replicas of one TP degree, in seconds: A, b and p of the module.

    num_turns: fitted. mean_error: mean absolute residual of a turn's time over the mean time of a turn (fraction).
    """

    tp: int
    decode_base_s: float
    decode_per_seq_s: float
    prefill_per_token_s: float
    num_turns: int
    mean_error: float


@dataclass(frozen=True, slots=True)
class TrainFit:
    """Train step: fixed_s + per_token_s * tokens. mean_error as in `StepFit`, over `num_steps`."""

    fixed_s: float
    per_token_s: float
    num_steps: int
    mean_error: float

    def step_s(self, num_tokens: int) -> float:
        """Seconds of a step on so many tokens (prompts and outputs)."""
        return self.fixed_s + self.per_token_s * num_tokens


@dataclass(frozen=True, slots=True)
class RunCosts:
    """All that a run's record says of its costs.

    steps: by TP degree. train: None for a run without train steps. publish_s, load_s (by TP degree): means, 0 where
    there were none; a TP degree that loaded nothing takes the mean of the others.
    """

    steps: Mapping[int, StepFit]
    train: TrainFit | None
    publish_s: float
    load_s: Mapping[int, float]


def fit_run_costs(turns: Columns, loads: Columns, train_steps: Columns) -> RunCosts:
    """Fit everything. Raises UserError where a TP degree has too few turns.

    turns: columns of `libra.record.schema.TURNS`. loads: replica_id, started_s, finished_s of weight loads.
    train_steps: columns of `TRAIN_STEPS`.
    """
    tp, replica_id = np.asarray(turns["tp"]), np.asarray(turns["replica_id"])
    degrees = [int(degree) for degree in np.unique(tp)]
    if not degrees:
        raise UserError("the run has no turn to fit costs to; give a run that generated something")
    load_s = _numbers(loads["finished_s"]) - _numbers(loads["started_s"])
    loaded = np.asarray(loads["replica_id"]).astype(np.int64)
    load_means = {
        degree: _mean(load_s[np.isin(loaded, replica_id[tp == degree])], _mean(load_s)) for degree in degrees
    }
    publish_s = _numbers(train_steps["publish_finished_s"]) - _numbers(train_steps["publish_started_s"])
    seconds = _numbers(train_steps["finished_s"]) - _numbers(train_steps["started_s"])
    return RunCosts(
        steps={degree: fit_steps(turns, loads, degree) for degree in degrees},
        train=fit_train(_numbers(train_steps["num_tokens"]), seconds) if len(seconds) else None,
        publish_s=_mean(publish_s[np.isfinite(publish_s)]),
        load_s=load_means,
    )


def fit_steps(turns: Columns, loads: Columns, tp: int) -> StepFit:
    """Step time of the replicas of one TP degree. Raises UserError for fewer than `MIN_TURNS` finished turns."""
    on_degree = np.asarray(turns["tp"]) == tp
    replicas = np.unique(np.asarray(turns["replica_id"])[on_degree])
    parts = [_turns_of_replica(turns, loads, int(replica_id)) for replica_id in replicas]
    features = np.concatenate([part[0] for part in parts])
    seconds = np.concatenate([part[1] for part in parts])
    if len(seconds) < MIN_TURNS:
        raise UserError(
            f"{len(seconds)} finished turns at tp {tp} are too few to fit costs to ({MIN_TURNS} at least); "
            "give a longer run"
        )
    coefficients, mean_error = _least_squares(features, seconds)
    return StepFit(tp, *coefficients, num_turns=len(seconds), mean_error=mean_error)


def fit_train(num_tokens: Floats, seconds: Floats) -> TrainFit:
    """Fixed and per-token part of a train step; all of it is fixed where steps are of about the same size."""
    if np.ptp(num_tokens) < SAME_SIZE * float(num_tokens.mean()):
        fixed_s = float(seconds.mean())
        error = float(np.abs(seconds - fixed_s).mean()) / fixed_s if fixed_s else 0.0
        return TrainFit(fixed_s, 0.0, len(seconds), error)
    (fixed_s, per_token_s), error = _least_squares(
        np.column_stack([np.ones(len(seconds)), num_tokens]), seconds
    )
    return TrainFit(fixed_s, per_token_s, len(seconds), error)


def _turns_of_replica(turns: Columns, loads: Columns, replica_id: int) -> tuple[Floats, Floats]:
    """Features (n, 3) and seconds (n,) of the finished turns of a replica; see the module."""
    mine = (np.asarray(turns["replica_id"]) == replica_id) & (np.asarray(turns["status"]) == "finished")
    started, first, ended = (_numbers(turns[f"{x}_s"])[mine] for x in ("started", "first_token", "finished"))
    num_tokens = _numbers(turns["output_tokens"])[mine]
    prefilled = _numbers(turns["prompt_tokens"])[mine] - _numbers(turns["cached_tokens"])[mine]
    prefilled = prefilled + _numbers(turns["recomputed_tokens"])[mine]
    loaded = np.asarray(loads["replica_id"]).astype(np.int64) == replica_id
    paused_s = _integral(_numbers(loads["started_s"])[loaded], _numbers(loads["finished_s"])[loaded])
    decoding_s = _integral(first, ended)  # turns times seconds
    order = np.argsort(first, kind="stable")
    tokens_until = np.concatenate([[0.0], np.cumsum(prefilled[order])])
    first_in_order = first[order]
    until, before = (np.searchsorted(first_in_order, times, "right") for times in (ended, started))
    decoding = _mean_between(decoding_s, started, first)  # one step, the others are from the first token on
    decoding = decoding + (num_tokens - 1) * _mean_between(decoding_s, first, ended)
    features = np.column_stack([num_tokens, decoding, tokens_until[until] - tokens_until[before]])
    seconds = ended - started - (paused_s(ended) - paused_s(started))
    kept = np.isfinite(seconds) & (num_tokens > 0)
    return features[kept], seconds[kept]


def _mean_between(total: Callable[[Floats], Floats], begin: Floats, end: Floats) -> Floats:
    """Mean of what `total` adds up; 0 where no time has passed (clocks have a resolution)."""
    spent_s = end - begin
    return (total(end) - total(begin)) / np.where(spent_s > 0, spent_s, 1.0)


def _integral(started: Floats, ended: Floats) -> Callable[[Floats], Floats]:
    """How many of the spans [started, ended] had passed up to a time, in span-seconds, as a function of times."""
    if not len(started):
        return np.zeros_like
    times = np.concatenate([started, ended])
    steps = np.concatenate([np.ones(len(started)), -np.ones(len(ended))])
    order = np.argsort(times, kind="stable")
    times, open_spans = times[order], np.cumsum(steps[order])
    total = np.concatenate([[0.0], np.cumsum(open_spans[:-1] * np.diff(times))])

    def until(at: Floats) -> Floats:
        return np.interp(at, times, total)

    return until


def _least_squares(features: Floats, seconds: Floats) -> tuple[list[float], float]:
    """Coefficients >= 0 and the mean absolute residual over the mean time.

    Absolute, not relative errors: what counts is how long a run takes, and that is made of its long turns and steps.
    """
    scale = features.max(axis=0)
    scale[scale == 0.0] = 1.0
    solved: tuple[Floats, float] = nnls(features / scale, seconds)  # pyright: ignore[reportUnknownVariableType]
    coefficients = solved[0] / scale
    mean_s = float(seconds.mean())
    residual = float(np.abs(features @ coefficients - seconds).mean())
    return coefficients.tolist(), residual / mean_s if mean_s > 0 else 0.0


def _numbers(column: Any) -> Floats:
    return np.asarray(column, dtype=np.float64)


def _mean(values: Floats, otherwise: float = 0.0) -> float:
    return float(values.mean()) if len(values) else otherwise
