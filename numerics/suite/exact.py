"""The exact answer to a case, whatever its contract: what `Context.exact` returns."""

from __future__ import annotations

from typing import Any

from numerics.strategies.cases import LogitsCase, PairCase, UlpCase
from numerics.suite import oracle, oracle_pairs

__all__ = ["exact_answer"]


def exact_answer(case: LogitsCase | PairCase | UlpCase, **options: Any) -> Any:
    """`oracle.score` of logits, `oracle_pairs.mismatch` of pairs, `oracle_pairs.distances` of two lists."""
    if isinstance(case, LogitsCase):
        return oracle.score(case, **options)
    if isinstance(case, PairCase):
        return oracle_pairs.mismatch(case)
    return oracle_pairs.distances(case)
