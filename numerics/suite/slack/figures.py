"""Figures of batches: seeded cases, drawn by NumPy, each figure held to mpmath and to its bound."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from numerics.strategies.cases import PairCase, PairRow
from numerics.strategies.full_cases import FullCase, FullRow
from numerics.suite.contracts import Outcome, call
from numerics.suite.exact import exact_answer
from numerics.suite.implementation import Implementation
from numerics.suite.measure import mp
from numerics.suite.properties.correction_fields import kept_tokens, options, weights_of
from numerics.suite.properties.fields import no_promise
from numerics.suite.slack.record import Slack, rounded

__all__ = ["CONTRACTS", "figure_cases", "measure_figures"]

#: what is measured here
CONTRACTS = ("mismatch", "divergence", "correction", "full_divergence")

#: bounds of the rules lie among the ratios, so that both sides of each are met
_RULES = (
    options("truncate", "token", upper=1.05),
    options("truncate", "sequence", lower=0.5, upper=2.0),
    options("truncate", "sequence_geometric", upper=1.01),
    options("zero", "token", lower=0.9, upper=1.1),
    options("zero", "sequence", lower=0.5, upper=2.0),
    options("reject", "token", statistic="k3", threshold=1e-4),
    options("reject", "row_sum", statistic="k1", threshold=0.1),
    options("reject", "row_mean", statistic="k2", threshold=1e-3),
    options("veto", "row_min", threshold=0.5),
)


def figure_cases(contract: str, dtype: str, *, count: int, seed: int) -> Iterator[Any]:
    """``count`` cases: about 50 tokens in a few rows, or a few rows of whole logits."""
    rng = np.random.Generator(np.random.Philox([seed, 7, len(dtype), sum(map(ord, dtype))]))
    for k in range(count):
        if contract == "full_divergence":
            yield _logits(rng, k, dtype)
        elif contract == "correction":
            yield _pairs(rng, k, dtype).replace(options=_RULES[k % len(_RULES)])
        else:
            yield _pairs(rng, k, dtype)


def _pairs(rng: np.random.Generator, k: int, dtype: str) -> PairCase:
    """Engine noise, stale weights, another policy, bfloat16 rounding; a third of the batches near certainty."""
    n = int(rng.integers(40, 61))
    q = -rng.exponential([0.5, 2.0, 1e-4][k % 3], n)
    noise = [rng.normal(0, 1e-6, n), rng.normal(0, 1e-2, n), rng.normal(0, 0.5, n), np.zeros(n), rng.normal(0, 8, n)]
    p = rounded(np.minimum(q + noise[k % 5] * np.abs(q), 0.0), "bfloat16" if k % 5 == 3 else "float32")
    q, valid = rounded(q, dtype), rng.random(n) < 0.9
    edges = [0, *sorted(rng.choice(np.arange(1, n), 3, replace=False).tolist()), n]
    rows = tuple(
        PairRow(tuple(q[a:b].tolist()), tuple(p[a:b].tolist()), tuple(valid[a:b].tolist())) for a, b in pairwise(edges)
    )
    return PairCase(rows, rollout_dtype=dtype)


def _logits(rng: np.random.Generator, k: int, dtype: str) -> FullCase:
    """Rows of 2 to 32 logits: equal but for noise, or for a temperature, or unrelated; some near certainty."""
    width = int(rng.choice([2, 3, 8, 32]))
    rows = []
    for _ in range(3):
        z = rng.normal(0, [0.5, 2.0, 6.0][k % 3], width)
        z[int(rng.integers(width))] += [0.0, 30.0][k % 2]
        other = [z + rng.normal(0, 1e-6, width), z + rng.normal(0, 1e-2, width), z * 1.4, rng.normal(0, 2, width)][
            k % 4
        ]
        rows.append(FullRow(tuple(rounded(z, dtype).tolist()), tuple(rounded(other, dtype).tolist())))
    return FullCase(tuple(rows), dtype, dtype)


def measure_figures(implementation: Implementation, dtype: str, *, count: int = 2000, seed: int = 0) -> Iterator[Slack]:
    """Hold an implementation of `CONTRACTS` to the bounds of its figures; yields a growing `Slack` after each case."""
    contract = implementation.contract
    slack = Slack(contract=contract, implementation=implementation.name, dtype=dtype)
    started = time.perf_counter()
    for case in figure_cases(contract, dtype, count=count, seed=seed):
        outcome = call(implementation, case, "cpu")
        ratios = []
        for name, got, want, allowed in _judged(implementation, outcome, case):
            if mp.isfinite(want) and no_promise(name, allowed):
                continue  # what nothing can be promised about is no evidence
            ratio = _ratio(got, want, allowed)
            slack.figures[name] = max(slack.figures.get(name, 0.0), ratio)
            ratios.append(ratio)
        slack.record(np.array(ratios), case)
        slack.rows, slack.exact = slack.rows + 1, slack.exact + 1
        slack.seconds = time.perf_counter() - started
        yield slack


def _ratio(got: float, want: Any, allowed: float) -> float:
    if not mp.isfinite(want) or not math.isfinite(got):
        alike = mp.isnan(want) == math.isnan(got) and (mp.isnan(want) or want == got)
        return 0.0 if alike else math.inf
    error = abs(mp.mpf(got) - want)
    return 0.0 if error == 0 else math.inf if allowed == 0 else float(error / mp.mpf(allowed))


def _judged(implementation: Implementation, outcome: Outcome, case: Any) -> Iterator[tuple[str, float, Any, float]]:
    """(name, got, exact, allowed) of everything that came back."""
    exact = exact_answer(case, contract=implementation.contract)
    log_space = {"log_space": "log_space" in implementation.capabilities}
    if implementation.contract == "correction":
        exact = exact.judge(kept_tokens(outcome, case), implementation.algorithm, **log_space)
        figures, allowed = exact.figures, exact.allowed
        for got, want, bound in zip(weights_of(outcome, case), exact.weights, exact.weights_allowed, strict=True):
            yield "weights", float(got), want, bound
    else:
        figures = exact.figures
        allowed = exact.allowed(
            implementation.algorithm, **(log_space if implementation.contract == "divergence" else {})
        )
    for name, want in figures.items():
        if name in outcome.fields:
            yield name, float(outcome.fields[name]), want, allowed[name]
