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
from numerics.reference.moments import CoMoments, Moments, check_ddof
from numerics.reference.pairs import CastPair, cast_pair, check_compare_dtype
from numerics.reference.state import State, merged
from numerics.reference.sums import exact_products

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


class MismatchState(State):
    """What has been seen so far; `update` and `merge` return the state, `compute` the figures.

    Any split of the same tokens into updates, merges and ranks gives the same figures, bit for bit.
    """

    kind = "mismatch"

    def __init__(self, *, compare_dtype: torch.dtype = torch.float32) -> None:
        check_compare_dtype(compare_dtype)
        bins = format_of(compare_dtype).bits + 2
        super().__init__(
            options={"compare_dtype": compare_dtype},
            totals={
                "nonfinite_count": 0,
                "narrowed_count": 0,
                "positive_count": 0,
                "overflow_count": 0,
                "mismatch_count": 0,
                "bit_mismatch_count": 0,
                "logprobs_diff": Moments(),
                "probs_diff": Moments(),
                "logprobs": CoMoments(),
                "probs": CoMoments(),
                "ulp_histogram": (0,) * bins,
            },
        )

    def update(self, rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor | None = None) -> MismatchState:
        """Add tokens: three tensors of one shape and device.

        rollout, trainer: log-probs in nats, float64/32/16 or bfloat16 (each its own). mask: 0/1, None = all valid.
        `TypeError` for other dtypes, `ValueError` for unequal shapes or devices or a mask that is not 0/1.
        """
        return self.add(cast_pair(rollout, trainer, mask, compare_dtype=self.options["compare_dtype"]))

    def add(self, pair: CastPair) -> MismatchState:
        """Add tokens that are cast already."""
        sides = (pair.wide_q, pair.wide_p)
        probs = tuple(widen(_exp(x, self.options["compare_dtype"])) for x in sides)
        lists = torch.stack([_distance(*sides), _distance(*probs), *sides, *probs])
        logprobs_diff, probs_diff, *four = Moments.of(lists)
        products = exact_products(torch.stack([sides[0], probs[0]]), torch.stack([sides[1], probs[1]]))

        distance, defined = ulp_distance(pair.p, pair.q)
        steps = distance.view(torch.int64)
        bins = len(self.totals["ulp_histogram"])
        histogram = torch.bincount(torch.where(defined, _bit_length(steps), bins - 1), minlength=bins)
        new = {
            "nonfinite_count": pair.nonfinite_count,
            "narrowed_count": pair.narrowed_count,
            "positive_count": sum(int(((ordinal(x) > 0) & ~torch.isnan(x)).sum()) for x in sides),
            "overflow_count": sum(
                int((torch.isfinite(x) & torch.isinf(y)).sum()) for x, y in zip(sides, probs, strict=True)
            ),
            "mismatch_count": int((~defined | (steps != 0)).sum()),
            "bit_mismatch_count": int(bits_differ(pair.p, pair.q).sum()),
            "logprobs_diff": logprobs_diff,
            "probs_diff": probs_diff,
            "logprobs": CoMoments(x=four[0], y=four[1], products=products[0]),
            "probs": CoMoments(x=four[2], y=four[3], products=products[1]),
            "ulp_histogram": tuple(histogram.tolist()),
        }
        self.totals = merged(self.totals, new)
        return self

    def compute(self, *, ddof: int = 1) -> Mismatch:
        """The figures of everything seen so far; ``ddof`` belongs to the two standard deviations."""
        check_ddof(ddof)
        totals = self.totals
        logprobs_diff, probs_diff = totals["logprobs_diff"], totals["probs_diff"]
        return Mismatch(
            valid=int(logprobs_diff.count > 0),
            valid_count=logprobs_diff.count,
            nonfinite_count=totals["nonfinite_count"],
            narrowed_count=totals["narrowed_count"],
            positive_count=totals["positive_count"],
            overflow_count=totals["overflow_count"],
            logprobs_mismatch_count=totals["mismatch_count"],
            bit_mismatch_count=totals["bit_mismatch_count"],
            logprobs_diff_max=logprobs_diff.maximum,
            logprobs_diff_mean=logprobs_diff.mean,
            logprobs_diff_std=logprobs_diff.std(ddof),
            probs_diff_max=probs_diff.maximum,
            probs_diff_mean=probs_diff.mean,
            probs_diff_std=probs_diff.std(ddof),
            probs_pearson=totals["probs"].pearson(),
            logprobs_pearson=totals["logprobs"].pearson(),
            ulp_histogram=totals["ulp_histogram"],
            compare_dtype=format_of(self.options["compare_dtype"]).name,
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
