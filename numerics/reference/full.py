"""Whole distributions compared: what sampled tokens cannot show.

Zero difference on the sampled tokens does not prove equal distributions. With both logits at hand every row is
compared: P = softmax(trainer), Q = softmax(rollout), in chunks of rows, so that two [8192, 152k] tensors never need
more than one chunk of extra memory.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from numerics.formats import bits_differ, widen
from numerics.reference.inputs import check_alike, check_floating, valid_places
from numerics.reference.moments import Moments
from numerics.reference.sums import row_sums
from numerics.reference.terms import jsd_term, k3_term

__all__ = ["CHUNK_BYTES", "FullDivergence", "full_divergence"]

#: extra memory of a chunk, bytes, unless a single row needs more
CHUNK_BYTES = 1 << 26
#: float64 tensors of a chunk's size that live at one time
_LIVE = 32
_FIGURES = ("tv", "kl_rollout_trainer", "kl_trainer_rollout", "jsd", "top_k_overlap", "logprob_gap")


@dataclass(frozen=True, kw_only=True)
class FullDivergence:
    """Figures of N valid rows of two logits tensors; P is the trainer's distribution, Q the rollout's.

    With N = 0 ``valid`` is 0, counts are 0 and other figures NaN. A row that is no distribution on either side (NaN,
    +inf, only -inf) has NaN figures, is counted, and shows in every mean and maximum.
    """

    valid: int  #: 1 if N > 0, else 0
    valid_count: int  #: N, rows
    nonfinite_count: int  #: rows that are no distribution on one side or both
    bit_equal_count: int  #: rows whose logits have the same bits after widening (all NaNs alike)
    argmax_agree_fraction: float  #: share of rows with one arg-max (the lowest id among equals) on both sides
    tv_mean: float  #: total variation, half of sum abs(P - Q), mean over rows
    tv_max: float
    kl_rollout_trainer_mean: float  #: KL(Q || P), nats; inf where P does not cover Q
    kl_rollout_trainer_max: float
    kl_trainer_rollout_mean: float  #: KL(P || Q), nats; inf where Q does not cover P
    kl_trainer_rollout_max: float
    jsd_mean: float  #: Jensen-Shannon divergence, nats, at most ln 2
    jsd_max: float
    top_k_overlap_mean: float  #: share of the overlap_k most likely tokens that both sides have
    logprob_gap_max: float  #: largest abs(ln P - ln Q) of any token of any row; 0 where both are -inf
    logprob_gap_row: int  #: the first row that has it, in flattened order of the valid and masked rows; -1 for none
    logprob_gap_token: int  #: the lowest token id of that row that has it; -1 for none
    overlap_k: int  #: k of the overlap, at most V
    #: per row, of the shape of the mask: the figures above, ``gap_token``, ``argmax_agrees``, ``bit_equal``; 0, -1 and
    #: False at masked rows
    rows: Mapping[str, torch.Tensor]

    def as_dict(self) -> dict[str, Any]:
        """The figures without the rows, as a plain dict, in order."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "rows"}


def full_divergence(
    rollout_logits: torch.Tensor,
    trainer_logits: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    overlap_k: int = 10,
    chunk_bytes: int = CHUNK_BYTES,
) -> FullDivergence:
    """Compare the distributions of two logits tensors row by row.

    rollout_logits, trainer_logits: [..., V], float64/32/16 or bfloat16 (each its own). mask: [...], 0/1; masked rows
    are not read. temperature: divides both, in float64. overlap_k: how many of the most likely tokens the overlap
    looks at, equal ones by the lowest id. chunk_bytes: extra memory at a time (a single row may need more); no bit
    depends on it.

    `TypeError` for other dtypes or a temperature that is no number, `ValueError` for unequal shapes or devices, a mask
    that is not 0/1, no vocabulary, a temperature that is not finite and positive, or an overlap_k or chunk_bytes below
    1.
    """
    check_floating("rollout_logits", rollout_logits)
    check_floating("trainer_logits", trainer_logits)
    check_alike("rollout_logits", rollout_logits, "trainer_logits", trainer_logits)
    if rollout_logits.ndim < 1 or rollout_logits.shape[-1] < 1:
        raise ValueError(f"rollout_logits has shape {tuple(rollout_logits.shape)}; its last axis must hold a token")
    for name, number in (("overlap_k", overlap_k), ("chunk_bytes", chunk_bytes)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} is {number!r}; it must be an int of at least 1")
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise TypeError(f"temperature must be a number, got {type(temperature).__name__}")
    if not 0 < temperature <= sys.float_info.max:
        raise ValueError(f"temperature is {temperature!r}; it must be finite and > 0")
    shape, width = rollout_logits.shape[:-1], rollout_logits.shape[-1]
    valid = valid_places(mask, rollout_logits.detach().select(-1, 0), "rollout_logits without its last axis").reshape(
        -1
    )
    k = min(overlap_k, width)
    flat = [x.detach().reshape(-1, width) for x in (rollout_logits, trainer_logits)]
    places = valid.nonzero()[:, 0]
    step = max(1, chunk_bytes // (8 * _LIVE * width))
    rows = _fillers(valid)
    for some in torch.split(places, step):
        if some.numel():
            found = _compare(flat[0][some], flat[1][some], float(temperature), k)
            for name, values in found.items():
                rows[name][some] = values
            del (
                found
            )  # before the next chunk, so that its small tensors do not split the memory that the next one needs
    return _summary(rows, places, k, shape)


def _compare(rollout: torch.Tensor, trainer: torch.Tensor, temperature: float, k: int) -> dict[str, torch.Tensor]:
    """The figures of some rows, each [n]."""
    zq, zp = widen(rollout), widen(trainer)
    sound = torch.isfinite(zq.amax(-1)) & torch.isfinite(zp.amax(-1))  # NaN and +inf win, only -inf remains
    yq, yp = (_divided(torch.where(sound[:, None], z, 0.0), temperature) for z in (zq, zp))
    lq, lp = _log_softmax(yq), _log_softmax(yp)
    q, p = torch.exp(lq), torch.exp(lp)
    x = torch.where(lp == lq, 0.0, lp - lq)  # ln(P/Q), 0 where both are -inf

    # rows that are close but for an offset: the difference of the logits to that of the leader, less ln sum Q exp of
    # it, keeps its digits
    nowhere = torch.isneginf(lp) & torch.isneginf(lq)
    apart = torch.where(yp == yq, 0.0, yp - yq)
    apart = torch.where(nowhere, 0.0, apart - apart.gather(-1, yq.argmax(-1, keepdim=True)))
    shift = torch.log1p(row_sums(q * torch.expm1(apart)))[:, None]
    close = (apart.abs() <= 1).all(-1, keepdim=True)
    x = torch.where(close & (q > 0), apart - shift, x)

    gap = torch.where(nowhere, 0.0, x.abs())
    widest = gap.amax(-1)
    ids = torch.arange(gap.shape[-1], device=gap.device)
    first = torch.where(gap == widest[:, None], ids, gap.shape[-1]).amin(-1)
    best = [torch.sort(y, dim=-1, descending=True, stable=True).indices[:, :k] for y in (yq, yp)]
    shared = torch.zeros_like(yq, dtype=torch.bool).scatter(1, best[0], True).gather(1, best[1]).sum(-1)
    figures = {
        "tv": row_sums((q * torch.expm1(x.clamp(max=1)).abs()).where(x <= 1, (p - q).abs())) / 2,
        "kl_rollout_trainer": _kl(q, lq, p, x),
        "kl_trainer_rollout": _kl(p, lp, q, -x),
        "jsd": row_sums(torch.where(x > 0, p * jsd_term(-x), q * jsd_term(x))),
        "top_k_overlap": shared.to(torch.float64) / k,
        "logprob_gap": widest,
    }
    out = {name: torch.where(sound, value, math.nan) for name, value in figures.items()}
    out["gap_token"] = torch.where(sound, first, -1)
    out["argmax_agrees"] = sound & (best[0][:, 0] == best[1][:, 0])
    out["bit_equal"] = ~bits_differ(zq, zp).any(-1)
    out["sound"] = sound
    return out


def _divided(z: torch.Tensor, temperature: float) -> torch.Tensor:
    """z/T, [n, V]; a row whose finite logits overflow in it is shifted by its maximum first."""
    y = z / temperature
    overflows = (torch.isinf(y) & torch.isfinite(z)).any(-1, keepdim=True)
    if not overflows.any():
        return y
    return torch.where(overflows, _within_range((z - z.amax(-1, keepdim=True)) / temperature, z), y)


def _within_range(shifted: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Only a removed token is at -inf; one that is further down than float64 reaches is at its end."""
    return torch.where(torch.isfinite(z), shifted.clamp(min=torch.finfo(torch.float64).min), shifted)


def _kl(q: torch.Tensor, lq: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """KL(Q || P) = sum Q (exp x - 1 - x) with x = ln(P/Q), because P and Q sum to 1: terms that are never negative.

    Where x > 1 the term is P - Q - Q x, which cannot overflow. Where Q underflows to 0 it is P or -Q x, and that is no
    zero if P is without the token: x = -inf.
    """
    terms = torch.where(x > 1, p - q - q * x, q * k3_term(x.clamp(max=1.0)))
    lost = torch.where(x > 0, p, torch.exp(lq + torch.log(-x)))
    return row_sums(torch.where(q > 0, terms, lost))


def _log_softmax(y: torch.Tensor) -> torch.Tensor:
    """In float64; -inf entries stay. The log-prob of a near-certain token keeps its digits: ln(1 + the others)."""
    top, leader = y.max(-1, keepdim=True)
    shifted = _within_range(y - top, y)
    others = row_sums(torch.exp(shifted).scatter(-1, leader, 0.0))
    return shifted - torch.log1p(others)[:, None]


def _fillers(valid: torch.Tensor) -> dict[str, torch.Tensor]:
    """The figures of all rows before any is compared: what masked rows hold."""
    kinds: dict[str, tuple[Any, torch.dtype]] = {
        **dict.fromkeys(_FIGURES, (0.0, torch.float64)),
        "gap_token": (-1, torch.int64),
        "argmax_agrees": (False, torch.bool),
        "bit_equal": (False, torch.bool),
        "sound": (False, torch.bool),
    }
    return {
        name: torch.full(valid.shape, filler, dtype=dtype, device=valid.device)
        for name, (filler, dtype) in kinds.items()
    }


def _summary(rows: dict[str, torch.Tensor], places: torch.Tensor, k: int, shape: torch.Size) -> FullDivergence:
    n = places.numel()
    moments = dict(zip(_FIGURES, Moments.of(torch.stack([rows[name][places] for name in _FIGURES])), strict=True))
    gap = rows["logprob_gap"][places]
    where = -1
    if n and not torch.isnan(gap).any():
        where = int(places[(gap == gap.amax()).nonzero()[0, 0]])
    agree = int(rows["argmax_agrees"].sum())
    return FullDivergence(
        valid=int(n > 0),
        valid_count=n,
        nonfinite_count=n - int(rows["sound"].sum()),
        bit_equal_count=int(rows["bit_equal"].sum()),
        argmax_agree_fraction=agree / n if n else math.nan,
        tv_mean=moments["tv"].mean,
        tv_max=moments["tv"].maximum,
        kl_rollout_trainer_mean=moments["kl_rollout_trainer"].mean,
        kl_rollout_trainer_max=moments["kl_rollout_trainer"].maximum,
        kl_trainer_rollout_mean=moments["kl_trainer_rollout"].mean,
        kl_trainer_rollout_max=moments["kl_trainer_rollout"].maximum,
        jsd_mean=moments["jsd"].mean,
        jsd_max=moments["jsd"].maximum,
        top_k_overlap_mean=moments["top_k_overlap"].mean,
        logprob_gap_max=moments["logprob_gap"].maximum,
        logprob_gap_row=where,
        logprob_gap_token=int(rows["gap_token"][where]) if where >= 0 else -1,
        overlap_k=k,
        rows={name: x.reshape(shape) for name, x in rows.items() if name != "sound"},
    )
