"""Marginal distributions given by published percentiles, sampled through a normal latent.

A data card publishes percentiles, not parameters. A `Distribution` goes exactly through them: it maps a
standard normal value to the value of the same rank, by straight lines between (z, log value) points. A
caller that wants two quantities correlated, or the samples of a prompt alike, correlates the latents and
leaves every marginal as published (a Gaussian copula).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from libra.workloads.table import Floats

_TAIL_Z = 6.0
"""The outer segments are continued to this many standard deviations (1 draw in 10^9 lies beyond)."""
_QUADRATURE_POINTS = 4096


@dataclass(frozen=True)
class Distribution:
    """Positive values by rank: `points` are (z, natural log of the value), increasing in both.

    Values are clipped to [minimum, maximum]; both in the unit of the quantity.
    """

    points: tuple[tuple[float, float], ...]
    minimum: float
    maximum: float

    @classmethod
    def from_quantiles(
        cls, quantiles: Mapping[float, float], *, minimum: float, maximum: float
    ) -> "Distribution":
        """Through `quantiles` (probability in (0, 1) to value > 0), the last slopes continued outwards."""
        ranks = sorted(quantiles)
        if len(ranks) < 2 or not 0 < ranks[0] < ranks[-1] < 1:
            raise ValueError("give at least two quantiles with probabilities between 0 and 1")
        values = [quantiles[p] for p in ranks]
        if values[0] <= 0 or any(b < a for a, b in pairwise(values)):
            raise ValueError("quantile values must be positive and must not fall")
        z = [NormalDist().inv_cdf(p) for p in ranks]
        y = [math.log(value) for value in values]
        below = y[0] + (y[1] - y[0]) / (z[1] - z[0]) * (-_TAIL_Z - z[0])
        above = y[-1] + (y[-1] - y[-2]) / (z[-1] - z[-2]) * (_TAIL_Z - z[-1])
        return cls(tuple(zip([-_TAIL_Z, *z, _TAIL_Z], [below, *y, above], strict=True)), minimum, maximum)

    @classmethod
    def lognormal(cls, median: float, sigma: float, *, minimum: float, maximum: float) -> "Distribution":
        """Log-normal with this median and log standard deviation."""
        y = math.log(median)
        points = ((-_TAIL_Z, y - sigma * _TAIL_Z), (_TAIL_Z, y + sigma * _TAIL_Z))
        return cls(points, minimum, maximum)

    @property
    def median(self) -> float:
        """The value at rank one half."""
        return float(self.at(np.zeros(1))[0])

    def at(self, z: Floats) -> Floats:
        """Values of the same rank as the standard normal values `z` (any shape)."""
        points = np.array(self.points)
        return np.clip(np.exp(np.interp(z, points[:, 0], points[:, 1])), self.minimum, self.maximum)

    def tailed(self, z: Floats, tail_weight: float) -> Floats:
        """As `at`, with the log distance above the median multiplied by `tail_weight` (1: unchanged)."""
        values = self.at(z)
        if tail_weight == 1.0:
            return values
        median = self.median
        return np.where(values > median, median * (values / median) ** tail_weight, values)

    def mean(self, tail_weight: float = 1.0) -> float:
        """Mean of `tailed` under a standard normal latent (midpoint rule over ranks)."""
        return float(self.tailed(_latent_grid(), tail_weight).mean())

    def scale_for(self, means: Floats, *, tail_weight: float, ceiling: float) -> Floats:
        """Factors f for which min(f * value, ceiling) has these means (each well below `ceiling`)."""
        values = self.tailed(_latent_grid(), tail_weight)
        # The largest factor brings all but the smallest values to the ceiling.
        factors: Floats = np.geomspace(1e-4, 1e3, 256) * (ceiling / float(values.mean()))
        reached: Floats = np.minimum(factors[:, np.newaxis] * values, ceiling).mean(axis=1)
        return np.interp(means, reached, factors)


@cache
def _latent_grid() -> Floats:
    """Standard normal values at equally spaced ranks."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((i + 0.5) / _QUADRATURE_POINTS) for i in range(_QUADRATURE_POINTS)])
