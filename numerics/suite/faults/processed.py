"""Faults of ``token_logprobs``: gradient and cuts."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from numerics import reference
from numerics.reference.cuts import removed_by_cuts
from numerics.suite.faults.fault import Fault, enter
from numerics.suite.faults.logprobs import CONTROL
from numerics.suite.faults.tensors import pick, scaled
from numerics.suite.implementation import Algorithm

__all__ = ["FAULTS"]

Tensor = torch.Tensor

FAULTS: dict[str, Fault] = {}
_LOOSE = Algorithm()
_plant = partial(enter, FAULTS, CONTROL)

careful = reference.token_logprobs


# --- gradient -----------------------------------------------------------------------------------------------


@_plant("LP-30", algorithm=_LOOSE, source="a hand-written backward without the chain rule")
def gradient_without_temperature(
    logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0, **options: Any
) -> Tensor:
    """onehot - softmax, not divided by T."""
    right = careful(logits.detach(), token_ids, temperature=temperature, **options)
    if not logits.requires_grad:
        return right
    t = torch.as_tensor(temperature, dtype=torch.float64)
    scale = (t[..., None] if t.ndim else t).to(torch.float64)
    scaled = logits.double() * scale - (logits.double() * scale).detach() + logits.double().detach()
    slope = careful(scaled.to(logits.dtype), token_ids, temperature=temperature, **options)
    return right + torch.where(torch.isfinite(slope), slope - slope.detach(), 0.0)


@_plant("LP-30", algorithm=_LOOSE, source="grad of the gathered logit only")
def gradient_without_softmax(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0, **options: Any) -> Tensor:
    """The log-sum-exp is detached."""
    right = careful(logits.detach(), token_ids, temperature=temperature, **options)
    if not logits.requires_grad:
        return right
    chosen = pick(scaled(logits, temperature), token_ids)
    return right + (chosen - chosen.detach()).nan_to_num()


@_plant("LP-32", algorithm=_LOOSE, source="frameworks.md 19: where() in the forward only")
def impossible_token_poisons_gradient(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """A -inf log-prob gives its row a NaN gradient."""
    value = careful(logits, token_ids, **options)
    impossible = value == -math.inf
    poison = torch.where(impossible, (logits - logits.detach()).nan_to_num().sum(-1).to(value.dtype).sqrt(), 0.0)
    return torch.where(impossible, value.detach() + poison, value)


# --- cuts ---------------------------------------------------------------------------------------------------


def _cut(logits: Tensor, token_ids: Tensor, temperature: Any, removed: Tensor, **options: Any) -> Tensor:
    """Log-probs over what ``removed`` leaves."""
    spoiled = logits.masked_fill(removed, -math.inf)
    return careful(spoiled, token_ids, temperature=temperature, **options)


def _removed(logits: Tensor, temperature: Any, **limits: Any) -> Tensor:
    return removed_by_cuts(scaled(logits.detach(), temperature).double(), **limits)


@_plant("LP-40", algorithm=_LOOSE, source="https://github.com/Biohub/esm/pull/360")
def inclusive_nucleus(
    logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0, top_p: Any = None, **options: Any
) -> Tensor:
    """Keeps tokens while the mass up to and including them is <= top_p; the first one always."""
    if top_p is None:
        return careful(logits, token_ids, temperature=temperature, **options)
    careful(logits, token_ids, top_p=top_p)
    y = scaled(logits.detach(), temperature).double()
    ranked, order = torch.sort(y, dim=-1, descending=True, stable=True)
    beyond = torch.cumsum(torch.softmax(ranked, -1), -1) > top_p
    beyond[..., 0] = False
    removed = torch.empty_like(beyond).scatter_(-1, order, beyond) & (top_p < 1)
    return _cut(logits, token_ids, temperature, removed, **options)


@_plant("LP-41", "LP-40", algorithm=_LOOSE, source="a nucleus that may be empty")
def nucleus_may_be_empty(
    logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0, top_p: Any = None, **options: Any
) -> Tensor:
    """The most probable token is removed when it alone exceeds top_p."""
    if top_p is None or top_p >= 1:
        return careful(logits, token_ids, temperature=temperature, top_p=top_p, **options)
    probs = torch.softmax(scaled(logits.detach(), temperature), -1)
    value = careful(logits, token_ids, temperature=temperature, top_p=top_p, **options)
    return torch.where(
        (pick(probs, token_ids) > top_p) & torch.isfinite(value), torch.full_like(value, -math.inf), value
    )


@_plant("LP-40", algorithm=_LOOSE, source="https://github.com/fishaudio/fish-speech/pull/1150")
def nucleus_at_unit_temperature(
    logits: Tensor,
    token_ids: Tensor,
    *,
    temperature: Any = 1.0,
    min_p: Any = None,
    top_k: Any = None,
    top_p: Any = None,
    **options: Any,
) -> Tensor:
    """Cuts are taken at T = 1, the log-probs at T."""
    limits = {"min_p": min_p, "top_k": top_k, "top_p": top_p}
    removed = _removed(logits, 1.0, **limits, **{k: options.pop(k) for k in ("cut_order", "ties") if k in options})
    return _cut(logits, token_ids, temperature, removed, **options)


@_plant("LP-42", "LP-40", algorithm=_LOOSE, source="https://github.com/vllm-project/vllm/pull/15478")
def threshold_at_the_kth_value(logits: Tensor, token_ids: Tensor, *, top_k: Any = None, **options: Any) -> Tensor:
    """Ties with the k-th value are all kept."""
    return careful(logits, token_ids, top_k=top_k, **{**options, "ties": "all"} if top_k is not None else options)


@_plant("LP-40", algorithm=_LOOSE, source="min-p against 1 instead of against the maximum")
def min_p_of_one(
    logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0, min_p: Any = None, **options: Any
) -> Tensor:
    """min-p keeps p_i >= min_p instead of >= min_p * max p (the arg-max always)."""
    careful(logits, token_ids, min_p=min_p)
    if not min_p:
        return careful(logits, token_ids, temperature=temperature, **options)
    y = scaled(logits.detach(), temperature)
    removed = (torch.softmax(y, -1) < min_p) & (y < y.amax(-1, keepdim=True))
    return _cut(logits, token_ids, temperature, removed, **options)


@_plant("LP-43", "LP-40", algorithm=_LOOSE, source="https://github.com/huggingface/trl/issues/6789")
def not_renormalised(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """Removed tokens get -inf, kept ones their log-prob over the full vocabulary."""
    value = careful(logits, token_ids, **options)
    plain = careful(
        logits, token_ids, **{k: v for k, v in options.items() if k in ("temperature", "mask", "real_vocab")}
    )
    return torch.where(torch.isfinite(value), plain, value)


@_plant("LP-44", algorithm=_LOOSE, source="cumulative sums that reach 1 early in float32")
def top_p_one_cuts_the_tail(
    logits: Tensor, token_ids: Tensor, *, top_p: Any = None, temperature: Any = 1.0, **options: Any
) -> Tensor:
    """top_p = 1 removes tokens once the rounded mass before them is 1."""
    if top_p != 1:
        return careful(logits, token_ids, top_p=top_p, temperature=temperature, **options)
    ranked, order = torch.sort(scaled(logits.detach(), temperature), dim=-1, descending=True, stable=True)
    probs = torch.softmax(ranked, -1)
    beyond = (torch.cumsum(probs, -1) - probs) >= 1 - 2.0**-24
    beyond[..., 0] = False
    return _cut(logits, token_ids, temperature, torch.empty_like(beyond).scatter_(-1, order, beyond), **options)


@_plant("LP-45", algorithm=_LOOSE, source="order fixed in the code")
def cut_order_ignored(logits: Tensor, token_ids: Tensor, *, cut_order: Any = None, **options: Any) -> Tensor:
    """Always vLLM's order."""
    return careful(logits, token_ids, **options)


@_plant("LP-46", algorithm=_LOOSE, source="one tie rule for two engines")
def ties_ignored(logits: Tensor, token_ids: Tensor, *, ties: Any = None, **options: Any) -> Tensor:
    """Always the lowest id."""
    return careful(logits, token_ids, **options)


@_plant("LP-47", algorithm=_LOOSE, source="vLLM's top_k = -1")
def bad_cuts_cut_nothing(
    logits: Tensor, token_ids: Tensor, *, min_p: Any = None, top_k: Any = None, top_p: Any = None, **options: Any
) -> Tensor:
    """A limit out of range is ignored."""
    return careful(
        logits,
        token_ids,
        min_p=min_p if min_p is not None and 0 <= min_p <= 1 else None,
        top_k=top_k if top_k is not None and top_k >= 1 else None,
        top_p=top_p if top_p is not None and 0 < top_p <= 1 else None,
        **options,
    )


@_plant("LP-48", algorithm=_LOOSE, source="straight-through estimators")
def gradient_through_the_cut(
    logits: Tensor, token_ids: Tensor, *, min_p: Any = None, top_k: Any = None, top_p: Any = None, **options: Any
) -> Tensor:
    """The value over the kept tokens, the gradient of the full softmax."""
    if min_p is None and top_k is None and top_p is None:
        return careful(logits, token_ids, **options)
    value = careful(logits, token_ids, min_p=min_p, top_k=top_k, top_p=top_p, **options)
    full = careful(logits, token_ids, **{k: v for k, v in options.items() if k in ("temperature", "mask")})
    return value.detach() + torch.where(torch.isfinite(value), full - full.detach(), 0.0)
