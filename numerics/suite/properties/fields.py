"""Reading and comparing the fields of a ``mismatch`` result: what its rules share.

A field that an implementation does not return is not held against it, and counted so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st

from numerics.strategies.cases import PairCase
from numerics.strategies.pairs import FINITE_KINDS, pair_cases
from numerics.suite import special
from numerics.suite.contracts import BadResult, Outcome
from numerics.suite.measure import Exact, Measurement, holds, mp, same, within
from numerics.suite.oracle_pairs import COUNTS, FIGURES, ExactMismatch
from numerics.suite.property import Context, Domain, NotProvided

__all__ = [
    "ORDER_FREE",
    "ExactFigures",
    "agreement",
    "bounded_figures",
    "cases",
    "count_measurement",
    "figure_measurement",
    "finite_specials",
    "flat",
    "histogram_of",
    "near",
    "no_promise",
    "number",
    "provided",
    "same_fields",
]

#: figures that rounding cannot reorder: the same numbers in any order give the same bits
ORDER_FREE = ("logprobs_diff_max", "probs_diff_max")


def cases(domain: Domain, **options: Any) -> st.SearchStrategy[PairCase]:
    """Finite pairs of every kind, ragged rows, all masks and layouts."""
    return pair_cases(**{"dtype": domain.dtype, "trainer_dtypes": domain.dtypes, "kinds": FINITE_KINDS, **options})


def finite_specials(domain: Domain) -> list[PairCase]:
    """The special cases without NaN and infinities."""
    return [case for case in special.pairs(domain) if all(map(math.isfinite, flat(case)))]


def flat(case: PairCase) -> Iterable[float]:
    """Every valid log-prob of a case."""
    return (v for pair in case.tokens for v in pair)


def provided(ctx: Context, fields: Sequence[str]) -> list[str]:
    """The fields among these that the implementation returns; `NotProvided` if it returns none."""
    known = [name for name in fields if name in ctx.fields]
    if not known:
        raise NotProvided(f"does not return {' or '.join(fields)}")
    return known


def number(outcome: Outcome, name: str) -> float:
    """One field as a float; `BadResult` if it has gone missing or is no number."""
    if name not in outcome.fields:
        raise BadResult(f"field {name!r} was returned by the smoke call but is missing here")
    value = outcome.fields[name]
    if not isinstance(value, int | float):
        raise BadResult(f"field {name!r} is {value!r}, expected a number")
    return float(value)


def same_fields(got: Outcome, want: Outcome, names: Sequence[str], *, note: str = "", case: Any = None) -> Measurement:
    """These fields of two results have the same bits."""
    return same(
        [number(got, n) for n in names],
        [number(want, n) for n in names],
        label=tuple(n + note for n in names),
        rows=[-1] * len(names),
        format="float64",
        case=case,
    )


class ExactFigures(Protocol):
    """What an oracle says of a case whose result is counts and figures."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Exact integers, by field."""

    @property
    def figures(self) -> Mapping[str, Any]:
        """Exact real numbers (mpmath), by field."""


def count_measurement(outcome: Outcome, exact: ExactFigures, names: Sequence[str]) -> Measurement:
    """Counts against the exact ones."""
    return same(
        [number(outcome, n) for n in names],
        [float(exact.counts[n]) for n in names],
        label=tuple(names),
        rows=[-1] * len(names),
        format="float64",
    )


def figure_measurement(
    outcome: Outcome, exact: ExactMismatch, names: Sequence[str], ctx: Context, *, merges: int = 0, case: Any = None
) -> Measurement:
    """Figures of a mismatch within their bounds."""
    return bounded_figures(outcome, exact, names, exact.allowed(ctx.algorithm, merges=merges), case=case)


def bounded_figures(
    outcome: Outcome, exact: ExactFigures, names: Sequence[str], allowed: Mapping[str, float], *, case: Any = None
) -> Measurement:
    """Figures within ``allowed``; those about which the declared arithmetic can promise nothing are left out."""
    kept = [n for n in names if not (mp.isfinite(exact.figures[n]) and no_promise(n, allowed[n]))]
    values = [exact.figures[n] for n in kept]
    # mpmath to float64 is one rounding of at most 2^-53 of the value, and below the subnormals an absolute one
    return within(
        [number(outcome, n) for n in kept],
        Exact(
            value=np.array([float(v) for v in values]),
            radius=np.array([abs(float(v)) * 2.0**-52 + 5e-324 if mp.isfinite(v) else 0.0 for v in values]),
            refine=lambda i: values[i],
        ),
        [allowed[n] for n in kept],
        label=tuple(kept),
        rows=[-1] * len(kept),
        format="float64",
        case=case,
    )


def no_promise(name: str, allowed: float) -> bool:
    """Sums that may overflow in the declared format, correlations whose moments may underflow in it."""
    return math.isinf(allowed) or (name.endswith("pearson") and allowed >= 2)


def agreement(case: PairCase, other: PairCase, ctx: Context) -> list[Measurement]:
    """``other`` holds the same tokens as ``case``: order-free fields bit for bit, the others within both bounds."""
    got, want = ctx.call(other), ctx.call(case)
    names = provided(ctx, (*COUNTS, *FIGURES))
    allowed = ctx.exact(case).allowed(ctx.algorithm)
    roughly = [n for n in names if n in FIGURES and n not in ORDER_FREE and not no_promise(n, allowed[n])]
    out = [
        same_fields(got, want, [n for n in names if n in COUNTS or n in ORDER_FREE], case=other),
        near(got, want, roughly, [2 * allowed[n] for n in roughly], case=other),
    ]
    if "ulp_histogram" in ctx.fields:
        out.append(holds(histogram_of(got) == histogram_of(want), label="ulp_histogram", rows=[-1], case=other))
    return out


def near(
    got: Outcome, want: Outcome, names: Sequence[str], allowed: Sequence[float], *, case: Any = None
) -> Measurement:
    """These fields of two results lie within ``allowed`` of each other."""
    values = np.array([number(want, n) for n in names])
    return within(
        [number(got, n) for n in names],
        Exact(value=values, radius=np.zeros(values.shape), refine=lambda i: mp.mpf(float(values[i]))),
        allowed,
        label=tuple(names),
        rows=[-1] * len(names),
        format="float64",
        case=case,
    )


def histogram_of(outcome: Outcome) -> tuple[int, ...]:
    """The ulp_histogram as a tuple of ints."""
    found = outcome.fields.get("ulp_histogram")
    if not isinstance(found, tuple | list):
        raise BadResult(f"ulp_histogram is {found!r}, expected a sequence of counts")
    return tuple(int(k) for k in found)
