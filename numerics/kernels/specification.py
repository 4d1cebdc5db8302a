"""The definition of the bits as a program: slow, in NumPy, and what every backend is held to bit for bit."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from numerics.kernels.definition import (
    CHUNK,
    EXP64,
    LANES,
    LN2_HIGH,
    LN2_LOW,
    LOG2E,
    LOG2E_HIGH,
    LOG2E_LOW,
    LOWEST,
    MAGIC,
    POLYNOMIAL,
    SCALE,
    SERIES,
)

__all__ = ["exp32", "exp64", "fma32", "log1p64", "log64", "row", "rows"]

F = np.float32
Array32 = npt.NDArray[np.float32]


def rows(logits: Array32, token_ids: npt.NDArray[np.int64], temperatures: Array32) -> tuple[Array32, Array32]:
    """Log-probs of ``token_ids`` and entropies of float32 logits [n, V], one temperature a row; float32 [n] each."""
    found = [row(x, int(i), t) for x, i, t in zip(logits, token_ids, temperatures, strict=True)]
    return np.array([f[0] for f in found], dtype=F), np.array([f[1] for f in found], dtype=F)


def row(x: Array32, token: int, temperature: np.float32) -> tuple[np.float32, np.float32]:
    """``(log-prob of the token, entropy)`` of one row of float32 logits [V]."""
    with np.errstate(all="ignore"):
        y = _scaled(x, temperature)
        if np.isnan(y).any() or np.isposinf(y).any() or np.isneginf(y).all():
            return F(math.nan), F(math.nan)
        chunks = [_chunk(y[start : start + CHUNK]) for start in range(0, len(y), CHUNK)]
        top, count, rest, gaps = _merged(chunks)
        total = float(count) + rest
        lse = log1p64(rest) if count == 1 else log64(total)
        value = (float(y[token]) - top) - lse
        entropy = lse + gaps / total
        return F(value) + F(0), F(entropy) + F(0)  # +0 for zero


def _scaled(x: Array32, temperature: np.float32) -> Array32:
    """y = x / T; a row whose largest finite logit overflows in it is shifted by its maximum first."""
    y = np.asarray(x / temperature, F)
    top = x.max()
    if np.isfinite(top) and np.isinf(y.max()):
        y = np.asarray((x - top) / temperature, F)
    return y


def _chunk(y: Array32) -> tuple[np.float32, int, np.float32, np.float32]:
    """``(m, n, s, w)``: the maximum, how many have it, and of the others 2^SCALE sum e^(y - m) and its gaps (m - y)."""
    m = F(y.max())
    if np.isneginf(m):
        return m, 0, F(0), F(0)
    e, gap = exp32(y, m)
    terms = np.zeros(-(-len(y) // LANES) * LANES, F), np.zeros(-(-len(y) // LANES) * LANES, F)
    terms[0][: len(y)], terms[1][: len(y)] = e, gap
    s, w = np.zeros(LANES, F), np.zeros(LANES, F)
    for es, gs in zip(*(t.reshape(-1, LANES) for t in terms), strict=True):
        s = s + es
        w = fma32(es, gs, w)
    return m, int((y == m).sum()), _tree(s), _tree(w)


def _tree(lanes: Array32) -> np.float32:
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    total: np.float32 = lanes[0]
    return total


def exp32(y: Array32, m: np.float32) -> tuple[Array32, Array32]:
    """``(2^SCALE e^(y - m), m - y)`` in float32; both 0 at the maximum and below `LOWEST`.

    y - m is an exact pair: a float32 and the error of its rounding (Knuth's TwoSum), so that a token 80 nats below its
    maximum keeps its digits. 2^n is added to the exponent, and 2^f is a polynomial.
    """
    high = y - m
    b = high - y
    low = (y - (high - b)) - (m + b)
    inside = (high < 0) & (high >= LOWEST)
    d, low = np.where(inside, high, F(0)), np.where(inside, low, F(0))
    t = fma32(d, LOG2E_HIGH, MAGIC)
    f = fma32(d, LOG2E_HIGH, MAGIC - t)
    f = fma32(d, LOG2E_LOW, f)
    f = fma32(low, LOG2E_HIGH, f)
    p = np.full(y.shape, POLYNOMIAL[0], F)
    for c in POLYNOMIAL[1:]:
        p = fma32(p, f, c)
    bits = p.view(np.int32) + (t.view(np.int32) << np.int32(23))
    return np.where(inside, bits.view(F), F(0)), np.where(inside, -d, F(0))


def _merged(chunks: list[tuple[np.float32, int, np.float32, np.float32]]) -> tuple[float, int, float, float]:
    """``(M, N, R, W)`` of a row, in column order: maximum, its count, and of the others sum and gaps, in float64."""
    top = float(max(m for m, _, _, _ in chunks))
    count, rest, gaps = 0, 0.0, 0.0
    for m, n, s, w in chunks:
        if np.isneginf(m):
            continue
        sum_, gap = float(s) * 2.0**-SCALE, float(w) * 2.0**-SCALE
        if float(m) == top:
            count += n
            rest = rest + sum_
            gaps = gaps + gap
        else:
            d = float(m) - top
            scale = exp64(d)
            mass = (float(n) + sum_) * scale
            rest = rest + mass
            gaps = gaps + (gap * scale - mass * d)
    return top, count, rest, gaps


def fma32(a: Array32, b: Array32 | np.float32, c: Array32 | np.float32) -> Array32:
    """a b + c with one rounding, in float32.

    The product of two float32 is exact in float64 (48 bits). Its sum with c is rounded to odd there: the float64 sum,
    with the error that TwoSum gives deciding its last bit. float64 has more than 24 + 2 bits, so rounding that to
    float32 is the one rounding (Boldo and Melquiond 2008).
    """
    with np.errstate(all="ignore"):
        product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
        other = np.asarray(c, np.float64)
        s = np.asarray(product + other)
        t = s - product
        error = (product - (s - t)) + (other - t)
        bits = s.view(np.int64)
        inexact = (error != 0) & np.isfinite(error) & ((bits & 1) == 0)
        odd = np.where(inexact, bits + np.where((error > 0) == (s > 0), 1, -1), bits)
        return odd.view(np.float64).astype(F)


def exp64(x: float) -> float:
    """e^x for x <= 0 in float64, by +, - and x alone; 0 below -708."""
    if x < -708.0:
        return 0.0
    n = float(math.floor(x * LOG2E + 0.5))
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = EXP64[0]
    for c in EXP64[1:]:
        p = p * r + c
    return p * 2.0 ** int(n)


def log64(z: float) -> float:
    """ln z for z >= 1 in float64, by +, -, x and / alone."""
    mantissa, k = math.frexp(z)
    if mantissa < 0.7071067811865476:
        mantissa, k = mantissa * 2.0, k - 1
    f = mantissa - 1.0
    s = f / (2.0 + f)
    return float(k) * LN2_HIGH + (_artanh2(s) + float(k) * LN2_LOW)


def log1p64(x: float) -> float:
    """ln(1 + x) for x >= 0 in float64, accurate relatively however small x is."""
    return _artanh2(x / (2.0 + x)) if x < 0.41421356237309515 else log64(1.0 + x)


def _artanh2(s: float) -> float:
    """2 artanh s."""
    q = s * s
    p = SERIES[0]
    for c in SERIES[1:]:
        p = p * q + c
    return 2.0 * s * p
