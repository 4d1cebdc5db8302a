"""Sums that do not round: the same bits for any order, any batching and any number of ranks.

Every finite float64 is an integer times 2^-1074, and a product of two is an integer times 2^-2148. A sum of such
numbers is kept as that integer, so that adding is exact and merging is associative and commutative, bit for bit; the
one rounding comes at the end, when a figure is made of it. (Kulisch's long accumulator; what it costs is in
``docs/bounds.md``.)

On tensors the integer is built from 32-bit digits that lie in int64 places: every number adds its mantissa to three
of them, with no carry until the end. Integer addition has no order, so this holds on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

__all__ = ["ExactSum", "exact_products", "exact_sums", "quotient", "root"]

#: the unit of an `ExactSum`: 2^-2148, the square of the smallest float64
UNIT = 2148
_DIGIT = (1 << 32) - 1
#: digits that hold the product of two largest float64 numbers, and 64 bits more for their count
_DIGITS = 136
#: columns at a time: their parts stay in the cache, and the sum of a digit below 2^63
_CHUNK = 1 << 14


@dataclass(frozen=True, kw_only=True)
class ExactSum:
    """A sum of float64 numbers or of products of two: ``units`` * 2^-2148, and how many terms were not finite."""

    units: int = 0
    plus: int = 0  #: terms that were +inf
    minus: int = 0  #: terms that were -inf
    nans: int = 0  #: terms that were NaN

    def merge(self, other: ExactSum) -> ExactSum:
        """The sum of both, exactly."""
        return ExactSum(
            units=self.units + other.units,
            plus=self.plus + other.plus,
            minus=self.minus + other.minus,
            nans=self.nans + other.nans,
        )

    @property
    def finite(self) -> bool:
        """Whether every term was finite."""
        return not (self.plus or self.minus or self.nans)

    def over(self, divisor: int) -> float:
        """The sum divided by a count, rounded once; NaN for a divisor of 0. Infinities and NaN as in any sum."""
        if divisor == 0 or self.nans or (self.plus and self.minus):
            return math.nan
        if not self.finite:
            return math.inf if self.plus else -math.inf
        return quotient(self.units, divisor << UNIT)


#: the sum of no terms
NOTHING = ExactSum()


def quotient(numerator: int, denominator: int) -> float:
    """The float64 nearest to the quotient of two integers; an infinity where it is out of range."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if (numerator < 0) == (denominator < 0) else -math.inf


def root(numerator: int, denominator: int) -> float:
    """The square root of a non-negative quotient of integers, within 0.5 + 2^-10 ulps."""
    if numerator == 0:
        return 0.0
    # scale so that the integer square root has at least 64 digits
    scale = max(0, 130 - numerator.bit_length() + denominator.bit_length()) // 2
    return quotient(math.isqrt((numerator << 2 * scale) // denominator), 1 << scale)


def exact_sums(terms: torch.Tensor, groups: torch.Tensor | None = None, count: int = 1) -> list[list[ExactSum]]:
    """The sum of each row of ``terms`` [K, n] (float64): ``[k][g]``, one for each of ``count`` groups.

    groups: int64 [n], the group of each column; None puts all into one.
    """
    digits, plus, minus, nans = _empty(terms, count)
    for x, group in _chunks(terms, groups):
        mantissa, shift, negative = _parts(x)
        _add(digits, _flat(x, group, count), mantissa, shift + (UNIT - 1074), negative)
        _tally(x, group, count, plus, minus, nans)
    return _read(digits, plus, minus, nans)


def exact_products(xs: torch.Tensor, ys: torch.Tensor) -> list[ExactSum]:
    """``sum_i xs[k, i] * ys[k, i]`` for each row k of two float64 tensors [K, n]; products round nowhere."""
    digits, plus, minus, nans = _empty(xs, 1)
    for x, y in zip(torch.split(xs, _CHUNK, dim=-1), torch.split(ys, _CHUNK, dim=-1), strict=True):
        (mx, sx, nx), (my, sy, ny) = _parts(x), _parts(y)
        place, shift, negative = _flat(x, None, 1), sx + sy, nx ^ ny
        half = (1 << 27) - 1  # 53 digits are 26 and 27: three partial products below 2^55
        high_x, low_x, high_y, low_y = mx >> 27, mx & half, my >> 27, my & half
        _add(digits, place, low_x * low_y, shift, negative)
        _add(digits, place, high_x * low_y + low_x * high_y, shift + 27, negative)
        _add(digits, place, high_x * high_y, shift + 54, negative)
        _tally(x * y, None, 1, plus, minus, nans, only=~(torch.isfinite(x) & torch.isfinite(y)))
    return [group[0] for group in _read(digits, plus, minus, nans)]


def _empty(like: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    digits = torch.zeros(like.shape[0], count, _DIGITS, dtype=torch.int64, device=like.device)
    plus, minus, nans = torch.zeros(3, like.shape[0], count, dtype=torch.int64, device=like.device)
    return digits, plus, minus, nans


def _chunks(terms: torch.Tensor, groups: torch.Tensor | None) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    parts = torch.split(terms, _CHUNK, dim=-1)
    return list(zip(parts, torch.split(groups, _CHUNK) if groups is not None else [None] * len(parts), strict=True))


def _parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """|x| = mantissa * 2^(shift - 1074) and whether x is negative, from the bits; mantissa 0 where x is not finite."""
    bits = x.contiguous().view(torch.int64)
    exponent = (bits >> 52) & 0x7FF
    fraction = bits & ((1 << 52) - 1)
    mantissa = torch.where(exponent > 0, fraction | (1 << 52), fraction)
    return torch.where(exponent < 0x7FF, mantissa, 0), exponent.clamp(1, 2046) - 1, bits < 0


def _flat(x: torch.Tensor, group: torch.Tensor | None, count: int) -> torch.Tensor:
    """Where the digits of each element's sum begin in the flattened digits."""
    first = torch.arange(x.shape[0], device=x.device)[:, None] * (count * _DIGITS)
    return first.expand(x.shape) if group is None else first + group * _DIGITS


def _add(
    digits: torch.Tensor, place: torch.Tensor, piece: torch.Tensor, shift: torch.Tensor, negative: torch.Tensor
) -> None:
    """Add ±``piece`` (below 2^55) times 2^``shift`` units to the digits that begin at ``place``."""
    sign = torch.where(negative, -1, 1)
    place, offset = (place + (shift >> 5)).reshape(-1), shift & 31
    low, high = (piece & _DIGIT) << offset, (piece >> 32) << offset
    flat = digits.view(-1)
    flat.index_add_(0, place, (sign * (low & _DIGIT)).reshape(-1))
    flat.index_add_(0, place + 1, (sign * ((low >> 32) + (high & _DIGIT))).reshape(-1))
    flat.index_add_(0, place + 2, (sign * (high >> 32)).reshape(-1))


def _tally(
    x: torch.Tensor,
    group: torch.Tensor | None,
    count: int,
    plus: torch.Tensor,
    minus: torch.Tensor,
    nans: torch.Tensor,
    only: torch.Tensor | None = None,
) -> None:
    """Count what is not finite, by group. only: the places where a product is not finite because a factor is not."""
    strange = ~torch.isfinite(x) if only is None else only
    if not strange.any():
        return
    for counter, here in ((plus, x == math.inf), (minus, x == -math.inf), (nans, torch.isnan(x))):
        chosen = (here & strange).to(torch.int64)
        if group is None:
            counter[:, 0] += chosen.sum(-1)
        else:
            counter.index_add_(1, group, chosen)


def _read(digits: torch.Tensor, plus: torch.Tensor, minus: torch.Tensor, nans: torch.Tensor) -> list[list[ExactSum]]:
    return [
        [
            ExactSum(units=sum(d << (32 * i) for i, d in enumerate(line) if d), plus=p, minus=m, nans=n)
            for line, p, m, n in zip(*group, strict=True)
        ]
        for group in zip(digits.tolist(), plus.tolist(), minus.tolist(), nans.tolist(), strict=True)
    ]
