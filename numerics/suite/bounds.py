"""Error bounds: what an honest implementation may be off by, derived, never tuned.

Notation. ``u`` is the unit roundoff of the accumulation format, ``v`` of the output format;
``gamma(k) = k u/(1 - k u)`` (Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., lemma 3.1) bounds k
accumulated roundings, and the error of a sum of n terms in **any** order is at most ``gamma(n-1)`` times the sum of
their magnitudes (ibid., section 4.2). An elementary function that is correct to ``e`` ulps has relative error at most
``2 e u``. The analysis of log-sum-exp follows Blanchard, Higham & Higham, "Accurately computing the log-sum-exp and
softmax functions", IMA J. Numer. Anal. 41 (2021), with every first-order term kept and evaluated on the data.

Bounds are evaluated in float64, on numbers that carry relative errors of a few 2^-53; `INFLATE` covers those.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from numerics.formats import FORMATS, Format
from numerics.suite.implementation import Algorithm

__all__ = [
    "INFLATE",
    "Conditioning",
    "entropy",
    "gamma",
    "gradient",
    "kept_mass",
    "mean",
    "pearson",
    "std",
    "token_logprobs",
]

Array = npt.NDArray[np.float64]

INFLATE = 1.0 + 2.0**-30


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """What the error of one row depends on; every field is an array over rows.

    n: finite entries. gap: |x_i - max|, of the chosen token. top: max. log_s: log sum exp(x - max).
    mean_gap: sum_j p_j |x_j - max|. value: the log-prob (or the entropy). slack: an error in y itself, nats, weighted
    (only rows whose division overflowed have one). spread: sum_j p_j |x_j|.
    mean_square_gap: sum_j p_j |x_j - max|^2.
    """

    n: Array
    gap: Array
    top: Array
    log_s: Array
    mean_gap: Array
    mean_square_gap: Array
    spread: Array
    value: Array
    slack: Array


def gamma(k: Array | float, u: float) -> Array:
    """k u / (1 - k u), infinite where k u >= 1 (nothing can be promised there)."""
    product = np.asarray(k, dtype=np.float64) * u
    with np.errstate(divide="ignore"):
        return np.where(product < 1, product / np.maximum(1 - product, 1e-300), np.inf)


def formats_of(algorithm: Algorithm, dtype: str) -> tuple[float, float, float, float]:
    """(u, tiny of the accumulation; v, tiny of the output) for input ``dtype``."""
    out = FORMATS["float64" if dtype == "float64" else "float32"]
    inner = out if algorithm.accumulate == "compute" else FORMATS[algorithm.accumulate]
    return inner.u, inner.min_normal, out.u, out.min_subnormal


def _log_sum_error(c: Conditioning, algorithm: Algorithm, u: float, tiny: float) -> Array:
    """Absolute error of the computed log s, s = sum_j exp(a_j), a_j = x_j - max <= 0, s >= 1.

    fl(a_j) = a_j (1 + d1), an exponent error of at most u |a_j|; exp adds a factor within 2 e u; the sum, in any
    order, gamma(n-1). So s is computed with relative error

        eps <= (1 + gamma(n-1)) (1 + 2 e u) sum_j p_j exp(u |a_j|) - 1   <=   gamma(n-1 + 2e + 1) + 2 u sum_j p_j |a_j|,

    (exp(t) - 1 <= 2 t for t <= 1, which also pays for the product of both terms, and u |a_j| <= 1 wherever exp(a_j)
    does not vanish; a vanishing one, flushed or not, costs at most ``tiny`` each, s >= 1). Then |log(1 + eps)| <=
    eps / (1 - eps), and log itself errs by 2 l u |log s|.
    """
    eps = gamma(c.n + 2 * algorithm.exp_ulps, u) + 2 * u * c.mean_gap + c.n * tiny
    with np.errstate(divide="ignore"):
        carried = np.where(eps < 1, eps / np.maximum(1 - eps, 1e-300), np.inf)
    return carried + 2 * algorithm.log_ulps * u * c.log_s


def token_logprobs(c: Conditioning, algorithm: Algorithm, dtype: str) -> Array:
    """|lp - exact|, in nats, for either formula.

    shifted,     fl(fl(x_i - max) - log s):   u gap + E(log s) + u |lp|
    logsumexp,   fl(x_i - fl(max + log s)):   u |max + log s| + E(log s) + u |lp|

    and one rounding to the output, v |lp| + tiny. The second form is honest code and is off by u |lse|: the larger of
    both is granted to it, so that a bound never accuses code that does better than its declaration.
    """
    u, tiny, v, out_tiny = formats_of(algorithm, dtype)
    lead = c.gap if algorithm.formula == "shifted" else np.maximum(c.gap, np.abs(c.top + c.log_s))
    inner = u * lead + _log_sum_error(c, algorithm, u, tiny)
    with np.errstate(over="ignore"):
        total = inner + (u + v) * (np.abs(c.value) + inner) + out_tiny
        return (total * (1 + 2 * v) + c.slack) * INFLATE


def entropy(c: Conditioning, algorithm: Algorithm, dtype: str) -> Array:
    """|H - exact|, in nats.

    Shifted form ``H = log s + (sum_j e_j |a_j|) / s`` with e_j = exp(a_j): besides E(log s), the quotient
    ``t = sum_j p_j |a_j|`` has terms with relative error (1 + 2e u)(1 + u)^3 and exponent error u |a_j|, hence
    2 u sum_j p_j a_j^2; the sum gamma(n); and it inherits the relative error of s. One addition, one rounding.
    A term whose exp vanishes is off by at most tiny |a_j|; exp vanishes before |a_j| = 1024 (float64: 746).

    Forms that weigh log-probs (``-sum p log p``) or logits (``lse - sum p x``) also meet |lp_j| <= |a_j| + log s and
    |x_j| in place of |a_j|: their rounding is u (n + 2e + 3) times sum_j p_j (|x_j| + |max + log s|), granted to
    formula "logsumexp".
    """
    u, tiny, v, out_tiny = formats_of(algorithm, dtype)
    e_log = _log_sum_error(c, algorithm, u, tiny)
    k = gamma(c.n + 2 * algorithm.exp_ulps + 4, u)
    quotient = k * c.mean_gap + 2 * u * c.mean_square_gap + c.mean_gap * e_log + c.n * tiny * 1024
    total = e_log + quotient
    if algorithm.formula == "logsumexp":
        with np.errstate(over="ignore"):
            total = total + _weighted_form(c, k, e_log, u)
    with np.errstate(over="ignore"):
        total = total + (u + v) * (np.abs(c.value) + total) + out_tiny
        return (total * (1 + 2 * v) + c.slack) * INFLATE


def _weighted_form(c: Conditioning, k: Array, e_log: Array, u: float) -> Array:
    """What ``-sum p log p`` and ``lse - sum p x`` lose besides: see `entropy`.

    exp(lp_j) carries the absolute error of lp_j, u (gap + |lse|) + E(log s), into its weight and its factor.
    """
    lse = np.abs(c.top + c.log_s)
    lp_error = u * lse + e_log + u * (c.mean_gap + c.log_s)
    return k * (c.spread + lse) + 2 * lp_error * (1 + c.mean_gap + c.log_s + c.spread)


def gradient(
    c: Conditioning,
    probs: Array,
    gaps: Array,
    onehot: Array,
    temperatures: Array,
    algorithm: Algorithm,
    dtype: str,
) -> Array:
    """|g - exact| for g_j = (onehot_j - p_j) / T, [n, V].

    p_j is exp of a log-prob (error of `token_logprobs`, with the gap of j in place of the chosen one's) or e_j / s;
    both have relative error at most ``expm1(2 (u (gap_j + |top + log_s|) + E(log s))) + gamma(2e + 3)``. The
    difference and the quotient round once each, in the compute dtype, and the result is rounded to the logits' dtype.
    """
    u, tiny, v, _ = formats_of(algorithm, dtype)
    leaf = FORMATS[dtype]
    lead = gaps + (np.abs(c.top + c.log_s) if algorithm.formula == "logsumexp" else c.log_s)[:, None]
    inner = u * np.where(np.isfinite(lead), lead, 0.0) + _log_sum_error(c, algorithm, u, tiny)[:, None]
    relative = np.expm1(np.minimum(2 * inner, 700.0)) + gamma(2 * algorithm.exp_ulps + 3, u)
    with np.errstate(over="ignore"):
        absolute = probs * relative + tiny + (2 * u + 2 * v) * np.abs(onehot - probs)
        scaled = absolute / temperatures[:, None]
        exact = np.abs(onehot - probs) / temperatures[:, None]
        rounding = leaf.u * (exact + scaled) + leaf.min_subnormal + 2 * FORMATS["float32"].min_normal
    return (scaled + rounding) * INFLATE


def kept_mass(n: Array | float, mean_gap: Array | float, algorithm: Algorithm, dtype: str) -> Array:
    """Error of a cumulative probability of softmax(y), relative to the total mass 1.

    e_j and s as above give each p_j the relative error 2 eps + u; a running sum adds gamma(n). A top-p border closer
    than this to ``top_p`` may fall on either side. The threshold itself may have been rounded to float32.
    """
    u, tiny, _, _ = formats_of(algorithm, dtype)
    loosest = max(u, FORMATS["float32"].u) if dtype != "float64" else u
    return (
        gamma(3 * np.asarray(n) + 4 * algorithm.exp_ulps + 4, loosest)
        + 4 * loosest * np.asarray(mean_gap)
        + np.asarray(n) * tiny
    )


# --- statistics over tokens ---------------------------------------------------------------------------------


def mean(mean_abs: float, n: int, steps: int, fmt: Format, element: float) -> float:
    """Error of the mean of n non-negative numbers: a sum in any order and one division, gamma(steps + 1) relative.

    element: the largest absolute error of one number, before summation. steps: n, or more where states were merged.
    Infinite where the sum may leave the format's range.
    """
    if n * mean_abs >= fmt.max / 2:
        return math.inf
    k = float(gamma(steps + 1, fmt.u))
    return (k * mean_abs + element * (1 + k)) * INFLATE


def std(std_exact: float, rms: float, n: int, steps: int, fmt: Format, element: float) -> float:
    """Error of a standard deviation from a two-pass or an updating (Welford, Chan) algorithm.

    Chan, Golub & LeVeque (1983): the relative error of the sum of squares is at most about n u kappa, with
    kappa = rms / std, so the standard deviation errs by n u rms and rounding of its own; E[x^2] - E[x]^2 has kappa^2
    and is outside. An error ``element`` of every value moves the deviation by at most sqrt(n / (n - 1)) of it. Squares
    that underflow cost at most the smallest normal each, its root in the deviation; where squares may overflow the
    bound is infinite.
    """
    if rms + element >= math.sqrt(fmt.max / (4 * max(n, 1))):
        return math.inf
    k = float(gamma(steps + 4, fmt.u))
    moved = element * math.sqrt(n / max(n - 1, 1))
    underflow = math.sqrt(2 * fmt.min_normal)
    return (k * (std_exact + rms) + moved * (1 + k) + underflow) * INFLATE


def pearson(steps: int, u: float, x_error: float, y_error: float) -> float:
    """Error of r = <x', y'> / (|x'| |y'|) on centred vectors known to relative 2-norm errors x_error, y_error.

    A perturbation of relative size e turns a vector by an angle of at most asin(e) <= e / (1 - e), and |d cos| is at
    most the sum of both angles; the three inner products and the quotient add gamma(3 steps + 8). 2 says nothing.
    """
    worst = max(x_error, y_error)
    if not worst < 0.5:
        return 2.0
    turned = x_error / (1 - x_error) + y_error / (1 - y_error)
    return min(2.0, (turned + float(gamma(3 * steps + 8, u))) * INFLATE)
