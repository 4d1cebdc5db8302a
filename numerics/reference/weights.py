"""Sums of importance weights exp(d) and of their squares, for any d: nothing overflows, nothing underflows.

A weight is written as ``m * 2^(k - 52)`` with an integer m of 53 digits and any integer k, and its square is the square
of that very number. Sums of such numbers are kept exactly, in a window below the largest one, so that the effective
sample size does not depend on the scale of the weights (all of them e^-300: exactly 1), on their order, or on how they
were split.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

import torch

from numerics.reference.sums import DigitSums, quotient

__all__ = ["WeightSums", "WideSum", "log_quotient"]

#: digits of 32 bits kept below the largest; what is dropped is below 2^-349 of the sum, a term
WINDOW = 12
#: beyond this the exponent alone is kept: a weight of e^(2^31) or e^-(2^31) is known up to a factor of sqrt(2)
_FAR = 2.0**31
#: and log weights beyond this count as this, so that twice their exponent is still a float64
_FARTHEST = 2.0**1022
#: ln 2 in three parts, the first two of 21 binary digits, so that k times them is exact up to k = 2^32
_LN2 = (float.fromhex("0x1.62e43p-1"), float.fromhex("-0x1.05c61p-29"), float.fromhex("-0x1.950d871319ff0p-54"))


@dataclass(frozen=True, kw_only=True)
class WideSum:
    """``sum_i digits[i] * 2^(32 i)``, the digits being unbounded integers (no carries), in a window below the top."""

    digits: dict[int, int] = field(default_factory=dict)

    def merge(self, other: WideSum) -> WideSum:
        """The sum of both."""
        return WideSum.of([*self.digits.items(), *other.digits.items()])

    @classmethod
    def of(cls, pairs: list[tuple[int, int]]) -> WideSum:
        """From ``(i, digit)`` pairs. Which digits are dropped depends on the largest i only, so not on any order."""
        top = max((i for i, _ in pairs), default=0)
        digits: dict[int, int] = defaultdict(int)
        for i, digit in pairs:
            if i > top - WINDOW:
                digits[i] += digit
        return cls(digits=dict(sorted(digits.items())))

    def scaled(self) -> tuple[int, int]:
        """``(n, i)``: the sum is ``n * 2^(32 i)``."""
        if not self.digits:
            return 0, 0
        low = min(self.digits)
        return sum(d << (32 * (i - low)) for i, d in self.digits.items()), low


@dataclass(frozen=True, kw_only=True)
class WeightSums:
    """``sum w`` and ``sum w^2`` of the weights w = exp(d); the count includes the zero ones."""

    count: int = 0
    first: WideSum = WideSum()
    second: WideSum = WideSum()
    infinite: int = 0  #: weights that are +inf
    nans: int = 0

    @classmethod
    def of(cls, d: torch.Tensor) -> WeightSums:
        """Those of a 1-D float64 tensor of log weights."""
        finite = d[torch.isfinite(d)].clamp(-_FARTHEST, _FARTHEST)
        near = finite.abs() < _FAR
        k = torch.round(finite * (1 / math.log(2)))
        rest = torch.where(near, ((finite - k * _LN2[0]) - k * _LN2[1]) - k * _LN2[2], 0.0)
        m = torch.round(torch.exp(rest) * 2.0**52).to(torch.int64)  # exp(rest) lies in [0.7, 1.42]
        half = (1 << 27) - 1
        high, low = m >> 27, m & half
        return cls(
            count=d.numel(),
            first=_wide([(m, 0)], k),
            second=_wide([(low * low, 0), (2 * high * low, 27), (high * high, 54)], 2 * k),
            infinite=int((d == math.inf).sum()),
            nans=int(torch.isnan(d).sum()),
        )

    def merge(self, other: WeightSums) -> WeightSums:
        """Those of both lists together."""
        return WeightSums(
            count=self.count + other.count,
            first=self.first.merge(other.first),
            second=self.second.merge(other.second),
            infinite=self.infinite + other.infinite,
            nans=self.nans + other.nans,
        )

    def ess_fraction(self) -> float:
        """ESS/N = (sum w)^2 / (N sum w^2), in [1/N, 1]; 0 if all weights are 0, NaN for none, an infinite or a NaN."""
        if not self.count or self.infinite or self.nans:
            return math.nan
        (a, i), (b, j) = self.first.scaled(), self.second.scaled()
        if not b:
            return 0.0
        return _shifted_quotient(a * a, self.count * b, 64 * i - 32 * j)

    def log_mean_square(self) -> float:
        """ln(mean w^2) = ln(1 + chi^2): finite where the mean square overflows; -inf if all weights are 0."""
        if not self.count or self.nans:
            return math.nan
        if self.infinite:
            return math.inf
        b, j = self.second.scaled()
        # the scale of a weight is 2^(k - 52), of its square 2^(2k - 104)
        return log_quotient(b, self.count, 32 * j - 104)


def log_quotient(numerator: int, denominator: int, exponent: int = 0) -> float:
    """``ln(numerator * 2^exponent / denominator)`` within a few ulps, near 1 too; -inf for numerator 0."""
    if not numerator:
        return -math.inf
    shift = numerator.bit_length() - denominator.bit_length() + exponent
    up, down = max(exponent, 0), max(-exponent, 0)
    if abs(shift) <= 2:
        a, b = numerator << up, denominator << down
        if b <= 2 * a <= 4 * b:
            return math.log1p(quotient(a - b, b))
    return math.log(_shifted_quotient(numerator, denominator, exponent - shift)) + shift * math.log(2)


def _shifted_quotient(numerator: int, denominator: int, exponent: int) -> float:
    """``numerator * 2^exponent / denominator``, rounded once; the exponent is unbounded, the result is in range."""
    return quotient(numerator << max(exponent, 0), denominator << max(-exponent, 0))


def _wide(pieces: list[tuple[torch.Tensor, int]], k: torch.Tensor) -> WideSum:
    """The sum of non-negative integers below 2^55, each times 2^(k + its shift); k holds whole float64 numbers."""
    if not k.numel():
        return WideSum()
    # twice the window, so that what is left out here has no digit that the window would keep
    lowest = torch.floor(k.max() / 32) - 2 * WINDOW
    shift = k - 32 * lowest
    kept = shift >= 0
    shift = torch.where(kept, shift, 0.0).to(torch.int64)
    sums = DigitSums(1, 3 * WINDOW + 6, k.device)
    for piece, more in pieces:
        sums.add(torch.where(kept, piece, 0), shift + more)
    return WideSum.of([(int(lowest) + i, digit) for i, digit in enumerate(sums.digits()[0]) if digit])
