"""What an honest implementation of the divergences may be off by, derived term by term.

Notation as in `numerics.suite.bounds`: ``u`` the unit roundoff of the accumulation format, ``gamma(k) = k u/(1 - k
u)``, e and l the errors of exp and log in ulps. The cast log-probs p and q are exact. Then, for one token,

- the computed d^ = d (1 + t), abs(t) <= u, so it is off by ``D = u abs(d)``;
- exp of anything off by D has relative error at most ``expm1(D) + 2 e u (1 + expm1(D)) <= 2 D + 2 e u (1 + 2 D)`` for
  D <= 1/2, and nothing is promised beyond: `_relative`.

A figure is a mean over tokens or rows (`bounds.mean`), an extreme (off by at most the largest error of an element), or
made of means as its function says. Where exp may leave the range of the accumulation format nothing is promised, which
is written as an infinite bound; capability ``log_space`` promises effective sample sizes there too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from numerics.formats import Format
from numerics.suite import bounds
from numerics.suite.bounds import INFLATE, gamma
from numerics.suite.implementation import Algorithm
from numerics.suite.measure import mp

__all__ = ["allowed", "exp_error", "mean_error", "root_mean_square", "token_errors", "weight_bounds"]

_TERMS = (
    "signed_mean",
    "k2",
    "k3",
    "kl_trainer_rollout",
    "jsd",
    "mult_prob_error",
    "normalization_gap",
    "ratio",
    "chi2_token",
)

Rows = Sequence[Sequence[tuple[float, float]]]


def _relative(absolute: float, algorithm: Algorithm, u: float) -> float:
    """Relative error of exp of a number that is off by ``absolute``."""
    if not absolute <= 0.5:
        return math.inf
    return 2 * absolute + 2 * algorithm.exp_ulps * u * (1 + 2 * absolute)


def _exp(x: float) -> float:
    return math.exp(x) if x < 709 else math.inf


def token_errors(q: float, p: float, algorithm: Algorithm, inner: Format) -> dict[str, tuple[float, float]]:
    """``name -> (magnitude, error)`` of one token's terms in the accumulation format, for finite d or d = -inf.

    - k2 = d^2/2: d^ twice, one product, one halving: gamma(4) of it.
    - k3 as ``expm1(d) - d``: the derivative of k3 is expm1, so d^ moves it by D abs(expm1 d) + D^2 w; expm1 itself
    errs by
      2 e u abs(expm1 d), the subtraction by u k3.
    - w d: the error of w, and gamma(3) for two roundings and d^.
    - JSD as it stands in the definition: half of: w d; (1 + w) ln((1 + w)/2), whose argument carries the relative
    error of
      w times w/(1 + w) and two roundings, hence the absolute error ``w r + 2 u (1 + w)``, and log's own 2 l u with the
      product; one subtraction each.
    - exp d - 1 and exp 2d - 1, also as written: the error of exp, and u (1 + w) for the subtraction.
    """
    u, e = inner.u, algorithm.exp_ulps
    d = p - q
    if d == -math.inf:
        zero = dict.fromkeys(_TERMS, (0.0, 0.0))
        one = (1.0, 2 * u)
        return {**zero, "jsd": one, "normalization_gap": one, "chi2_token": one}
    off = u * abs(d)
    w = _exp(d)
    r = _relative(off, algorithm, u)
    r2 = _relative(2 * off, algorithm, u)
    grown = abs(math.expm1(d)) if d < 709 else math.inf
    log_half = abs(math.log1p(w) - math.log(2)) if math.isfinite(w) else math.inf
    up = _exp(abs(d))
    square = _exp(2 * d)
    tiny = inner.min_normal  # what underflows is off by at most this, flushed or not
    k3 = grown + abs(d)
    jsd = (r + 3 * u) * w * abs(d) + w * r + 2 * u * (1 + w) + (1 + w) * log_half * (2 * algorithm.log_ulps + 3) * u
    return {
        "signed_mean": (abs(d), off),
        "k2": (d * d / 2, float(gamma(4, u)) * d * d / 2 + tiny),
        "k3": (k3, (off + 2 * e * u) * grown + off * off * w + 2 * u * (off + d * d) + u * min(k3, d * d * up) + tiny),
        "kl_trainer_rollout": (w * abs(d), (r + float(gamma(3, u))) * w * abs(d) + tiny),
        "jsd": (min(w * abs(d), w * d * d) + d * d, jsd / 2 + u * w * abs(d) + tiny),
        "mult_prob_error": (up, r * up),
        "normalization_gap": (grown, r * w + 2 * u * (1 + w) + tiny),
        "ratio": (w, r * w + tiny),
        "chi2_token": (1 + square, r2 * square + 2 * u * (1 + square) + tiny),
    }


def allowed(
    rows: Rows,
    figures: dict[str, Any],
    epsilon: float,
    algorithm: Algorithm,
    inner: Format,
    merges: int,
    log_space: bool,
) -> dict[str, float]:
    """The bound of every figure; see the functions it calls. Non-finite tokens are left out: what they do to a figure
    is decided without a bound.
    """
    kept = [[(q, p) for q, p in row if math.isfinite(p - q) or p - q == -math.inf] for row in rows]
    return {
        **_token_bounds(kept, figures, epsilon, algorithm, inner, merges, log_space),
        **_row_bounds([row for row in kept if row], figures, algorithm, inner, merges, log_space),
        **_side_bounds(rows, figures, algorithm, inner, merges),
    }


def _token_bounds(
    rows: Rows,
    figures: dict[str, Any],
    epsilon: float,
    algorithm: Algorithm,
    inner: Format,
    merges: int,
    log_space: bool,
) -> dict[str, float]:
    errors = [token_errors(q, p, algorithm, inner) for row in rows for q, p in row]
    n, u = len(errors), inner.u
    steps = n + 8 * merges

    def mean(name: str) -> float:
        return mean_error([t[name] for t in errors], steps, inner)

    d = [p - q for row in rows for q, p in row if p - q > -math.inf]
    ratio = [t["ratio"] for t in errors]
    std = figures["ratio_std"]
    out = {name: mean(name) for name in errors[0]} if errors else {}
    rms = root_mean_square([v for v, _ in ratio])
    out |= {
        "k1": out.get("signed_mean", 0.0),
        "ratio_mean": out.get("ratio", 0.0),
        "ratio_min": _largest([e for _, e in ratio], [v for v, _ in ratio], inner),
        "ratio_max": _largest([e for _, e in ratio], [v for v, _ in ratio], inner),
        "ratio_std": bounds.std(
            float(std) if mp.isfinite(std) else 0.0,
            rms,
            max(n, 1),
            steps,
            inner,
            root_mean_square([e for _, e in ratio]),
        )
        if math.isfinite(rms)
        else math.inf,
        "fraction_above": 2 * u if all(abs(abs(x) - epsilon) > 2 * u * (abs(x) + epsilon) for x in d) else math.inf,
    }
    out |= weight_bounds("ess_fraction", "log1p_chi2_token", d, figures, steps, algorithm, inner, log_space)
    return out


def weight_bounds(
    ess: str,
    log_mean_square: str,
    d: list[float],
    figures: dict[str, Any],
    steps: int,
    algorithm: Algorithm,
    inner: Format,
    log_space: bool,
) -> dict[str, float]:
    """(sum w)^2 / (n sum w^2), and ln(sum w^2 / n).

    With r the largest relative error of a weight and R that of its square, sums of positive numbers keep relative error
    r + gamma(steps), and products and quotients add: the first is off by the factor expm1(2 r + R + gamma(3 steps +
    8)), the second by R + gamma(steps + 2) absolutely and 2 l u of itself. In log space (2 lse(d) - lse(2d) - ln n)
    the exponents round too: u times the largest of abs(2 d) and the logarithms, each a few times.
    """
    if not d:
        return {ess: 0.0, log_mean_square: 0.0}
    u = inner.u
    far = max(abs(x) for x in d)
    value = figures[log_mean_square]
    size = abs(float(value)) if mp.isfinite(value) else 0.0
    in_range = 2 * far < math.log(inner.max) / 2 - math.log(len(d) + 1)
    if not in_range and not log_space:
        return {ess: math.inf, log_mean_square: math.inf}
    single, double = u * far, 2 * u * far
    if log_space:
        single, double = single + 4 * u * far, double + 8 * u * far
    r, rr = _relative(single, algorithm, u), _relative(double, algorithm, u)
    k = float(gamma(3 * steps + 8, u))
    off = 2 * r + rr + k
    ess_bound = math.expm1(off) if off < 1 else math.inf
    logs = (2 * algorithm.log_ulps + 2) * u * (size + 2 * far * log_space + 1)
    return {
        ess: ess_bound * (float(figures[ess]) if ess in figures and mp.isfinite(figures[ess]) else 1.0) * INFLATE,
        log_mean_square: ((rr + k) * (2 if rr + k < 0.5 else math.inf) + logs) * INFLATE,
    }


def _row_bounds(
    rows: Rows, figures: dict[str, Any], algorithm: Algorithm, inner: Format, merges: int, log_space: bool
) -> dict[str, float]:
    """Figures of rows.

    The sum over a row of n tokens is off by ``S = gamma(n) sum abs(d) + u sum abs(d)``, its mean by the n-th part and
    one rounding; means of p and q alone by gamma(n + 1) of their magnitude. A difference of perplexities may be taken
    as mean(q) - mean(p), which is granted. exp of a sum is `_relative` of S.
    """
    u = inner.u
    count = len(rows) + 8 * merges
    element: dict[str, list[tuple[float, float]]] = {}

    def note(name: str, magnitude: float, error: float) -> None:
        element.setdefault(name, []).append((magnitude, error))

    gap: list[tuple[float, float]] = []
    for row in rows:
        n = len(row)
        k = float(gamma(n + 2, u))
        tokens = [token_errors(q, p, algorithm, inner) for q, p in row]
        gaps = [t["normalization_gap"] for t in tokens]
        gap.append((k * _fsum([v for v, _ in gaps]) + _fsum([e for _, e in gaps]), n))
        if not all(math.isfinite(p - q) for q, p in row):
            continue
        sizes = [abs(p - q) for q, p in row]
        total, size = math.fsum(p - q for q, p in row), math.fsum(sizes)
        off, off_mean = k * size, k * size / n
        mean = total / n
        side_p, side_q = (math.fsum(abs(pair[i]) for pair in row) / n for i in (1, 0))
        off_difference = k * (side_p + side_q) + off_mean + inner.min_normal  # a quotient by n may underflow
        for name, x, error in (("seq_ratio", total, off), ("seq_ratio_geometric", mean, off_mean)):
            w = _exp(x)
            note(name, w, exp_error(w, error, algorithm, inner))
        for name, x, error in (("chi2_seq", total, off), ("chi2_seq_geometric", mean, off_mean)):
            square = _exp(2 * x)
            note(name, 1 + square, exp_error(square, 2 * error, algorithm, inner) + 2 * u * (1 + square))
        note("log_ppl_diff", abs(mean), off_difference)
        note("ppl_ratio", _exp(-mean), exp_error(_exp(-mean), off_difference, algorithm, inner))
        errors = [t["mult_prob_error"] for t in tokens]
        note("seq_mult_prob_error", _fsum([v for v, _ in errors]) / n, mean_error(errors, n, inner))
    out: dict[str, float] = {}
    for name, pairs in element.items():
        average = mean_error(pairs, count, inner)
        worst = _largest([e for _, e in pairs], [v for v, _ in pairs], inner)
        if name in ("seq_ratio", "seq_ratio_geometric", "seq_mult_prob_error"):
            out |= {f"{name}_mean": average, f"{name}_min": worst, f"{name}_max": worst}
        elif name == "log_ppl_diff":
            out |= {f"{name}_mean": average, f"{name}_abs_mean": average, f"{name}_max": worst, f"{name}_min": worst}
        else:
            out[name] = average
    whole_rows = [row for row in rows if all(math.isfinite(p - q) for q, p in row)]
    totals = [math.fsum(p - q for q, p in row) for row in whole_rows]
    means = [total / len(row) for total, row in zip(totals, whole_rows, strict=True)]
    # the exponents carry the errors of their sums, at most gamma(longest row) of the sum of magnitudes
    spread = [math.fsum(abs(p - q) for q, p in row) for row in whole_rows]
    longest = max((len(row) for row in whole_rows), default=0)
    for name, exponents in (("log1p_chi2_seq", totals), ("log1p_chi2_seq_geometric", means)):
        out |= weight_bounds("_", name, exponents, figures, count, algorithm, inner, log_space)
        carried = 2 * float(gamma(longest + 2, u)) * max(spread, default=0.0)
        out[name] += 2 * carried if carried < 0.25 else math.inf
    out.pop("_", None)
    return {**out, **_interval_bounds(gap, figures, count, inner)}


def _side_bounds(
    rows: Rows, figures: dict[str, Any], algorithm: Algorithm, inner: Format, merges: int
) -> dict[str, float]:
    """Figures that never see d: means of -q or -p, exact terms, over tokens and over each row, exp of them, and the
    mean of exp p - exp q, whose terms err by exp's 2 e u of each and one subtraction.
    """
    out: dict[str, float] = {}
    sizes = [_exp(p) + _exp(q) for row in rows for q, p in row if p < math.inf and q < math.inf]
    if sizes and max(sizes) < math.inf:
        error = (2 * algorithm.exp_ulps + 2) * inner.u
        pairs = [(x, error * x + 2 * inner.min_normal) for x in sizes]
        out["probs_signed_mean"] = mean_error(pairs, len(sizes) + 8 * merges, inner)
    for i, side in enumerate(("rollout", "trainer")):
        values = [[-pair[i] for pair in row] for row in rows]
        values = [row for row in values if all(math.isfinite(x) for x in row)]
        tokens = [(abs(x), 0.0) for row in values for x in row]
        if not tokens:
            continue
        off = mean_error(tokens, len(tokens) + 8 * merges, inner)
        value = figures[f"ppl_{side}_token"]
        out[f"ppl_{side}_token"] = exp_error(float(value) if mp.isfinite(value) else math.inf, off, algorithm, inner)
        if side == "rollout":
            out["sampling_entropy"] = off
        logs, exps = [], []
        for row in values:
            mean, off_row = math.fsum(row) / len(row), mean_error([(abs(x), 0.0) for x in row], len(row), inner)
            logs.append((abs(mean), off_row))
            exps.append((_exp(mean), exp_error(_exp(mean), off_row, algorithm, inner)))
        out[f"log_ppl_{side}"] = mean_error(logs, len(values) + 8 * merges, inner)
        out[f"ppl_{side}"] = mean_error(exps, len(values) + 8 * merges, inner)
    return out


def _interval_bounds(
    gap: list[tuple[float, float]], figures: dict[str, Any], steps: int, inner: Format
) -> dict[str, float]:
    """Standard error and ends of the interval of the gap.

    Row sums s_r are off by e_r, the gap g by ``E = (sum e_r + gamma(B) sum abs s_r) / N`` (the second part is inside
    e_r already, once more for the sum over rows); so each residual s_r - g n_r by ``e_r + n_r E`` and two roundings of
    it, the root of the sum of squares by at most the 2-norm of these, and the rest is gamma(B + 8). t is rounded once
    or twice. Where the sum of the gaps may overflow, or the squares, which sum to (se N)^2 (B - 1)/B, the bound is
    infinite.
    """
    names = ("normalization_gap_se", "normalization_gap_low", "normalization_gap_high")
    rows = len(gap)
    exact = [float(figures[name]) for name in names]
    if rows < 2 or not all(math.isfinite(x) for x in exact):
        return dict.fromkeys(names, 0.0)
    se, low, high = exact
    n = sum(length for _, length in gap)
    if se * n >= math.sqrt(inner.max) / 2 or (abs(low) + abs(high)) * n >= inner.max / 4:
        return dict.fromkeys(names, math.inf)
    t = (high - low) / (2 * se) if se else 13.0  # the largest Student quantile, that of one degree, is 12.7
    of_gap = 2 * sum(e for e, _ in gap) / n
    residual = 2 * math.hypot(*(2 * e + length * of_gap for e, length in gap))
    k = float(gamma(steps + 8, inner.u))
    of_se = residual * math.sqrt(rows / (rows - 1)) / n + k * se + math.sqrt(inner.min_normal)
    ends = of_gap + t * of_se * 2 + 4 * inner.u * (abs(low) + abs(high))
    return dict(zip(names, (of_se * INFLATE, ends * INFLATE, ends * INFLATE), strict=True))


def exp_error(value: float, absolute: float, algorithm: Algorithm, inner: Format) -> float:
    """Error of exp, of the size ``value``, of something off by ``absolute``; infinite where it may overflow."""
    if value >= inner.max / 4:
        return math.inf
    return value * _relative(absolute, algorithm, inner.u) + inner.min_normal


def mean_error(pairs: list[tuple[float, float]], steps: int, inner: Format) -> float:
    """Error of the mean of numbers given as (magnitude, error)."""
    if not all(math.isfinite(e) for _, e in pairs):
        return math.inf
    n = len(pairs)
    size, error = _fsum([v for v, _ in pairs]) / n, _fsum([e for _, e in pairs]) / n
    if not math.isfinite(size):
        return math.inf
    return bounds.mean(size, n, steps, inner, error + inner.min_normal)  # the quotient may underflow, or be flushed


def _largest(errors: list[float], sizes: list[float], inner: Format) -> float:
    return max(errors, default=0.0) * INFLATE if max(sizes, default=0.0) < inner.max / 4 else math.inf


def _fsum(values: list[float]) -> float:
    return math.fsum(values) if sum(values) < math.inf else math.inf


def root_mean_square(values: list[float]) -> float:
    """Without squares that overflow."""
    biggest: Callable[..., float] = max
    top = biggest(values, default=0.0)
    if not 0 < top < math.inf:
        return top
    return top * math.sqrt(math.fsum((v / top) ** 2 for v in values) / len(values))
