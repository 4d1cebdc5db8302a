"""Measurements: what a property returns and the runner judges.

Arrays of equal length, one element per row (or per field): what the implementation gave, what is right, and what an
honest implementation may be off by. A verdict is never drawn from the float64 value alone where its radius could
change it: `severities` then asks for the exact number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from mpmath import MPContext

__all__ = ["DIGITS", "Exact", "Measurement", "holds", "mp", "same", "severities", "within"]

#: decimal digits of every exact number
DIGITS = 60
mp: Any = MPContext()  # a context of our own: the global one belongs to the user
mp.dps = DIGITS

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Exact:
    """Exact values as float64 numbers with a proved radius; ``refine(i)`` is element i with 60 digits."""

    value: Array
    radius: Array
    refine: Callable[[int], Any]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """got, want, allowed: |got - want| <= allowed, element by element.

    rows:    which row of the case an element belongs to, -1 for the whole case.
    labels:  what an element is, one for all or one each.
    bits:    compare bit patterns (±0 differ, all NaNs alike) instead of a distance; allowed is then 0.
    format:  the format of ``got``, for hex and ULPs; "truth" for a statement that holds (1) or does not (0).
    case:    the case that ``got`` came from, where a rule derives it from the one it was given.
    """

    got: Array
    want: Array
    allowed: Array
    radius: Array
    rows: npt.NDArray[np.int64]
    labels: str | tuple[str, ...]
    bits: bool = False
    format: str = "float32"
    refine: Callable[[int], Any] | None = None
    case: Any = None

    def label(self, i: int) -> str:
        """What element ``i`` is."""
        return self.labels if isinstance(self.labels, str) else self.labels[i]

    def exact(self, i: int) -> Any:
        """Element ``i`` of ``want`` with all its digits, where there are more."""
        return self.refine(i) if self.refine is not None else float(self.want[i])


def _rows(n: int, rows: Sequence[int] | npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    return np.arange(n, dtype=np.int64) if rows is None else np.asarray(rows, dtype=np.int64)


def within(
    got: Any,
    exact: Exact,
    allowed: Any,
    *,
    label: str | tuple[str, ...],
    rows: Any = None,
    format: str = "float32",
    case: Any = None,
) -> Measurement:
    """|got - exact| <= allowed; non-finite values must agree."""
    got = np.atleast_1d(np.asarray(got, dtype=np.float64))
    return Measurement(
        got=got,
        want=np.atleast_1d(np.asarray(exact.value, dtype=np.float64)),
        allowed=np.broadcast_to(np.asarray(allowed, dtype=np.float64), got.shape),
        radius=np.broadcast_to(np.asarray(exact.radius, dtype=np.float64), got.shape),
        rows=_rows(got.size, rows),
        labels=label,
        format=format,
        refine=exact.refine,
        case=case,
    )


def same(
    got: Any, want: Any, *, label: str | tuple[str, ...], rows: Any = None, format: str = "float32", case: Any = None
) -> Measurement:
    """``got`` has the bits of ``want``."""
    got = np.atleast_1d(np.asarray(got, dtype=np.float64))
    zeros = np.zeros(got.shape)
    want = np.broadcast_to(np.asarray(want, dtype=np.float64), got.shape)
    return Measurement(
        got=got,
        want=want,
        allowed=zeros,
        radius=zeros,
        rows=_rows(got.size, rows),
        labels=label,
        bits=True,
        format=format,
        case=case,
    )


def holds(ok: Any, *, label: str | tuple[str, ...], rows: Any = None, case: Any = None) -> Measurement:
    """Every element of ``ok`` is true."""
    truth = np.asarray(np.atleast_1d(ok), dtype=np.float64)
    return same(truth, 1.0, label=label, rows=rows, format="truth", case=case)


def severities(m: Measurement) -> Array:
    """error / allowed for every element: 0 for none, at most 1 within the bound, inf for what no bound excuses."""
    if m.bits:
        equal = ((m.got == m.want) & (np.signbit(m.got) == np.signbit(m.want))) | (np.isnan(m.got) & np.isnan(m.want))
        return np.where(equal, 0.0, math.inf)
    allowed = np.nan_to_num(m.allowed, nan=0.0, posinf=math.inf)  # a bound that is no number excuses nothing
    finite = np.isfinite(m.got) & np.isfinite(m.want)
    alike = (m.got == m.want) | (np.isnan(m.got) & np.isnan(m.want))
    out = np.where(alike, 0.0, math.inf)
    with np.errstate(all="ignore"):
        error = np.abs(m.got - m.want)
        inside = finite & (error + m.radius <= allowed)
        outside = finite & (error - m.radius > allowed)
        ratio = np.where(allowed > 0, error / allowed, np.where(error > 0, math.inf, 0.0))
    out = np.where(inside, np.minimum(ratio, 1.0), np.where(outside, np.maximum(ratio, np.nextafter(1.0, 2.0)), out))
    for i in np.flatnonzero(finite & ~inside & ~outside):
        out[i] = _exact_severity(m, int(i), float(allowed[i]))
    return out


def _exact_severity(m: Measurement, i: int, bound: float) -> float:
    error = abs(mp.mpf(float(m.got[i])) - m.exact(i))
    if error == 0:
        return 0.0
    allowed = mp.mpf(bound)
    if allowed == 0:
        return math.inf
    ratio = error / allowed
    return float(ratio) if (float(ratio) > 1) == (ratio > 1) else (1.0 if ratio <= 1 else float(np.nextafter(1.0, 2.0)))
