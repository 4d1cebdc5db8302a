"""The cast pair: what every statistic of two log-prob tensors reads.

The mask selects, both sides are cast once to ``compare_dtype`` and widened to float64. Count, maximum, mean and ratio
read these numbers and no others, so that they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from numerics.formats import narrow, ordinal, widen
from numerics.reference.inputs import check_alike, check_floating, valid_places

__all__ = ["CastPair", "cast_pair", "check_compare_dtype", "check_row_ids"]


@dataclass(frozen=True, kw_only=True)
class CastPair:
    """The N valid tokens of a batch; every tensor is 1-D."""

    q: torch.Tensor  #: the rollout's log-probs in compare_dtype
    p: torch.Tensor  #: the trainer's
    wide_q: torch.Tensor  #: the same numbers in float64
    wide_p: torch.Tensor
    rows: torch.Tensor  #: int64, the row of each token, numbered 0, 1, ... among rows that have a valid token
    row_lengths: torch.Tensor  #: int64 [B], valid tokens of each such row
    nonfinite_count: int  #: tokens at which p or q is NaN or infinite after the cast
    narrowed_count: int  #: values (0 to 2 a token) that the cast changed

    @property
    def d(self) -> torch.Tensor:
        """p - q in float64: trainer minus rollout; NaN for equal infinities."""
        return self.wide_p - self.wide_q


def cast_pair(
    rollout: torch.Tensor,
    trainer: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    compare_dtype: torch.dtype,
    row_ids: torch.Tensor | None = None,
) -> CastPair:
    """The valid tokens of three tensors of one shape and device.

    rollout, trainer: log-probs in nats, float64/32/16 or bfloat16 (each its own). mask: 0/1, None = all valid. Rows are
    the last axis (a 1-D tensor is one row), or what ``row_ids`` (integers of the same shape) says. `TypeError` for
    other dtypes, `ValueError` for unequal shapes or devices or a mask that is not 0/1.
    """
    check_floating("rollout", rollout)
    check_floating("trainer", trainer)
    check_alike("rollout", rollout, "trainer", trainer)
    valid = valid_places(mask, rollout, "rollout")
    ids = check_row_ids(row_ids, rollout)[valid]
    _, rows, lengths = torch.unique(ids, return_inverse=True, return_counts=True)
    given = (rollout.detach()[valid], trainer.detach()[valid])
    q, p = (narrow(x, compare_dtype) for x in given)
    wide_q, wide_p = widen(q), widen(p)
    narrowed = sum(
        int(((ordinal(widen(x)) != ordinal(wide)) & ~torch.isnan(wide)).sum())
        for x, wide in zip(given, (wide_q, wide_p), strict=True)
    )
    return CastPair(
        q=q,
        p=p,
        wide_q=wide_q,
        wide_p=wide_p,
        rows=rows,
        row_lengths=lengths,
        nonfinite_count=int((~(torch.isfinite(q) & torch.isfinite(p))).sum()),
        narrowed_count=narrowed,
    )


def check_compare_dtype(compare_dtype: torch.dtype) -> None:
    """`ValueError` unless it is float32 or float64."""
    if compare_dtype not in (torch.float32, torch.float64):
        raise ValueError(f"compare_dtype is {compare_dtype}; it must be torch.float32 or torch.float64")


def check_row_ids(row_ids: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """The row of every place, int64, of the shape of ``like``: ``row_ids`` as given, else the place in leading axes."""
    if row_ids is None:
        shape = like.shape if like.ndim else torch.Size([1])
        rows = torch.arange(shape[:-1].numel(), device=like.device).reshape(*shape[:-1], 1)
        return rows.expand(shape).reshape(like.shape)
    if not isinstance(row_ids, torch.Tensor):
        raise TypeError(f"row_ids must be a torch.Tensor or None, got {type(row_ids).__name__}")
    if row_ids.dtype == torch.bool or row_ids.is_floating_point() or row_ids.is_complex():
        raise TypeError(f"row_ids has dtype {row_ids.dtype}; it must be an integer dtype: the row of every token")
    check_alike("row_ids", row_ids, "rollout", like)
    return row_ids.to(torch.int64)
