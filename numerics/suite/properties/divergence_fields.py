"""What the rules of ``divergence`` share: its cases, and comparing its fields with the exact ones or with another
call's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from numerics.strategies.cases import PairCase, PairRow
from numerics.strategies.pairs import RATIO_KINDS, pair_cases
from numerics.suite.contracts import Outcome
from numerics.suite.measure import Measurement
from numerics.suite.oracle_divergence import COUNTS, FIGURES, ExactDivergence
from numerics.suite.properties.fields import bounded_figures, near, no_promise, provided, same_fields
from numerics.suite.property import Context, Domain

__all__ = ["agreement", "allowed", "cases", "exact_figures", "pairs_of", "specials"]

#: figures that no order of adding can change: counts, extremes of single tokens, and shares
ORDER_FREE = ("ratio_min", "ratio_max", "fraction_above")


def cases(domain: Domain, **options: object) -> st.SearchStrategy[PairCase]:
    """Finite pairs of every kind and ratio, ragged rows, all masks and layouts; never one row packed from many."""
    chosen = {"dtype": domain.dtype, "trainer_dtypes": domain.dtypes, "kinds": RATIO_KINDS, **options}
    return pair_cases(**chosen).map(lambda case: case.replace(packed=False))  # type: ignore[arg-type]


def pairs_of(*rows: Sequence[tuple[float, float]], dtype: str = "float32") -> PairCase:
    """A case of these rows of (q, p), all valid."""
    return PairCase(
        tuple(
            PairRow(tuple(q for q, _ in row), tuple(p for _, p in row), (True,) * len(row)) for row in rows if len(row)
        ),
        dtype,
        dtype,
    )


def specials(domain: Domain) -> list[PairCase]:
    """Finite regimes that must be met: no difference, one ULP, cancellation, both edges of exp, unequal rows."""
    dtype = domain.dtype
    found = [
        pairs_of([(-1.0, -1.0), (-0.5, -0.5)], [(-2.0, -2.0)], dtype=dtype),
        pairs_of([(-1.0, -1.0 - 2.0**-7), (-2.0, -2.0 + 2.0**-6)], [(-1.0, -1.5)], dtype=dtype),
        pairs_of([(-(2.0**-12), -(2.0**-12) - 2.0**-20), (-(2.0**-11), 0.0)], dtype=dtype),
        pairs_of([(0.0, -1e-6)], [(0.0, -1e-9 if dtype != "float16" else -6e-8)], dtype=dtype),
        pairs_of([(-20.0, 0.0), (-1.0, -1.0)], [(0.0, -20.0)], dtype=dtype),
        pairs_of([(-30.0, 0.0), (-1.0, -1.0)], dtype=dtype),  # a safety clamp of 20 shows here
        pairs_of([(-89.0, 0.0), (0.0, -110.0)], [(0.0, -89.0)], dtype=dtype),
        pairs_of([(-300.0, 0.0), (-301.0, -1.0)], [(-300.0, 0.0)], dtype=dtype),  # equal weights of e^300
        pairs_of([(0.0, -300.0), (-1.0, -301.0)], [(0.0, -300.0)], dtype=dtype),  # and of e^-300
        pairs_of([(-720.0, 0.0), (-1.0, -1.0)], dtype=dtype),  # a ratio that float64 does not hold
        pairs_of([(-110.0, -110.0)], dtype=dtype),  # both probabilities underflow float32
        pairs_of([(-0.125, -0.25)] * 10, dtype=dtype),  # a sum over a row is not its mean
        pairs_of([(-1.0, -2.0)], [(-1.0, -1.0)] * 9, dtype=dtype),  # a mean of row means is not the mean
        pairs_of([(-1.0, -1.25), (-2.0, -1.5)], [(-1.0, -1.5), (-3.0, -2.75)], [(-0.5, -0.25)], dtype=dtype),
        pairs_of([(-1.0, -1.0 + 2.0**-6 * (-1) ** k) for k in range(12)], dtype=dtype),
    ]
    masked = PairRow((-0.5, -0.25, 9.0), (-0.75, -0.25, -9.0), (True, True, False))
    empty = PairRow((-1.0, -2.0), (-3.0, -1.0), (False, False))
    return [*found, PairCase((masked, empty), dtype, dtype), PairCase((empty,), dtype, dtype)]


def allowed(exact: ExactDivergence, ctx: Context, *, merges: int = 0) -> dict[str, float]:
    """The bounds for what the implementation declares."""
    return exact.allowed(ctx.algorithm, merges=merges, log_space="log_space" in ctx.implementation.provides)


def exact_figures(
    outcome: Outcome,
    exact: ExactDivergence,
    names: Sequence[str],
    ctx: Context,
    *,
    merges: int = 0,
    case: object = None,
) -> Measurement:
    """Figures within their bounds of the exact ones."""
    return bounded_figures(outcome, exact, names, allowed(exact, ctx, merges=merges), case=case)


def agreement(
    case: PairCase, other: PairCase, ctx: Context, *, names: Mapping[str, str] | None = None, but: Sequence[str] = ()
) -> list[Measurement]:
    """``other`` holds the same tokens as ``case``: order-free fields bit for bit, the others within both bounds.

    but: fields that may differ. Both bounds are those of ``case``.
    """
    got, want = ctx.call(other), ctx.call(case)
    known = [n for n in provided(ctx, (*COUNTS, *FIGURES)) if n not in but]
    bound = allowed(ctx.exact(case), ctx)
    exactly = [n for n in known if n in COUNTS or n in ORDER_FREE]
    roughly = [n for n in known if n not in exactly and not no_promise(n, bound[n])]
    return [
        same_fields(got, want, exactly, case=other),
        near(got, want, roughly, [2 * bound[n] if math.isfinite(bound[n]) else math.inf for n in roughly], case=other),
    ]
