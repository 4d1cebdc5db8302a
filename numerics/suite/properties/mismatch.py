"""Rules of ``mismatch``. A field that an implementation does not return is not held against it, and counted so."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from numerics.formats import FORMATS
from numerics.strategies.cases import LogitsCase, PairCase, PairRow
from numerics.strategies.logits import logits_cases
from numerics.strategies.pairs import FINITE_KINDS, MASK_PATTERNS, PAIR_KINDS, pair_cases
from numerics.suite import oracle, special
from numerics.suite.contracts import BadResult, Outcome
from numerics.suite.measure import Exact, Measurement, holds, mp, same, within
from numerics.suite.oracle_pairs import COUNTS, FIGURES, ExactMismatch
from numerics.suite.property import Context, Domain, NotProvided, Property, rule

__all__ = ["RULES"]

RULES: dict[str, Property] = {}
_rule = partial(rule, RULES, contract="mismatch")

#: figures that rounding cannot reorder: the same numbers in any order give the same bits
_ORDER_FREE = ("logprobs_diff_max", "probs_diff_max")


def cases(domain: Domain, **options: Any) -> st.SearchStrategy[PairCase]:
    """Finite pairs of every kind, ragged rows, all masks and layouts."""
    return pair_cases(**{"dtype": domain.dtype, "trainer_dtypes": domain.dtypes, "kinds": FINITE_KINDS, **options})


def _specials(domain: Domain) -> list[PairCase]:
    return special.pairs(domain)


def _finite_specials(domain: Domain) -> list[PairCase]:
    return [case for case in special.pairs(domain) if all(map(math.isfinite, _flat(case)))]


def _flat(case: PairCase) -> Iterable[float]:
    return (v for pair in case.tokens for v in pair)


def _provided(ctx: Context, fields: Sequence[str]) -> list[str]:
    known = [name for name in fields if name in ctx.fields]
    if not known:
        raise NotProvided(f"does not return {' or '.join(fields)}")
    return known


def _get(outcome: Outcome, name: str) -> float:
    if name not in outcome.fields:
        raise BadResult(f"field {name!r} was returned by the smoke call but is missing here")
    value = outcome.fields[name]
    if not isinstance(value, int | float):
        raise BadResult(f"field {name!r} is {value!r}, expected a number")
    return float(value)


def _counts(outcome: Outcome, exact: ExactMismatch, names: Sequence[str]) -> Measurement:
    return same(
        [_get(outcome, n) for n in names],
        [float(exact.counts[n]) for n in names],
        label=tuple(names),
        rows=[-1] * len(names),
        format="float64",
    )


def _figures(outcome: Outcome, exact: ExactMismatch, names: Sequence[str], ctx: Context, **options: Any) -> Measurement:
    """Figures within their bounds; those about which the declared arithmetic can promise nothing are left out."""
    allowed = exact.allowed(ctx.algorithm, **options)
    kept = [n for n in names if not (mp.isfinite(exact.figures[n]) and _no_promise(n, allowed[n]))]
    values = [exact.figures[n] for n in kept]
    # mpmath to float64 is one rounding of at most 2^-53 of the value, and below the subnormals an absolute one
    return within(
        [_get(outcome, n) for n in kept],
        Exact(
            value=np.array([float(v) for v in values]),
            radius=np.array([abs(float(v)) * 2.0**-52 + 5e-324 if mp.isfinite(v) else 0.0 for v in values]),
            refine=lambda i: values[i],
        ),
        [allowed[n] for n in kept],
        label=tuple(kept),
        rows=[-1] * len(kept),
        format="float64",
    )


def _no_promise(name: str, allowed: float) -> bool:
    """Sums that may overflow in the declared format, correlations whose moments may underflow in it."""
    return math.isinf(allowed) or (name.endswith("pearson") and allowed >= 2)


def _agree(a: Outcome, b: Outcome, exact: ExactMismatch, ctx: Context) -> list[Measurement]:
    """Two results for the same tokens: order-free fields bit for bit, the others within both bounds."""
    exactly = [n for n in (*COUNTS, *_ORDER_FREE) if n in ctx.fields]
    allowed = exact.allowed(ctx.algorithm)
    roughly = [n for n in FIGURES if n in ctx.fields and n not in _ORDER_FREE and not _no_promise(n, allowed[n])]
    want = np.array([_get(b, n) for n in roughly])
    out = [
        same(
            [_get(a, n) for n in exactly],
            [_get(b, n) for n in exactly],
            label=tuple(exactly),
            rows=[-1] * len(exactly),
            format="float64",
        ),
        within(
            [_get(a, n) for n in roughly],
            Exact(value=want, radius=np.zeros(want.shape), refine=lambda i: mp.mpf(float(want[i]))),
            [2 * allowed[n] for n in roughly],
            label=tuple(roughly),
            rows=[-1] * len(roughly),
            format="float64",
        ),
    ]
    if "ulp_histogram" in ctx.fields:
        out.append(holds(_histogram(a) == _histogram(b), label="ulp_histogram", rows=[-1]))
    return out


def _histogram(outcome: Outcome) -> tuple[int, ...]:
    found = outcome.fields.get("ulp_histogram")
    if not isinstance(found, tuple | list):
        raise BadResult(f"ulp_histogram is {found!r}, expected a sequence of counts")
    return tuple(int(k) for k in found)


@_rule(
    "MM-01",
    statement="every count = its definition, exactly",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=_specials,
)
def counts(case: PairCase, ctx: Context) -> Measurement:
    """Counts are integers and exact, whatever the dtypes, masks, infinities and NaNs.

    A mismatch is decided on the cast values: +0 equals -0, equal infinities are equal, NaN differs from everything.
    """
    names = _provided(ctx, COUNTS)
    return _counts(ctx.call(case), ctx.exact(case), names)


@_rule("MM-02", statement="|figure - exact| <= bound(n, u, rms; algorithm)", cases=cases, special=_finite_specials)
def figures(case: PairCase, ctx: Context) -> Measurement:
    """Maxima, means, standard deviations and correlations of finite pairs are right.

    Real: E[x^2] - E[x]^2 gives a deviation of 0 (verl, SkyRL); exp in the input dtype gives identical bf16 log-probs a
    difference of 5e-4 (verl).
    """
    names = _provided(ctx, FIGURES)
    return _figures(ctx.call(case), ctx.exact(case), names, ctx)


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
    names = _provided(ctx, ("logprobs_mismatch_count", "logprobs_diff_max"))
    outcome, n = ctx.call(case), len(case.tokens)
    ok = {"logprobs_mismatch_count": lambda v: v == n, "logprobs_diff_max": lambda v: v > 0}
    return [
        holds(
            [ok[x](_get(outcome, x)) for x in names],
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
    "MM-04",
    statement="fields(q, p) = fields(float32(q), float32(p)) but for narrowed_count",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=_specials,
)
def float_cast(case: PairCase, ctx: Context) -> list[Measurement]:
    """Mixed bf16, fp16, fp32 and fp64 sides are cast once to float32, and every figure reads that pair.

    Real: verl exponentiates in the input dtype, so equal log-probs in bf16 and fp32 differ by 5.5e-4 in probability.
    """
    single = FORMATS["float32"]
    rows = tuple(
        dataclasses.replace(
            row,
            rollout=tuple(single.round(FORMATS[case.rollout_dtype].round(v)) for v in row.rollout),
            trainer=tuple(single.round(FORMATS[case.trainer_dtype].round(v)) for v in row.trainer),
        )
        for row in case.rows
    )
    cast = case.replace(rows=rows, rollout_dtype="float32", trainer_dtype="float32")
    names = [n for n in _provided(ctx, (*COUNTS, *FIGURES)) if n != "narrowed_count"]
    got, want = ctx.call(case), ctx.call(cast)
    return [
        same(
            [_get(got, n) for n in names],
            [_get(want, n) for n in names],
            label=tuple(names),
            rows=[-1] * len(names),
            format="float64",
        )
    ]


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
    names = [n for n in _provided(ctx, COUNTS) if n != "overflow_count"]
    exact, outcome = ctx.exact(case.replace(flush_to_zero=False)), ctx.call(case)
    out = [_counts(outcome, exact, names)]
    if "ulp_histogram" in ctx.fields:
        out.append(holds(_histogram(outcome) == exact.histogram, label="ulp_histogram", rows=[-1]))
    return out


@_rule("MM-06", statement="N > 0: mismatch_count = 0 <=> diff_max = 0", cases=cases, special=_finite_specials)
def zero_iff_zero(case: PairCase, ctx: Context) -> Measurement:
    """The count and the maximum read one cast pair, so they cannot disagree."""
    names = _provided(ctx, ("logprobs_mismatch_count",))
    if "logprobs_diff_max" not in ctx.fields:
        raise NotProvided("does not return logprobs_diff_max")
    outcome = ctx.call(case)
    if not case.tokens:
        return holds([], label="count = 0 <=> max = 0")
    agree = (_get(outcome, names[0]) == 0) == (_get(outcome, "logprobs_diff_max") == 0)
    return holds(agree, label="count = 0 <=> max = 0", rows=[-1])


@_rule(
    "MM-07",
    statement="N = 0: valid = 0, counts 0, every other figure NaN",
    cases=partial(cases, patterns=("none",), kinds=tuple(PAIR_KINDS)),
)
def all_masked(case: PairCase, ctx: Context) -> list[Measurement]:
    """Nothing compared is not agreement: 0 would read as "perfect" (verl#5859), max of nothing raises."""
    names = _provided(ctx, (*COUNTS, *FIGURES))
    outcome = ctx.call(case)
    ok = [_get(outcome, n) == 0 if n in COUNTS else math.isnan(_get(outcome, n)) for n in names]
    return [holds(ok, label=tuple(f"{n} on an empty selection" for n in names), rows=[-1] * len(names))]


@_rule("MM-08", statement="N = 1: std, Pearson = NaN; mean = max", cases=partial(cases, patterns=("one",), max_rows=1))
def one_token(case: PairCase, ctx: Context) -> list[Measurement]:
    """One token has no deviation and no correlation; its mean is its maximum."""
    names = _provided(ctx, FIGURES)
    if len(case.tokens) != 1:
        return []
    outcome = ctx.call(case)
    alone = [n for n in names if n.endswith(("_std", "_pearson"))]
    pairs = [p for p in ("logprobs_diff", "probs_diff") if {f"{p}_max", f"{p}_mean"} <= set(names)]
    return [
        holds(
            [math.isnan(_get(outcome, n)) for n in alone],
            label=tuple(f"{n} is NaN" for n in alone),
            rows=[-1] * len(alone),
        ),
        same(
            [_get(outcome, f"{p}_mean") for p in pairs],
            [_get(outcome, f"{p}_max") for p in pairs],
            label=tuple(f"{p} mean = max" for p in pairs),
            rows=[-1] * len(pairs),
            format="float64",
        ),
    ]


@_rule(
    "MM-09",
    statement="fields independent of what stands at masked places, bit for bit",
    cases=partial(cases, patterns=[p for p in MASK_PATTERNS if p != "all"]),
)
def masked_content(case: PairCase, ctx: Context) -> Measurement:
    """Masks select, they never multiply: NaN, infinities and 1e30 at a masked place change no bit."""
    names = _provided(ctx, (*COUNTS, *FIGURES))
    want = ctx.call(case)
    wrong: list[Measurement] = []
    for rubbish in (math.nan, -math.inf, math.inf, 1e4):
        rows = tuple(
            dataclasses.replace(
                row,
                rollout=tuple(v if keep else rubbish for v, keep in zip(row.rollout, row.valid, strict=True)),
                trainer=tuple(v if keep else -rubbish for v, keep in zip(row.trainer, row.valid, strict=True)),
            )
            for row in case.rows
        )
        got = ctx.call(case.replace(rows=rows, padding=rubbish))
        wrong.append(
            same(
                [_get(got, n) for n in names],
                [_get(want, n) for n in names],
                label=tuple(f"{n}, {rubbish:g} at masked places" for n in names),
                rows=[-1] * len(names),
                format="float64",
            )
        )
    return max(wrong, key=lambda m: float((~((m.got == m.want) | (np.isnan(m.got) & np.isnan(m.want)))).sum()))


@_rule(
    "MM-10",
    statement="fields(q, p, mask) = fields of the list of unmasked pairs",
    cases=cases,
    special=_finite_specials,
)
def unmasked_list(case: PairCase, ctx: Context) -> list[Measurement]:
    """A masked batch is the list of its valid tokens: no padded column, no empty row counts."""
    _provided(ctx, (*COUNTS, *FIGURES))
    tokens = case.tokens
    row = PairRow(tuple(q for q, _ in tokens), tuple(p for _, p in tokens), (True,) * len(tokens))
    listed = case.replace(rows=(row,), packed=True)
    return _agree(ctx.call(case), ctx.call(listed), ctx.exact(case), ctx)


@_rule(
    "MM-11",
    statement="fields(any order of tokens) = fields",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=_specials,
)
def order(case: PairCase, ctx: Context) -> list[Measurement]:
    """Reversed rows and tokens: a maximum that depends on where the NaN stands is no maximum.

    Real: Python's ``max`` gives NaN for [NaN, 0.5] and 0.5 for [0.5, NaN] (verl, SkyRL, AReaL).
    """
    _provided(ctx, (*COUNTS, *FIGURES))
    rows = tuple(PairRow(r.rollout[::-1], r.trainer[::-1], r.valid[::-1]) for r in reversed(case.rows))
    return _agree(ctx.call(case.replace(rows=rows)), ctx.call(case), ctx.exact(case), ctx)


@_rule(
    "MM-12",
    statement="fields(batch + masked columns + masked rows) = fields(batch)",
    cases=cases,
    special=_finite_specials,
)
def padding(case: PairCase, ctx: Context) -> list[Measurement]:
    """How far a batch is padded, and with how many empty rows, changes nothing (rllm#508, verl#7771)."""
    _provided(ctx, (*COUNTS, *FIGURES))
    longest = max((len(r.valid) for r in case.rows), default=0)
    empty = PairRow((0.0,) * (longest + 3), (-1.0,) * (longest + 3), (False,) * (longest + 3))
    return _agree(ctx.call(case.replace(rows=(empty, *case.rows, empty))), ctx.call(case), ctx.exact(case), ctx)


@_rule(
    "MM-13",
    statement="p = q => counts of difference 0, diffs exactly 0, Pearson 1 or NaN",
    cases=cases,
    special=_finite_specials,
)
def identical(case: PairCase, ctx: Context) -> list[Measurement]:
    """Identical finite sides give zeros."""
    names = _provided(ctx, (*COUNTS, *FIGURES))
    rows = tuple(dataclasses.replace(row, trainer=row.rollout) for row in case.rows)
    twin = case.replace(rows=rows, trainer_dtype=case.rollout_dtype)
    if not twin.tokens:
        return []
    outcome, exact = ctx.call(twin), ctx.exact(twin)
    diffs = [
        n
        for n in names
        if "mismatch" in n or (n.endswith(("_max", "_mean", "_std")) and not math.isnan(float(exact.figures.get(n, 0))))
    ]
    pearsons = [n for n in names if n.endswith("pearson")]
    return [
        holds([_get(outcome, n) == 0 for n in diffs], label=tuple(f"{n} = 0" for n in diffs), rows=[-1] * len(diffs)),
        *([_figures(outcome, exact, pearsons, ctx)] if pearsons else []),
    ]


@_rule(
    "MM-14", statement="fields(q, p) = fields(p, q)", cases=partial(cases, kinds=tuple(PAIR_KINDS)), special=_specials
)
def symmetric(case: PairCase, ctx: Context) -> list[Measurement]:
    """Nothing here has an orientation."""
    _provided(ctx, (*COUNTS, *FIGURES))
    rows = tuple(PairRow(r.trainer, r.rollout, r.valid) for r in case.rows)
    turned = case.replace(rows=rows, rollout_dtype=case.trainer_dtype, trainer_dtype=case.rollout_dtype)
    return _agree(ctx.call(turned), ctx.call(case), ctx.exact(case), ctx)


@_rule("MM-15", statement="diff_max in {fl(|p_i - q_i|)}", cases=cases, special=_finite_specials)
def maximum_is_member(case: PairCase, ctx: Context) -> Measurement:
    """The maximum is one of the differences (rounded once), never something averaged or clamped."""
    _provided(ctx, ("logprobs_diff_max",))
    got = _get(ctx.call(case), "logprobs_diff_max")
    exact = ctx.exact(case)
    if not exact.tokens:
        return holds([], label="diff_max is a member")
    members = {FORMATS[f].round(abs(mp.mpf(p) - mp.mpf(q))) for q, p in exact.tokens for f in ("float32", "float64")}
    return holds(got in members, label="diff_max is a member", rows=[-1])


@_rule(
    "MM-16",
    statement="Pearson in [-1, 1]; NaN if either side is constant, N < 2, or a value is not finite",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=_specials,
)
def pearson(case: PairCase, ctx: Context) -> Measurement:
    """A constant has no correlation. Real: ``torch.corrcoef`` of two constants gives -0.99999988, numpy's gives 1."""
    names = _provided(ctx, ("probs_pearson", "logprobs_pearson"))
    outcome, exact = ctx.call(case), ctx.exact(case)
    allowed = exact.allowed(ctx.algorithm)
    ok = []
    for name in names:
        value = _get(outcome, name)
        undefined = math.isnan(value) and (mp.isnan(exact.figures[name]) or _no_promise(name, allowed[name]))
        ok.append(undefined if mp.isnan(exact.figures[name]) else undefined or -1 <= value <= 1)
    return holds(ok, label=tuple(f"{n} in [-1, 1] or rightly NaN" for n in names), rows=[-1] * len(names))


@_rule(
    "MM-17",
    statement="merge of any partition = the whole; merging an empty state changes no bit",
    cases=partial(cases, max_rows=5, kinds=tuple(PAIR_KINDS)),
    special=_specials,
    requires={"state"},
)
def merge(case: PairCase, ctx: Context) -> list[Measurement]:
    """Micro-batches and ranks: counts add up, maxima take the maximum with NaN winning, moments merge.

    Real: means of means (TRL, SkyRL, ms-swift), averaged maxima (TRL), averaged deviations (verl).
    """
    make = ctx.implementation.state
    assert make is not None
    merged, backwards = make(), make()
    parts = [case.only(i) for i in range(case.size)]
    for part in parts:
        merged = merged.merge(_update(make().merge(make()), part, ctx)).merge(make())
    for part in reversed(parts):
        backwards = _update(make(), part, ctx).merge(backwards)
    whole = _update(make(), case, ctx)
    exact = ctx.exact(case)
    names = [n for n in FIGURES if n not in _ORDER_FREE]
    results = [Outcome(fields=dataclasses.asdict(s.compute())) for s in (merged, backwards, whole)]
    out: list[Measurement] = []
    for result in results[:2]:
        exactly = (*COUNTS, *_ORDER_FREE)
        out.append(
            same(
                [_get(result, n) for n in exactly],
                [_get(results[2], n) for n in exactly],
                label=exactly,
                rows=[-1] * len(exactly),
                format="float64",
            )
        )
        out.append(_figures(result, exact, names, ctx, merges=2 * len(parts)))
        out.append(holds(_histogram(result) == exact.histogram, label="ulp_histogram", rows=[-1]))
    empty = _update(make(), case, ctx).merge(make()).compute()
    out.append(holds(repr(empty) == repr(whole.compute()), label="merging an empty state changes no bit", rows=[-1]))
    return out


def _update(state: Any, case: PairCase, ctx: Context) -> Any:
    tensors = case.tensors(ctx.device)
    return state.update(tensors["rollout"], tensors["trainer"], tensors["mask"])


@_rule(
    "MM-18",
    statement="NaN, inf at a valid place: diff_max, diff_mean are NaN or inf, std and Pearson NaN",
    cases=partial(cases, kinds=("nan", "infinite", "far", "identical")),
    special=lambda d: [c for c in special.pairs(d) if not all(map(math.isfinite, _flat(c)))],
)
def nonfinite(case: PairCase, ctx: Context) -> Measurement:
    """A non-finite log-prob is never hidden: no clamp, no nan_to_num, no sentinel makes a metric look better.

    Real: miles replaces an infinite difference by 0, open-instruct a NaN log-prob by 1.0, AReaL drops an infinite maximum.
    """
    names = _provided(ctx, FIGURES)
    return _figures(ctx.call(case), ctx.exact(case), names, ctx)


@_rule(
    "MM-19", statement="batch + batch: counts double, max, mean, Pearson stay", cases=cases, special=_finite_specials
)
def replicated(case: PairCase, ctx: Context) -> list[Measurement]:
    """A metric of the batch twice is the metric of the batch (NeMo-RL#3753: a ratio that grew with the batch)."""
    names = _provided(ctx, (*COUNTS, *FIGURES))
    twice = case.replace(rows=case.rows * 2)
    outcome, exact = ctx.call(twice), ctx.exact(case)
    counted = [n for n in names if n in COUNTS]
    kept = [n for n in names if n in FIGURES and not n.endswith(("_std", "_pearson"))]
    factor = {n: 1.0 if n == "valid" else 2.0 for n in counted}
    out = [
        same(
            [_get(outcome, n) for n in counted],
            [factor[n] * exact.counts[n] for n in counted],
            label=tuple(counted),
            rows=[-1] * len(counted),
            format="float64",
        )
    ]
    if kept:
        out.append(_figures(outcome, exact, kept, ctx, merges=len(case.tokens)))
    return out


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
    names = _provided(ctx, ("logprobs_diff_mean",))
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
        _get(ctx.call(pairs), names[0]),
        Exact(
            value=np.array([float(want)]),
            radius=np.array([abs(float(want)) * 2.0**-52 + 5e-324]),
            refine=lambda i: want,
        ),
        allowed,
        label="logprobs_diff_mean",
        rows=[-1],
        format="float64",
    )


@_rule(
    "MM-21",
    statement="ulp_histogram[0] = #{0}, [k] = #{2^(k-1) <= distance < 2^k}, [last] = #{undefined}",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=_specials,
)
def histogram(case: PairCase, ctx: Context) -> Measurement:
    """Tokens by distance on the ordered line, exact, with the undefined ones apart."""
    _provided(ctx, ("ulp_histogram",))
    return holds(_histogram(ctx.call(case)) == ctx.exact(case).histogram, label="ulp_histogram", rows=[-1])


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
    ok = []
    for arguments in wrong.values():
        try:
            ctx.implementation.fn(*arguments)
        except (ValueError, TypeError):
            ok.append(True)
        else:
            ok.append(False)
    return holds(ok, label=tuple(f"{x} raises" for x in wrong), rows=[-1] * len(wrong))


@_rule("MM-23", statement="bits(q), bits(p), bits(mask) unchanged by the call", cases=cases)
def inputs_unmodified(case: PairCase, ctx: Context) -> Measurement:
    """No cast, clamp or mask fill in place."""
    return holds(not ctx.call(case).modified, label="inputs unmodified", rows=[-1])


@_rule(
    "MM-24",
    statement="compare_dtype = float64: counts, figures and histogram by the same definitions, in float64",
    cases=partial(cases, compare_dtypes=("float64",), kinds=FINITE_KINDS),
    requires={"compare_dtype"},
)
def compare_in_float64(case: PairCase, ctx: Context) -> list[Measurement]:
    """Nothing is narrowed then, and the ULPs are float64's."""
    outcome, exact = ctx.call(case), ctx.exact(case)
    return [
        _counts(outcome, exact, _provided(ctx, COUNTS)),
        _figures(outcome, exact, _provided(ctx, FIGURES), ctx),
        holds(_histogram(outcome) == exact.histogram, label="ulp_histogram", rows=[-1]),
    ]


@_rule("MM-25", statement="bits(fields) = bits(fields) again", cases=cases, requires={"run_to_run"})
def run_to_run(case: PairCase, ctx: Context) -> Measurement:
    """The same call gives the same bits."""
    names = _provided(ctx, (*COUNTS, *FIGURES))
    got, want = ctx.call(case), ctx.call(case)
    return same(
        [_get(got, n) for n in names],
        [_get(want, n) for n in names],
        label=tuple(names),
        rows=[-1] * len(names),
        format="float64",
    )
