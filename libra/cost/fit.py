"""From measured step times to coefficients of `ReplicaCost`.

Guarantees coefficients >= 0 and least squares of the RELATIVE error, so that a 3 ms step counts as much as a 50 ms
one. Where the data cannot tell a coefficient, the start value (the analytic one) stands and is not called fitted.
Errors are reported as seen and leave-one-out: each point predicted from a fit without it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from scipy.optimize import (  # pyright: ignore[reportMissingTypeStubs]
    least_squares,  # pyright: ignore[reportUnknownVariableType]
    nnls,  # pyright: ignore[reportUnknownVariableType]
)

from libra.cost.points import Points
from libra.cost.rollout import ReplicaCost
from libra.errors import UserError

PRIOR_WEIGHT: Final = 0.05
"""A coefficient at twice its start costs as much as one point that is 5 % off: it decides where the data do not."""

MAX_LEFT_OUT: Final = 40
"""At most so many points are left out in turn (evenly chosen)."""

COLLINEAR: Final = 1e-6
"""Singular value below which columns, each scaled to 1, count as combinations of one another."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """Non-negative coefficients and the relative errors that they leave: predicted / seen - 1."""

    coefficients: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def mean_error(self) -> float:
        """Mean absolute relative error."""
        return float(np.abs(self.errors).mean())


@dataclass(frozen=True, slots=True)
class PointFit:
    """A cost fitted to points. fitted: the coefficients that the points fixed. errors: fractions, by what they
    are of.
    """

    cost: ReplicaCost
    fitted: tuple[str, ...]
    errors: Mapping[str, float] = field(default_factory=dict[str, float])


def fit_relative(features: Floats, seconds: Floats, known_s: Floats | None = None) -> Fit:
    """Minimise sum((features @ x + known_s - seconds)^2 / seconds^2) over x >= 0.

    features: (n, k); seconds: (n,), positive; known_s: (n,), the part that is already known.
    Raises `UserError` when there are fewer points than coefficients or a time is not positive.
    """
    if len(seconds) < features.shape[1]:
        raise UserError(f"{len(seconds)} points cannot fix {features.shape[1]} coefficients; measure more")
    _require_times(seconds)
    known = np.zeros_like(seconds) if known_s is None else known_s
    rows = features / seconds[:, None]
    scale = rows.max(axis=0)
    scale[scale == 0.0] = 1.0
    solved: tuple[Floats, float] = nnls(rows / scale, 1.0 - known / seconds)  # pyright: ignore[reportUnknownVariableType]
    coefficients = solved[0] / scale
    errors = rows @ coefficients + known / seconds - 1.0
    return Fit(tuple(coefficients.tolist()), tuple(errors.tolist()))


def _require_times(seconds: Floats) -> None:
    if not np.all(seconds > 0):
        raise UserError("a step time is zero, negative or nan; leave that row out of the fit")


def fit_points(points: Points, start: ReplicaCost, chunk_tokens: int) -> PointFit:
    """Decode steps, then single prompts in chunks of `chunk_tokens`. Raises UserError for too few points."""
    decode = _fit_decode(points.decode, start)
    prefill = _fit_prefill(points.prefill, decode.cost, chunk_tokens)
    return PointFit(prefill.cost, decode.fitted + prefill.fitted, {**decode.errors, **prefill.errors})


_DECODE: Final = ("decode_base_s", "decode_per_seq_s", "decode_per_context_token_s")


def _fit_decode(rows: Sequence[tuple[int, float, float]], start: ReplicaCost) -> PointFit:
    """base, per sequence and per context token."""
    if len(rows) < 4:
        raise UserError(
            f"{len(rows)} decode points cannot fix 3 coefficients and show an error; measure more"
        )
    all_features = np.array(
        [[1.0, start.padded(count), context] for count, context, _ in rows], dtype=np.float64
    )
    seconds = np.array([row[2] for row in rows], dtype=np.float64)
    _require_times(seconds)
    experts_s = np.array([start.experts_read_s(row[0]) for row in rows], dtype=np.float64)
    starts = np.array([getattr(start, name) for name in _DECODE])

    def solve(columns: list[int]) -> tuple[Floats, Floats, Fit]:
        others = [column for column in range(len(_DECODE)) if column not in columns]
        # At least a tenth of the time is left to fit, where what is known already would take all of it.
        known = np.minimum(experts_s + all_features[:, others] @ starts[others], 0.9 * seconds)
        features = all_features[:, columns]
        return features, known, fit_relative(features, seconds, known)

    told = _told(all_features)
    features, known, fit = solve(told)
    while 0.0 in fit.coefficients:  # less than nothing: noise, of which the data cannot tell it
        told = [column for column, value in zip(told, fit.coefficients, strict=True) if value]
        features, known, fit = solve(told)

    def without(index: int) -> float:
        kept = np.arange(len(seconds)) != index
        other = fit_relative(features[kept], seconds[kept], known[kept])
        return (
            float(features[index] @ np.array(other.coefficients) + known[index]) / float(seconds[index]) - 1.0
        )

    names = tuple(_DECODE[column] for column in told)
    cost = replace(start, **dict(zip(names, fit.coefficients, strict=True)))
    errors = {
        "decode_mean": fit.mean_error,
        "decode_max": float(np.abs(fit.errors).max()),
        "decode_leave_one_out_mean": left_out(without, len(rows)),
    }
    return PointFit(cost, names, errors)


def _told(features: Floats) -> list[int]:
    """Columns that are no combination of those before them: with one batch size only, the fixed part takes all that
    it has in common with the part per sequence.
    """
    told: list[int] = []
    scale = np.abs(features).max(axis=0)
    scale[scale == 0.0] = 1.0
    for column in range(features.shape[1]):
        tried = [*told, column]
        if np.linalg.matrix_rank((features / scale)[:, tried], tol=COLLINEAR) == len(tried):
            told = tried
    return told


_PREFILL: Final = ("prefill_base_s", "prefill_per_token_s", "graph_host_s", "eager_host_s")


def _fit_prefill(rows: Sequence[tuple[int, float]], start: ReplicaCost, chunk_tokens: int) -> PointFit:
    """Fixed and per-token part, and both levels of the host's floor. Attention keeps its start, which is physics."""
    if len(rows) < len(_PREFILL):
        raise UserError(f"{len(rows)} prefill points cannot fix {len(_PREFILL)} coefficients; measure more")
    _require_times(np.array([seconds for _, seconds in rows], dtype=np.float64))

    def solve(kept: Sequence[tuple[int, float]]) -> ReplicaCost:
        def residuals(factors: Floats) -> Floats:
            cost = scaled(start, _PREFILL, factors)
            seen = [cost.prompt_s(tokens, chunk_tokens) / seconds - 1.0 for tokens, seconds in kept]
            return np.array([*seen, *(PRIOR_WEIGHT * (factors - 1.0))])

        def descend(factors: Floats) -> Any:
            return cast(
                Any, least_squares(residuals, factors, bounds=(0.02, 20.0), loss="soft_l1", f_scale=0.1)
            )

        # From above, too: a host's level that begins below what any point feels has no slope to leave by.
        tries = [descend(np.array([1.0, 1.0, levels, levels])) for levels in (1.0, 3.0)]
        factors: Floats = min(tries, key=lambda each: float(each.cost)).x
        return scaled(start, _PREFILL, factors)

    cost = solve(rows)
    errors = [cost.prompt_s(tokens, chunk_tokens) / seconds - 1.0 for tokens, seconds in rows]

    def without(index: int) -> float:
        tokens, seconds = rows[index]
        return (
            solve([row for at, row in enumerate(rows) if at != index]).prompt_s(tokens, chunk_tokens)
            / seconds
            - 1.0
        )

    return PointFit(
        cost,
        tuple(name for name in _PREFILL if _is_felt(name, rows, cost, chunk_tokens)),
        {
            "prefill_mean": float(np.abs(errors).mean()),
            "prefill_max": float(np.abs(errors).max()),
            "prefill_leave_one_out_mean": left_out(without, len(rows)),
        },
    )


def _is_felt(name: str, rows: Sequence[tuple[int, float]], cost: ReplicaCost, chunk_tokens: int) -> bool:
    """Whether any point would be predicted otherwise with a tenth more of a coefficient."""
    more = scaled(cost, (name,), np.array([1.1]))
    return any(
        more.prompt_s(tokens, chunk_tokens) > 1.002 * cost.prompt_s(tokens, chunk_tokens)
        for tokens, _ in rows
    )


def scaled(cost: ReplicaCost, names: Sequence[str], factors: Floats) -> ReplicaCost:
    """The cost with some coefficients times a factor each."""
    return replace(
        cost,
        **{name: getattr(cost, name) * float(factor) for name, factor in zip(names, factors, strict=True)},
    )


def left_out(error_without: Callable[[int], float], count: int) -> float:
    """Mean absolute error of points predicted without themselves."""
    chosen = np.unique(np.linspace(0, count - 1, min(count, MAX_LEFT_OUT)).astype(int))
    return float(np.mean([abs(error_without(int(index))) for index in chosen]))
