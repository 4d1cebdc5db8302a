"""Exact values: float64 with a proved radius, and the same with 60 digits for every verdict that is not clear.

Never torch, never the code under test's formula in the code under test's precision. The starting point is ``y``: the
logits divided by the temperature, both rounded once to the compute dtype, as `docs/semantics.md` defines. The radius
is the bound of `numerics.suite.bounds` for the shifted formula in float64 with 4 ulps granted to NumPy's exp and log
(their documented maximum is below 1); ``tests/test_oracle.py`` holds it to mpmath.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from numerics.formats import FORMATS
from numerics.strategies.cases import LogitsCase
from numerics.suite import bounds
from numerics.suite.implementation import Algorithm
from numerics.suite.measure import Exact, mp

__all__ = ["Scored", "entropy", "entropy_conditioning", "gradient", "scaled", "score", "supports"]

Array = npt.NDArray[np.float64]

#: the oracle's own float64 evaluation, as an algorithm with a bound
_OWN = Algorithm(formula="shifted", accumulate="float64", exp_ulps=4.0, log_ulps=4.0)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A case's scaled logits, what is kept of them, and what its errors depend on.

    y: [n, V], -inf where removed. probs, gaps: [n, V]. good: rows without NaN and +inf that keep a finite entry.
    overflowed: rows whose division overflowed, shifted first.
    """

    y: Array
    probs: Array
    gaps: Array
    good: npt.NDArray[np.bool_]
    overflowed: npt.NDArray[np.bool_]
    conditioning: bounds.Conditioning
    logprobs: Exact


def _compute_format(case: LogitsCase) -> Any:
    return np.float64 if case.dtype == "float64" else np.float32


def scaled(case: LogitsCase) -> tuple[Array, npt.NDArray[np.bool_]]:
    """y = z / T in float64, [n, V], and the rows whose division overflowed (those hold (z - max) / T)."""
    compute = _compute_format(case)
    with np.errstate(all="ignore"):
        z = case.values.astype(compute)
        t = case.temperatures.astype(compute)[:, None]
        y = (z / t).astype(np.float64)
        overflowed = (np.isinf(y) & np.isfinite(z)).any(axis=1)
        if overflowed.any():
            wide = z.astype(np.float64)
            shifted = (wide - wide.max(axis=1, keepdims=True)) / t.astype(np.float64)
            y = np.where(overflowed[:, None], shifted, y)
    return y, overflowed


@lru_cache(maxsize=64)
def score(case: LogitsCase, support: tuple[frozenset[int], ...] | None = None) -> Scored:
    """The exact log-probs of a case, over everything or over the ``support`` of each row."""
    y, overflowed = scaled(case)
    if dict(case.cuts).get("real_vocab") is not None:
        y = np.where(np.arange(y.shape[1]) < dict(case.cuts)["real_vocab"], y, -np.inf)
    if support is not None:
        kept = np.array([[j in row for j in range(y.shape[1])] for row in support], dtype=bool).reshape(y.shape)
        y = np.where(kept, y, -np.inf)
    n, width = y.shape
    with np.errstate(all="ignore"):
        top = y.max(axis=1, initial=-np.inf)
        good = np.isfinite(top)
        gaps = np.where(np.isneginf(y), np.inf, top[:, None] - y)
        weights = np.exp(-gaps)
        s = weights.sum(axis=1)
        probs = weights / s[:, None]
        finite_gaps = np.where(np.isfinite(gaps), gaps, 0.0)
        log_s = np.log(s)
        tokens = np.clip(case.tokens, 0, width - 1)
        chosen = y[np.arange(n), tokens]
        value = np.where(good, np.where(np.isneginf(chosen), -np.inf, (chosen - top) - log_s), np.nan)
        finite_value = np.where(np.isfinite(value), value, 0.0)
        mean_gap = (probs * finite_gaps).sum(axis=1)
        # a shifted row's entries carry two float64 roundings of their own and, in an implementation that keeps the
        # compute dtype, two of those: errors of 2 u |y_j - max|, of the chosen one and averaged
        unit = 2.0**-53 if case.dtype == "float64" else 2.0**-24
        chosen_gap = np.where(np.isfinite(chosen), top - chosen, 0.0)
        slack = np.where(overflowed, 4 * unit * (chosen_gap + mean_gap), 0.0)
        conditioning = bounds.Conditioning(
            n=np.isfinite(y).sum(axis=1).astype(np.float64),
            gap=np.where(good, chosen_gap, 0.0),
            top=np.where(good & ~overflowed, top, 0.0),
            log_s=np.where(good, log_s, 0.0),
            mean_gap=np.where(good, mean_gap, 0.0),
            mean_square_gap=np.where(good, (probs * np.where(probs > 0, finite_gaps, 0.0) ** 2).sum(axis=1), 0.0),
            spread=np.where(good, (probs * np.where(np.isfinite(y), np.abs(y), 0.0)).sum(axis=1), 0.0),
            value=finite_value,
            slack=slack,
        )
        radius = np.where(np.isfinite(value), bounds.token_logprobs(conditioning, _OWN, "float64"), 0.0)
    exact = Exact(value=value, radius=radius, refine=lambda i: _refined_logprob(case, y, overflowed, i, value))
    return Scored(
        y=y,
        probs=probs,
        gaps=gaps,
        good=good,
        overflowed=overflowed,
        conditioning=conditioning,
        logprobs=exact,
    )


def _mp_row(case: LogitsCase, y: Array, overflowed: npt.NDArray[np.bool_], i: int) -> list[Any]:
    """The finite entries' y with all digits, None for -inf; an overflowed row is (z - max) / T exactly."""
    if not overflowed[i]:
        return [mp.mpf(float(v)) if math.isfinite(v) else None for v in y[i]]
    z = case.values[i].astype(_compute_format(case)).astype(np.float64)
    t = mp.mpf(float(case.temperatures.astype(_compute_format(case))[i]))
    top = mp.mpf(float(z.max()))
    return [(mp.mpf(float(a)) - top) / t if math.isfinite(b) else None for a, b in zip(z, y[i], strict=True)]


def _refined_logprob(case: LogitsCase, y: Array, overflowed: Any, i: int, value: Array) -> Any:
    if not math.isfinite(value[i]):
        return mp.mpf(float(value[i]))
    row = _mp_row(case, y, overflowed, i)
    entries = [v for v in row if v is not None]
    top = max(entries)
    return row[int(case.tokens[i])] - top - mp.log(mp.fsum(mp.exp(v - top) for v in entries))


def entropy(case: LogitsCase, support: tuple[frozenset[int], ...] | None = None) -> Exact:
    """The exact entropies of a case's rows, NaN where a row is not a distribution."""
    scored = score(case, support)
    c = scored.conditioning
    value = np.where(scored.good, c.log_s + c.mean_gap, np.nan)
    with np.errstate(all="ignore"):
        radius = np.where(scored.good, bounds.entropy(_with_value(c, value), _OWN, "float64"), 0.0)

    def refine(i: int) -> Any:
        if not scored.good[i]:
            return mp.nan
        entries = [v for v in _mp_row(case, scored.y, scored.overflowed, i) if v is not None]
        top = max(entries)
        weights = [mp.exp(v - top) for v in entries]
        s = mp.fsum(weights)
        return mp.log(s) + mp.fsum(w * (top - v) for w, v in zip(weights, entries, strict=True)) / s

    return Exact(value=value, radius=radius, refine=refine)


def entropy_conditioning(case: LogitsCase) -> bounds.Conditioning:
    """The conditioning of a case with the entropy as its value."""
    c = score(case).conditioning
    return _with_value(c, c.log_s + c.mean_gap)


def _with_value(c: bounds.Conditioning, value: Array) -> bounds.Conditioning:
    return bounds.Conditioning(**{**c.__dict__, "value": np.where(np.isfinite(value), value, 0.0)})


def gradient(case: LogitsCase) -> tuple[Exact, Array]:
    """d lp_i / d z_j = (onehot - softmax) / T of every row, flattened from [n, V]; and onehot, [n, V].

    0 in a row whose value is -inf, NaN in a row whose value is NaN, 0 in a masked row.
    """
    scored = score(case)
    n, width = scored.y.shape
    onehot = np.zeros((n, width))
    onehot[np.arange(n), np.clip(case.tokens, 0, width - 1)] = 1.0
    t = case.temperatures.astype(_compute_format(case)).astype(np.float64)
    value = scored.logprobs.value
    with np.errstate(all="ignore"):
        limit = FORMATS["float64" if case.dtype == "float64" else "float32"].max
        impossible = value < -limit
        grad = (onehot - np.where(scored.good[:, None], scored.probs, np.nan)) / t[:, None]
        grad = np.where((impossible | ~case.valid)[:, None], 0.0, grad)
        # exactly 0: masked rows, -inf values, removed columns; elsewhere a 0 may be a rounded one
        exactly = (impossible | ~case.valid)[:, None] | np.isneginf(case.values)
        own = bounds.gradient(scored.conditioning, scored.probs, scored.gaps, onehot, t, _OWN, "float64")
        radius = np.where(np.isfinite(grad) & ~exactly, own, 0.0)

    def refine(k: int) -> Any:
        i, j = divmod(k, width)
        if not math.isfinite(grad[i, j]) or not case.valid[i] or impossible[i]:
            return mp.mpf(float(grad[i, j]))
        row = _mp_row(case, scored.y, scored.overflowed, i)
        entries = [v for v in row if v is not None]
        top = max(entries)
        p = mp.exp(row[j] - top) / mp.fsum(mp.exp(v - top) for v in entries) if row[j] is not None else mp.mpf(0)
        return (mp.mpf(int(onehot[i, j])) - p) / mp.mpf(float(t[i]))

    return Exact(value=grad.ravel(), radius=radius.ravel(), refine=refine), onehot


# --- cuts ---------------------------------------------------------------------------------------------------


def supports(case: LogitsCase, algorithm: Algorithm) -> list[tuple[frozenset[int], ...]]:
    """Which supports of min-p, top-k, top-p an honest implementation may keep, row by row.

    Every cut keeps a prefix of the tokens ranked by (logit, lowest id), so a support is a length; rounding can move
    it only where a cumulative mass or a threshold lies within its bound of the border, and then both sides are
    accepted. ``ties="all"`` extends the prefix to all that equal its last member. Returns, for each row, the accepted
    supports (mostly one).
    """
    y, _ = scaled(case)
    options = dict(case.cuts)
    order = options.get("cut_order", ("min_p", "top_k", "top_p"))
    return [_row_supports(row, options, order, algorithm, case.dtype) for row in y]


def _row_supports(
    row: Array, options: dict[str, Any], order: tuple[str, ...], algorithm: Algorithm, dtype: str
) -> tuple[frozenset[int], ...]:
    ranked = sorted(range(len(row)), key=lambda j: (-row[j], j))
    values = [float(row[j]) for j in ranked]
    if not math.isfinite(values[0]):
        return (frozenset(range(len(row))),)
    gaps = [values[0] - v for v in values]
    weights = [math.exp(-g) for g in gaps]
    ties_all = options.get("ties") == "all"
    mean_gap = sum(w * g for w, g in zip(weights, gaps, strict=True) if w > 0) / sum(weights)
    spread = float(bounds.kept_mass(len(row), mean_gap, algorithm, dtype))
    low = high = len(row)
    for name in order:
        limit = options.get(name)
        if limit is None:
            continue
        if name == "top_k":
            low, high = min(low, limit), min(high, limit)
        elif name == "min_p":
            u = max(bounds.formats_of(algorithm, dtype)[0], FORMATS["float32"].u if dtype != "float64" else 0.0)
            near = [u * (g + 4 * algorithm.exp_ulps + 8) for g in gaps]
            low = min(low, max(1, sum(w * (1 - e) >= limit * (1 + e) for w, e in zip(weights, near, strict=True))))
            high = min(high, max(1, sum(w * (1 + e) >= limit * (1 - e) for w, e in zip(weights, near, strict=True))))
        elif limit < 1:
            low = _nucleus(weights[:low], limit, -spread)
            high = _nucleus(weights[:high], limit, spread)
        if ties_all:
            low, high = _extend(values, low), _extend(values, high)
    return tuple(frozenset(ranked[:k]) for k in range(low, high + 1) if not ties_all or _extend(values, k) == k)


def _nucleus(weights: list[float], top_p: float, move: float) -> int:
    """How many of the ranked tokens have less than ``top_p + move`` of the mass before them; at least one."""
    total, before, kept = math.fsum(weights), 0.0, 0
    for w in weights:
        if kept and before / total >= top_p + move:
            break
        before, kept = before + w, kept + 1
    return kept


def _extend(values: list[float], k: int) -> int:
    while 0 < k < len(values) and values[k] == values[k - 1]:
        k += 1
    return k
