"""Rules of ``mismatch``: counts and figures, emptiness, non-finite values, bad input."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from numerics.formats import FORMATS
from numerics.strategies.cases import LogitsCase, PairCase, PairRow
from numerics.strategies.logits import logits_cases
from numerics.strategies.pairs import FINITE_KINDS, PAIR_KINDS
from numerics.suite import oracle, special
from numerics.suite.measure import Exact, Measurement, holds, mp, same, within
from numerics.suite.oracle_pairs import COUNTS, FIGURES
from numerics.suite.properties.fields import (
    cases,
    count_measurement,
    figure_measurement,
    finite_specials,
    flat,
    histogram_of,
    no_promise,
    number,
    provided,
)
from numerics.suite.property import Context, NotProvided, Property, refuses, rule

__all__ = ["RULES"]

RULES: dict[str, Property] = {}
_rule = partial(rule, RULES, contract="mismatch")


@_rule(
    "MM-01",
    statement="every count = its definition, exactly",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=special.pairs,
)
def counts(case: PairCase, ctx: Context) -> Measurement:
    """Counts are integers and exact, whatever the dtypes, masks, infinities and NaNs.

    A mismatch is decided on the cast values: +0 equals -0, equal infinities are equal, NaN differs from everything.
    """
    names = provided(ctx, COUNTS)
    return count_measurement(ctx.call(case), ctx.exact(case), names)


@_rule("MM-02", statement="|figure - exact| <= bound(n, u, rms; algorithm)", cases=cases, special=finite_specials)
def figures(case: PairCase, ctx: Context) -> Measurement:
    """Maxima, means, standard deviations and correlations of finite pairs are right.

    Real: E[x^2] - E[x]^2 gives a deviation of 0 (verl, SkyRL); exp in the input dtype gives identical bf16 log-probs a
    difference of 5e-4 (verl).
    """
    names = provided(ctx, FIGURES)
    return figure_measurement(ctx.call(case), ctx.exact(case), names, ctx)


@_rule(
    "MM-03",
    statement="all pairs 1 ULP apart: mismatch_count = N, diff_max > 0",
    cases=lambda d: st.builds(
        _one_ulp_case, st.lists(st.integers(1, 2000), min_size=1, max_size=6), st.booleans(), st.just(d.dtype)
    ),
    special=lambda d: [_one_ulp_case([205], up=True, dtype=d.dtype)],
)
def one_ulp(case: PairCase, ctx: Context) -> list[Measurement]:
    """A 1-ULP difference is seen by the count. Probability differences cannot see it: float32 -0.10000000149 and
    -0.10000000894 have one probability.
    """
    names = provided(ctx, ("logprobs_mismatch_count", "logprobs_diff_max"))
    outcome, n = ctx.call(case), len(case.tokens)
    ok = {"logprobs_mismatch_count": lambda v: v == n, "logprobs_diff_max": lambda v: v > 0}
    return [
        holds(
            [ok[x](number(outcome, x)) for x in names],
            label=tuple(f"{x} sees 1 ULP" for x in names),
            rows=[-1] * len(names),
        )
    ]


def _one_ulp_case(numbers: list[int], up: bool, dtype: str) -> PairCase:
    fmt = FORMATS[dtype if dtype != "float64" else "float32"]
    q = tuple(fmt.round(-k / 2048) for k in numbers)
    p = tuple((fmt.next_up if up else fmt.next_down)(v) for v in q)
    return PairCase((PairRow(q, p, (True,) * len(q)),), dtype, dtype)


@_rule(
    "MM-05",
    statement="counts and histogram exact while the FPU flushes subnormals to zero",
    cases=partial(cases, kinds=("subnormal", "identical", "zeros", "ulps", "improbable"), flush_to_zero=True),
    special=lambda d: [c.replace(flush_to_zero=True) for c in special.pairs(d)],
    requires={"ieee_counts"},
    devices=("cpu",),
)
def flush_to_zero(case: PairCase, ctx: Context) -> list[Measurement]:
    """Two different subnormals compare equal under flush-to-zero; their bits do not."""
    names = [n for n in provided(ctx, COUNTS) if n != "overflow_count"]
    exact, outcome = ctx.exact(case.replace(flush_to_zero=False)), ctx.call(case)
    out = [count_measurement(outcome, exact, names)]
    if "ulp_histogram" in ctx.fields:
        out.append(holds(histogram_of(outcome) == exact.histogram, label="ulp_histogram", rows=[-1]))
    return out


@_rule("MM-06", statement="N > 0: mismatch_count = 0 <=> diff_max = 0", cases=cases, special=finite_specials)
def zero_iff_zero(case: PairCase, ctx: Context) -> Measurement:
    """The count and the maximum read one cast pair, so they cannot disagree."""
    names = provided(ctx, ("logprobs_mismatch_count",))
    if "logprobs_diff_max" not in ctx.fields:
        raise NotProvided("does not return logprobs_diff_max")
    outcome = ctx.call(case)
    if not case.tokens:
        return holds([], label="count = 0 <=> max = 0")
    agree = (number(outcome, names[0]) == 0) == (number(outcome, "logprobs_diff_max") == 0)
    return holds(agree, label="count = 0 <=> max = 0", rows=[-1])


@_rule(
    "MM-07",
    statement="N = 0: valid = 0, counts 0, every other figure NaN",
    cases=partial(cases, patterns=("none",), kinds=tuple(PAIR_KINDS)),
)
def all_masked(case: PairCase, ctx: Context) -> list[Measurement]:
    """Nothing compared is not agreement: 0 would read as "perfect" (verl#5859), max of nothing raises."""
    names = provided(ctx, (*COUNTS, *FIGURES))
    outcome = ctx.call(case)
    ok = [number(outcome, n) == 0 if n in COUNTS else math.isnan(number(outcome, n)) for n in names]
    return [holds(ok, label=tuple(f"{n} on an empty selection" for n in names), rows=[-1] * len(names))]


@_rule("MM-08", statement="N = 1: std, Pearson = NaN; mean = max", cases=partial(cases, patterns=("one",), max_rows=1))
def one_token(case: PairCase, ctx: Context) -> list[Measurement]:
    """One token has no deviation and no correlation; its mean is its maximum."""
    names = provided(ctx, FIGURES)
    if len(case.tokens) != 1:
        return []
    outcome = ctx.call(case)
    alone = [n for n in names if n.endswith(("_std", "_pearson"))]
    pairs = [p for p in ("logprobs_diff", "probs_diff") if {f"{p}_max", f"{p}_mean"} <= set(names)]
    return [
        holds(
            [math.isnan(number(outcome, n)) for n in alone],
            label=tuple(f"{n} is NaN" for n in alone),
            rows=[-1] * len(alone),
        ),
        same(
            [number(outcome, f"{p}_mean") for p in pairs],
            [number(outcome, f"{p}_max") for p in pairs],
            label=tuple(f"{p} mean = max" for p in pairs),
            rows=[-1] * len(pairs),
            format="float64",
        ),
    ]


@_rule("MM-15", statement="diff_max in {fl(|p_i - q_i|)}", cases=cases, special=finite_specials)
def maximum_is_member(case: PairCase, ctx: Context) -> Measurement:
    """The maximum is one of the differences (rounded once), never something averaged or clamped."""
    provided(ctx, ("logprobs_diff_max",))
    got = number(ctx.call(case), "logprobs_diff_max")
    exact = ctx.exact(case)
    if not exact.tokens:
        return holds([], label="diff_max is a member")
    members = {FORMATS[f].round(abs(mp.mpf(p) - mp.mpf(q))) for q, p in exact.tokens for f in ("float32", "float64")}
    return holds(got in members, label="diff_max is a member", rows=[-1])


@_rule(
    "MM-16",
    statement="Pearson in [-1, 1]; NaN if either side is constant, N < 2, or a value is not finite",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=special.pairs,
)
def pearson(case: PairCase, ctx: Context) -> Measurement:
    """A constant has no correlation. Real: ``torch.corrcoef`` of two constants gives -0.99999988, numpy's gives 1."""
    names = provided(ctx, ("probs_pearson", "logprobs_pearson"))
    outcome, exact = ctx.call(case), ctx.exact(case)
    allowed = exact.allowed(ctx.algorithm)
    ok = []
    for name in names:
        value = number(outcome, name)
        undefined = math.isnan(value) and (mp.isnan(exact.figures[name]) or no_promise(name, allowed[name]))
        ok.append(undefined if mp.isnan(exact.figures[name]) else undefined or -1 <= value <= 1)
    return holds(ok, label=tuple(f"{n} in [-1, 1] or rightly NaN" for n in names), rows=[-1] * len(names))


@_rule(
    "MM-18",
    statement="NaN, inf at a valid place: diff_max, diff_mean are NaN or inf, std and Pearson NaN",
    cases=partial(cases, kinds=("nan", "infinite", "far", "identical")),
    special=lambda d: [c for c in special.pairs(d) if not all(map(math.isfinite, flat(c)))],
)
def nonfinite(case: PairCase, ctx: Context) -> Measurement:
    """A non-finite log-prob is never hidden: no clamp, no nan_to_num, no sentinel makes a metric look better.

    Real: miles replaces an infinite difference by 0, open-instruct a NaN log-prob by 1.0, AReaL drops an
    infinite maximum.
    """
    names = provided(ctx, FIGURES)
    return figure_measurement(ctx.call(case), ctx.exact(case), names, ctx)


@_rule(
    "MM-20",
    statement="raw against processed sides: mean |d| = mean |(1/T - 1) z_i - (lse(z/T) - lse(z))|",
    cases=lambda d: logits_cases(
        dtype="float32",
        min_width=2,
        max_width=4,
        min_rows=2,
        regimes=("mixed",),
        temperature_forms=("per_token",),
        tails=False,
    ).map(lambda c: c.map_rows(lambda r: dataclasses.replace(r, temperature=min(max(r.temperature, 0.05), 20.0)))),
)
def raw_against_processed(case: LogitsCase, ctx: Context) -> Measurement:
    """A rollout that reports raw log-probs against a trainer that scales by T shows a gap of theory's size, though
    nothing is wrong (verl#4162): metrics must be fed like with like, and this one must report what it was fed.
    """
    names = provided(ctx, ("logprobs_diff_mean",))
    single = FORMATS["float32"]
    processed = oracle.score(case).logprobs
    raw = oracle.score(case.replace(temperature="absent")).logprobs
    q = tuple(single.round(raw.refine(i)) for i in range(case.size))
    p = tuple(single.round(processed.refine(i)) for i in range(case.size))
    pairs = PairCase((PairRow(q, p, (True,) * case.size),))
    y, _ = oracle.scaled(case)
    z = case.values
    theory = []
    for i in range(case.size):
        lse_t = mp.log(mp.fsum(mp.exp(mp.mpf(v)) for v in y[i].tolist()))
        lse = mp.log(mp.fsum(mp.exp(mp.mpf(v)) for v in z[i].tolist()))
        j = case.rows[i].token
        theory.append(abs((mp.mpf(float(y[i, j])) - lse_t) - (mp.mpf(float(z[i, j])) - lse)))
    want = mp.fsum(theory) / len(theory)
    rounding = sum(abs(a) + abs(b) for a, b in zip(q, p, strict=True)) / len(q) * single.u
    exact = ctx.exact(pairs)
    allowed = exact.allowed(ctx.algorithm)["logprobs_diff_mean"] + rounding
    return within(
        number(ctx.call(pairs), names[0]),
        Exact(
            value=np.array([float(want)]),
            radius=np.array([abs(float(want)) * 2.0**-52 + 5e-324]),
            refine=lambda i: want,
        ),
        allowed,
        label="logprobs_diff_mean",
        rows=[-1],
        format="float64",
        case=pairs,
    )


@_rule(
    "MM-21",
    statement="ulp_histogram[0] = #{0}, [k] = #{2^(k-1) <= distance < 2^k}, [last] = #{undefined}",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=special.pairs,
)
def histogram(case: PairCase, ctx: Context) -> Measurement:
    """Tokens by distance on the ordered line, exact, with the undefined ones apart."""
    provided(ctx, ("ulp_histogram",))
    return holds(histogram_of(ctx.call(case)) == ctx.exact(case).histogram, label="ulp_histogram", rows=[-1])


@_rule(
    "MM-22",
    statement="unequal shapes, integer log-probs, a mask with 0.5 or NaN => error",
    cases=partial(cases, kinds=("far",)),
    requires={"checks_arguments"},
)
def bad_input(case: PairCase, ctx: Context) -> Measurement:
    """Never a warning with a made-up value: nothing is broadcast, a mask does not weigh."""
    q = torch.full((2, 3), -0.5, device=ctx.device)
    mask = torch.ones(2, 3, device=ctx.device)
    wrong: dict[str, tuple[Any, Any, Any]] = {
        "trainer shape": (q, q[:, :2], mask),
        "broadcast": (q, q[:1], mask),
        "mask shape": (q, q, mask[:1]),
        "mask 0.5": (q, q, mask * 0.5),
        "mask NaN": (q, q, mask * math.nan),
        "mask 2": (q, q, (mask * 2).long()),
        "integer log-probs": (q.long(), q, mask),
        "boolean log-probs": (q, q > 0, mask),
    }
    ok = [refuses(ctx.implementation.fn, *arguments) for arguments in wrong.values()]
    return holds(ok, label=tuple(f"{x} raises" for x in wrong), rows=[-1] * len(wrong))


@_rule(
    "MM-24",
    statement="compare_dtype = float64: counts, figures and histogram by the same definitions, in float64",
    cases=partial(cases, compare_dtypes=("float64",), kinds=FINITE_KINDS),
    special=lambda d: [
        PairCase((PairRow((-1.0,), (-1.0 - 2.0**-40,), (True,)),), d.dtype, "float64", compare_dtype="float64")
    ],
    requires={"compare_dtype"},
)
def compare_in_float64(case: PairCase, ctx: Context) -> list[Measurement]:
    """Nothing is narrowed then, and the ULPs are float64's."""
    outcome, exact = ctx.call(case), ctx.exact(case)
    return [
        count_measurement(outcome, exact, provided(ctx, COUNTS)),
        figure_measurement(outcome, exact, provided(ctx, FIGURES), ctx),
        holds(histogram_of(outcome) == exact.histogram, label="ulp_histogram", rows=[-1]),
    ]
