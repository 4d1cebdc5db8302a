"""Rules of ``correction`` that compare two calls: masked content, padding, order, packing, replication, merging."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from numerics.strategies.cases import PairCase, PairRow
from numerics.strategies.pairs import MASK_PATTERNS, PAIR_KINDS
from numerics.suite.measure import Measurement, holds, same
from numerics.suite.oracle_correction import COUNTS, FIGURES
from numerics.suite.properties.correction_fields import (
    agreement,
    cases,
    judged,
    kept_tokens,
    specials,
    spoiled,
    values_within,
    weights_of,
)
from numerics.suite.properties.fields import count_measurement, near, no_promise, number, same_fields
from numerics.suite.property import Context, Property, rule
from numerics.suite.states import StateUnderTest

__all__ = ["RULES"]

RULES: dict[str, Property] = {}
_rule = partial(rule, RULES, contract="correction")


@_rule(
    "CR-20",
    statement="weights, kept, figures independent of what stands at masked places, bit for bit",
    cases=partial(cases, patterns=[p for p in MASK_PATTERNS if p != "all"]),
    special=lambda d: [c for c in specials(d) if not all(valid for row in c.rows for valid in row.valid)],
)
def masked_content(case: PairCase, ctx: Context) -> list[Measurement]:
    """Masks select, they never multiply (NeMo-RL, ROLL, OpenRLHF, slime: NaN or inf times 0)."""
    want = ctx.call(case)
    names = [n for n in (*COUNTS, *FIGURES) if n in ctx.fields]
    out = []
    for rubbish in (math.nan, -math.inf, math.inf, 1e4):
        other = spoiled(case, rubbish)
        got = ctx.call(other)
        note = f", {rubbish:g} at masked places"
        out.append(same(got.values, want.values, label=f"weight{note}", rows=[-1] * got.values.size, case=other))
        assert got.kept is not None
        assert want.kept is not None
        out.append(holds(np.array_equal(got.kept, want.kept), label=f"kept{note}", rows=[-1], case=other))
        out.append(same_fields(got, want, names, note=note, case=other))
    return out


@_rule(
    "CR-21",
    statement="weights, kept, figures (batch + masked columns + empty rows) = those of the batch",
    cases=cases,
    special=specials,
)
def padding(case: PairCase, ctx: Context) -> list[Measurement]:
    """An empty row has no weight, no minimum and no share. Real: verl's rollout_is_seq_min is 0 with one."""
    longest = max((len(r.valid) for r in case.rows), default=0)
    empty = PairRow((0.0,) * (longest + 3), (-1.0,) * (longest + 3), (False,) * (longest + 3))
    return agreement(case, case.replace(rows=(empty, *case.rows, empty)), ctx)


@_rule("CR-22", statement="rows in another order: the same weights in that order", cases=cases, special=specials)
def order(case: PairCase, ctx: Context) -> list[Measurement]:
    """Reversed rows."""
    lengths = [sum(row.valid) for row in case.rows]
    starts = np.cumsum([0, *lengths])
    places = [i for k in reversed(range(case.size)) for i in range(starts[k], starts[k + 1])]
    return agreement(case, case.replace(rows=case.rows[::-1]), ctx, order=places)


@_rule(
    "CR-29",
    statement="tokens of every row in another order: the same weights in that order",
    cases=cases,
    special=specials,
)
def token_order(case: PairCase, ctx: Context) -> list[Measurement]:
    """A row is a set of tokens to every level. Real: a label shift of one drops the first (SkyRL#354)."""
    rows = tuple(PairRow(row.rollout[::-1], row.trainer[::-1], row.valid[::-1]) for row in case.rows)
    lengths = [sum(row.valid) for row in case.rows]
    starts = np.cumsum([0, *lengths])
    places = [i for k in range(case.size) for i in reversed(range(starts[k], starts[k + 1]))]
    return agreement(case, case.replace(rows=rows), ctx, order=places)


@_rule(
    "CR-23",
    statement="packed 1-D with row_ids = padded 2-D",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=specials,
    requires={"row_ids"},
)
def packed(case: PairCase, ctx: Context) -> list[Measurement]:
    """Packed sequences with the row of every token are the padded batch."""
    return agreement(case, case.replace(packed=True, row_ids=True, layout="contiguous"), ctx)


@_rule("CR-24", statement="batch + batch: the same weights, means and shares", cases=cases, special=specials)
def replicated(case: PairCase, ctx: Context) -> list[Measurement]:
    """Nothing grows with the batch (NeMo-RL#3753)."""
    twice = case.replace(rows=case.rows * 2)
    once, outcome = ctx.call(case), ctx.call(twice)
    right, there = judged(once, case, ctx), judged(outcome, twice, ctx)
    if right.open_units or there.open_units:
        return []
    got, want = weights_of(outcome, twice), np.tile(weights_of(once, case), 2)
    names = [n for n in FIGURES if n in ctx.fields and not n.endswith("_std")]
    names = [n for n in names if not no_promise(n, right.allowed[n]) and not no_promise(n, there.allowed[n])]
    return [
        values_within(got, [float(x) for x in want], [2 * a for a in there.weights_allowed], "weight", case=twice),
        near(outcome, once, names, [right.allowed[n] + there.allowed[n] for n in names], case=twice),
    ]


def _make(ctx: Context, case: PairCase) -> StateUnderTest:
    return ctx.state(**{k: v for k, v in case.option.items() if k not in ("normalize", "differentiable")})


@_rule(
    "CR-25",
    statement="merge of any partition of the rows = the whole; merging an empty state changes no bit",
    cases=partial(cases, max_rows=5, kinds=tuple(PAIR_KINDS)),
    special=specials,
    requires={"state"},
)
def merge(case: PairCase, ctx: Context) -> list[Measurement]:
    """Shares and means over micro-batches and ranks are those of all units."""
    merged = _make(ctx, case)
    for i in reversed(range(case.size)):
        part = _make(ctx, case).merge(_make(ctx, case)).update(case.only(i))
        merged = part.merge(merged)
    whole = _make(ctx, case).update(case)
    outcome = ctx.call(case)
    right = judged(outcome, case, ctx, merges=2 * case.size)
    got = merged.outcome()
    names = [n for n in FIGURES if not no_promise(n, right.allowed[n]) or not math.isfinite(float(right.figures[n]))]
    if right.open_units:  # the parts may decide otherwise than the whole
        names = [n for n in names if not n.startswith("kept") and "truncated" not in n]
    out = [
        count_measurement(got, right, COUNTS),
        values_within(
            [number(got, n) for n in names],
            [right.figures[n] for n in names],
            [right.allowed[n] for n in names],
            tuple(names),
        ),
    ]
    if "exact_merge" in ctx.implementation.provides:
        out.append(same_fields(got, whole.outcome(), (*COUNTS, *FIGURES), note=", same bits"))
    return out


@_rule("CR-26", statement="bits(q), bits(p), bits(mask) unchanged by the call", cases=cases)
def inputs_unmodified(case: PairCase, ctx: Context) -> Measurement:
    """No clamp, cast or mask fill in place."""
    return holds(not ctx.call(case).modified, label="inputs unmodified", rows=[-1])


@_rule("CR-27", statement="bits(weights, figures) = bits again", cases=cases, requires={"run_to_run"})
def run_to_run(case: PairCase, ctx: Context) -> list[Measurement]:
    """The same call gives the same bits."""
    first, second = ctx.call(case), ctx.call(case)
    names = [n for n in (*COUNTS, *FIGURES) if n in ctx.fields]
    return [
        same(second.values, first.values, label="weight", rows=[-1] * first.values.size),
        same_fields(second, first, names),
        holds(kept_tokens(first, case) == kept_tokens(second, case), label="kept", rows=[-1]),
    ]
