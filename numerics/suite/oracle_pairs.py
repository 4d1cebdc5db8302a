"""Exact mismatch figures by their definitions, in rational arithmetic, with 60 digits where a root or exp is needed.

One function per rule of `docs/semantics.md` section 2; nothing is shared with the reference.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from numerics.formats import FORMATS, Format
from numerics.strategies.cases import PairCase, UlpCase
from numerics.suite import bounds
from numerics.suite.implementation import Algorithm
from numerics.suite.measure import mp

__all__ = ["COUNTS", "FIGURES", "ExactMismatch", "distances", "mismatch"]

#: fields that are integers and exact in every implementation
COUNTS = (
    "valid",
    "valid_count",
    "nonfinite_count",
    "narrowed_count",
    "positive_count",
    "overflow_count",
    "logprobs_mismatch_count",
    "bit_mismatch_count",
)
#: fields that are real numbers
FIGURES = (
    "logprobs_diff_max",
    "logprobs_diff_mean",
    "logprobs_diff_std",
    "probs_diff_max",
    "probs_diff_mean",
    "probs_diff_std",
    "probs_pearson",
    "logprobs_pearson",
)


@dataclass(frozen=True, kw_only=True)
class ExactMismatch:
    """Exact counts, figures (mpmath numbers, NaN and infinities included) and histogram, and what figures depend on."""

    counts: dict[str, int]
    figures: dict[str, Any]
    histogram: tuple[int, ...]
    tokens: tuple[tuple[float, float], ...]  # (q, p) after the cast
    probs: tuple[tuple[float, float], ...]  # (Q, P)
    compare: Format

    def allowed(self, algorithm: Algorithm, *, merges: int = 0) -> dict[str, float]:
        """What an honest implementation with this algorithm may be off by, figure by figure.

        merges: how many states were merged; each adds at most 8 roundings to a sum or a moment.
        """
        return _allowed(self, algorithm, merges)


@lru_cache(maxsize=256)
def mismatch(case: PairCase) -> ExactMismatch:
    """The exact mismatch of a case."""
    compare = FORMATS[case.compare_dtype]
    given = [(FORMATS[case.rollout_dtype].round(q), FORMATS[case.trainer_dtype].round(p)) for q, p in case.tokens]
    tokens = tuple((compare.round(q), compare.round(p)) for q, p in given)
    probs = tuple((_exp(q, compare.name), _exp(p, compare.name)) for q, p in tokens)
    distance = [compare.distance(q, p) for q, p in tokens]
    bins = Counter(compare.bits + 1 if k is None else k.bit_length() for k in distance)
    values = [
        (given_v, v, prob)
        for g, t, r in zip(given, tokens, probs, strict=True)
        for given_v, v, prob in zip(g, t, r, strict=True)
    ]
    counts = {
        "valid": int(bool(tokens)),
        "valid_count": len(tokens),
        "nonfinite_count": sum(not (math.isfinite(q) and math.isfinite(p)) for q, p in tokens),
        "narrowed_count": sum(before != after for before, after, _ in values if not math.isnan(before)),
        "positive_count": sum(v > 0 for _, v, _ in values),
        "overflow_count": sum(math.isfinite(v) and prob == math.inf for _, v, prob in values),
        "logprobs_mismatch_count": sum(k != 0 for k in distance),
        "bit_mismatch_count": sum(_bits_differ(q, p) for q, p in tokens),
    }
    figures: dict[str, Any] = {}
    for name, pairs in (("logprobs", tokens), ("probs", probs)):
        d = [_difference(q, p) for q, p in pairs]
        figures[f"{name}_diff_max"] = _maximum(d)
        figures[f"{name}_diff_mean"] = _mean(d)
        figures[f"{name}_diff_std"] = _std(d)
        figures[f"{name}_pearson"] = _pearson(pairs)
    return ExactMismatch(
        counts=counts,
        figures=figures,
        histogram=tuple(bins[k] for k in range(compare.bits + 2)),
        tokens=tokens,
        probs=probs,
        compare=compare,
    )


def distances(case: UlpCase) -> list[int | None]:
    """The exact distance of every pair, None where undefined."""
    fmt = FORMATS[case.dtype]
    return [fmt.distance(fmt.round(a), fmt.round(b)) for a, b in zip(case.a, case.b, strict=True)]


def _bits_differ(a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) != math.isnan(b)
    return a != b or math.copysign(1, a) != math.copysign(1, b)


@lru_cache(maxsize=1 << 16)
def _exp(x: float, name: str) -> float:
    """exp x, correctly rounded (exp of a non-zero rational is no rational, so 60 digits decide every rounding)."""
    if math.isnan(x):
        return math.nan
    if x < -800:
        return 0.0
    if x > 800:
        return math.inf
    return FORMATS[name].round(mp.exp(mp.mpf(x)))


def _difference(a: float, b: float) -> Fraction | float:
    """|a - b| exactly, 0 where equal, infinite or NaN as it must be."""
    if a == b:
        return Fraction(0)
    if not (math.isfinite(a) and math.isfinite(b)):
        return abs(a - b)
    return abs(Fraction(a) - Fraction(b))


def _real(x: Fraction | float | int) -> Any:
    return mp.mpf(x) if isinstance(x, float) else mp.mpf(x.numerator) / mp.mpf(x.denominator)


def _maximum(d: list[Fraction | float]) -> Any:
    if not d or any(isinstance(x, float) and math.isnan(x) for x in d):
        return mp.nan
    return _real(max(d))


def _mean(d: list[Fraction | float]) -> Any:
    if not d or any(isinstance(x, float) and math.isnan(x) for x in d):
        return mp.nan
    if any(isinstance(x, float) for x in d):
        return mp.inf
    return _real(sum(d, Fraction(0)) / len(d))


def _std(d: list[Fraction | float]) -> Any:
    if len(d) < 2 or any(isinstance(x, float) for x in d):
        return mp.nan
    centre = sum(d, Fraction(0)) / len(d)
    return mp.sqrt(_real(sum((x - centre) ** 2 for x in d) / (len(d) - 1)))


def _pearson(pairs: tuple[tuple[float, float], ...]) -> Any:
    n = len(pairs)
    if n < 2 or not all(math.isfinite(v) for pair in pairs for v in pair):
        return mp.nan
    xs, ys = ([Fraction(v) for v in side] for side in zip(*pairs, strict=True))
    if min(xs) == max(xs) or min(ys) == max(ys):
        return mp.nan
    mx, my = sum(xs, Fraction(0)) / n, sum(ys, Fraction(0)) / n
    sxx, syy = sum((x - mx) ** 2 for x in xs), sum((y - my) ** 2 for y in ys)
    sxy = sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True))
    return _real(sxy) / mp.sqrt(_real(Fraction(sxx)) * _real(Fraction(syy)))


def _allowed(exact: ExactMismatch, algorithm: Algorithm, merges: int) -> dict[str, float]:
    """Bounds of the figures for an accumulation format and an exp of ``exp_ulps``.

    An element |p - q| is one subtraction: u |p - q|. A probability computed in the compare format is within
    (2 e + 1) of its unit roundoffs of the correctly rounded one; an implementation that accumulates in a wider format
    rounds exp once and owes the correctly rounded one.
    """
    compare = exact.compare
    inner = compare if algorithm.accumulate == "compute" else FORMATS[algorithm.accumulate]
    u, n = inner.u, len(exact.tokens)
    steps = n + 8 * merges
    prob_unit = 0.0 if inner.precision > compare.precision else (2 * algorithm.exp_ulps + 1) * compare.u
    out: dict[str, float] = {}
    for name, pairs, unit in (("logprobs", exact.tokens, 0.0), ("probs", exact.probs, prob_unit)):
        finite = [(q, p) for q, p in pairs if math.isfinite(q) and math.isfinite(p)]
        d = [abs(p - q) for q, p in finite]
        # an exp that underflows gradually or is flushed costs at most the smallest normal
        floor = compare.min_normal if unit else inner.min_subnormal
        element = max((u * x + unit * (q + p) + floor for x, (q, p) in zip(d, finite, strict=True)), default=0.0)
        mean_abs = math.fsum(d) / n if n else 0.0
        biggest = max(d, default=0.0)
        rms = biggest * math.sqrt(math.fsum((x / biggest) ** 2 for x in d) / n) if biggest else 0.0
        exact_std = exact.figures[f"{name}_diff_std"]
        std = float(exact_std) if mp.isfinite(exact_std) else 0.0
        out[f"{name}_diff_max"] = element
        out[f"{name}_diff_mean"] = bounds.mean(mean_abs, n, steps, inner, element)
        out[f"{name}_diff_std"] = bounds.std(std, rms, n, steps, inner, element)
        out[f"{name}_pearson"] = bounds.pearson(steps, u, *_relative_errors(finite, n, steps, inner, unit, floor))
    return out


def _relative_errors(
    pairs: list[tuple[float, float]], n: int, steps: int, inner: Format, unit: float, floor: float
) -> list[float]:
    """The relative 2-norm errors of the two centred vectors.

    Each centred value x - mean errs by its own error (``unit`` of it), by the mean's (gamma(steps) times the mean
    magnitude) and by one subtraction: at most ``gamma(steps + 3) 2 max|x| + unit max|x| + floor`` each, sqrt(n)
    times in norm. Products that underflow cost the smallest normal each; where they may overflow the error is infinite.
    """
    errors = []
    for side in (0, 1):
        xs = [pair[side] for pair in pairs]
        biggest = max((abs(x) for x in xs), default=0.0)
        if n < 2 or not biggest:
            errors.append(0.0)
            continue
        centre = math.fsum(x / biggest for x in xs) / len(xs)
        norm = biggest * math.sqrt(math.fsum((x / biggest - centre) ** 2 for x in xs))
        if not 0 < norm < math.sqrt(inner.max / 4):
            errors.append(math.inf)
            continue
        error = math.sqrt(n) * ((float(bounds.gamma(steps + 3, inner.u)) + unit) * 2 * biggest + floor)
        errors.append((error + math.sqrt(2 * n * inner.min_normal)) / norm)
    return errors
