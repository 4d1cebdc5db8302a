"""The CPU backend: numba over rows, explicit vectors inside; the bits of `numerics.kernels.specification`."""

from __future__ import annotations

import hashlib
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit, prange

from numerics.kernels import specification
from numerics.kernels.definition import CHUNK, EXP64, LANES, LN2_HIGH, LN2_LOW, LOG2E, SCALE, SERIES
from numerics.kernels.vectors import chunk_maximum, chunk_sums, number
from numerics.reference.inputs import check_floating, check_token_ids, valid_places, valid_temperatures

__all__ = ["entropy", "token_logprobs", "token_logprobs_pair"]

_UNSCALED = 2.0**-SCALE
_NEG_INF = np.float32(-math.inf)


def _compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba's ``njit``, cached on disk; without the cache where no folder of it can be written."""

    def decorate(fn: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(fn)
        except RuntimeError:  # numba found no place for its cache
            return njit(**options)(fn)

    return decorate


@contextmanager
def _patience() -> Iterator[None]:
    """A line on a terminal's standard error where the kernel makes one wait for its first compilation."""

    def say() -> None:
        if sys.stderr.isatty():
            sys.stderr.write("numerics: compiling the cpu kernels, once for this version and processor\n")

    timer = threading.Timer(1.0, say)
    timer.daemon = True
    if not _rows.signatures:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def token_logprobs(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """log softmax(logits / T) at ``token_ids``, in nats, float32 [...], with the bits of ``docs/bits.md``.

    logits: [..., V], float32, bfloat16 or float16, on the CPU; token_ids: [...], integer; temperature, mask, and what
    masked places, NaN and infinities give: as in `numerics.reference.token_logprobs`. Masked rows are not read. No
    gradient, no cuts. `TypeError`, `ValueError` and `IndexError` as there.
    """
    if not isinstance(token_ids, torch.Tensor):
        raise TypeError(f"token_ids must be a torch.Tensor, got {type(token_ids).__name__}; use torch.as_tensor")
    return _call(logits, token_ids, temperature, mask)[0]


def token_logprobs_pair(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(raw, processed)``: `token_logprobs` at temperature 1, and at ``temperature``; the bits of the single calls."""
    raw = token_logprobs(logits, token_ids, mask=mask)
    return raw, token_logprobs(logits, token_ids, temperature=temperature, mask=mask)


def entropy(
    logits: torch.Tensor, *, temperature: float | torch.Tensor = 1.0, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Shannon entropy of softmax(logits / T), nats, float32 [...]; arguments and errors as of `token_logprobs`."""
    return _call(logits, None, temperature, mask)[1]


def _call(
    logits: torch.Tensor,
    token_ids: torch.Tensor | None,
    temperature: float | torch.Tensor,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(log-probs, entropies)``; the one that is not asked for holds nothing."""
    rows, valid, ids, temperatures = _arguments(logits, token_ids, temperature, mask)
    wanted = np.flatnonzero(valid.reshape(-1).numpy())
    shape = valid.shape
    out = np.zeros((2, valid.numel()), np.float32)
    shifted = np.zeros(len(wanted), np.uint8)
    with _patience():
        _rows(rows, wanted, ids, temperatures, out, shifted, token_ids is None, bool((temperatures != 1).any()))
    for k in np.flatnonzero(shifted):  # finite logits that overflow in the division: rare, and slow
        r = wanted[k]
        out[0, r], out[1, r] = specification.row(_float32(rows[r]), int(ids[k]), temperatures[k])
    results = torch.from_numpy(out)
    return results[0].reshape(shape), results[1].reshape(shape)


def _arguments(
    logits: torch.Tensor,
    token_ids: torch.Tensor | None,
    temperature: float | torch.Tensor,
    mask: torch.Tensor | None,
) -> tuple[np.ndarray, torch.Tensor, np.ndarray, np.ndarray]:
    """Logits [n, V] as float32 or the bits of bfloat16, valid places, and ids and temperatures of the valid rows."""
    check_floating("logits", logits)
    if logits.dtype == torch.float64:
        raise TypeError(
            "logits has dtype torch.float64, which the cpu backend does not compute; use backend='reference'"
        )
    if logits.device.type != "cpu":
        raise ValueError(f"logits is on {logits.device}; the cpu backend computes on the CPU: use backend='reference'")
    if logits.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "logits requires a gradient, which the cpu backend does not give; use backend='reference', or detach"
        )
    if logits.ndim < 1 or logits.shape[-1] < 1:
        raise ValueError(f"logits has shape {tuple(logits.shape)}; its last axis must hold at least one token")
    places = logits.detach().select(-1, 0)
    if token_ids is not None:
        if logits.shape[:-1] != token_ids.shape:
            raise ValueError(
                f"logits has shape {tuple(logits.shape)} but token_ids has shape {tuple(token_ids.shape)}; "
                "token_ids must have the shape of logits without the last axis"
            )
        if token_ids.device != logits.device:
            raise ValueError(f"logits is on {logits.device} but token_ids is on {token_ids.device}")
    valid = valid_places(mask, places, "logits without its last axis")
    temperatures = valid_temperatures(temperature, valid, torch.float32).numpy()
    if token_ids is None:
        ids = np.zeros(len(temperatures), np.int64)
    else:
        check_token_ids(token_ids, valid, logits.shape[-1])
        ids = token_ids[valid].to(torch.int64).numpy()
    flat = logits.detach().reshape(-1, logits.shape[-1])
    flat = flat.float() if flat.dtype == torch.float16 else flat
    flat = flat.contiguous()
    rows = flat.view(torch.uint16).numpy() if flat.dtype == torch.bfloat16 else flat.numpy()
    return rows, valid, ids, temperatures


def _float32(row: np.ndarray) -> np.ndarray:
    if row.dtype == np.uint16:
        return (row.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return row


@_compiled(inline="always")
def _exp64(x: float) -> float:
    if x < -708.0:
        return 0.0
    n = math.floor(x * LOG2E + 0.5)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = EXP64[0]
    for k in range(1, len(EXP64)):
        p = p * r + EXP64[k]
    return p * math.ldexp(1.0, int(n))


@_compiled(inline="always")
def _artanh2(s: float) -> float:
    q = s * s
    p = SERIES[0]
    for k in range(1, len(SERIES)):
        p = p * q + SERIES[k]
    return 2.0 * s * p


@_compiled(inline="always")
def _log64(z: float) -> float:
    mantissa, k = math.frexp(z)
    if mantissa < 0.7071067811865476:
        mantissa, k = mantissa * 2.0, k - 1
    f = mantissa - 1.0
    s = f / (2.0 + f)
    return np.float64(k) * LN2_HIGH + (_artanh2(s) + np.float64(k) * LN2_LOW)


@_compiled(inline="always")
def _log1p64(x: float) -> float:
    return _artanh2(x / (2.0 + x)) if x < 0.41421356237309515 else _log64(1.0 + x)


def _define(source: int) -> Any:
    """The kernel. numba's cache looks at this file and at a function's cells, not at what else it is made of: so the
    digest of all sources of the kernels is one of its cells.
    """

    @_compiled(parallel=True, nogil=True, error_model="numpy")
    def rows_of(
        rows: np.ndarray,
        wanted: np.ndarray,
        ids: np.ndarray,
        temperatures: np.ndarray,
        out: np.ndarray,
        shifted: np.ndarray,
        gaps: bool,
        scaled: bool,
    ) -> None:
        """Log-probs into ``out[0]``, entropies into ``out[1]`` if ``gaps``, at the wanted rows."""
        source  # noqa: B018  (a cell: what numba's cache looks at)
        width = rows.shape[1]
        chunks = (width + CHUNK - 1) // CHUNK
        one = np.float32(1.0)
        for k in prange(len(wanted)):
            r = wanted[k]
            row = rows[r]
            t = temperatures[k]
            tail = np.empty(CHUNK, np.float32)
            maxima = np.empty(chunks, np.float32)
            sums = np.empty(chunks, np.float64)
            weights = np.empty(chunks, np.float64)
            counts = np.empty(chunks, np.int64)
            largest, has_nan = _NEG_INF, False
            for c in range(chunks):
                start = c * CHUNK
                n = min(CHUNK, width - start)
                ragged = n % LANES != 0
                if ragged:
                    full = (n + LANES - 1) // LANES * LANES
                    for j in range(n):
                        tail[j] = number(row, start + j)
                    for j in range(n, full):
                        tail[j] = _NEG_INF
                    x, odd = chunk_maximum(tail, 0, full)
                else:
                    x, odd = chunk_maximum(row, start, n)
                has_nan = has_nan or odd
                largest = max(largest, x)
                m = x / t if scaled else x
                maxima[c] = m
                counts[c] = 0
                if m == _NEG_INF or m == np.float32(math.inf):
                    sums[c] = weights[c] = 0.0
                    continue
                s, w, count = np.float32(0.0), np.float32(0.0), 0
                if ragged:
                    if scaled and gaps:
                        s, w, count = chunk_sums(tail, 0, full, m, t, 0, 1, 1)
                    elif scaled:
                        s, w, count = chunk_sums(tail, 0, full, m, t, 0, 1, 0)
                    elif gaps:
                        s, w, count = chunk_sums(tail, 0, full, m, one, 0, 0, 1)
                    else:
                        s, w, count = chunk_sums(tail, 0, full, m, one, 0, 0, 0)
                else:
                    # what is fetched ahead must lie inside the row
                    ahead = start + CHUNK if start + 2 * CHUNK <= width else start
                    if scaled and gaps:
                        s, w, count = chunk_sums(row, start, n, m, t, ahead, 1, 1)
                    elif scaled:
                        s, w, count = chunk_sums(row, start, n, m, t, ahead, 1, 0)
                    elif gaps:
                        s, w, count = chunk_sums(row, start, n, m, one, ahead, 0, 1)
                    else:
                        s, w, count = chunk_sums(row, start, n, m, one, ahead, 0, 0)
                sums[c], weights[c], counts[c] = np.float64(s) * _UNSCALED, np.float64(w) * _UNSCALED, count
            if has_nan or largest == np.float32(math.inf) or largest == _NEG_INF:
                out[0, r] = out[1, r] = np.float32(math.nan)
                continue
            if scaled and math.isinf(largest / t):
                shifted[k] = 1
                continue
            top = np.float64(largest / t) if scaled else np.float64(largest)
            total_count, rest, gap = 0, 0.0, 0.0
            for c in range(chunks):
                if maxima[c] == _NEG_INF:
                    continue
                if np.float64(maxima[c]) == top:
                    total_count += counts[c]
                    rest = rest + sums[c]
                    gap = gap + weights[c]
                else:
                    d = np.float64(maxima[c]) - top
                    scale = _exp64(d)
                    mass = (np.float64(counts[c]) + sums[c]) * scale
                    rest = rest + mass
                    gap = gap + (weights[c] * scale - mass * d)
            total = np.float64(total_count) + rest
            lse = _log1p64(rest) if total_count == 1 else _log64(total)
            x = number(row, ids[k])
            y = x / t if scaled else x
            out[0, r] = np.float32((np.float64(y) - top) - lse) + np.float32(0.0)
            if gaps:
                out[1, r] = np.float32(lse + gap / total) + np.float32(0.0)

    return rows_of


def _source() -> int:
    digest = hashlib.sha256()
    for name in ("definition.py", "vectors.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    return int.from_bytes(digest.digest()[:7], "little")


_rows = _define(_source())
