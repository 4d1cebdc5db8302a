"""How far apart the rollout's and the trainer's log-probs of the same tokens are.

One cast pair, many statistics: both sides are cast once to ``compare_dtype`` and every figure reads that pair, so
that count, maximum, mean and histogram cannot disagree. Counts are decided on the bits, so that flush-to-zero
cannot fool them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from numerics.formats import bits_differ, format_of, narrow, ordinal, ulp_distance, widen
from numerics.reference.inputs import check_alike, check_floating, valid_places
from numerics.reference.state import CoMoments, Moments

__all__ = ["Mismatch", "MismatchState", "mismatch"]


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """The mismatch of two log-prob tensors over their N valid tokens (``valid_count``).

    With N = 0 ``valid`` is 0, every count is 0 and every other figure NaN; with N = 1 the stds and Pearsons are
    NaN. ``p``, ``q`` are the trainer's and the rollout's log-probs after the cast, ``P``, ``Q`` = exp p, exp q rounded
    to ``compare_dtype``.
    """

    valid: int  #: 1 if N > 0, else 0
    valid_count: int  #: N, tokens
    nonfinite_count: int  #: tokens at which p or q is NaN or infinite
    narrowed_count: int  #: values (0 to 2 a token) that the cast to compare_dtype changed
    positive_count: int  #: values (0 to 2 a token) above 0, which no log-probability is
    overflow_count: int  #: values (0 to 2 a token) that are finite while their exp rounds to infinity
    logprobs_mismatch_count: int  #: tokens with p != q by value (±0 equal, NaN unequal to everything)
    bit_mismatch_count: int  #: tokens with other bits (±0 differ, all NaNs alike)
    logprobs_diff_max: float  #: max |p - q|, nats, with |p - q| := 0 where p == q
    logprobs_diff_mean: float  #: mean |p - q|, nats
    logprobs_diff_std: float  #: standard deviation of |p - q|, ddof 1, nats
    probs_diff_max: float  #: max |P - Q|
    probs_diff_mean: float  #: mean |P - Q|
    probs_diff_std: float  #: standard deviation of |P - Q|, ddof 1
    probs_pearson: float  #: Pearson correlation of P and Q; NaN if either side is constant
    logprobs_pearson: float  #: Pearson correlation of p and q; NaN if either side is constant
    ulp_histogram: tuple[int, ...]  #: tokens by distance: 0, 1, 2-3, 4-7, ...; the last bin counts undefined ones
    compare_dtype: str  #: the format of the cast and of the ULPs

    def as_dict(self) -> dict[str, Any]:
        """The fields as a plain dict, in order."""
        return dataclasses.asdict(self)


class MismatchState:
    """What has been seen so far; `update` and `merge` return the state, `compute` the figures.

    Any split of the same tokens into updates and merges gives the same counts and maxima exactly, and the other
    figures up to float64 rounding.
    """

    def __init__(self, *, compare_dtype: torch.dtype = torch.float32) -> None:
        if compare_dtype not in (torch.float32, torch.float64):
            raise ValueError(f"compare_dtype is {compare_dtype}; it must be torch.float32 or torch.float64")
        self.compare_dtype = compare_dtype
        self.nonfinite_count = 0
        self.narrowed_count = 0
        self.positive_count = 0
        self.overflow_count = 0
        self.mismatch_count = 0
        self.bit_mismatch_count = 0
        self.logprobs_diff = Moments()
        self.probs_diff = Moments()
        self.logprobs = CoMoments()
        self.probs = CoMoments()
        self.ulp_histogram = (0,) * (format_of(compare_dtype).bits + 2)

    def update(self, rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor | None = None) -> MismatchState:
        """Add tokens: three tensors of one shape and device.

        rollout, trainer: log-probs in nats, float64/32/16 or bfloat16 (each its own). mask: 0/1, None = all valid.
        `TypeError` for other dtypes, `ValueError` for unequal shapes or devices or a mask that is not 0/1.
        """
        check_floating("rollout", rollout)
        check_floating("trainer", trainer)
        check_alike("rollout", rollout, "trainer", trainer)
        valid = valid_places(mask, rollout, "rollout")
        given = (trainer.detach()[valid], rollout.detach()[valid])
        p, q = (narrow(x, self.compare_dtype) for x in given)

        distance, defined = ulp_distance(p, q)
        unequal = ~defined | (distance.view(torch.int64) != 0)
        self.mismatch_count += int(unequal.sum())
        self.bit_mismatch_count += int(bits_differ(p, q).sum())
        self.nonfinite_count += int((~(torch.isfinite(p) & torch.isfinite(q))).sum())
        bins = torch.where(defined, _bit_length(distance.view(torch.int64)), len(self.ulp_histogram) - 1)
        counts = torch.bincount(bins, minlength=len(self.ulp_histogram)).tolist()
        self.ulp_histogram = tuple(a + b for a, b in zip(self.ulp_histogram, counts, strict=True))

        wide_p, wide_q = widen(p), widen(q)
        probs_p, probs_q = (widen(_exp(x, self.compare_dtype)) for x in (wide_p, wide_q))
        for x, cast, wide, prob in zip(given, (p, q), (wide_p, wide_q), (probs_p, probs_q), strict=True):
            changed = ordinal(widen(x)) != ordinal(wide)
            self.narrowed_count += int((changed & ~torch.isnan(wide)).sum())
            self.positive_count += int(((ordinal(cast) > 0) & ~torch.isnan(wide)).sum())
            self.overflow_count += int((torch.isfinite(wide) & torch.isinf(prob)).sum())

        self.logprobs_diff = self.logprobs_diff.merge(Moments.of(_distance(wide_p, wide_q)))
        self.probs_diff = self.probs_diff.merge(Moments.of(_distance(probs_p, probs_q)))
        self.logprobs = self.logprobs.merge(CoMoments.of(wide_p, wide_q))
        self.probs = self.probs.merge(CoMoments.of(probs_p, probs_q))
        return self

    def merge(self, other: MismatchState) -> MismatchState:
        """Add what another state has seen. `ValueError` if it was made with another ``compare_dtype``."""
        if other.compare_dtype != self.compare_dtype:
            raise ValueError(
                f"cannot merge a state of compare_dtype {other.compare_dtype} into one of {self.compare_dtype}"
            )
        self.nonfinite_count += other.nonfinite_count
        self.narrowed_count += other.narrowed_count
        self.positive_count += other.positive_count
        self.overflow_count += other.overflow_count
        self.mismatch_count += other.mismatch_count
        self.bit_mismatch_count += other.bit_mismatch_count
        self.logprobs_diff = self.logprobs_diff.merge(other.logprobs_diff)
        self.probs_diff = self.probs_diff.merge(other.probs_diff)
        self.logprobs = self.logprobs.merge(other.logprobs)
        self.probs = self.probs.merge(other.probs)
        self.ulp_histogram = tuple(a + b for a, b in zip(self.ulp_histogram, other.ulp_histogram, strict=True))
        return self

    def compute(self, *, ddof: int = 1) -> Mismatch:
        """The figures of everything seen so far; ``ddof`` belongs to the two standard deviations."""
        count = self.logprobs_diff.count
        return Mismatch(
            valid=int(count > 0),
            valid_count=count,
            nonfinite_count=self.nonfinite_count,
            narrowed_count=self.narrowed_count,
            positive_count=self.positive_count,
            overflow_count=self.overflow_count,
            logprobs_mismatch_count=self.mismatch_count,
            bit_mismatch_count=self.bit_mismatch_count,
            logprobs_diff_max=self.logprobs_diff.maximum,
            logprobs_diff_mean=self.logprobs_diff.mean,
            logprobs_diff_std=self.logprobs_diff.std(ddof),
            probs_diff_max=self.probs_diff.maximum,
            probs_diff_mean=self.probs_diff.mean,
            probs_diff_std=self.probs_diff.std(ddof),
            probs_pearson=self.probs.pearson(),
            logprobs_pearson=self.logprobs.pearson(),
            ulp_histogram=self.ulp_histogram,
            compare_dtype=format_of(self.compare_dtype).name,
        )


def mismatch(
    rollout: torch.Tensor,
    trainer: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    compare_dtype: torch.dtype = torch.float32,
    ddof: int = 1,
) -> Mismatch:
    """The mismatch of two log-prob tensors of one shape; see `Mismatch` for the fields, `MismatchState.update`
    for arguments and errors.
    """
    return MismatchState(compare_dtype=compare_dtype).update(rollout, trainer, mask).compute(ddof=ddof)


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """|a - b| in float64, 0 where they are equal (so equal infinities are 0 apart)."""
    return torch.where(a == b, torch.zeros_like(a), (a - b).abs())


def _exp(wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """exp of float64 values, rounded to ``dtype``.

    float32: float64's exp rounded once more, which is the correctly rounded exp of every float32 (measured on all
    of them, ``docs/bounds.md``). float64: torch's own exp, within 1 ulp.
    """
    return narrow(torch.exp(wide), dtype)


def _bit_length(n: torch.Tensor) -> torch.Tensor:
    """Number of binary digits of ``n``, an int64 tensor read as unsigned; 0 for 0."""
    high, low = (n >> 32) & 0xFFFFFFFF, n & 0xFFFFFFFF
    digits = [torch.frexp(x.to(torch.float64)).exponent.to(torch.int64) for x in (high, low)]
    return torch.where(high > 0, digits[0] + 32, digits[1])
