"""Exact comparisons of two logits rows, with 60 digits, and what an implementation may be off by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from numerics.formats import FORMATS, Format
from numerics.strategies.full_cases import FullCase, FullRow
from numerics.suite import bounds
from numerics.suite.bounds import INFLATE, gamma
from numerics.suite.bounds_divergence import mean_error
from numerics.suite.implementation import Algorithm
from numerics.suite.measure import DIGITS, mp

__all__ = ["COUNTS", "FIGURES", "ROW_FIGURES", "ExactFull", "full"]

COUNTS = ("valid", "valid_count", "nonfinite_count", "bit_equal_count")
ROW_FIGURES = ("tv", "kl_rollout_trainer", "kl_trainer_rollout", "jsd", "top_k_overlap", "logprob_gap")
FIGURES = (
    "argmax_agree_fraction",
    "tv_mean",
    "tv_max",
    "kl_rollout_trainer_mean",
    "kl_rollout_trainer_max",
    "kl_trainer_rollout_mean",
    "kl_trainer_rollout_max",
    "jsd_mean",
    "jsd_max",
    "top_k_overlap_mean",
    "logprob_gap_max",
)

Number = Any


@dataclass(frozen=True, kw_only=True)
class ExactRow:
    """One row: exact figures, the token of the largest gap, and both distributions."""

    figures: dict[str, Number]
    gap_token: int
    argmax_agrees: bool
    bit_equal: bool
    logits: tuple[tuple[float, ...], tuple[float, ...]]
    probs: tuple[tuple[Number, ...], tuple[Number, ...]]
    logs: tuple[tuple[Number, ...], tuple[Number, ...]]

    @property
    def sound(self) -> bool:
        """Whether both sides are distributions."""
        return bool(self.probs[0])


@dataclass(frozen=True, kw_only=True)
class ExactFull:
    """Exact counts, figures and valid rows."""

    counts: dict[str, int]
    figures: dict[str, Number]
    rows: tuple[ExactRow, ...]

    def row_allowed(self, algorithm: Algorithm) -> list[dict[str, float]]:
        """The bounds of each valid row's figures."""
        return [_allowed(row, algorithm) for row in self.rows]

    def allowed(self, algorithm: Algorithm) -> dict[str, float]:
        """The bounds of the summary figures."""
        inner = _inner(algorithm)
        per_row = self.row_allowed(algorithm)
        out = {"argmax_agree_fraction": 2 * inner.u}
        for name in ROW_FIGURES:
            pairs = [
                (abs(float(row.figures[name])), a[name])
                for row, a in zip(self.rows, per_row, strict=True)
                if mp.isfinite(row.figures[name])
            ]
            out[f"{name}_mean"] = mean_error(pairs, len(self.rows), inner) if pairs else 0.0
            out[f"{name}_max"] = max((e for _, e in pairs), default=0.0)
        return out


def _inner(algorithm: Algorithm) -> Format:
    return FORMATS["float32"] if algorithm.accumulate == "compute" else FORMATS[algorithm.accumulate]


@lru_cache(maxsize=256)
def full(case: FullCase) -> ExactFull:
    """The exact comparison of a case."""
    k, temperature = min(case.option.get("overlap_k", 10), case.width), case.option.get("temperature", 1.0)
    q, p = FORMATS[case.rollout_dtype], FORMATS[case.trainer_dtype]
    rows = tuple(_row(row, q, p, k, temperature) for row in case.rows if row.valid)
    n = len(rows)
    counts = {
        "valid": int(n > 0),
        "valid_count": n,
        "nonfinite_count": sum(not row.sound for row in rows),
        "bit_equal_count": sum(row.bit_equal for row in rows),
    }
    figures: dict[str, Number] = {
        "argmax_agree_fraction": mp.mpf(sum(row.argmax_agrees for row in rows)) / n if n else mp.nan
    }
    for name in ROW_FIGURES:
        values = [row.figures[name] for row in rows]
        figures[f"{name}_mean"] = sum(values, mp.mpf(0)) / n if n else mp.nan
        broken = not n or any(mp.isnan(v) for v in values)
        figures[f"{name}_max"] = mp.nan if broken else max(values)
    return ExactFull(counts=counts, figures=figures, rows=rows)


def _row(row: FullRow, q_format: Format, p_format: Format, k: int, temperature: float) -> ExactRow:
    zq, zp = tuple(map(q_format.round, row.rollout)), tuple(map(p_format.round, row.trainer))
    equal = all(
        (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
        for a, b in zip(zq, zp, strict=True)
    )
    yq, yp = _divided(zq, temperature), _divided(zp, temperature)
    if not (_sound(yq) and _sound(yp)):
        return ExactRow(
            figures=dict.fromkeys(ROW_FIGURES, mp.nan),
            gap_token=-1,
            argmax_agrees=False,
            bit_equal=equal,
            logits=(yq, yp),
            probs=((), ()),
            logs=((), ()),
        )
    # figures are second order in the difference, and 1 - P(leader) is as small as the others: both have many zeros
    apart = [abs(b - a) for a, b in zip(yq, yp, strict=True) if a != b and math.isfinite(b - a)]
    deepest = max(max(y) - v for y in (yq, yp) for v in y if v > -math.inf)
    with mp.workdps(DIGITS if min(apart, default=1.0) > 1e-15 and deepest < 64 else 720):
        return _compared(yq, yp, equal, k)


def _divided(z: tuple[float, ...], temperature: float) -> tuple[float, ...]:
    """z/T, rounded once to float64; a row whose finite logits overflow in it is shifted by its maximum first."""
    y = tuple(v / temperature for v in z)
    if any(math.isinf(a) and math.isfinite(b) for a, b in zip(y, z, strict=True)) and _sound(z):
        return tuple((v - max(z)) / temperature for v in z)
    return y


def _compared(yq: tuple[float, ...], yp: tuple[float, ...], equal: bool, k: int) -> ExactRow:
    (q, lq), (p, lp) = _softmax(yq), _softmax(yp)
    gaps = [mp.mpf(0) if a == b else abs(a - b) for a, b in zip(lq, lp, strict=True)]
    middle = [(a + b) / 2 for a, b in zip(q, p, strict=True)]
    order = [_ranked(y) for y in (yq, yp)]
    figures = {
        "tv": sum(abs(a - b) for a, b in zip(q, p, strict=True)) / 2,
        "kl_rollout_trainer": _kl(q, lq, lp),
        "kl_trainer_rollout": _kl(p, lp, lq),
        "jsd": sum(
            (x * mp.log(x / m) if x else mp.mpf(0)) for side in (q, p) for x, m in zip(side, middle, strict=True)
        )
        / 2,
        "top_k_overlap": mp.mpf(len(set(order[0][:k]) & set(order[1][:k]))) / k,
        "logprob_gap": max(gaps),
    }
    return ExactRow(
        figures=figures,
        gap_token=gaps.index(max(gaps)),
        argmax_agrees=order[0][0] == order[1][0],
        bit_equal=equal,
        logits=(yq, yp),
        probs=(q, p),
        logs=(lq, lp),
    )


def _ranked(y: tuple[float, ...]) -> list[int]:
    """Token ids by falling logit, equal ones by id."""
    return [i for _, i in sorted((-v, i) for i, v in enumerate(y))]


def _sound(y: tuple[float, ...]) -> bool:
    return not any(math.isnan(v) for v in y) and -math.inf < max(y) < math.inf


def _softmax(y: tuple[float, ...]) -> tuple[tuple[Number, ...], tuple[Number, ...]]:
    """(P, ln P). The log-sum-exp without the leader, so that a certain token has log-prob 0 exactly."""
    top = mp.mpf(max(y))
    gaps = [mp.mpf(v) - top for v in y]
    exps = [mp.exp(g) for g in gaps]
    others = sum(exps[: y.index(max(y))], mp.mpf(0)) + sum(exps[y.index(max(y)) + 1 :], mp.mpf(0))
    log_total = mp.log1p(others)
    return tuple(e / (1 + others) for e in exps), tuple(g - log_total for g in gaps)


def _kl(q: tuple[Number, ...], lq: tuple[Number, ...], lp: tuple[Number, ...]) -> Number:
    return sum((x * (a - b) if x else mp.mpf(0)) for x, a, b in zip(q, lq, lp, strict=True))


def _errors(y: tuple[float, ...], logs: tuple[Number, ...], algorithm: Algorithm) -> list[float]:
    """What each log-prob of a row may be off by (`bounds.token_logprobs`), 0 for a removed token."""
    finite = np.array([v for v in y if v > -math.inf])
    top = float(finite.max())
    weights = np.exp(finite - top)
    log_s = math.log(float(weights.sum()))
    probs = weights / weights.sum()
    n = len(y)
    values = np.array([float(v) if mp.isfinite(v) else 0.0 for v in logs])
    gap = np.array([top - v if v > -math.inf else 0.0 for v in y])

    def full_of(x: float) -> np.ndarray[Any, Any]:
        return np.full(n, x)

    conditioning = bounds.Conditioning(
        n=full_of(float(finite.size)),
        gap=gap,
        top=full_of(top),
        log_s=full_of(log_s),
        mean_gap=full_of(float((probs * (top - finite)).sum())),
        mean_square_gap=full_of(float((probs * (top - finite) ** 2).sum())),
        spread=full_of(float((probs * np.abs(finite)).sum())),
        value=values,
        slack=full_of(0.0),
    )
    dtype = "float64" if algorithm.accumulate == "float64" else "float32"
    found = bounds.token_logprobs(conditioning, algorithm, dtype)
    return [float(e) if v > -math.inf else 0.0 for e, v in zip(found, y, strict=True)]


def _allowed(row: ExactRow, algorithm: Algorithm) -> dict[str, float]:
    """The bounds of one row.

    With E the error of a log-prob (`bounds.token_logprobs`), a probability exp(log-prob) has relative error
    ``R = 2 E + 2 e u (1 + 2 E)`` for E <= 1/2 (nothing is promised beyond). Then, token by token and with gamma(V + 4)
    of the sum of magnitudes for the sum over the vocabulary,

    - TV: half of P Rp + Q Rq, and u of abs(P - Q);
    - KL(Q || P) as sum Q (ln Q - ln P): Q (Eq + Ep) (1 + Rq) + Q Rq abs(ln Q - ln P);
    - JSD as it stands: ln M of the mean M errs by max(Rp, Rq) + 2 u + 2 l u abs(ln M), in place of the other side's E;
    - the largest gap: Ep + Eq + u of it.
    """
    if not row.sound:
        return dict.fromkeys(ROW_FIGURES, 0.0)
    inner = _inner(algorithm)
    u, n = inner.u, len(row.logits[0])
    errors = [_errors(y, logs, algorithm) for y, logs in zip(row.logits, row.logs, strict=True)]
    tokens = []
    for i in range(n):
        (q, p), (lq, lp), (eq, ep) = (
            tuple(float(side[i]) for side in row.probs),
            tuple(side[i] for side in row.logs),
            (errors[0][i], errors[1][i]),
        )
        if max(eq, ep) > 0.5:
            return {**dict.fromkeys(ROW_FIGURES, math.inf), "top_k_overlap": 2 * u}
        rq, rp = (2 * e + 2 * algorithm.exp_ulps * u * (1 + 2 * e) for e in (eq, ep))
        lm = float(mp.log((row.probs[0][i] + row.probs[1][i]) / 2)) if q or p else 0.0
        em = max(rq, rp) + 2 * u + 2 * algorithm.log_ulps * u * abs(lm)
        x = float(abs(lq - lp)) if lq > -mp.inf and lp > -mp.inf else 0.0
        tokens.append((q, p, eq, ep, rq, rp, x, em, float(lq), float(lp), lm))
    k = float(gamma(n + 4, u))
    # what underflows; a term of KL has a logarithm as a factor
    floor = inner.min_normal * sum(1 + x for *_, x, _, _, _, _ in tokens)
    out = {"top_k_overlap": 2 * u}
    out["tv"] = sum((p * rp + q * rq) / 2 + (k + u) * abs(p - q) for q, p, _, _, rq, rp, *_ in tokens) + floor
    out["kl_rollout_trainer"] = floor + sum(
        q * ((eq + ep) * (1 + rq) + (rq + k) * x) for q, p, eq, ep, rq, rp, x, *_ in tokens
    )
    out["kl_trainer_rollout"] = floor + sum(
        p * ((eq + ep) * (1 + rp) + (rp + k) * x) for q, p, eq, ep, rq, rp, x, *_ in tokens
    )
    jsd = floor
    for q, p, eq, ep, rq, rp, _, em, lq, lp, lm in tokens:
        jsd += q * ((eq + em) * (1 + rq) + (rq + k) * abs(lq - lm)) / 2 if q else 0.0
        jsd += p * ((ep + em) * (1 + rp) + (rp + k) * abs(lp - lm)) / 2 if p else 0.0
    out["jsd"] = jsd
    out["logprob_gap"] = max(eq + ep + u * x for _, _, eq, ep, _, _, x, *_ in tokens)
    return {name: value * INFLATE for name, value in out.items()}
