"""Rules of ``entropy``."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from numerics.strategies.cases import Logits, LogitsCase
from numerics.strategies.logits import FINITE_REGIMES, ORDINARY_REGIMES, REGIMES, logits_cases
from numerics.suite import bounds, oracle, special
from numerics.suite.measure import Measurement, holds, same, within
from numerics.suite.properties.logprobs import output_format
from numerics.suite.property import Context, Domain, Property, rule

__all__ = ["RULES"]

RULES: dict[str, Property] = {}
_rule = partial(rule, RULES, contract="entropy")


def cases(domain: Domain, **options: Any) -> st.SearchStrategy[LogitsCase]:
    """Finite rows, temperatures in the forms the implementation takes."""
    return logits_cases(
        **{
            "dtype": domain.dtype,
            "regimes": FINITE_REGIMES,
            "temperature_forms": domain.temperature_forms,
            **options,
        }
    )


def _finite(domain: Domain) -> list[LogitsCase]:
    return [case for case in special.logits(domain) if all(math.isfinite(v) for row in case.rows for v in row.values)]


def _measure(case: LogitsCase, ctx: Context, values: Any) -> Measurement:
    return within(
        values,
        oracle.entropy(case),
        bounds.entropy(oracle.entropy_conditioning(case), ctx.algorithm, case.dtype),
        label="entropy",
        format=output_format(case.dtype),
    )


@_rule("EN-01", statement="|H - exact| <= bound(n, log s, sum p |x - max|; formula, u)", cases=cases, special=_finite)
def within_bound(case: LogitsCase, ctx: Context) -> Measurement:
    """The entropy of a finite row is right, also with a large offset or all entries equal."""
    return _measure(case, ctx, ctx.call(case).values)


@_rule(
    "EN-02",
    statement="0 * log 0 = 0: H finite and within bound when some logits are -inf",
    cases=partial(cases, regimes=ORDINARY_REGIMES),
    special=special.logits,
    requires={"zero_times_inf"},
)
def holes(case: LogitsCase, ctx: Context) -> Measurement:
    """Real: verl, TRL, AReaL, slime and prime-rl give NaN for logits (0, -inf); the entropy is 0 (trl#7221)."""
    return _measure(case, ctx, ctx.call(case).values)


@_rule(
    "EN-03",
    statement="NaN or +inf in the row, or only -inf => NaN, in that row only",
    cases=partial(
        cases, regimes=[r for r in REGIMES if r not in ("huge", "holes")], temperature_forms=("absent",), tails=False
    ),
    special=lambda d: [c for c in special.nonfinite_logits(d) if not _has_holes(c)],
)
def nonfinite_rows(case: LogitsCase, ctx: Context) -> Measurement:
    """What is no distribution has no entropy, and spoils no other row."""
    return _measure(case, ctx, ctx.call(case).values)


def _has_holes(case: LogitsCase) -> bool:
    """Some row mixes -inf with finite entries."""
    return any(-math.inf in row.values and any(math.isfinite(v) for v in row.values) for row in case.rows)


@_rule(
    "EN-04",
    statement="bits(H(z, T=1)) = bits(H(z)); bits(H(z, T)) = bits(H(float32(z), T))",
    cases=partial(cases, temperature_forms=("float",)),
    requires={"temperature"},
)
def temperature(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """Temperature 1 changes no bit, and T is never rounded to the logits' dtype."""
    fmt = output_format(case.dtype)
    one = case.map_rows(lambda row: dataclasses.replace(row, temperature=1.0))
    wide = case.replace(
        dtype="float64" if case.dtype == "float64" else "float32",
        tail=None,
        rows=tuple(
            dataclasses.replace(row, values=tuple(values))
            for row, values in zip(case.rows, case.values.tolist(), strict=True)
        ),
    )
    return [
        same(ctx.call(one).values, ctx.call(case.replace(temperature="absent")).values, label="T = 1", format=fmt),
        same(ctx.call(case).values, ctx.call(wide).values, label="upcast first", format=fmt),
    ]


@_rule(
    "EN-05",
    statement="dtype(H) = float32, or float64 for float64 logits",
    cases=partial(cases, max_rows=2, max_width=3, tails=False),
)
def output_dtype(case: LogitsCase, ctx: Context) -> Measurement:
    """An entropy in bfloat16 has two to three digits."""
    return holds(ctx.call(case).format == output_format(case.dtype), label="result dtype is the compute dtype")


@_rule(
    "EN-06",
    statement="bits(H(rows)_i) = bits(H(row_i alone)) = bits(H(rows reversed))",
    cases=partial(cases, min_rows=2, max_rows=9, temperature_forms=("absent",)),
    requires={"batch_invariant"},
)
def rows_alone(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """A row's bits do not depend on what stands beside it, nor on strides."""
    together, fmt = ctx.call(case).values, output_format(case.dtype)
    alone = np.concatenate([ctx.call(case.only(i)).values for i in range(case.size)])
    backwards = ctx.call(case.only(*reversed(range(case.size)))).values[::-1]
    return [
        same(alone, together, label="entropy of the row alone", format=fmt),
        same(backwards, together, label="entropy in reversed order", format=fmt),
        same(ctx.call(case.replace(layout="transposed")).values, together, label="entropy, transposed", format=fmt),
    ]


@_rule("EN-07", statement="bits(z) unchanged by the call", cases=partial(cases, max_rows=3), special=_finite)
def inputs_unmodified(case: LogitsCase, ctx: Context) -> Measurement:
    """No in-place division of the caller's logits."""
    return holds("logits" not in ctx.call(case).modified, label="logits unmodified", rows=[-1])


@_rule(
    "EN-08",
    statement="V = 1, or one entry 2048 above all others => H = 0; n equal logits => H = log n within bound",
    cases=lambda d: st.builds(
        LogitsCase, st.lists(_extreme_rows(), min_size=1, max_size=4).map(tuple), st.just(d.dtype)
    ),
)
def extremes(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """A certain row has entropy exactly 0 (no rounding is left to do), a uniform one log n; never below 0."""
    values = ctx.call(case).values
    certain = [i for i, row in enumerate(case.rows) if sorted(row.values)[-1] - sorted(row.values)[-2] >= 2048]
    return [
        _measure(case, ctx, values),
        holds(values[certain] == 0, label="certain: H = 0", rows=certain),
    ]


def _extreme_rows() -> st.SearchStrategy[Logits]:
    certain = st.tuples(st.integers(0, 3), st.sampled_from([0.0, 16.0, -64.0])).map(
        lambda t: Logits(tuple(t[1] + 4096.0 if j == t[0] else t[1] for j in range(4)))
    )
    uniform = st.sampled_from([0.0, 1.0, -32.0, 4096.0]).map(lambda v: Logits((v,) * 4))
    return st.one_of(certain, uniform)


@_rule("EN-09", statement="bits(H) = bits(H) again", cases=cases, requires={"run_to_run"})
def run_to_run(case: LogitsCase, ctx: Context) -> Measurement:
    """The same call gives the same bits."""
    return same(ctx.call(case).values, ctx.call(case).values, label="entropy", format=output_format(case.dtype))
