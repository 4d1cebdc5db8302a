"""Rules of ``ulp_distance``: everything is exact."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st

from numerics.formats import FORMATS
from numerics.strategies.cases import UlpCase
from numerics.strategies.ulps import ulp_cases
from numerics.suite.measure import Measurement, holds
from numerics.suite.property import Context, Domain, Property, refuses, rule

__all__ = ["RULES"]

RULES: dict[str, Property] = {}
_rule = partial(rule, RULES, contract="ulp_distance")


def cases(domain: Domain, **options: Any) -> st.SearchStrategy[UlpCase]:
    """Pairs of one format."""
    return ulp_cases(dtype=domain.dtype, **options)


def special(domain: Domain) -> list[UlpCase]:
    """Both ends of the line, across zero, the zeros, subnormals, NaN (numpy's ``nulp_diff`` is wrong on most)."""
    fmt = FORMATS[domain.dtype]
    inf, nan, tiny = math.inf, math.nan, fmt.min_subnormal
    a = (-fmt.max, -inf, -4.0, 0.0, -tiny, 0.0, inf, fmt.max, nan, nan, 1.0, fmt.min_normal)
    b = (fmt.max, inf, 4.0, -0.0, tiny, tiny, inf, inf, nan, 1.0, nan, fmt.next_down(fmt.min_normal))
    return [UlpCase(a, b, domain.dtype)]


def _agree(got: tuple[int | None, ...], want: list[int | None], label: str) -> Measurement:
    pairs = list(zip(got, want, strict=True))
    labels = tuple(f"{label} is {w}" if g == w else f"{label} is {w}, got {g}" for g, w in pairs)
    return holds([g == w for g, w in pairs], label=labels)


@_rule("UD-01", statement="distance = |ordinal(a) - ordinal(b)|, undefined for NaN", cases=cases, special=special)
def exact(case: UlpCase, ctx: Context) -> Measurement:
    """Exact for opposite signs and over the full range, up to 2^64 - 2^53 for float64.

    Real: numpy's ``nulp_diff`` gives 16,777,218 for -max, max in float32; the distance is 4,278,190,078 (numpy#15598).
    """
    return _agree(ctx.call(case).distances, ctx.exact(case), "distance")


@_rule("UD-02", statement="d(a, b) = d(b, a)", cases=cases, special=special)
def symmetric(case: UlpCase, ctx: Context) -> Measurement:
    """The order of the two does not matter."""
    turned = case.replace(a=case.b, b=case.a)
    return _agree(ctx.call(turned).distances, list(ctx.call(case).distances), "d(b, a) = d(a, b)")


@_rule("UD-03", statement="a <= b <= c => d(a, c) = d(a, b) + d(b, c)", cases=cases, special=special)
def additive(case: UlpCase, ctx: Context) -> Measurement:
    """Steps along the line add up, across zero and across binades."""
    numbers = sorted(v for v in (*case.a, *case.b) if not math.isnan(v))
    if len(numbers) < 3:
        return holds([], label="additive")
    a, b, c = tuple(numbers[:-2]), tuple(numbers[1:-1]), tuple(numbers[2:])
    ab, bc, ac = (ctx.call(case.replace(a=x, b=y)).distances for x, y in ((a, b), (b, c), (a, c)))
    sums = [None if x is None or y is None else x + y for x, y in zip(ab, bc, strict=True)]
    return holds(
        [s == w for s, w in zip(sums, ac, strict=True)], label="d(a, b) + d(b, c) = d(a, c)", rows=[-1] * len(a)
    )


@_rule(
    "UD-04",
    statement="exact also while the FPU flushes subnormals to zero",
    cases=partial(cases, flush_to_zero=True),
    special=lambda d: [c.replace(flush_to_zero=True) for c in special(d)],
    requires={"ieee_counts"},
    devices=("cpu",),
)
def flush_to_zero(case: UlpCase, ctx: Context) -> Measurement:
    """Subnormals are points of the line whatever the mode: distance reads bits, it compares no floats."""
    return _agree(ctx.call(case).distances, ctx.exact(case.replace(flush_to_zero=False)), "distance under FTZ")


@_rule(
    "UD-05", statement="dtype(a) != dtype(b), or unequal shapes => error", cases=cases, requires={"checks_arguments"}
)
def bad_input(case: UlpCase, ctx: Context) -> Measurement:
    """Two formats have two lines; nothing is broadcast."""
    tensors = case.tensors(ctx.device)
    a, b = tensors["a"], tensors["b"]
    other = torch.float32 if a.dtype != torch.float32 else torch.float64
    wrong = ((a, b.to(other)), (a, torch.cat([b, b])), (a.to(torch.int64), b.to(torch.int64)))
    ok = [refuses(ctx.implementation.fn, x, y) for x, y in wrong]
    return holds(ok, label=("dtypes differ", "shapes differ", "integers"), rows=[-1] * 3)


@_rule("UD-06", statement="bits(a), bits(b) unchanged by the call", cases=cases)
def inputs_unmodified(case: UlpCase, ctx: Context) -> Measurement:
    """Reinterpreting bits must not write them."""
    return holds(not ctx.call(case).modified, label="inputs unmodified", rows=[-1])
