"""Floating-point formats: unit roundoff, ulp, the ordered line, neighbours, and casts that no FPU mode changes.

The only home of bit tricks. A format's finite and infinite values lie on one **ordered line**
``..., -min, ±0, +min, ..., max, inf``: `ordinal` numbers its points (0 for both zeros, negative below), so that
distance in ULPs, next and previous are integer arithmetic. Two layers say the same thing:

* `Format` works on Python scalars with exact integers (no torch, no FPU mode): the oracle and the strategies use it;
* the functions below it work on tensors, on the bits, so that flush-to-zero cannot fool them.

Sources: IEEE 754-2019 (binary16/32/64); bfloat16 is binary32 without its low 16 bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import torch

__all__ = [
    "FORMATS",
    "Format",
    "bits_differ",
    "format_of",
    "narrow",
    "next_down",
    "next_up",
    "ordinal",
    "ulp",
    "ulp_distance",
    "widen",
]


@dataclass(frozen=True, kw_only=True)
class Format:
    """One binary floating-point format; its methods take and return Python scalars that lie in the format.

    ``precision`` counts the implicit bit; ``emin`` is the exponent of the smallest normal number, ``emax`` of
    the largest finite one.
    """

    name: str
    bits: int
    precision: int
    emin: int
    emax: int

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype."""
        return _DTYPES[self.name]

    @property
    def u(self) -> float:
        """Unit roundoff 2^-precision: half the gap between 1 and its successor."""
        return 2.0**-self.precision

    @property
    def min_subnormal(self) -> float:
        """The smallest positive value."""
        return _float64(1, self.emin - self.precision + 1)

    @property
    def min_normal(self) -> float:
        """The smallest positive normal value."""
        return _float64(1, self.emin)

    @property
    def max(self) -> float:
        """The largest finite value."""
        return _float64((1 << self.precision) - 1, self.emax - self.precision + 1)

    @property
    def max_ordinal(self) -> int:
        """The ordinal of +inf; -inf has its negative."""
        return (self.emax - self.emin + 2) << (self.precision - 1)

    def round(self, value: Any) -> float:
        """Round to nearest, ties to even, with overflow to infinity.

        ``value``: an int, float, `fractions.Fraction` or ``mpmath.mpf`` (any precision). Exact integer
        arithmetic throughout, so there is one rounding only. NaN, infinities and zeros pass.
        """
        if isinstance(value, float) and (not math.isfinite(value) or _fields(value)[1] == 0):
            return value
        dyadic = _dyadic(value, self)
        if isinstance(dyadic, float):
            return dyadic
        negative, mantissa, exponent = dyadic
        step = max(mantissa.bit_length() - 1 + exponent, self.emin) - self.precision + 1
        drop = step - exponent
        if drop <= 0:
            whole, step = mantissa, exponent
        else:
            whole, rest, half = mantissa >> drop, mantissa & ((1 << drop) - 1), 1 << (drop - 1)
            whole += rest > half or (rest == half and whole & 1)
        overflows = whole.bit_length() + step > self.emax + 1
        return _float64(1, 1024, negative) if overflows else _float64(whole, step, negative)

    def contains(self, value: float) -> bool:
        """Whether the float64 ``value`` is a value of this format (NaN and infinities are)."""
        return math.isnan(value) or _fields(self.round(value)) == _fields(value)

    def ordinal(self, value: float) -> int:
        """The place of ``value`` on the ordered line. `ValueError` for NaN and for values off the format."""
        if math.isnan(value):
            raise ValueError("value is NaN, which has no place on the ordered line")
        if not self.contains(value):
            raise ValueError(f"value {value!r} is not a {self.name}; round it first with Format.round")
        negative, mantissa, exponent = _fields(value)
        if math.isinf(value):
            place = self.max_ordinal
        else:
            # |value| = mantissa 2^exponent; in units of the smallest subnormal, then binade by binade
            shift = exponent - (self.emin - self.precision + 1)
            units = mantissa << shift if shift >= 0 else mantissa >> -shift
            binade = max(units.bit_length() - self.precision, 0)
            place = (binade << (self.precision - 1)) + (units >> binade)
        return -place if negative else place

    def from_ordinal(self, place: int) -> float:
        """The value at ``place``; the inverse of `ordinal` (+0.0 at 0). `ValueError` beyond ±infinity."""
        if abs(place) > self.max_ordinal:
            raise ValueError(f"place {place} lies beyond infinity, {self.max_ordinal} for {self.name}")
        if abs(place) == self.max_ordinal:
            return math.inf if place > 0 else -math.inf
        binade, fraction = divmod(abs(place), 1 << (self.precision - 1))
        whole = fraction if binade == 0 else fraction + (1 << (self.precision - 1))
        return _float64(whole, max(binade - 1, 0) + self.emin - self.precision + 1, place < 0)

    def distance(self, a: float, b: float) -> int | None:
        """Steps between ``a`` and ``b`` on the ordered line, exact; None when either is NaN."""
        if math.isnan(a) or math.isnan(b):
            return None
        return abs(self.ordinal(a) - self.ordinal(b))

    def next_up(self, value: float) -> float:
        """The neighbour above (+inf and NaN are their own; zero is +0.0)."""
        return value if math.isnan(value) or value == math.inf else self.from_ordinal(self.ordinal(value) + 1)

    def next_down(self, value: float) -> float:
        """The neighbour below (-inf and NaN are their own; zero is +0.0)."""
        return value if math.isnan(value) or value == -math.inf else self.from_ordinal(self.ordinal(value) - 1)

    def ulp(self, value: float) -> float:
        """The gap between ``|value|`` and its successor in magnitude, a power of two.

        At and below the smallest normal it is the smallest subnormal; at the largest finite value it is the
        gap below; NaN for infinities and NaN.
        """
        if not math.isfinite(value):
            return math.nan
        _, mantissa, exponent = _fields(value)
        exponent = mantissa.bit_length() - 1 + exponent if mantissa else self.emin
        return _float64(1, max(exponent, self.emin) - self.precision + 1)


def _fields(value: float) -> tuple[bool, int, int]:
    """(negative, mantissa, exponent) with |value| = mantissa 2^exponent, read off the bits: no FPU mode matters.

    Infinities and NaN have mantissas of their own, so that equal fields mean equal values.
    """
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    biased, fraction = (bits >> 52) & 0x7FF, bits & ((1 << 52) - 1)
    mantissa = fraction if biased == 0 else fraction | (1 << 52)
    return bool(bits >> 63), mantissa, (max(biased, 1) - 1075) if mantissa else 0


def _float64(whole: int, step: int, negative: bool = False) -> float:
    """``whole`` 2^``step``, which float64 holds (or infinity, from 2^1024 on), written as bits."""
    exponent = whole.bit_length() - 1 + step
    if whole == 0:
        bits = 0
    elif exponent > 1023:
        bits = 0x7FF << 52
    elif exponent >= -1022:
        shift = 53 - whole.bit_length()
        mantissa = whole << shift if shift >= 0 else whole >> -shift
        bits = ((exponent + 1023) << 52) | (mantissa & ((1 << 52) - 1))
    else:
        bits = whole << (step + 1074) if step >= -1074 else whole >> -(step + 1074)
    (value,) = struct.unpack("<d", struct.pack("<Q", bits | (negative << 63)))
    return float(value)


def _dyadic(value: Any, fmt: Format) -> tuple[bool, int, int] | float:
    """(negative, mantissa, exponent) of ``value`` as `_fields` gives them, rounding into ``fmt`` like it.

    A fraction that is no dyadic number gets three bits beyond the precision and a sticky bit. A float comes back for
    NaN, infinities, and what is so far off ``fmt`` that its rounding is plain.
    """
    if isinstance(value, float):
        return _fields(value)
    if isinstance(value, int | Fraction):
        numerator, denominator = abs(value.numerator), value.denominator
        scale = max(0, fmt.precision + 3 + denominator.bit_length() - numerator.bit_length())
        quotient, rest = divmod(numerator << scale, denominator)
        return value < 0, (quotient << 1) | (rest != 0), -scale - 1
    raw = getattr(value, "_mpf_", None)  # mpmath.mpf: (sign, mantissa, exponent, bit count)
    if raw is None:
        raise TypeError(f"value must be int, float, Fraction or mpmath.mpf, got {type(value).__name__}")
    sign, mantissa, exponent, _ = raw
    if mantissa == 0 and exponent != 0:
        return float(value)  # mpmath's inf and nan
    mantissa, exponent = int(mantissa), int(exponent)
    top = mantissa.bit_length() + exponent  # |value| < 2^top
    if mantissa and top < fmt.emin - fmt.precision:
        return -0.0 if sign else 0.0
    if mantissa and top > fmt.emax + 2:
        return -math.inf if sign else math.inf
    return bool(sign), mantissa, exponent


_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "float64": Format(name="float64", bits=64, precision=53, emin=-1022, emax=1023),
        "float32": Format(name="float32", bits=32, precision=24, emin=-126, emax=127),
        "float16": Format(name="float16", bits=16, precision=11, emin=-14, emax=15),
        "bfloat16": Format(name="bfloat16", bits=16, precision=8, emin=-126, emax=127),
    }
)


def format_of(what: torch.dtype | torch.Tensor | str) -> Format:
    """The `Format` of a dtype, a tensor, or a name such as ``"bfloat16"``. `TypeError` for anything else."""
    name = str(what.dtype if isinstance(what, torch.Tensor) else what).removeprefix("torch.")
    if name not in FORMATS:
        raise TypeError(f"no floating-point format for {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


# --- tensors -----------------------------------------------------------------------------------------------

_INTEGER = {16: torch.int16, 32: torch.int32, 64: torch.int64}


def _bits(x: torch.Tensor) -> torch.Tensor:
    """The bit patterns of ``x``, sign-extended to int64."""
    return x.detach().contiguous().view(_INTEGER[format_of(x).bits]).to(torch.int64)


def _magnitude(x: torch.Tensor) -> torch.Tensor:
    """The bits of ``|x|`` as int64: the distance from zero on the ordered line, above `max_ordinal` for NaN."""
    bits = format_of(x).bits
    return _bits(x) & ((1 << (bits - 1)) - 1)


def _isnan(x: torch.Tensor) -> torch.Tensor:
    return _magnitude(x) > format_of(x).max_ordinal


def ordinal(x: torch.Tensor) -> torch.Tensor:
    """Places on the ordered line, int64, same shape as ``x`` (0 for ±0). Meaningless where ``x`` is NaN."""
    magnitude = _magnitude(x)
    return torch.where(_bits(x) < 0, -magnitude, magnitude)


def _from_ordinal(place: torch.Tensor, fmt: Format) -> torch.Tensor:
    sign_bit = -(1 << (fmt.bits - 1))
    pattern = torch.where(place < 0, (-place) | sign_bit, place)
    return pattern.to(_INTEGER[fmt.bits]).view(fmt.dtype)


def next_up(x: torch.Tensor) -> torch.Tensor:
    """The neighbours above, element by element (+inf and NaN stay). Same dtype and shape."""
    fmt = format_of(x)
    place = ordinal(x)
    return torch.where(_isnan(x) | (place == fmt.max_ordinal), x.detach(), _from_ordinal(place + 1, fmt))


def next_down(x: torch.Tensor) -> torch.Tensor:
    """The neighbours below, element by element (-inf and NaN stay). Same dtype and shape."""
    fmt = format_of(x)
    place = ordinal(x)
    return torch.where(_isnan(x) | (place == -fmt.max_ordinal), x.detach(), _from_ordinal(place - 1, fmt))


def ulp(x: torch.Tensor) -> torch.Tensor:
    """The gap from ``|x|`` to its successor in magnitude, in the dtype of ``x`` (see `Format.ulp`)."""
    fmt = format_of(x)
    magnitude = _magnitude(x)
    binade = (magnitude >> (fmt.precision - 1)).clamp(min=1)  # subnormals share the first normal binade's gap
    shift = binade - fmt.precision + 1  # biased exponent of the gap; below 1 the gap itself is subnormal
    normal = shift.clamp(min=0) << (fmt.precision - 1)
    subnormal = torch.ones_like(binade) << (binade - 1).clamp(max=fmt.precision - 1)
    gap = _from_ordinal(torch.where(shift >= 1, normal, subnormal), fmt)
    return torch.where(magnitude >= fmt.max_ordinal, torch.full_like(gap, math.nan), gap)


def ulp_distance(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Steps between ``a`` and ``b`` on the ordered line of their format, element by element.

    Returns ``(distance, defined)``, both of the shape of ``a``: ``distance`` is int64, or uint64 for float64
    (whose full range exceeds int64); ``defined`` is bool, False where either side is NaN (distance is 0 there
    and means nothing). ±0 are one point; subnormals are points whatever the flush-to-zero mode; ±inf are the
    neighbours of ±max. `TypeError` for dtypes other than float64/32/16 and bfloat16, `ValueError` for
    differing dtypes, shapes or devices.
    """
    fmt = format_of(a)
    if format_of(b) != fmt:
        raise ValueError(f"a is {fmt.name} but b is {format_of(b).name}; cast both to one format first")
    if a.shape != b.shape:
        raise ValueError(f"a has shape {tuple(a.shape)} but b has {tuple(b.shape)}; shapes must be equal")
    if a.device != b.device:
        raise ValueError(f"a is on {a.device} but b is on {b.device}; move both to one device")
    defined = ~(_isnan(a) | _isnan(b))
    place_a, place_b = ordinal(a), ordinal(b)
    steps = torch.maximum(place_a, place_b) - torch.minimum(place_a, place_b)  # wraps for float64; right as uint64
    steps = torch.where(defined, steps, torch.zeros_like(steps))
    return (steps.view(torch.uint64) if fmt.bits == 64 else steps), defined


def bits_differ(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where the bit patterns of ``a`` and ``b`` (same dtype) differ, all NaNs counted as one pattern; bool."""
    return (_bits(a) != _bits(b)) & ~(_isnan(a) & _isnan(b))


def widen(x: torch.Tensor) -> torch.Tensor:
    """``x`` as float64, exactly, also for subnormals while the FPU flushes them to zero."""
    fmt = format_of(x)
    if fmt.bits == 64:
        return x
    magnitude = _magnitude(x)
    scale = fmt.min_subnormal  # a normal float64
    tiny = magnitude.to(torch.float64) * scale * (1 - 2 * (_bits(x) < 0).to(torch.float64))
    return torch.where(magnitude < (1 << (fmt.precision - 1)), tiny, x.to(torch.float64))


def narrow(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x`` rounded to nearest-even into ``dtype`` (float32 or float64), whatever the flush-to-zero mode."""
    if format_of(x).bits == 64 and dtype == torch.float32:
        fmt = FORMATS["float32"]
        # |x| below the smallest normal float32, read off float64's bits; the product is a small normal float64
        tiny = _magnitude(x) < FORMATS["float64"].ordinal(fmt.min_normal)
        steps = torch.round(torch.where(tiny, x.abs(), torch.zeros_like(x)) * (1.0 / fmt.min_subnormal))
        pattern = steps.to(torch.int64) | torch.where(_bits(x) < 0, -(1 << 31), 0)
        return torch.where(tiny, pattern.to(torch.int32).view(torch.float32), x.to(torch.float32))
    if dtype == torch.float64:
        return widen(x)
    return x.to(dtype)
