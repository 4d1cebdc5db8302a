"""The tokens to look at: the first ones, and the worst ones."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

import torch

from numerics.formats import bits_differ, narrow, ulp_distance, widen
from numerics.tools.gate.verdict import Rules, Token

__all__ = ["KEPT", "find", "worst_of"]

KEPT = 8  #: tokens of each list: as many as a reader takes in


def find(
    rollout: torch.Tensor, trainer: torch.Tensor, valid: torch.Tensor, token_ids: torch.Tensor | None, rules: Rules
) -> tuple[tuple[Token, ...], tuple[Token, ...]]:
    """``(first, worst)`` of the valid tokens that differ under the rules or are not finite, at most `KEPT` each."""
    q, p = (narrow(x.detach()[valid], rules.compare_dtype) for x in (rollout, trainer))
    distance, defined = ulp_distance(q, p)
    steps = distance.view(torch.int64)
    differ = bits_differ(q, p) if rules.bits else ~defined | (steps != 0)
    found = (differ | ~torch.isfinite(q) | ~torch.isfinite(p)).nonzero()[:, 0]
    if not found.numel():
        return (), ()
    places = valid.nonzero()
    given: dict[str, Any] = {"q": widen(q), "p": widen(p), "steps": steps, "defined": defined}

    def token(i: int) -> Token:
        place = tuple(int(k) for k in places[i])
        return Token(
            row=place[:-1],
            position=place[-1] if place else 0,
            token_id=None if token_ids is None else int(token_ids[place]),
            rollout=float(given["q"][i]),
            trainer=float(given["p"][i]),
            ulps=int(given["steps"][i]) & 0xFFFFFFFFFFFFFFFF if given["defined"][i] else None,
        )

    # a float64 distance beyond int64 is negative here, and further apart than any other
    key = torch.where(defined[found] & (steps[found] >= 0), steps[found], torch.iinfo(torch.int64).max)
    worst = found[torch.sort(key, descending=True, stable=True).indices[:KEPT]]
    return tuple(map(token, found[:KEPT].tolist())), worst_of(map(token, worst.tolist()))


def worst_of(tokens: Iterable[Token]) -> tuple[Token, ...]:
    """Those furthest apart, at most `KEPT`: without a distance first, then by ULPs; the earlier of equals."""
    return tuple(heapq.nsmallest(KEPT, tokens, key=lambda t: (t.ulps is not None, -(t.ulps or 0))))
