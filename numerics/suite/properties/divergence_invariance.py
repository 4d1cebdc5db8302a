"""Rules of ``divergence`` that compare two calls: casts, masks, order, padding, packing, orientation, merging."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

from hypothesis import strategies as st

from numerics.formats import FORMATS
from numerics.strategies.cases import PairCase, PairRow
from numerics.strategies.pairs import MASK_PATTERNS, PAIR_KINDS
from numerics.suite.contracts import Outcome
from numerics.suite.measure import Measurement, holds
from numerics.suite.oracle_divergence import COUNTS, FIGURES, ROW_FIGURES, TOKEN_FIGURES
from numerics.suite.properties.divergence_fields import (
    ORDER_FREE,
    agreement,
    allowed,
    cases,
    exact_figures,
    pairs_of,
    specials,
)
from numerics.suite.properties.fields import near, no_promise, number, provided, same_fields
from numerics.suite.property import Context, NotProvided, Property, rule

__all__ = ["RULES"]

RULES: dict[str, Property] = {}
_rule = partial(rule, RULES, contract="divergence")


@_rule(
    "DV-20",
    statement="fields(q, p) = fields(float32(q), float32(p)) but for narrowed_count, bit for bit",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=specials,
)
def float_cast(case: PairCase, ctx: Context) -> Measurement:
    """Mixed bf16, fp16, fp32 and fp64 sides are cast once to float32, and every figure reads that pair."""
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
    "DV-21",
    statement="fields independent of what stands at masked places, bit for bit",
    cases=partial(cases, patterns=[p for p in MASK_PATTERNS if p != "all"]),
)
def masked_content(case: PairCase, ctx: Context) -> list[Measurement]:
    """Masks select, they never multiply. Real: NeMo (all six metrics), slime, ms-swift, SkyRL, ROLL: NaN times 0."""
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
    "DV-22",
    statement="fields(batch) = fields of its rows, each as the list of its unmasked pairs",
    cases=cases,
    special=specials,
)
def unmasked_rows(case: PairCase, ctx: Context) -> list[Measurement]:
    """A masked batch is the rows of its valid tokens: no padded column counts, and a row without a token is no row."""
    rows = tuple(
        PairRow(tuple(q for q, _ in row), tuple(p for _, p in row), (True,) * len(row)) for row in case.row_tokens
    )
    return agreement(case, case.replace(rows=rows), ctx)


@_rule(
    "DV-23",
    statement="fields(batch + masked columns + empty rows) = fields(batch)",
    cases=cases,
    special=specials,
)
def padding(case: PairCase, ctx: Context) -> list[Measurement]:
    """How far a batch is padded, and with how many empty rows, changes nothing.

    Real: verl's perplexities and log_ppl_diff_max count all-masked rows (verl#7771), unsloth divides by all places.
    """
    longest = max((len(r.valid) for r in case.rows), default=0)
    empty = PairRow((0.0,) * (longest + 3), (-1.0,) * (longest + 3), (False,) * (longest + 3))
    return agreement(case, case.replace(rows=(empty, *case.rows, empty)), ctx)


@_rule(
    "DV-24",
    statement="fields(rows in any order, tokens of a row in any order) = fields",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=lambda d: [*specials(d), pairs_of([(math.nan, -1.0)], [(-1.0, -1.5)], dtype=d.dtype)],
)
def order(case: PairCase, ctx: Context) -> list[Measurement]:
    """Reversed rows, and reversed tokens in each."""
    rows = tuple(PairRow(r.rollout[::-1], r.trainer[::-1], r.valid[::-1]) for r in reversed(case.rows))
    return agreement(case, case.replace(rows=rows), ctx)


@_rule(
    "DV-25",
    statement="token figures(any assignment of tokens to rows) = token figures",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=specials,
)
def rows_do_not_matter_to_tokens(case: PairCase, ctx: Context) -> list[Measurement]:
    """Token figures weigh by tokens: one row with all of them gives the same. Real: means of row means."""
    provided(ctx, TOKEN_FIGURES)
    tokens = case.tokens
    row = PairRow(tuple(q for q, _ in tokens), tuple(p for _, p in tokens), (True,) * len(tokens))
    return agreement(case, case.replace(rows=(row,)), ctx, but=(*ROW_FIGURES, "row_count"))


@_rule(
    "DV-26",
    statement="fields(packed 1-D, row_ids) = fields(padded 2-D)",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=specials,
    requires={"row_ids"},
)
def packed(case: PairCase, ctx: Context) -> list[Measurement]:
    """Packed sequences with the row of every token are the padded batch."""
    return agreement(case, case.replace(packed=True, row_ids=True, layout="contiguous"), ctx)


_TURNED = {
    "signed_mean": ("signed_mean", -1),
    "probs_signed_mean": ("probs_signed_mean", -1),
    "k1": ("k1", -1),
    "k2": ("k2", 1),
    "mult_prob_error": ("mult_prob_error", 1),
    "fraction_above": ("fraction_above", 1),
    "ppl_rollout": ("ppl_trainer", 1),
    "ppl_trainer": ("ppl_rollout", 1),
    "ppl_rollout_token": ("ppl_trainer_token", 1),
    "ppl_trainer_token": ("ppl_rollout_token", 1),
    "log_ppl_rollout": ("log_ppl_trainer", 1),
    "log_ppl_trainer": ("log_ppl_rollout", 1),
    "log_ppl_diff_mean": ("log_ppl_diff_mean", -1),
    "log_ppl_diff_abs_mean": ("log_ppl_diff_abs_mean", 1),
    "log_ppl_diff_max": ("log_ppl_diff_min", -1),
    "log_ppl_diff_min": ("log_ppl_diff_max", -1),
    "seq_mult_prob_error_mean": ("seq_mult_prob_error_mean", 1),
    "seq_mult_prob_error_max": ("seq_mult_prob_error_max", 1),
    "seq_mult_prob_error_min": ("seq_mult_prob_error_min", 1),
}


@_rule(
    "DV-27",
    statement="(p, q) for (q, p): k1, signed means, log_ppl_diff change sign; k2, exp|d| stay; perplexities swap",
    cases=cases,
    special=specials,
)
def turned(case: PairCase, ctx: Context) -> Measurement:
    """Orientation: d is trainer minus rollout. Real: the sign of AReaL's and torchtitan's means is the other one."""
    known = [n for n in provided(ctx, tuple(_TURNED)) if _TURNED[n][0] in ctx.fields]
    rows = tuple(PairRow(r.trainer, r.rollout, r.valid) for r in case.rows)
    other = case.replace(rows=rows, rollout_dtype=case.trainer_dtype, trainer_dtype=case.rollout_dtype)
    bound, there = allowed(ctx.exact(case), ctx), allowed(ctx.exact(other), ctx)
    names = [n for n in known if not no_promise(n, bound[_TURNED[n][0]]) and not no_promise(n, there[n])]
    got, want = ctx.call(other), ctx.call(case)
    expected = Outcome(fields={n: _TURNED[n][1] * number(want, _TURNED[n][0]) for n in names})
    return near(got, expected, names, [there[n] + bound[_TURNED[n][0]] for n in names], case=other)


@_rule("DV-28", statement="batch + batch: counts double, means, extremes, ESS/N stay", cases=cases, special=specials)
def replicated(case: PairCase, ctx: Context) -> list[Measurement]:
    """A metric of the batch twice is the metric of the batch (NeMo-RL#3753: a ratio that grew with the batch)."""
    names = provided(ctx, (*COUNTS, *FIGURES))
    twice = case.replace(rows=case.rows * 2)
    once, outcome = ctx.call(case), ctx.call(twice)
    counted = [n for n in names if n in COUNTS]
    few, many = allowed(ctx.exact(case), ctx), allowed(ctx.exact(twice), ctx)
    stay = [n for n in names if n in FIGURES and n != "ratio_std" and not n.startswith("normalization_gap_")]
    stay = [n for n in stay if not no_promise(n, few[n]) and not no_promise(n, many[n])]
    doubled = [number(once, n) * (1.0 if n == "valid" else 2.0) for n in counted]
    return [
        holds(
            [number(outcome, n) == v for n, v in zip(counted, doubled, strict=True)],
            label=tuple(f"{n} doubles" for n in counted),
            rows=[-1] * len(counted),
            case=twice,
        ),
        near(outcome, once, stay, [few[n] + many[n] for n in stay], case=twice),
    ]


@_rule(
    "DV-29",
    statement="merge of any partition of the rows = the whole; merging an empty state changes no bit",
    cases=partial(cases, max_rows=5, kinds=tuple(PAIR_KINDS)),
    special=specials,
    requires={"state"},
)
def merge(case: PairCase, ctx: Context) -> list[Measurement]:
    """Micro-batches and ranks: no mean of means, no averaged maximum, no NaN lost by order."""
    make = ctx.state
    merged, backwards = make(), make()
    parts = [case.only(i) for i in range(case.size)]
    for part in parts:
        merged = merged.merge(make().merge(make()).update(part)).merge(make())
    for part in reversed(parts):
        backwards = make().update(part).merge(backwards)
    whole = make().update(case)
    exact = ctx.exact(case)
    exactly = (*COUNTS, *ORDER_FREE)
    out: list[Measurement] = []
    for state in (merged, backwards):
        out.append(same_fields(state.outcome(), whole.outcome(), exactly))
        out.append(exact_figures(state.outcome(), exact, FIGURES, ctx, merges=2 * len(parts)))
    empty = make().update(case).merge(make()).outcome()
    out.append(holds(repr(empty) == repr(whole.outcome()), label="merging an empty state changes no bit", rows=[-1]))
    return out


@_rule(
    "DV-30",
    statement="merge of any partition, in any order: the same bits",
    cases=lambda d: st.tuples(cases(d, max_rows=5, kinds=tuple(PAIR_KINDS)), st.integers(0, 119)).map(
        lambda pair: pair[0].replace(rows=tuple(_permuted(pair[0].rows, pair[1])))
    ),
    special=specials,
    requires={"state", "exact_merge"},
)
def merge_bits(case: PairCase, ctx: Context) -> list[Measurement]:
    """Sums that do not round make merging associative and commutative, bit for bit."""
    make = ctx.state
    whole = make().update(case)
    parts = [make().update(case.only(i)) for i in range(case.size)]
    while len(parts) > 1:  # as a tree, from the end
        parts = [parts[-1].merge(parts[0]), *parts[1:-1]]
    return [same_fields((parts[0] if parts else make()).outcome(), whole.outcome(), (*COUNTS, *FIGURES))]


def _permuted(rows: tuple[PairRow, ...], number: int) -> list[PairRow]:
    """The ``number``-th order of the rows, in the factorial number system."""
    left, out = list(rows), []
    while left:
        number, place = divmod(number, len(left))
        out.append(left.pop(place))
    return out


@_rule(
    "DV-31",
    statement="token figures: merge of any partition of the tokens = the whole",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=specials,
    requires={"state"},
)
def merge_tokens(case: PairCase, ctx: Context) -> list[Measurement]:
    """Token figures may be split inside rows too, as context parallelism does."""
    make = ctx.state
    names = [n for n in TOKEN_FIGURES if n in make().outcome().fields]
    if not names:
        raise NotProvided("its state computes no token figure")
    state = make()
    for q, p in case.tokens:
        state = state.merge(make().update(case.replace(rows=(PairRow((q,), (p,), (True,)),))))
    return [exact_figures(state.outcome(), ctx.exact(case), names, ctx, merges=len(case.tokens))]


@_rule("DV-32", statement="bits(q), bits(p), bits(mask) unchanged by the call", cases=cases)
def inputs_unmodified(case: PairCase, ctx: Context) -> Measurement:
    """No clamp, cast or mask fill in place."""
    return holds(not ctx.call(case).modified, label="inputs unmodified", rows=[-1])


@_rule("DV-33", statement="bits(fields) = bits(fields) again", cases=cases, requires={"run_to_run"})
def run_to_run(case: PairCase, ctx: Context) -> Measurement:
    """The same call gives the same bits."""
    return same_fields(ctx.call(case), ctx.call(case), provided(ctx, (*COUNTS, *FIGURES)))
