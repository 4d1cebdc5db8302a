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

__all__ = ["DigitSums", "ExactSum", "exact_products", "exact_sums", "quotient", "root", "row_sums"]

#: the unit of an `ExactSum`: 2^-2148, the square of the smallest float64
UNIT = 2148
_DIGIT = (1 << 32) - 1
#: digits that hold the product of two largest float64 numbers, and 64 bits more for their count
_DIGITS = 136
#: columns at a time: their parts stay in the cache
_CHUNK = 1 << 14
#: numbers added before their digits are poured into unbounded integers; one adds less than 2^33 to a digit
_FULL = 1 << 29
#: entries of a row that are summed at a time by `row_sums`
_BLOCK = 4096


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
    rows = terms.shape[0]
    sums, strange = DigitSums(rows * count, _DIGITS, terms.device), _Strange(rows * count, terms.device)
    parts = torch.split(terms, _CHUNK, dim=-1)
    for x, group in zip(parts, torch.split(groups, _CHUNK) if groups is not None else [None] * len(parts), strict=True):
        mantissa, shift, negative = _parts(x)
        place = torch.arange(rows, device=x.device)[:, None] * count + (0 if group is None else group)
        place = place.expand(x.shape)
        sums.add(mantissa, shift + (UNIT - 1074), negative, place)
        strange.add(x, place)
    lines = _read(sums, strange)
    return [lines[k * count : (k + 1) * count] for k in range(rows)]


def exact_products(xs: torch.Tensor, ys: torch.Tensor) -> list[ExactSum]:
    """``sum_i xs[k, i] * ys[k, i]`` for each row k of two float64 tensors [K, n]; products round nowhere."""
    rows = xs.shape[0]
    sums, strange = DigitSums(rows, _DIGITS, xs.device), _Strange(rows, xs.device)
    for x, y in zip(torch.split(xs, _CHUNK, dim=-1), torch.split(ys, _CHUNK, dim=-1), strict=True):
        (mx, sx, nx), (my, sy, ny) = _parts(x), _parts(y)
        place, shift, negative = torch.arange(rows, device=x.device)[:, None].expand(x.shape), sx + sy, nx ^ ny
        half = (1 << 27) - 1  # 53 digits are 26 and 27: three partial products below 2^55
        high_x, low_x, high_y, low_y = mx >> 27, mx & half, my >> 27, my & half
        sums.add(low_x * low_y, shift, negative, place)
        sums.add(high_x * low_y + low_x * high_y, shift + 27, negative, place)
        sums.add(high_x * high_y, shift + 54, negative, place)
        # where a factor is not finite: 0 times an infinity is NaN, decided on the bits
        finite = torch.isfinite(x) & torch.isfinite(y)
        sign = torch.where(negative, -math.inf, math.inf)
        nothing = torch.isnan(x) | torch.isnan(y) | (torch.isfinite(x) & (mx == 0)) | (torch.isfinite(y) & (my == 0))
        strange.add(torch.where(finite, 0.0, torch.where(nothing, math.nan, sign)), place)
    return _read(sums, strange)


def row_sums(x: torch.Tensor) -> torch.Tensor:
    """Sums over the last axis, rounded as torch rounds them, whose bits depend on the row alone.

    torch splits a lone row of 32,768 entries or more over threads; it never splits one of several sums, so a wide row
    is summed in blocks first.
    """
    if x.shape[-1] <= _BLOCK:
        return x.sum(-1)
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % _BLOCK))
    return padded.reshape(*x.shape[:-1], -1, _BLOCK).sum(-1).sum(-1)


class DigitSums:
    """Sums of integers of any size, ``lines`` of them: ``digits`` of 32 bits each, in int64 places, with no carries.

    Without carries the place of a digit depends on the numbers alone, not on how many were added.
    """

    def __init__(self, lines: int, digits: int, device: torch.device) -> None:
        self._open = torch.zeros(lines * digits, dtype=torch.int64, device=device)
        self._lines, self._width = lines, digits
        self._added = 0
        self._poured: list[list[int]] | None = None

    def add(
        self,
        piece: torch.Tensor,
        shift: torch.Tensor,
        negative: torch.Tensor | None = None,
        line: torch.Tensor | None = None,
    ) -> None:
        """Add ±``piece`` (0 to 2^55) times 2^``shift`` to the lines given (None: to the first)."""
        if self._added + piece.numel() > _FULL:
            self._poured, self._added = self.digits(), 0
            self._open.zero_()
        self._added += piece.numel()
        place, offset = shift >> 5, shift & 31
        if line is not None:
            place = place + line * self._width
        place = place.reshape(-1)
        low, high = (piece & _DIGIT) << offset, (piece >> 32) << offset
        for i, digit in enumerate((low & _DIGIT, (low >> 32) + (high & _DIGIT), high >> 32)):
            signed = digit if negative is None else torch.where(negative, -digit, digit)
            self._open.index_add_(0, place + i, signed.reshape(-1))

    def digits(self) -> list[list[int]]:
        """The digits of each line, lowest first, as unbounded integers."""
        lines: list[list[int]] = self._open.view(self._lines, self._width).tolist()
        if self._poured is not None:
            pairs = zip(lines, self._poured, strict=True)
            lines = [[a + b for a, b in zip(line, before, strict=True)] for line, before in pairs]
        return lines


class _Strange:
    """How many terms of each line are +inf, -inf and NaN."""

    def __init__(self, lines: int, device: torch.device) -> None:
        self._counts = torch.zeros(3, lines, dtype=torch.int64, device=device)

    def add(self, x: torch.Tensor, line: torch.Tensor) -> None:
        """Count the terms ``x``, each in its line."""
        if torch.isfinite(x).all():
            return
        for counter, here in zip(self._counts, (x == math.inf, x == -math.inf, torch.isnan(x)), strict=True):
            counter.index_add_(0, line.reshape(-1), here.reshape(-1).to(torch.int64))

    def counts(self) -> list[list[int]]:
        """``[plus, minus, nans]`` of each line."""
        lines: list[list[int]] = self._counts.T.tolist()
        return lines


def _parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """|x| = mantissa * 2^(shift - 1074) and whether x is negative, from the bits; mantissa 0 where x is not finite."""
    bits = x.contiguous().view(torch.int64)
    exponent = (bits >> 52) & 0x7FF
    fraction = bits & ((1 << 52) - 1)
    mantissa = torch.where(exponent > 0, fraction | (1 << 52), fraction)
    return torch.where(exponent < 0x7FF, mantissa, 0), exponent.clamp(1, 2046) - 1, bits < 0


def _read(sums: DigitSums, strange: _Strange) -> list[ExactSum]:
    return [
        ExactSum(units=sum(d << (32 * i) for i, d in enumerate(line) if d), plus=plus, minus=minus, nans=nans)
        for line, (plus, minus, nans) in zip(sums.digits(), strange.counts(), strict=True)
    ]
