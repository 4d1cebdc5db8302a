"""Exact corrections by their definitions, with 60 digits, and the bounds of what an implementation gives.

A ratio or a statistic that lies within its own bound of a limit may fall on either side of it. Such a unit is *open*:
the implementation's own decision is taken, and weights, kept tokens and figures are judged given that decision. All
other units are decided here. exp 0 = 1 is owed exactly, so identical sides are never open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from numerics.formats import FORMATS, Format
from numerics.strategies.cases import PairCase
from numerics.suite import bounds
from numerics.suite.bounds import INFLATE, gamma
from numerics.suite.bounds_divergence import exp_error, mean_error, root_mean_square, token_errors, weight_bounds
from numerics.suite.implementation import Algorithm
from numerics.suite.measure import mp
from numerics.suite.oracle_divergence import exp_of, held, token_terms

__all__ = ["COUNTS", "FIGURES", "ExactCorrection", "Judgement", "correction"]

COUNTS = ("valid", "valid_count", "row_count", "unit_count", "nonfinite_count", "undefined_count")
FIGURES = (
    "ratio_mean",
    "ratio_min",
    "ratio_max",
    "ratio_std",
    "ratio_truncated_mean",
    "ratio_truncated_min",
    "ratio_truncated_max",
    "ratio_truncated_std",
    "truncated_low_fraction",
    "truncated_high_fraction",
    "statistic_mean",
    "statistic_min",
    "statistic_max",
    "ess_fraction",
    "ess_fraction_truncated",
    "kept_fraction",
    "kept_row_fraction",
)

Number = Any


@dataclass(frozen=True, kw_only=True)
class _Value:
    """A number and what an implementation may be off by.

    An infinite error is no promise of closeness. What may overflow is then still known to lie above ``floor``: the
    exponent is off by at most its own error, and exp loses no factor of 2.
    """

    exact: Number
    error: float
    log: float = 0.0  # of a ratio: its logarithm, as a float
    log_error: float = 0.0  # of a ratio: what the logarithm may be off by
    floor: Number = -math.inf

    @property
    def ends(self) -> tuple[Number, Number]:
        """Where an implementation's number lies."""
        if self.error == math.inf:
            return mp.mpf(self.floor), mp.inf
        return self.exact - self.error, self.exact + self.error


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What is right given the implementation's decisions about open units, and what it may be off by."""

    kept: list[bool]
    cut: list[bool | None]  #: whether the weight of a token is none of its ratio; None where that is open
    weights: list[Number]
    weights_allowed: list[float]
    counts: dict[str, int]
    figures: dict[str, Number]
    allowed: dict[str, float]
    open_units: int
    normaliser: Number


@dataclass(frozen=True, kw_only=True)
class ExactCorrection:
    """A case and its rule; `judge` says what is right."""

    rows: tuple[tuple[tuple[float, float], ...], ...]
    option: dict[str, Any]
    compare: Format

    @property
    def by_rows(self) -> bool:
        """Whether a unit is a row."""
        return str(self.option["level"]) != "token"

    def judge(self, kept: list[bool], algorithm: Algorithm, *, log_space: bool = False, merges: int = 0) -> Judgement:
        """What is right, given which of the valid tokens the implementation kept."""
        return _judge(self, kept, algorithm, log_space, merges)


@lru_cache(maxsize=256)
def correction(case: PairCase) -> ExactCorrection:
    """The exact correction of a case."""
    compare = FORMATS[case.compare_dtype]
    q_format, p_format = FORMATS[case.rollout_dtype], FORMATS[case.trainer_dtype]
    rows = tuple(
        tuple((compare.round(q_format.round(q)), compare.round(p_format.round(p))) for q, p in row)
        for row in case.row_tokens
    )
    return ExactCorrection(rows=rows, option=case.option, compare=compare)


def _ratio(log_ratio: Number, off: float, algorithm: Algorithm, inner: Format) -> _Value:
    """exp of a sum that is off by ``off``; infinite error where it may leave the accumulation format."""
    w = exp_of(log_ratio)
    if not mp.isfinite(log_ratio):
        return _Value(exact=w, error=0.0, log=float(log_ratio))
    if log_ratio == 0 and off == 0:
        return _Value(exact=w, error=0.0)
    error = exp_error(float(w), off, algorithm, inner)
    return _Value(exact=w, error=error, log=float(log_ratio), log_error=off, floor=exp_of(log_ratio - off) / 2)


def _units(exact: ExactCorrection, algorithm: Algorithm, inner: Format) -> tuple[list[_Value], list[_Value]]:
    """The ratios that are reported, and what the rule decides on: the same for truncate and zero."""
    rule, level = exact.option["rule"], exact.option["level"]
    u = inner.u
    tokens = [[_ratio(token_terms(q, p)["d"], u * abs(p - q), algorithm, inner) for q, p in row] for row in exact.rows]
    flat = [v for row in tokens for v in row]
    if rule in ("truncate", "zero"):
        if level == "token":
            return flat, flat
        out = []
        for row in exact.rows:
            total = sum((token_terms(q, p)["d"] for q, p in row), mp.mpf(0))
            size = math.fsum(abs(p - q) for q, p in row) if mp.isfinite(total) else 0.0
            off = float(gamma(len(row) + 2, u)) * size
            n = len(row) if level == "sequence_geometric" else 1
            out.append(_ratio(total / n, off / n, algorithm, inner))
        return out, out
    if rule == "veto":
        smallest = [_extreme(min, row) for row in tokens]
        return flat, smallest
    name = exact.option["statistic"]
    statistics = [[_statistic(name, q, p, algorithm, inner) for q, p in row] for row in exact.rows]
    if level == "token":
        return flat, [v for row in statistics for v in row]
    if level == "row_max":
        return flat, [_extreme(max, row) for row in statistics]
    out = []
    for values in statistics:
        total = sum((held(v.exact) for v in values), mp.mpf(0))
        size = math.fsum(abs(float(v.exact)) for v in values) if mp.isfinite(total) else 0.0
        error = sum(v.error for v in values) + float(gamma(len(values) + 2, u)) * size
        n = len(values) if level == "row_mean" else 1
        floor = sum((v.ends[0] for v in values), mp.mpf(0)) / 2 / n  # only k2 and k3 overflow: no term is negative
        error = (error if math.isfinite(size) else math.inf) / n
        out.append(_Value(exact=total / n, error=error, floor=floor))
    return flat, out


def _statistic(name: str, q: float, p: float, algorithm: Algorithm, inner: Format) -> _Value:
    terms = token_terms(q, p)
    exact = -terms["d"] if name == "k1" else terms[name]
    if not math.isfinite(p - q):
        return _Value(exact=exact, error=0.0)
    magnitude, error = token_errors(q, p, algorithm, inner)["signed_mean" if name == "k1" else name]
    error = 0.0 if p == q else error if magnitude < inner.max / 4 else math.inf
    return _Value(exact=exact, error=error, floor=exact / 2)


def _extreme(choose: Any, values: list[_Value]) -> _Value:
    """The extreme of a row lies between the extremes of both ends: a token that may overflow spoils no minimum."""
    if any(mp.isnan(v.exact) for v in values):
        return _Value(exact=mp.nan, error=0.0)
    exact = choose(v.exact for v in values)
    low, high = choose(v.ends[0] for v in values), choose(v.ends[1] for v in values)
    error = 0.0 if low == high else float(max(exact - low, high - exact))
    return _Value(exact=exact, error=error, floor=low)


def _limit_error(limit: float, inner: Format) -> float:
    """A limit that the accumulation format does not hold may be rounded to it first."""
    return 0.0 if inner.round(limit) == limit else inner.u * abs(limit) + inner.min_normal


def _side(value: _Value, limit: float, inner: Format) -> int | None:
    """-1 below the limit, 0 on it, 1 above, None if the bound leaves it open."""
    low, high = value.ends
    slack = _limit_error(limit, inner)
    if low == high == limit and not slack:
        return 0
    if low - slack <= limit <= high + slack:
        return None
    return 1 if low > limit else -1


def _judge(exact: ExactCorrection, kept: list[bool], algorithm: Algorithm, log_space: bool, merges: int) -> Judgement:
    option, compare = exact.option, exact.compare
    inner = compare if algorithm.accumulate == "compute" else FORMATS[algorithm.accumulate]
    ratios, decided = _units(exact, algorithm, inner)
    lengths = [len(row) for row in exact.rows]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    span = [range(s, s + n) for s, n in zip(starts, lengths, strict=True)]
    members = span if exact.by_rows else [range(i, i + 1) for i in range(sum(lengths))]
    rule = option["rule"]
    low_limit = option.get("lower") if rule in ("truncate", "zero") else option["threshold"] if rule == "veto" else None
    high_limit = (
        option.get("upper") if rule in ("truncate", "zero") else option["threshold"] if rule == "reject" else None
    )

    undefined, lows, highs, open_units = 0, [0, 0], [0, 0], 0  # counts: sure, open
    keeps, weights = [], []
    cuts: list[bool | None] = []
    for value, unit in zip(decided, members, strict=True):
        if mp.isnan(value.exact):
            undefined += 1
            keeps.append(False)
            cuts.append(True)
            weights.append(_Value(exact=mp.mpf(0), error=0.0))
            continue
        below = None if low_limit is None else _side(value, low_limit, inner)
        above = None if high_limit is None else _side(value, high_limit, inner)
        is_open = (low_limit is not None and below is None) or (high_limit is not None and above is None)
        lows[0] += below == -1
        lows[1] += low_limit is not None and below is None
        highs[0] += above == 1
        highs[1] += high_limit is not None and above is None
        open_units += is_open
        outside = below == -1 or above == 1
        keep = rule == "truncate" or (kept[unit[0]] if is_open else not outside)
        keeps.append(keep)
        on_border = (low_limit is not None and below in (None, 0)) or (high_limit is not None and above in (None, 0))
        cuts.append(True if outside else None if on_border else False)
        weights.append(_weight(value, keep, option, inner))
    tokens_kept = [k for k, unit in zip(keeps, members, strict=True) for _ in unit]
    spread = [w for w, unit in zip(weights, members, strict=True) for _ in unit]
    if rule in ("reject", "veto"):
        weights = spread  # the ratios that are reported are those of tokens
    n, rows, units = sum(lengths), len(lengths), len(decided)

    normaliser = mp.mpf(1)
    relative = 0.0  # error of the normaliser; 1/(1 - x) <= 1 + 2 x for x <= 1/2, and nothing is promised beyond
    if option.get("normalize") and weights:
        mean = sum((w.exact for w in weights), mp.mpf(0)) / len(weights)
        if mean > 0:
            off = mean_error([(float(w.exact), w.error) for w in weights], len(weights), inner)
            normaliser, relative = mean, float(off / mean)
    scaled = [w.exact / normaliser for w in spread]
    scaled_error = [
        _rounded(float(x), float(w.error / normaliser) + float(x) * (2 * relative + inner.u), compare)
        if relative <= 0.5
        else math.inf
        for w, x in zip(spread, scaled, strict=True)
    ]
    counts = {
        "valid": int(n > 0),
        "valid_count": n,
        "row_count": rows,
        "unit_count": units,
        "nonfinite_count": sum(not (math.isfinite(q) and math.isfinite(p)) for row in exact.rows for q, p in row),
        "undefined_count": undefined,
    }
    kept_rows = sum(any(tokens_kept[i] for i in unit) for unit in span)
    figures: dict[str, Number] = {}
    allowed: dict[str, float] = {}
    _series("ratio", ratios, figures, allowed, inner, merges)
    _series("ratio_truncated", weights, figures, allowed, inner, merges)
    _series("statistic", decided if rule == "reject" else [], figures, allowed, inner, merges)
    u2 = 2 * inner.u
    for name, (sure, unsure) in (("truncated_low_fraction", lows), ("truncated_high_fraction", highs)):
        figures[name] = mp.mpf(sure) / units if units else mp.nan
        allowed[name] = (unsure / units if units else 0.0) + u2
    figures["kept_fraction"] = mp.mpf(sum(tokens_kept)) / n if n else mp.nan
    figures["kept_row_fraction"] = mp.mpf(kept_rows) / rows if rows else mp.nan
    allowed |= {"kept_fraction": u2, "kept_row_fraction": u2}
    figures["ess_fraction"] = _ess([r.exact for r in ratios])
    steps = len(ratios) + 8 * merges
    logs = [r.log for r in ratios if r.log > -math.inf]
    allowed["ess_fraction"] = weight_bounds(
        "ess_fraction", "_", logs, {**figures, "_": mp.nan}, steps, algorithm, inner, log_space
    )["ess_fraction"] + _carried(ratios)
    figures["ess_fraction_truncated"] = _ess([w.exact for w in weights])
    allowed["ess_fraction_truncated"] = _ess_error(weights, steps, algorithm, inner, log_space)
    return Judgement(
        kept=tokens_kept,
        cut=[c for c, unit in zip(cuts, members, strict=True) for _ in unit],
        weights=scaled,
        weights_allowed=scaled_error,
        counts=counts,
        figures=figures,
        allowed=allowed,
        open_units=open_units,
        normaliser=normaliser,
    )


def _ess_error(weights: list[_Value], steps: int, algorithm: Algorithm, inner: Format, log_space: bool) -> float:
    """Error of f = (sum w)^2 / (n sum w^2) for weights w >= 0 that are off by e each.

    sum w errs by a = sum e / sum w, sum w^2 by b = (sum (2 w e + e^2) + n tiny) / sum w^2, relatively (a square that
    underflows costs at most tiny, the smallest normal number); the sums, the product and the quotient add g = gamma(3
    steps + 8). So f errs by the factor (1 + a)^2 (1 + g) / (1 - b) - 1. In log space a weight is exp(ln w), which adds
    w (2 u abs(ln w) + 2 (e + l) u (1 + abs(ln w))) to its e, and no square underflows.
    """
    u = inner.u
    total, square = sum((w.exact for w in weights), mp.mpf(0)), sum((w.exact**2 for w in weights), mp.mpf(0))
    if not total:
        return 0.0 if all(w.error == 0 for w in weights) else math.inf
    errors = []
    for w in weights:
        size = abs(mp.log(w.exact)) if w.exact > 0 else mp.mpf(0)
        again = w.exact * (2 * u * size + 2 * (algorithm.exp_ulps + algorithm.log_ulps) * u * (1 + size))
        errors.append(mp.mpf(w.error) + (again if log_space else 0))
    tiny = 0.0 if log_space else len(weights) * inner.min_normal
    a = sum(errors, mp.mpf(0)) / total
    b = (sum((2 * w.exact * e + e * e for w, e in zip(weights, errors, strict=True)), mp.mpf(0)) + tiny) / square
    if not (mp.isfinite(a) and b < 0.5):
        return math.inf
    off = (1 + a) ** 2 * (1 + float(gamma(3 * steps + 8, u))) / (1 - b) - 1
    return float(off * min(1, total * total / (len(weights) * square))) * INFLATE


def _carried(ratios: list[_Value]) -> float:
    """What the errors of sums over rows add to an effective sample size.

    With x the largest error of a logarithm, every weight errs by the factor e^x - 1 <= 1.06 x (x <= 1/10), and the four
    weights of (sum w)^2 / sum w^2 by no more than 5 x together.
    """
    worst = max((r.log_error for r in ratios), default=0.0)
    return 5 * worst if worst <= 0.1 else math.inf


def _weight(value: _Value, keep: bool, option: dict[str, Any], inner: Format) -> _Value:
    """The weight of a unit.

    A clamp moves no two numbers apart, so an honest ratio stays within its error of the exact one; beyond a limit only
    the limit's own rounding is left.
    """
    if not keep:
        return _Value(exact=mp.mpf(0), error=0.0)
    if option["rule"] in ("reject", "veto"):
        return _Value(exact=mp.mpf(1), error=0.0)
    if option["rule"] == "zero":
        return value
    upper, lower = option["upper"], option.get("lower") or 0.0
    clamped = min(max(value.exact, mp.mpf(lower)), mp.mpf(upper))
    edge = max(_limit_error(upper, inner), _limit_error(lower, inner))
    beyond = _side(value, upper, inner) == 1 or (lower > 0 and _side(value, lower, inner) == -1)
    return _Value(exact=clamped, error=edge if beyond else min(value.error, upper) + edge)


def _rounded(value: float, error: float, output: Format) -> float:
    """The error once the weight is rounded to the format of the result."""
    return (error + output.u * (value + error) + output.min_normal) * INFLATE


def _series(
    name: str,
    values: list[_Value],
    figures: dict[str, Number],
    allowed: dict[str, float],
    inner: Format,
    merges: int,
) -> None:
    """Mean, minimum, maximum and deviation of a list."""
    exact = [held(v.exact) for v in values]
    n, steps = len(exact), len(exact) + 8 * merges
    broken = not n or any(mp.isnan(x) for x in exact)
    mean = sum(exact, mp.mpf(0)) / n if n else mp.nan
    std = mp.sqrt(sum((x - mean) ** 2 for x in exact) / (n - 1)) if n > 1 and mp.isfinite(mean) else mp.nan
    figures |= {
        f"{name}_mean": mean,
        f"{name}_min": mp.nan if broken else min(exact),
        f"{name}_max": mp.nan if broken else max(exact),
        f"{name}_std": std,
    }
    pairs = [(abs(float(v.exact)), v.error) for v in values if mp.isfinite(v.exact)]
    sizes, errors = [x for x, _ in pairs], [e for _, e in pairs]
    worst = max(errors, default=0.0)
    rms, rms_error = root_mean_square(sizes), root_mean_square(errors)
    calm = math.isfinite(rms + rms_error) and max(sizes, default=0.0) < inner.max / 4
    allowed |= {
        f"{name}_mean": mean_error(pairs, steps, inner) if pairs else 0.0,
        f"{name}_min": worst * INFLATE + inner.min_normal if calm else math.inf,
        f"{name}_max": worst * INFLATE + inner.min_normal if calm else math.inf,
        f"{name}_std": bounds.std(float(std) if mp.isfinite(std) else 0.0, rms, max(n, 1), steps, inner, rms_error)
        if calm
        else math.inf,
    }


def _ess(weights: list[Number]) -> Number:
    if not weights or not all(mp.isfinite(w) for w in weights):
        return mp.nan
    first, second = sum(weights, mp.mpf(0)), sum((w * w for w in weights), mp.mpf(0))
    return first * first / (len(weights) * second) if second else mp.mpf(0)
