"""A chunked log-prob kernel with its choices as parameters: what the regression guard is tried on.

Float32 in NumPy, with nothing that a library may compute otherwise elsewhere: its own exponential, its own order of
every sum, a fused multiply-add by way of exact arithmetic, logarithms of mpmath. So its bits are the same on every
machine. (NumPy's and torch's own exp and log are not.)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from numerics.suite.implementation import Algorithm, Implementation
from numerics.suite.measure import mp

F = np.float32
_LOG2E = 1.4426950408889634
#: minimax-like coefficients of 2^f on [-1/2, 1/2] by degree: Taylor's, ln2^k / k!, are enough to see a change
_TAYLOR = [math.log(2.0) ** k / math.factorial(k) for k in range(9)]


@dataclass(frozen=True)
class Choices:
    """What an author may choose, and change without meaning to."""

    lanes: int = 16  #: partial sums of a chunk
    chunk: int = 4096  #: columns that share a maximum
    tree: str = "halving"  #: how lanes are added: "halving" or "left to right"
    fma: bool = True  #: multiply-adds of the polynomial: one rounding, or two
    degree: int = 6  #: of the polynomial of 2^f
    exponential: str = "own"  #: or "numpy": exp of float64, rounded
    merge: str = "float64"  #: the format of the sum over chunks
    flush: bool = False  #: terms below the smallest normal float32 become 0
    maximum: str = "chunk"  #: one for each chunk, or of the whole "row"
    threads: int = 1  #: how many parts the chunks are split into before they are merged
    inputs: str = "float32"  #: rounded to "tf32" or "bfloat16" on the way in
    logarithm: str = "log1p"  #: of what stands beside the largest; or "log" of everything
    divide: str = "true"  #: by the temperature, or times its "reciprocal"
    compensated: bool = False  #: sum of a lane with the rounding errors added back
    tail: str = "kept"  #: the last columns, where V is no multiple of the lanes: "kept", or "dropped"
    order: str = "forward"  #: of the columns in a lane: "forward" or "backward"
    accumulate: str = "float32"  #: of a lane: "float32" or "float64"
    subtract: str = "float64"  #: the format of x - max - log s
    stored: str = "float32"  #: the result is rounded to "bfloat16" before it is returned


def token_logprobs(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    choices: Choices = Choices(),
) -> torch.Tensor:
    """Log-probs [...] of ``token_ids`` under softmax(logits / temperature), logits [..., V]."""
    x = _rounded(logits.detach().to(torch.float32).numpy().reshape(-1, logits.shape[-1]), choices.inputs)
    t = torch.as_tensor(temperature, dtype=torch.float32).expand(token_ids.shape).reshape(-1).numpy()
    ids = token_ids.reshape(-1).numpy()
    if ((ids < 0) | (ids >= logits.shape[-1])).any():
        raise IndexError(f"a token id is outside [0, {logits.shape[-1]})")
    with np.errstate(all="ignore"):
        y = x / t[:, None] if choices.divide == "true" else x * (F(1) / t)[:, None]
        out = np.array([_row(y[i], ids[i], choices) for i in range(len(ids))], dtype=F)
    result = torch.from_numpy(out)
    result = result.to(torch.bfloat16).to(torch.float32) if choices.stored == "bfloat16" else result
    return result.reshape(token_ids.shape)


def _row(y: np.ndarray, token: int, c: Choices) -> np.float32:
    if np.isnan(y).any() or np.isposinf(y).any() or np.isneginf(y).all():
        return F(math.nan)
    if c.tail == "dropped" and len(y) > c.lanes:
        y = np.concatenate([y[: len(y) // c.lanes * c.lanes], np.full(len(y) % c.lanes, -np.inf, F)])
    largest = int(y.argmax())  # counted, not added
    parts = [y[start : start + c.chunk] for start in range(0, len(y), c.chunk)]
    whole = y.max()
    partials = []
    for start, part in zip(range(0, len(y), c.chunk), parts, strict=True):
        m = whole if c.maximum == "row" else part.max()
        if not np.isneginf(m):
            partials.append((float(m), _chunk(part, m, c, largest - start if c.logarithm == "log1p" else -1)))
    top, total = _merge(partials, c)
    log = float(mp.log1p(total) if c.logarithm == "log1p" else mp.log(total))
    if c.subtract == "float32":
        return F(F(y[token] - F(top)) - F(log))
    return F((float(y[token]) - top) - log)


def _chunk(part: np.ndarray, m: np.float32, c: Choices, without: int) -> float:
    """Sum of exp(x - m) over a chunk, one place of it left out: lanes, then their tree."""
    terms = _exp(part - m, c)
    if 0 <= without < len(terms):
        terms[without] = 0
    terms = np.concatenate([terms, np.zeros(-len(terms) % c.lanes, F)]).reshape(-1, c.lanes)
    if c.order == "backward":
        terms = terms[::-1]
    kind = np.float64 if c.accumulate == "float64" else F
    total, lost = np.zeros(c.lanes, kind), np.zeros(c.lanes, kind)
    for row in terms.astype(kind):
        if c.compensated:
            row = row - lost
            new = total + row
            lost = (new - total) - row
            total = new
        else:
            total = total + row
    if c.tree == "halving":
        while len(total) > 1:
            total = total[: len(total) // 2] + total[len(total) // 2 :]
        return float(total[0])
    s = total[0]
    for lane in total[1:]:
        s = s + lane
    return float(s)


def _merge(partials: list[tuple[float, float]], c: Choices) -> tuple[float, float]:
    """Chunks in order, after each thread has merged its own."""
    per = -(-len(partials) // c.threads)
    groups = [partials[i : i + per] for i in range(0, len(partials), per)]
    merged = [_merged(group, c) for group in groups]
    return _merged(merged, c) if len(merged) > 1 else merged[0]


def _merged(partials: list[tuple[float, float]], c: Choices) -> tuple[float, float]:
    kind = np.float64 if c.merge == "float64" else F
    top = max(m for m, _ in partials)
    s = kind(0)
    for m, part in partials:
        s = kind(s + kind(part) * kind(float(mp.exp(float(kind(m - top))))))
    return top, float(s)


def _exp(d: np.ndarray, c: Choices) -> np.ndarray:
    if c.exponential == "numpy":
        out = np.exp(d.astype(np.float64)).astype(F)
    else:
        n = np.rint(d.astype(np.float64) * _LOG2E)
        f = (d.astype(np.float64) * _LOG2E - n).astype(F)
        p = np.full(d.shape, F(_TAYLOR[c.degree]), F)
        for k in range(c.degree - 1, -1, -1):
            p = _fma(p, f, F(_TAYLOR[k])) if c.fma else p * f + F(_TAYLOR[k])
        out = np.where(np.isneginf(d), F(0), np.ldexp(p.astype(np.float64), np.nan_to_num(n, neginf=-200).astype(int)))
        out = out.astype(F)
    return np.where(out < np.finfo(F).tiny, F(0), out) if c.flush else out


def _fma(a: np.ndarray, b: np.ndarray, c: np.float32) -> np.ndarray:
    """a b + c with one rounding: the product is exact in float64, the sum is rounded to odd before float32."""
    product = a.astype(np.float64) * b.astype(np.float64)
    s = product + float(c)
    t = s - product
    error = (product - (s - t)) + (float(c) - t)  # s + error is exact
    even = (s.view(np.int64) & 1) == 0
    away = (error > 0) == (s > 0)
    odd = np.where((error != 0) & even, s.view(np.int64) + np.where(away, 1, -1), s.view(np.int64))
    return odd.view(np.float64).astype(F)


def _rounded(x: np.ndarray, inputs: str) -> np.ndarray:
    if inputs == "bfloat16":
        return torch.from_numpy(np.ascontiguousarray(x)).to(torch.bfloat16).to(torch.float32).numpy()
    if inputs == "tf32":
        bits = np.ascontiguousarray(x).view(np.uint32)
        return np.where(np.isfinite(x), ((bits + 0x1000) & 0xFFFFE000).view(F), x)
    return x


#: every choice made otherwise, once: "lanes=8" and so on
OTHERS: dict[str, dict[str, Any]] = {
    f"{name}={value}": {name: value}
    for name, values in {
        "lanes": (8, 32),
        "chunk": (2048, 8192),
        "tree": ("left to right",),
        "fma": (False,),
        "degree": (5, 7),
        "exponential": ("numpy",),
        "merge": ("float32",),
        "flush": (True,),
        "maximum": ("row",),
        "threads": (2, 3),
        "inputs": ("tf32", "bfloat16"),
        "logarithm": ("log",),
        "divide": ("reciprocal",),
        "compensated": (True,),
        "tail": ("dropped",),
        "order": ("backward",),
        "accumulate": ("float64",),
        "subtract": ("float32",),
        "stored": ("bfloat16",),
    }.items()
    for value in values
}


def kernel(**choices: Any) -> Callable[..., torch.Tensor]:
    """The kernel with these choices."""
    return partial(token_logprobs, choices=Choices(**choices))


def implementation(**choices: Any) -> Implementation:
    """The kernel as the guard sees it; its variants are every single choice made otherwise, and back again."""
    own, first = Choices(**choices), Choices()
    others = {text: dataclasses.replace(own, **change) for text, change in OTHERS.items()}
    for field in dataclasses.fields(Choices):  # what a change away from the first choices is named by
        value = getattr(first, field.name)
        others[f"{field.name}={value}"] = dataclasses.replace(own, **{field.name: value})
    return Implementation(
        partial(token_logprobs, choices=own),
        contract="token_logprobs",
        name="guard_kernel",
        dtypes=("float32", "bfloat16"),
        devices=("cpu",),
        capabilities=frozenset({"batch_invariant", "run_to_run", "portable_bits"}),
        algorithm=Algorithm(formula="logsumexp"),
        variants={name: partial(token_logprobs, choices=c) for name, c in others.items() if c != own},
    )
