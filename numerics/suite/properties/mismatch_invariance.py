"""Rules of ``mismatch`` that compare two calls: casts, masks, order, padding, symmetry, replication, merging."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

from numerics.formats import FORMATS
from numerics.strategies.cases import PairCase, PairRow
from numerics.strategies.pairs import MASK_PATTERNS, PAIR_KINDS
from numerics.suite import special
from numerics.suite.measure import Measurement, holds, same
from numerics.suite.oracle_pairs import COUNTS, FIGURES
from numerics.suite.properties.fields import (
    ORDER_FREE,
    agreement,
    cases,
    figure_measurement,
    finite_specials,
    histogram_of,
    near,
    no_promise,
    number,
    provided,
    same_fields,
)
from numerics.suite.property import Context, Property, rule

__all__ = ["RULES"]

RULES: dict[str, Property] = {}
_rule = partial(rule, RULES, contract="mismatch")


@_rule(
    "MM-04",
    statement="fields(q, p) = fields(float32(q), float32(p)) but for narrowed_count",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    # a difference that float32 does not hold
    special=lambda d: [
        *special.pairs(d),
        PairCase((PairRow((-1.0, -0.5), (-1.0 - 2.0**-40, -0.5), (True, True)),), d.dtype, "float64"),
    ],
)
def float_cast(case: PairCase, ctx: Context) -> Measurement:
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
    names = [n for n in provided(ctx, (*COUNTS, *FIGURES)) if n != "narrowed_count"]
    return same_fields(ctx.call(case), ctx.call(cast), names)


@_rule(
    "MM-09",
    statement="fields independent of what stands at masked places, bit for bit",
    cases=partial(cases, patterns=[p for p in MASK_PATTERNS if p != "all"]),
)
def masked_content(case: PairCase, ctx: Context) -> list[Measurement]:
    """Masks select, they never multiply: NaN, infinities and 1e30 at a masked place change no bit."""
    names = provided(ctx, (*COUNTS, *FIGURES))
    want = ctx.call(case)
    out = []
    for rubbish in (math.nan, -math.inf, math.inf, 1e4):
        rows = tuple(
            dataclasses.replace(
                row,
                rollout=tuple(v if keep else rubbish for v, keep in zip(row.rollout, row.valid, strict=True)),
                trainer=tuple(v if keep else -rubbish for v, keep in zip(row.trainer, row.valid, strict=True)),
            )
            for row in case.rows
        )
        spoiled = case.replace(rows=rows, padding=rubbish)
        out.append(same_fields(ctx.call(spoiled), want, names, note=f", {rubbish:g} at masked places", case=spoiled))
    return out


@_rule(
    "MM-10",
    statement="fields(q, p, mask) = fields of the list of unmasked pairs",
    cases=cases,
    special=finite_specials,
)
def unmasked_list(case: PairCase, ctx: Context) -> list[Measurement]:
    """A masked batch is the list of its valid tokens: no padded column, no empty row counts."""
    tokens = case.tokens
    row = PairRow(tuple(q for q, _ in tokens), tuple(p for _, p in tokens), (True,) * len(tokens))
    listed = case.replace(rows=(row,), packed=True)
    return agreement(case, listed, ctx)


@_rule(
    "MM-11",
    statement="fields(any order of tokens) = fields",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=special.pairs,
)
def order(case: PairCase, ctx: Context) -> list[Measurement]:
    """Reversed rows and tokens: a maximum that depends on where the NaN stands is no maximum.

    Real: Python's ``max`` gives NaN for [NaN, 0.5] and 0.5 for [0.5, NaN] (verl, SkyRL, AReaL).
    """
    rows = tuple(PairRow(r.rollout[::-1], r.trainer[::-1], r.valid[::-1]) for r in reversed(case.rows))
    return agreement(case, case.replace(rows=rows), ctx)


@_rule(
    "MM-12",
    statement="fields(batch + masked columns + masked rows) = fields(batch)",
    cases=cases,
    special=finite_specials,
)
def padding(case: PairCase, ctx: Context) -> list[Measurement]:
    """How far a batch is padded, and with how many empty rows, changes nothing (rllm#508, verl#7771)."""
    longest = max((len(r.valid) for r in case.rows), default=0)
    empty = PairRow((0.0,) * (longest + 3), (-1.0,) * (longest + 3), (False,) * (longest + 3))
    return agreement(case, case.replace(rows=(empty, *case.rows, empty)), ctx)


@_rule(
    "MM-13",
    statement="p = q => counts of difference 0, diffs exactly 0, Pearson 1 or NaN",
    cases=cases,
    special=finite_specials,
)
def identical(case: PairCase, ctx: Context) -> list[Measurement]:
    """Identical finite sides give zeros."""
    names = provided(ctx, ("logprobs_mismatch_count", "bit_mismatch_count", *FIGURES))
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
        holds(
            [number(outcome, n) == 0 for n in diffs],
            label=tuple(f"{n} = 0" for n in diffs),
            rows=[-1] * len(diffs),
            case=twin,
        ),
        *([figure_measurement(outcome, exact, pearsons, ctx, case=twin)] if pearsons else []),
    ]


@_rule(
    "MM-14",
    statement="fields(q, p) = fields(p, q)",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=special.pairs,
)
def symmetric(case: PairCase, ctx: Context) -> list[Measurement]:
    """Nothing here has an orientation."""
    rows = tuple(PairRow(r.trainer, r.rollout, r.valid) for r in case.rows)
    turned = case.replace(rows=rows, rollout_dtype=case.trainer_dtype, trainer_dtype=case.rollout_dtype)
    return agreement(case, turned, ctx)


@_rule(
    "MM-17",
    statement="merge of any partition = the whole; merging an empty state changes no bit",
    cases=partial(cases, max_rows=5, kinds=tuple(PAIR_KINDS)),
    special=special.pairs,
    requires={"state"},
)
def merge(case: PairCase, ctx: Context) -> list[Measurement]:
    """Micro-batches and ranks: counts add up, maxima take the maximum with NaN winning, moments merge.

    Real: means of means (TRL, SkyRL, ms-swift), averaged maxima (TRL), averaged deviations (verl).
    """
    make = ctx.state
    merged, backwards = make(), make()
    parts = [case.only(i) for i in range(case.size)]
    for part in parts:
        merged = merged.merge(make().merge(make()).update(part)).merge(make())
    for part in reversed(parts):
        backwards = make().update(part).merge(backwards)
    whole = make().update(case)
    exact = ctx.exact(case)
    names = [n for n in FIGURES if n not in ORDER_FREE]
    results = [s.outcome() for s in (merged, backwards, whole)]
    out: list[Measurement] = []
    for result in results[:2]:
        exactly = (*COUNTS, *ORDER_FREE)
        out.append(
            same(
                [number(result, n) for n in exactly],
                [number(results[2], n) for n in exactly],
                label=exactly,
                rows=[-1] * len(exactly),
                format="float64",
            )
        )
        out.append(figure_measurement(result, exact, names, ctx, merges=2 * len(parts)))
        out.append(holds(histogram_of(result) == exact.histogram, label="ulp_histogram", rows=[-1]))
    empty = make().update(case).merge(make()).outcome()
    out.append(holds(repr(empty) == repr(whole.outcome()), label="merging an empty state changes no bit", rows=[-1]))
    return out


@_rule(
    "MM-26",
    statement="merge of any partition of the tokens, in any order: the same bits",
    cases=partial(cases, max_rows=5, kinds=tuple(PAIR_KINDS)),
    special=special.pairs,
    requires={"state", "exact_merge"},
)
def merge_bits(case: PairCase, ctx: Context) -> list[Measurement]:
    """Sums that do not round make merging associative and commutative, bit for bit, for means and correlations too."""
    make = ctx.state
    whole = make().update(case)
    parts = [make()]
    for q, p in case.tokens:
        parts.append(make().update(case.replace(rows=(PairRow((q,), (p,), (True,)),))))
    while len(parts) > 1:  # as a tree, the last first
        parts = [parts[-1].merge(parts[0]), *parts[1:-1]]
    got, want = (s.outcome() for s in (parts[0], whole))
    return [same_fields(got, want, (*COUNTS, *FIGURES))]


@_rule("MM-19", statement="batch + batch: counts double, max, mean, Pearson stay", cases=cases, special=finite_specials)
def replicated(case: PairCase, ctx: Context) -> list[Measurement]:
    """A metric of the batch twice is the metric of the batch (NeMo-RL#3753: a ratio that grew with the batch)."""
    names = provided(ctx, (*COUNTS, *FIGURES))
    twice = case.replace(rows=case.rows * 2)
    once, outcome = ctx.call(case), ctx.call(twice)
    counted = [n for n in names if n in COUNTS]
    few, many = ctx.exact(case).allowed(ctx.algorithm), ctx.exact(twice).allowed(ctx.algorithm)
    kept = [n for n in names if n in FIGURES and not n.endswith(("_std", "_pearson")) and not no_promise(n, many[n])]
    doubled = [number(once, n) * (1.0 if n == "valid" else 2.0) for n in counted]
    return [
        same(
            [number(outcome, n) for n in counted],
            doubled,
            label=tuple(counted),
            rows=[-1] * len(counted),
            format="float64",
            case=twice,
        ),
        near(outcome, once, kept, [few[n] + many[n] for n in kept], case=twice),
    ]


@_rule("MM-23", statement="bits(q), bits(p), bits(mask) unchanged by the call", cases=cases)
def inputs_unmodified(case: PairCase, ctx: Context) -> Measurement:
    """No cast, clamp or mask fill in place."""
    return holds(not ctx.call(case).modified, label="inputs unmodified", rows=[-1])


@_rule("MM-25", statement="bits(fields) = bits(fields) again", cases=cases, requires={"run_to_run"})
def run_to_run(case: PairCase, ctx: Context) -> Measurement:
    """The same call gives the same bits."""
    return same_fields(ctx.call(case), ctx.call(case), provided(ctx, (*COUNTS, *FIGURES)))
