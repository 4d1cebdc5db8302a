"""A 95 % interval for a mean over tokens whose rows, not tokens, are independent."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import mpmath

from numerics.reference.sums import UNIT, ExactSum, root

__all__ = ["clustered_interval", "student_quantile"]


def clustered_interval(
    s: ExactSum, ss: ExactSum, sn: ExactSum, nn: ExactSum, *, rows: int, tokens: int
) -> tuple[float, float, float]:
    """``(se, low, high)`` of the mean g = sum_r s_r / N of B rows with sums s_r and n_r tokens.

    s, ss, sn, nn: sum_r of s_r, s_r^2, s_r n_r, n_r^2. The standard error of a ratio estimator, clustered by row, is
    sqrt(B/(B-1) sum_r (s_r - g n_r)^2) / N (Cochran, *Sampling Techniques*, 3rd ed., section 6.4); the interval is
    g ± t(B - 1, 0.975) se. NaN for fewer than two rows, or where a term is not finite.
    """
    if rows < 2 or not s.finite:
        return math.nan, math.nan, math.nan
    unit = 1 << UNIT
    gap = Fraction(s.units, tokens * unit)
    squares = Fraction(ss.units, unit) - 2 * gap * Fraction(sn.units, unit) + gap * gap * Fraction(nn.units, unit)
    variance = squares * Fraction(rows, (rows - 1) * tokens * tokens)
    se = root(variance.numerator, variance.denominator)
    half = student_quantile(rows - 1) * se
    centre = s.over(tokens)
    return se, centre - half, centre + half


@lru_cache(maxsize=1024)
def student_quantile(degrees: int) -> float:
    """t with P(T <= t) = 0.975 for Student's distribution with ``degrees`` degrees of freedom, within 4 ulps.

    Above 1000 degrees by the expansion in 1/degrees about the normal quantile (Abramowitz & Stegun 26.7.5), whose
    first neglected term is below 2^-52 there; else by solving with mpmath.
    """
    z = 1.959963984540054235
    if degrees > 1000:
        g = (
            z,
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
        )
        return math.fsum(c / degrees**k for k, c in enumerate(g))
    with mpmath.workdps(30):
        half = mpmath.mpf(degrees) / 2

        def outside(t: mpmath.mpf) -> mpmath.mpf:
            return mpmath.betainc(half, 0.5, 0, degrees / (degrees + t * t), regularized=True) - mpmath.mpf("0.05")

        start = z + (z**3 + z) / (4 * degrees) if degrees > 2 else (12.706 if degrees == 1 else 4.303)
        return float(mpmath.findroot(outside, (start, start * 1.01), tol=1e-50))
