"""min-p, top-k and top-p: which tokens a sampler removes.

Each cut sees the softmax renormalised over the survivors of the one before, so their order is part of the
definition; the default is vLLM's: (temperature), min-p, top-k, top-p.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["DEFAULT_CUT_ORDER", "removed_by_cuts"]

DEFAULT_CUT_ORDER = ("min_p", "top_k", "top_p")
_TIES = ("lowest_id", "all")


def removed_by_cuts(
    scaled: torch.Tensor,
    *,
    min_p: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    cut_order: Sequence[str] = DEFAULT_CUT_ORDER,
    ties: str = "lowest_id",
) -> torch.Tensor:
    """True where a token is removed; bool, shape of ``scaled``.

    scaled:  [N, V] float64 logits, already divided by the temperature.
    min_p:   keep i iff p_i >= min_p * max p; 0 <= min_p <= 1.
    top_k:   keep exactly the k most probable; k >= 1; k >= V removes nothing.
    top_p:   keep i iff the mass ranked strictly before it is < top_p; 0 < top_p <= 1; 1 removes nothing.
    ties:    "lowest_id" breaks equal logits by token id (vLLM's Triton sampler keeps exactly k so);
             "all" keeps all that equal the last kept one (transformers, vLLM's PyTorch sampler).

    None removes nothing. One arg-max always survives. `ValueError` for a value out of range, an unknown name in
    ``cut_order`` or ``ties``.
    """
    _check(min_p, top_k, top_p, cut_order, ties)
    cuts = {
        "min_p": lambda y: _min_p(y, min_p or 0.0),
        "top_k": lambda y: _top_k(y, top_k or y.shape[-1], ties),
        "top_p": lambda y: _top_p(y, 1.0 if top_p is None else top_p, ties),
    }
    removed = torch.zeros_like(scaled, dtype=torch.bool)
    for name in cut_order:
        removed = removed | cuts[name](scaled.masked_fill(removed, float("-inf")))
    return removed


def _min_p(y: torch.Tensor, min_p: float) -> torch.Tensor:
    return torch.exp(y - y.amax(-1, keepdim=True)) < min_p


def _top_k(y: torch.Tensor, k: int, ties: str) -> torch.Tensor:
    if k >= y.shape[-1]:
        return torch.zeros_like(y, dtype=torch.bool)
    ranked, order = torch.sort(y, dim=-1, descending=True, stable=True)  # stable: ties keep the lowest id first
    if ties == "all":
        return y < ranked[..., k - 1 : k]
    beyond = torch.arange(y.shape[-1], device=y.device) >= k
    return torch.empty_like(y, dtype=torch.bool).scatter_(-1, order, beyond.expand_as(order))


def _top_p(y: torch.Tensor, top_p: float, ties: str) -> torch.Tensor:
    if top_p == 1:  # a rounded cumulative mass may reach 1 before the last token
        return torch.zeros_like(y, dtype=torch.bool)
    ranked, order = torch.sort(y, dim=-1, descending=True, stable=True)
    probs = torch.softmax(ranked, dim=-1)
    before = torch.cumsum(probs, dim=-1) - probs
    before[..., 0] = 0.0
    beyond = before >= top_p
    if ties == "all":
        kept = (~beyond).sum(-1, keepdim=True)
        return y < ranked.gather(-1, kept - 1)
    return torch.empty_like(beyond).scatter_(-1, order, beyond)


def _check(min_p: float | None, top_k: int | None, top_p: float | None, cut_order: Sequence[str], ties: str) -> None:
    if min_p is not None and not 0 <= min_p <= 1:
        raise ValueError(f"min_p is {min_p!r}; it must lie in [0, 1] (0 or None removes nothing)")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise ValueError(f"top_k is {top_k!r}; it must be an integer >= 1 (None removes nothing; vLLM's -1 is None)")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p!r}; it must lie in (0, 1] (1 or None removes nothing)")
    if sorted(cut_order) != sorted(DEFAULT_CUT_ORDER):
        raise ValueError(f"cut_order is {tuple(cut_order)!r}; it must hold each of {DEFAULT_CUT_ORDER} once")
    if ties not in _TIES:
        raise ValueError(f"ties is {ties!r}; it must be one of {_TIES}")
