"""The exact answer to a case of a contract: what `Context.exact` returns."""

from __future__ import annotations

from typing import Any

from numerics.suite import oracle, oracle_correction, oracle_divergence, oracle_full, oracle_pairs

__all__ = ["exact_answer"]


def exact_answer(case: Any, *, contract: str, **options: Any) -> Any:
    """What the oracle of the contract says of the case; ``options`` are the oracle's own."""
    if contract in ("token_logprobs", "entropy"):
        return oracle.score(case, **options)
    if contract == "mismatch":
        return oracle_pairs.mismatch(case)
    if contract == "divergence":
        return oracle_divergence.divergence(case)
    if contract == "correction":
        return oracle_correction.correction(case)
    if contract == "full_divergence":
        return oracle_full.full(case)
    return oracle_pairs.distances(case)
