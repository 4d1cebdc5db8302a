"""Mergeable moments: what a mean, a standard deviation and a correlation are made of.

A value of these types is frozen; `merge` returns a new one. Merging is associative and commutative exactly for
counts, minima and maxima (NaN wins), and up to rounding for sums and centred moments; merging an empty one changes
no bit. Centred moments follow Chan, Golub & LeVeque (1983), "Algorithms for computing the sample variance".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

__all__ = ["CoMoments", "Moments"]


def _smaller(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else min(a, b)


def _larger(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Count, sum, centred sum of squares, minimum and maximum of a list of numbers."""

    count: int = 0
    total: float = 0.0
    m2: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    @classmethod
    def of(cls, values: torch.Tensor) -> Moments:
        """The moments of a 1-D float64 tensor."""
        if values.numel() == 0:
            return cls()
        total = float(values.sum())
        centred = values - total / values.numel()
        return cls(
            count=values.numel(),
            total=total,
            m2=float((centred * centred).sum()),  # NaN with any non-finite value
            low=float(values.amin()),
            high=float(values.amax()),
        )

    def merge(self, other: Moments) -> Moments:
        """The moments of both lists together."""
        if other.count == 0:
            return self
        if self.count == 0:
            return other
        count = self.count + other.count
        apart = other.total / other.count - self.total / self.count
        return Moments(
            count=count,
            total=self.total + other.total,
            m2=self.m2 + other.m2 + apart * apart * (self.count * other.count / count),
            low=_smaller(self.low, other.low),
            high=_larger(self.high, other.high),
        )

    @property
    def mean(self) -> float:
        """NaN for an empty list."""
        return self.total / self.count if self.count else math.nan

    @property
    def maximum(self) -> float:
        """NaN for an empty list, or when any value is NaN."""
        return self.high if self.count else math.nan

    @property
    def constant(self) -> bool:
        """All values equal: decided on minimum and maximum, before any rounding of moments."""
        return self.low == self.high

    def std(self, ddof: int = 1) -> float:
        """Standard deviation with ``count - ddof`` in the denominator; NaN where that is not positive."""
        if self.count <= ddof:
            return math.nan
        if self.constant and math.isfinite(self.low):
            return 0.0
        return math.sqrt(self.m2 / (self.count - ddof))


@dataclass(frozen=True, kw_only=True)
class CoMoments:
    """The moments of two equally long lists, and their centred sum of products."""

    x: Moments = Moments()
    y: Moments = Moments()
    cxy: float = 0.0

    @classmethod
    def of(cls, xs: torch.Tensor, ys: torch.Tensor) -> CoMoments:
        """The co-moments of two 1-D float64 tensors of equal length."""
        x, y = Moments.of(xs), Moments.of(ys)
        if x.count == 0:
            return cls()
        return cls(x=x, y=y, cxy=float(((xs - x.mean) * (ys - y.mean)).sum()))

    def merge(self, other: CoMoments) -> CoMoments:
        """The co-moments of both pairs of lists together."""
        if other.x.count == 0:
            return self
        if self.x.count == 0:
            return other
        count = self.x.count + other.x.count
        apart = (other.x.mean - self.x.mean) * (other.y.mean - self.y.mean)
        return CoMoments(
            x=self.x.merge(other.x),
            y=self.y.merge(other.y),
            cxy=self.cxy + other.cxy + apart * (self.x.count * other.x.count / count),
        )

    def pearson(self) -> float:
        """cov / (sd sd), within [-1, 1].

        NaN if either list is constant, has fewer than two values, holds a non-finite one, or has a second moment
        that is 0 or overflows.
        """
        if self.x.count < 2 or self.x.constant or self.y.constant:
            return math.nan
        scale = math.sqrt(self.x.m2) * math.sqrt(self.y.m2)
        if not 0 < scale < math.inf:
            return math.nan
        return max(-1.0, min(1.0, self.cxy / scale))  # rounding alone can leave [-1, 1]
