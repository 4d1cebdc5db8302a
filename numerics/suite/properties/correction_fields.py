"""What the rules of ``correction`` share: reading weights and kept tokens at valid places, and judging them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from numerics.strategies.cases import PairCase, PairRow
from numerics.strategies.corrections import correction_cases
from numerics.suite.contracts import BadResult, Outcome
from numerics.suite.measure import Exact, Measurement, mp, within
from numerics.suite.oracle_correction import COUNTS, FIGURES, Judgement
from numerics.suite.properties.divergence_fields import pairs_of
from numerics.suite.properties.fields import near, no_promise, same_fields
from numerics.suite.property import Context, Domain

__all__ = [
    "agreement",
    "cases",
    "judged",
    "kept_tokens",
    "masked_weights",
    "options",
    "specials",
    "values_within",
    "weights_of",
]

Array = npt.NDArray[np.float64]


def cases(domain: Domain, **choices: Any) -> st.SearchStrategy[PairCase]:
    """Finite pairs of every ratio under every rule, ragged rows, all masks and layouts."""
    return correction_cases(**{"dtype": domain.dtype, "trainer_dtypes": domain.dtypes, **choices})


def options(rule: str, level: str, **bounds: Any) -> tuple[tuple[str, Any], ...]:
    """The keywords of a rule as pairs."""
    return (("rule", rule), ("level", level), *bounds.items())


_ALL = (
    options("truncate", "token", upper=2.0),
    options("truncate", "token", lower=0.5, upper=5.0),
    options("truncate", "sequence", upper=2.0),
    options("truncate", "sequence_geometric", upper=2.0),
    options("zero", "token", lower=0.5, upper=2.0),
    options("zero", "sequence", lower=0.5, upper=2.0),
    options("zero", "sequence_geometric", lower=0.5, upper=2.0),
    options("reject", "token", statistic="k1", threshold=0.5),
    options("reject", "token", statistic="k3", threshold=1e-8),
    options("reject", "row_sum", statistic="k2", threshold=0.5),
    options("reject", "row_mean", statistic="k3", threshold=0.5),
    options("reject", "row_max", statistic="k2", threshold=0.5),
    options("veto", "row_min", threshold=0.1),
)


#: on policy lies on the limit
_BORDERS = (
    options("truncate", "sequence_geometric", lower=1.0, upper=1.0),
    options("zero", "token", lower=1.0, upper=2.0),
    options("zero", "sequence", lower=0.5, upper=1.0),
    options("reject", "token", statistic="k1", threshold=0.0),
    options("reject", "row_mean", statistic="k3", threshold=0.0),
    options("veto", "row_min", threshold=1.0),
)


def specials(domain: Domain) -> list[PairCase]:
    """Every rule on what must be met: both tails, cancellation, overflow at 89 and 110, unequal rows, NaN."""
    dtype, nan, inf = domain.dtype, math.nan, math.inf
    ordinary = pairs_of(
        [(-1.0, -1.0), (-1.0, -3.0), (-3.0, -1.0)], [(-1.0, -0.75), (-0.5, -1.0)], [(-2.0, -2.0)], dtype=dtype
    )
    masked = PairRow((-0.5, -0.25, 9.0), (-0.75, -0.25, -9.0), (True, True, False))
    empty = PairRow((-1.0, -2.0), (-3.0, -1.0), (False, False))
    far = pairs_of([(-88.0, 0.0), (-1.0, -1.0)], [(-89.0, 0.0)], [(-110.0, 0.0), (0.0, -110.0)], dtype=dtype)
    odd = pairs_of(
        [(nan, -1.0), (-1.0, -1.0)], [(-1.0, -inf), (-1.0, -1.0)], [(-inf, -1.0)], [(-inf, -inf)], dtype=dtype
    )
    close = pairs_of([(0.0, -1e-4), (0.0, -4e-7 if dtype != "float16" else -6e-7)], dtype=dtype)
    long = pairs_of([(-0.125, -0.375)] * 8, [(-0.125, 0.125)], dtype=dtype)
    hidden = pairs_of([(-1.0, -1.0)] * 4 + [(-1.0, -2.25)], dtype=dtype)  # one bad token among good ones
    padded, nothing = PairCase((masked, empty), dtype, dtype), PairCase((empty,), dtype, dtype)
    shapes = (ordinary, padded, far, odd, close, long, hidden, nothing)
    borders = [shape.replace(options=chosen) for shape in (ordinary, padded) for chosen in _BORDERS]
    return [*(shape.replace(options=chosen) for shape in shapes for chosen in _ALL), *borders]


def positions(case: PairCase) -> npt.NDArray[np.int64]:
    """Where the valid tokens stand in the flattened result."""
    return np.flatnonzero(case.arrays()[2].ravel())


def weights_of(outcome: Outcome, case: PairCase) -> Array:
    """The weights of the valid tokens."""
    return outcome.values[positions(case)]


def kept_tokens(outcome: Outcome, case: PairCase) -> list[bool]:
    """Which valid tokens are kept."""
    if outcome.kept is None:
        raise BadResult("no mask came back")
    return [bool(k) for k in outcome.kept[positions(case)]]


def masked_weights(outcome: Outcome, case: PairCase) -> Array:
    """The weights at masked places."""
    return np.delete(outcome.values, positions(case))


def judged(outcome: Outcome, case: PairCase, ctx: Context, *, merges: int = 0) -> Judgement:
    """What is right, given the implementation's decisions about open units."""
    found: Judgement = ctx.exact(case).judge(
        kept_tokens(outcome, case),
        ctx.algorithm,
        log_space="log_space" in ctx.implementation.provides,
        merges=merges,
    )
    return found


def values_within(
    got: Any,
    values: Sequence[Any],
    allowed: Sequence[float],
    labels: str | tuple[str, ...],
    *,
    rows: Sequence[int] | None = None,
    format: str = "float64",
    case: Any = None,
) -> Measurement:
    """Numbers against mpmath ones."""
    values = list(values)
    return within(
        got,
        Exact(
            value=np.array([float(v) for v in values]),
            radius=np.array([abs(float(v)) * 2.0**-52 + 5e-324 if mp.isfinite(v) else 0.0 for v in values]),
            refine=lambda i: values[i],
        ),
        list(allowed),
        label=labels,
        rows=[-1] * len(values) if rows is None else rows,
        format=format,
        case=case,
    )


def agreement(
    case: PairCase, other: PairCase, ctx: Context, *, order: Sequence[int] | None = None
) -> list[Measurement]:
    """``other`` holds the same rows as ``case``: weights and figures within both bounds; counts and keeping the same.

    order: which token of ``case`` stands at each place of ``other``. Where a unit is open, the two calls may decide
    otherwise, and nothing is compared.
    """
    got, want = ctx.call(other), ctx.call(case)
    right, there = judged(want, case, ctx), judged(got, other, ctx)
    places = list(range(len(right.weights))) if order is None else list(order)
    out: list[Measurement] = []
    known = [n for n in (*COUNTS, *FIGURES) if n in ctx.fields]
    counts = [n for n in known if n in COUNTS]
    if counts:
        out.append(same_fields(got, want, counts, case=other))
    if right.open_units or there.open_units:
        return out
    mine = weights_of(want, case)[places]
    out.append(
        values_within(
            weights_of(got, other),
            [mp.mpf(float(x)) for x in mine],
            [right.weights_allowed[i] + there.weights_allowed[k] for k, i in enumerate(places)],
            "weight",
            format=got.format,
            case=other,
        )
    )
    kept_there, kept_here = kept_tokens(got, other), kept_tokens(want, case)
    out.append(
        values_within(
            [float(k) for k in kept_there],
            [mp.mpf(kept_here[i]) for i in places],
            [0.0] * len(places),
            "kept",
            case=other,
        )
    )
    figures = [n for n in known if n in FIGURES]
    figures = [n for n in figures if not no_promise(n, right.allowed[n]) and not no_promise(n, there.allowed[n])]
    if figures:
        out.append(near(got, want, figures, [right.allowed[n] + there.allowed[n] for n in figures], case=other))
    return out


def spoiled(case: PairCase, rubbish: float) -> PairCase:
    """The case with other numbers at its masked places."""
    rows = tuple(
        dataclasses.replace(
            row,
            rollout=tuple(v if keep else rubbish for v, keep in zip(row.rollout, row.valid, strict=True)),
            trainer=tuple(v if keep else -rubbish for v, keep in zip(row.trainer, row.valid, strict=True)),
        )
        for row in case.rows
    )
    return case.replace(rows=rows, padding=rubbish)
