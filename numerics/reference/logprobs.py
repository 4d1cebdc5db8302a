"""Token log-probs and entropy from logits: the definition, in float64, with every edge case.

Nothing here shifts: row ``i`` of the logits scores ``token_ids[i]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from numerics.reference.cuts import DEFAULT_CUT_ORDER, removed_by_cuts
from numerics.reference.inputs import (
    check_floating,
    check_token_ids,
    compute_dtype,
    valid_places,
    valid_temperatures,
)
from numerics.reference.sums import row_sums

__all__ = ["entropy", "token_logprobs", "token_logprobs_pair"]


def token_logprobs(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    mask: torch.Tensor | None = None,
    min_p: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    cut_order: Sequence[str] = DEFAULT_CUT_ORDER,
    ties: str = "lowest_id",
    real_vocab: int | None = None,
) -> torch.Tensor:
    """log softmax(logits / T) at ``token_ids``, in nats.

    logits:       [..., V], float64/32/16 or bfloat16; never modified.
    token_ids:    [...], integer, in [0, V) at valid places.
    temperature:  a number, a 0-d tensor, or [...]; rounded once to float32 (float64 for float64 logits).
    mask:         [...], 0/1; masked places are not read, hold 0 in the result and get gradient exactly 0.
    min_p, top_k, top_p, cut_order, ties: see `numerics.reference.removed_by_cuts`; the result is renormalised
                  over the kept tokens and -inf at a removed one.
    real_vocab:   columns from here on are padding and removed, whatever they hold.

    Returns [...], float32 (float64 for float64 logits), <= 0, differentiable:
    ``(onehot - softmax(z/T)) / T``, cuts being constants.

    With ``y = z/T`` (one correctly rounded division; a row whose finite logits overflow in it is shifted by its
    maximum first) the value is ``y_i - logsumexp(y)``. NaN for a row that holds NaN or +inf or only -inf; -inf
    for a token whose logit is -inf (gradient 0 in that row).

    Raises `TypeError` for wrong dtypes, `ValueError` for shapes, devices, temperature, mask or cuts,
    `IndexError` for an id out of range at a valid place.
    """
    if not isinstance(token_ids, torch.Tensor):
        raise TypeError(f"token_ids must be a torch.Tensor, got {type(token_ids).__name__}; use torch.as_tensor")
    rows, valid = _rows(logits, mask, real_vocab, token_ids)
    check_token_ids(token_ids, valid, rows.shape[-1])
    scaled = _scaled(rows, valid_temperatures(temperature, valid, compute_dtype(logits.dtype)))
    removed = removed_by_cuts(scaled.detach(), min_p=min_p, top_k=top_k, top_p=top_p, cut_order=cut_order, ties=ties)
    scaled = scaled.masked_fill(removed, -math.inf)
    top, rest = _maximum_and_rest(scaled)
    chosen = scaled.gather(-1, token_ids[valid].to(torch.int64)[:, None])[:, 0]
    value = (chosen - top) - torch.log1p(row_sums(rest))
    impossible = (value.detach().to(compute_dtype(logits.dtype)) == -math.inf) & torch.isfinite(top)
    value = torch.where(impossible, torch.full_like(value, -math.inf), value)  # a constant: gradient 0
    return _scatter(value * _one_or_nan(top), valid, compute_dtype(logits.dtype))


def token_logprobs_pair(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    mask: torch.Tensor | None = None,
    min_p: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    cut_order: Sequence[str] = DEFAULT_CUT_ORDER,
    ties: str = "lowest_id",
    real_vocab: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(raw, processed)``: `token_logprobs` at temperature 1 without cuts, and with what is asked for.

    Metrics must compare like with like (an engine reports raw or processed log-probs) while training uses the
    processed ones, so both come from the same logits. The bits are those of the two single calls.
    """
    raw = token_logprobs(logits, token_ids, mask=mask, real_vocab=real_vocab)
    processed = token_logprobs(
        logits,
        token_ids,
        temperature=temperature,
        mask=mask,
        min_p=min_p,
        top_k=top_k,
        top_p=top_p,
        cut_order=cut_order,
        ties=ties,
        real_vocab=real_vocab,
    )
    return raw, processed


def entropy(
    logits: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    mask: torch.Tensor | None = None,
    min_p: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    cut_order: Sequence[str] = DEFAULT_CUT_ORDER,
    ties: str = "lowest_id",
    real_vocab: int | None = None,
) -> torch.Tensor:
    """Shannon entropy of softmax(logits / T) in nats, with ``0 * log 0 = 0``.

    Arguments and errors as for `token_logprobs`. Returns [...], float32 (float64 for float64 logits),
    differentiable: finite when some logits are -inf, NaN for a row with NaN, +inf or only -inf. Written as
    ``log S + sum_j p_j (max - y_j)``, two non-negative terms that cannot cancel.
    """
    rows, valid = _rows(logits, mask, real_vocab, None)
    scaled = _scaled(rows, valid_temperatures(temperature, valid, compute_dtype(logits.dtype)))
    removed = removed_by_cuts(scaled.detach(), min_p=min_p, top_k=top_k, top_p=top_p, cut_order=cut_order, ties=ties)
    scaled = scaled.masked_fill(removed, -math.inf)
    top, rest = _maximum_and_rest(scaled)
    gaps = (top[:, None] - scaled).masked_fill(rest == 0, 0.0)  # 0 * inf is 0 here
    others = row_sums(rest)  # the maximum counts exp(0) = 1 and has gap 0
    value = torch.log1p(others) + row_sums(rest * gaps) / (1.0 + others)
    return _scatter(value * _one_or_nan(top), valid, compute_dtype(logits.dtype))


def _rows(
    logits: torch.Tensor,
    mask: torch.Tensor | None,
    real_vocab: int | None,
    token_ids: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The valid rows of the real vocabulary, [n, V] in the compute dtype, and where they stand, bool [...]."""
    check_floating("logits", logits)
    if logits.ndim < 1 or logits.shape[-1] < 1:
        raise ValueError(f"logits has shape {tuple(logits.shape)}; its last axis must hold at least one token")
    if token_ids is not None:
        if logits.shape[:-1] != token_ids.shape:
            raise ValueError(
                f"logits has shape {tuple(logits.shape)} but token_ids has shape {tuple(token_ids.shape)}; "
                "token_ids must have the shape of logits without the last axis"
            )
        if token_ids.device != logits.device:
            raise ValueError(f"logits is on {logits.device} but token_ids is on {token_ids.device}")
    vocabulary = logits.shape[-1]
    if real_vocab is not None and (type(real_vocab) is not int or not 1 <= real_vocab <= vocabulary):
        raise ValueError(f"real_vocab is {real_vocab!r}; it must be an int in [1, {vocabulary}], the width of logits")
    places = logits.select(-1, 0)
    valid = valid_places(mask, places, "logits without its last axis")
    rows = logits[valid][:, :real_vocab]  # selection, so that a masked row gets gradient exactly 0
    # contiguous: torch sums strided rows in another order, and a row's bits must not depend on its layout
    return rows.to(compute_dtype(logits.dtype)).contiguous(), valid


def _scaled(rows: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """y = z/T in float64, [n, V]: one division in the compute dtype, shifted first where that overflows."""
    divided = rows / temperatures[:, None]
    overflows = (torch.isinf(divided) & torch.isfinite(rows)).any(-1)
    divided = divided.to(torch.float64)
    if not overflows.any():
        return divided
    wide = rows.to(torch.float64)
    shifted = (wide - wide.amax(-1, keepdim=True).detach()) / temperatures.to(torch.float64)[:, None]
    return torch.where(overflows[:, None], shifted, divided)


def _maximum_and_rest(scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum of each row, [n], and exp(y_j - max) with 0 at the (first) maximum itself, [n, V]."""
    place = scaled.detach().argmax(-1, keepdim=True)
    top = scaled.gather(-1, place)
    rest = torch.exp(scaled - top).scatter(-1, place, 0.0)
    return top[:, 0], rest


def _one_or_nan(top: torch.Tensor) -> torch.Tensor:
    """NaN where the row holds NaN or +inf or nothing but -inf: as a factor it spoils value and gradient there."""
    return torch.where(torch.isfinite(top), 1.0, math.nan).to(top.dtype)


def _scatter(value: torch.Tensor, valid: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The float64 values of the valid places, rounded once, in a tensor of zeros."""
    out = torch.zeros(valid.shape, dtype=dtype, device=valid.device)
    return out.masked_scatter(valid, value.to(dtype))
