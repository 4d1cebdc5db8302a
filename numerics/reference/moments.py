"""Mergeable moments: what a mean, a standard deviation and a correlation are made of.

They hold exact sums (`numerics.reference.sums`), so that merging is associative and commutative bit for bit and
``n sum x^2 - (sum x)^2`` cancels nothing: every figure is the right one of the float64 terms, rounded once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from numerics.reference.sums import NOTHING, UNIT, ExactSum, exact_products, exact_sums, root

__all__ = ["CoMoments", "Extremes", "Moments", "check_ddof"]


@dataclass(frozen=True, kw_only=True)
class Extremes:
    """Minimum and maximum; NaN wins, whatever the order."""

    low: float = math.inf
    high: float = -math.inf

    def merge(self, other: Extremes) -> Extremes:
        """Those of both lists together; a zero has no sign, whichever of -0 and +0 came first."""
        return Extremes(low=0.0 + _smaller(self.low, other.low), high=0.0 - _smaller(-self.high, -other.high))


def _smaller(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else min(a, b)


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Count, sum, sum of squares, minimum and maximum of a list of float64 numbers."""

    count: int = 0
    total: ExactSum = NOTHING
    squares: ExactSum = NOTHING
    extremes: Extremes = Extremes()

    @classmethod
    def of(cls, lists: torch.Tensor) -> list[Moments]:
        """The moments of each row of a float64 tensor [K, n]."""
        if lists.shape[-1] == 0:
            return [cls() for _ in range(lists.shape[0])]
        return [
            cls(count=lists.shape[-1], total=total, squares=squares, extremes=Extremes(low=low, high=high))
            for [total], squares, low, high in zip(
                exact_sums(lists),
                exact_products(lists, lists),
                lists.amin(-1).tolist(),
                lists.amax(-1).tolist(),
                strict=True,
            )
        ]

    def merge(self, other: Moments) -> Moments:
        """The moments of both lists together."""
        return Moments(
            count=self.count + other.count,
            total=self.total.merge(other.total),
            squares=self.squares.merge(other.squares),
            extremes=self.extremes.merge(other.extremes),
        )

    @property
    def mean(self) -> float:
        """NaN for an empty list."""
        return self.total.over(self.count)

    @property
    def minimum(self) -> float:
        """NaN for an empty list, or when any value is NaN."""
        return self.extremes.low if self.count else math.nan

    @property
    def maximum(self) -> float:
        """NaN for an empty list, or when any value is NaN."""
        return self.extremes.high if self.count else math.nan

    @property
    def spread(self) -> int:
        """``n sum x^2 - (sum x)^2`` in units of 2^-4296: n^2 times the population's variance, exactly."""
        return ((self.count * self.squares.units) << UNIT) - self.total.units**2

    def std(self, ddof: int = 1) -> float:
        """Standard deviation with ``count - ddof`` in the denominator.

        NaN where that is not positive, or where a value is not finite.
        """
        if self.count <= ddof or not self.total.finite:
            return math.nan
        return root(self.spread, (self.count * (self.count - ddof)) << (2 * UNIT))


@dataclass(frozen=True, kw_only=True)
class CoMoments:
    """The moments of two equally long lists, and the sum of their products."""

    x: Moments = Moments()
    y: Moments = Moments()
    products: ExactSum = NOTHING

    def merge(self, other: CoMoments) -> CoMoments:
        """The co-moments of both pairs of lists together."""
        return CoMoments(x=self.x.merge(other.x), y=self.y.merge(other.y), products=self.products.merge(other.products))

    def pearson(self) -> float:
        """cov / (sd sd), within [-1, 1]; NaN if a list is constant, has fewer than two values, or a non-finite one."""
        if self.x.count < 2 or not (self.x.total.finite and self.y.total.finite):
            return math.nan
        scale = self.x.spread * self.y.spread
        if scale == 0:
            return math.nan
        covariance = ((self.x.count * self.products.units) << UNIT) - self.x.total.units * self.y.total.units
        return root(covariance**2, scale) * (1 if covariance >= 0 else -1)


def check_ddof(ddof: int) -> None:
    """`TypeError` unless ``ddof`` is an integer, `ValueError` if it is negative."""
    if isinstance(ddof, bool) or not isinstance(ddof, int):
        raise TypeError(f"ddof must be an int, got {type(ddof).__name__}; 1 is the sample's, 0 the population's")
    if ddof < 0:
        raise ValueError(f"ddof is {ddof}; it must be 0 or more: 1 is the sample's, 0 the population's")
