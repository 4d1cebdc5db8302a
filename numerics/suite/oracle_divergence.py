"""Exact divergences by their definitions, with 60 digits.

One function per rule of `docs/semantics.md` section 3, on the cast pair; nothing is shared with the reference. The
forms are the textbook's: with 60 digits 20 are left of k3 and JSD at d = 1e-20, and below it three terms of their
series are exact to 60.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from numerics.formats import FORMATS, Format
from numerics.strategies.cases import PairCase
from numerics.suite import bounds_divergence
from numerics.suite.implementation import Algorithm
from numerics.suite.measure import mp

__all__ = [
    "COUNTS",
    "FIGURES",
    "ROW_FIGURES",
    "TOKEN_FIGURES",
    "ExactDivergence",
    "divergence",
    "exp_of",
    "held",
    "token_terms",
]

COUNTS = (
    "valid",
    "valid_count",
    "row_count",
    "nonfinite_count",
    "narrowed_count",
    "ratio_overflow_count",
)
#: figures of the tokens: they do not know rows
TOKEN_FIGURES = (
    "signed_mean",
    "probs_signed_mean",
    "k1",
    "k2",
    "k3",
    "kl_trainer_rollout",
    "jsd",
    "mult_prob_error",
    "normalization_gap",
    "ratio_mean",
    "ratio_min",
    "ratio_max",
    "ratio_std",
    "ess_fraction",
    "chi2_token",
    "log1p_chi2_token",
    "fraction_above",
    "sampling_entropy",
    "ppl_rollout_token",
    "ppl_trainer_token",
)
ROW_FIGURES = (
    "normalization_gap_se",
    "normalization_gap_low",
    "normalization_gap_high",
    "seq_ratio_mean",
    "seq_ratio_min",
    "seq_ratio_max",
    "seq_ratio_geometric_mean",
    "seq_ratio_geometric_min",
    "seq_ratio_geometric_max",
    "chi2_seq",
    "log1p_chi2_seq",
    "chi2_seq_geometric",
    "log1p_chi2_seq_geometric",
    "ppl_rollout",
    "ppl_trainer",
    "log_ppl_rollout",
    "log_ppl_trainer",
    "ppl_ratio",
    "log_ppl_diff_mean",
    "log_ppl_diff_abs_mean",
    "log_ppl_diff_max",
    "log_ppl_diff_min",
    "seq_mult_prob_error_mean",
    "seq_mult_prob_error_max",
    "seq_mult_prob_error_min",
)
FIGURES = (*TOKEN_FIGURES, *ROW_FIGURES)

Number = Any  # an mpmath number


@dataclass(frozen=True, kw_only=True)
class ExactDivergence:
    """Exact counts and figures (mpmath numbers, NaN and infinities included), and what the figures depend on."""

    counts: dict[str, int]
    figures: dict[str, Number]
    rows: tuple[tuple[tuple[float, float], ...], ...]  # (q, p) after the cast, row by row
    epsilon: float
    compare: Format

    def allowed(self, algorithm: Algorithm, *, merges: int = 0, log_space: bool = False) -> dict[str, float]:
        """What an honest implementation with this algorithm may be off by, figure by figure; inf is no promise.

        merges: how many states were merged. log_space: it promises effective sample sizes at any scale.
        """
        inner = self.compare if algorithm.accumulate == "compute" else FORMATS[algorithm.accumulate]
        found = bounds_divergence.allowed(self.rows, self.figures, self.epsilon, algorithm, inner, merges, log_space)
        return {name: found.get(name, 0.0) for name in FIGURES}  # of no token: all figures are NaN


@lru_cache(maxsize=256)
def divergence(case: PairCase) -> ExactDivergence:
    """The exact divergence of a case."""
    compare = FORMATS[case.compare_dtype]
    given = [
        [(FORMATS[case.rollout_dtype].round(q), FORMATS[case.trainer_dtype].round(p)) for q, p in row]
        for row in case.row_tokens
    ]
    rows = tuple(tuple((compare.round(q), compare.round(p)) for q, p in row) for row in given)
    before = [v for row in given for pair in row for v in pair]
    after = [v for row in rows for pair in row for v in pair]
    tokens = [pair for row in rows for pair in row]
    epsilon = float(case.option.get("epsilon", 1e-6))
    terms = [token_terms(q, p) for q, p in tokens]
    overflow = [mp.isfinite(t["d"]) and t["ratio"] > _LARGEST for t in terms]
    counts = {
        "valid": int(bool(tokens)),
        "valid_count": len(tokens),
        "row_count": len(rows),
        "nonfinite_count": sum(not (math.isfinite(q) and math.isfinite(p)) for q, p in tokens),
        "narrowed_count": sum(a != b for a, b in zip(before, after, strict=True) if not math.isnan(a)),
        "ratio_overflow_count": sum(overflow),
    }
    figures = {**_token_figures(terms, epsilon), **_row_figures(rows, terms)}
    return ExactDivergence(counts=counts, figures=figures, rows=rows, epsilon=epsilon, compare=compare)


#: above it a ratio rounds to infinity in float64
_LARGEST = mp.mpf(2) ** 1024 * (1 - mp.mpf(2) ** -54)
_HALF_LN2 = mp.log(2) / 2
#: below it the series of k3 and JSD
_TINY = mp.mpf(10) ** -20


@lru_cache(maxsize=1 << 14)
def _exp(x: float) -> Number:
    return mp.exp(mp.mpf(x)) if math.isfinite(x) else {math.inf: mp.inf, -math.inf: mp.mpf(0)}.get(x, mp.nan)


def token_terms(q: float, p: float) -> dict[str, Number]:
    """What one token contributes, by name; ``d = p - q`` exactly, NaN for equal infinities."""
    both = math.isfinite(q) and math.isfinite(p)
    d = mp.mpf(p) - mp.mpf(q) if both else mp.mpf(p - q)  # infinite, or NaN
    w = exp_of(d)
    return {
        "d": d,
        "signed_mean": d,
        "probs_signed_mean": _exp(p) - _exp(q),
        "k2": d * d / 2,
        "k3": _k3(d, w),
        "kl_trainer_rollout": mp.mpf(0) if d == -mp.inf else w * d,
        "jsd": _jsd(d, w),
        "mult_prob_error": exp_of(abs(d)),
        "normalization_gap": _expm1(d),
        "ratio": w,
        "chi2_token": _expm1(2 * d),
        "log_ppl_rollout_token": mp.mpf(-q),
        "log_ppl_trainer_token": mp.mpf(-p),
    }


def exp_of(x: Number) -> Number:
    """exp of a number that may be infinite or NaN."""
    if mp.isnan(x):
        return mp.nan
    return (mp.inf if x > 0 else mp.mpf(0)) if mp.isinf(x) else mp.exp(x)


def _expm1(x: Number) -> Number:
    return mp.expm1(x) if mp.isfinite(x) else exp_of(x) - 1


def _k3(d: Number, w: Number) -> Number:
    if mp.isinf(d):
        return mp.inf
    if abs(d) < _TINY:
        return d * d / 2 * (1 + d / 3 + d * d / 12)
    return w - 1 - d


def _jsd(d: Number, w: Number) -> Number:
    if mp.isinf(d):
        return mp.inf if d > 0 else _HALF_LN2
    if abs(d) < _TINY:
        return d * d / 8 * (1 + d / 2 + d * d / 8)
    return (w * d - (1 + w) * mp.log((1 + w) / 2)) / 2


def held(x: Number) -> Number:
    """A term as float64 holds it: finite input whose exp overflows gives an infinity, and so does every mean of it."""
    return mp.inf * mp.sign(x) if mp.isfinite(x) and abs(x) > _LARGEST else x


def _mean(values: Sequence[Number]) -> Number:
    return sum((held(x) for x in values), mp.mpf(0)) / len(values) if values else mp.nan


def _extreme(choose: Any, values: Sequence[Number]) -> Number:
    return mp.nan if not values or any(mp.isnan(v) for v in values) else held(choose(values))


def _log(x: Number) -> Number:
    return -mp.inf if x == 0 else mp.log(x) if mp.isfinite(x) else x


def _log_mean_square(weights: Sequence[Number]) -> Number:
    """ln(mean w^2), whatever float64 holds."""
    return _log(sum((w * w for w in weights), mp.mpf(0)) / len(weights)) if weights else mp.nan


def _token_figures(terms: list[dict[str, Number]], epsilon: float) -> dict[str, Number]:
    n = len(terms)
    d = [t["d"] for t in terms]
    w = [t["ratio"] for t in terms]
    names = ("signed_mean", "probs_signed_mean", "k2", "k3", "kl_trainer_rollout", "jsd", "mult_prob_error")
    out = {name: _mean([t[name] for t in terms]) for name in (*names, "normalization_gap", "chi2_token")}
    first, second = sum(w, mp.mpf(0)), sum((x * x for x in w), mp.mpf(0))
    broken = not n or not all(mp.isfinite(x) for x in w)
    mean = _mean(w)
    out |= {
        "k1": -out["signed_mean"],
        "ratio_mean": mean,
        "ratio_min": _extreme(min, w),
        "ratio_max": _extreme(max, w),
        "ratio_std": mp.nan if n < 2 or not mp.isfinite(mean) else mp.sqrt(sum((x - mean) ** 2 for x in w) / (n - 1)),
        "ess_fraction": mp.nan if broken else (first * first / (n * second) if second else mp.mpf(0)),
        "log1p_chi2_token": _log_mean_square(w),
        "fraction_above": mp.mpf(sum(not abs(x) <= epsilon for x in d)) / n if n else mp.nan,
        "sampling_entropy": _mean([t["log_ppl_rollout_token"] for t in terms]),
        "ppl_rollout_token": held(exp_of(_mean([t["log_ppl_rollout_token"] for t in terms]))),
        "ppl_trainer_token": held(exp_of(_mean([t["log_ppl_trainer_token"] for t in terms]))),
    }
    return out


def _row_figures(
    rows: tuple[tuple[tuple[float, float], ...], ...], terms: list[dict[str, Number]]
) -> dict[str, Number]:
    parts, start = [], 0
    for row in rows:
        parts.append(terms[start : start + len(row)])
        start += len(row)
    totals = [sum((t["d"] for t in part), mp.mpf(0)) for part in parts]
    means = [total / len(part) for total, part in zip(totals, parts, strict=True)]
    log_q = [_mean([t["log_ppl_rollout_token"] for t in part]) for part in parts]
    log_p = [_mean([t["log_ppl_trainer_token"] for t in part]) for part in parts]
    error = [_mean([t["mult_prob_error"] for t in part]) for part in parts]
    product, geometric = [exp_of(x) for x in totals], [exp_of(x) for x in means]
    difference = [-x for x in means]
    out = {
        "chi2_seq": _mean([_expm1(2 * x) for x in totals]),
        "log1p_chi2_seq": _log_mean_square(product),
        "chi2_seq_geometric": _mean([_expm1(2 * x) for x in means]),
        "log1p_chi2_seq_geometric": _log_mean_square(geometric),
        "ppl_rollout": _mean([exp_of(x) for x in log_q]),
        "ppl_trainer": _mean([exp_of(x) for x in log_p]),
        "log_ppl_rollout": _mean(log_q),
        "log_ppl_trainer": _mean(log_p),
        "ppl_ratio": _mean([exp_of(x) for x in difference]),
        "log_ppl_diff_mean": _mean(difference),
        "log_ppl_diff_abs_mean": _mean([abs(x) for x in means]),
        "log_ppl_diff_max": _extreme(max, difference),
        "log_ppl_diff_min": _extreme(min, difference),
    }
    for name, values in (("seq_ratio", product), ("seq_ratio_geometric", geometric), ("seq_mult_prob_error", error)):
        out[f"{name}_mean"] = _mean(values)
        out[f"{name}_min"] = _extreme(min, values)
        out[f"{name}_max"] = _extreme(max, values)
    return {**out, **_interval(parts)}


def _interval(parts: list[list[dict[str, Number]]]) -> dict[str, Number]:
    """The clustered interval of the normalisation gap."""
    names = ("normalization_gap_se", "normalization_gap_low", "normalization_gap_high")
    rows, n = len(parts), sum(map(len, parts))
    sums = [sum((held(t["normalization_gap"]) for t in part), mp.mpf(0)) for part in parts]
    if rows < 2 or not all(mp.isfinite(s) for s in sums):
        return dict.fromkeys(names, mp.nan)
    gap = sum(sums) / n
    squares = sum((s - gap * len(part)) ** 2 for s, part in zip(sums, parts, strict=True))
    se = mp.sqrt(mp.mpf(rows) / (rows - 1) * squares) / n
    half = student_quantile(rows - 1) * se
    return dict(zip(names, (se, gap - half, gap + half), strict=True))


@lru_cache(maxsize=64)
def student_quantile(degrees: int) -> Number:
    """The 0.975 quantile of Student's t: bisection of its trigonometric series (Abramowitz & Stegun 26.7.3, 26.7.4)."""

    def inside(theta: Number) -> Number:
        """P(|T| <= t) with theta = atan(t / sqrt(degrees))."""
        sine, cosine = mp.sin(theta), mp.cos(theta)
        odd = degrees % 2
        term = total = cosine if odd else mp.mpf(1)
        if degrees == 1:
            return 2 * theta / mp.pi
        for k in range(3 if odd else 2, degrees, 2):
            term = term * cosine**2 * (mp.mpf(k - 1) / k)
            total += term
        return 2 / mp.pi * (theta + sine * total) if odd else sine * total

    low, high = mp.mpf(0), mp.pi / 2
    for _ in range(210):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < mp.mpf("0.95") else (low, middle)
    return mp.sqrt(degrees) * mp.tan(low)
