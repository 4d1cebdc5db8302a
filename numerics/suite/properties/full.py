"""Rules of ``full_divergence``: figures, directions, ranges, supports, masks, chunks, bad input."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from numerics.formats import FORMATS
from numerics.strategies.full_cases import ROW_KINDS, FullCase, FullRow, full_cases
from numerics.suite.bounds import gamma
from numerics.suite.contracts import BadResult, Outcome
from numerics.suite.measure import Measurement, holds, mp, same
from numerics.suite.oracle_full import COUNTS, FIGURES, ROW_FIGURES
from numerics.suite.properties.correction_fields import values_within
from numerics.suite.properties.fields import count_measurement, near, number, provided, same_fields
from numerics.suite.property import Context, Domain, NotProvided, Property, refuses, rule

__all__ = ["RULES"]

RULES: dict[str, Property] = {}
_rule = partial(rule, RULES, contract="full_divergence")
_EVERY = tuple(ROW_KINDS)


def _cases(domain: Domain, **options: Any) -> st.SearchStrategy[FullCase]:
    return full_cases(**{"dtype": domain.dtype, "trainer_dtypes": domain.dtypes, **options})


def _case(*rows: tuple[tuple[float, ...], tuple[float, ...]], dtype: str) -> FullCase:
    return FullCase(tuple(FullRow(q, p) for q, p in rows), dtype, dtype)


def _specials(domain: Domain) -> list[FullCase]:
    """Regimes that must be met: supports that differ, certainty, ties, one ULP, an offset, V = 1."""
    d, inf = domain.dtype, math.inf
    up = FORMATS[d].next_up(1.0)
    found = [
        _case(((0.0, 1.0, 2.0), (0.0, 1.0, 2.0)), ((0.0, 0.0, 0.0), (0.0, 0.0, 1.0)), dtype=d),
        _case(((0.0, 1.0, up), (0.0, 1.0, 1.0)), dtype=d),
        _case(((0.0, 1.0, 2.0), (4.0, 5.0, 6.0)), dtype=d),
        _case(((0.0, -inf, 1.0), (0.0, 1.0, 1.0)), ((0.0, 1.0, 1.0), (0.0, -inf, 1.0)), dtype=d),
        _case(((0.0, -inf, 1.0), (0.0, -inf, 2.0)), dtype=d),
        _case(((60.0, 0.0, 0.0), (0.0, 60.0, 0.0)), ((60.0, 0.0, 0.0), (60.0, 0.0, 1.0)), dtype=d),
        _case(((2.0, 2.0, 1.0, 0.0), (2.0, 2.0, 0.0, 1.0)), dtype=d).replace(options=(("overlap_k", 3),)),
        _case(((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)), dtype=d).replace(options=(("overlap_k", 1),)),
        _case(((3.0,), (-3.0,)), dtype=d),
        _case(((0.0, 8.0), (0.0, -8.0)), ((0.5, 1.5), (0.25, 1.75)), dtype=d),
        _case(((0.0, -800.0), (0.0, -inf)), ((0.0, -inf), (0.0, -800.0)), ((0.0, -800.0), (0.0, -768.0)), dtype=d),
        _case(((0.0, -44.0), (0.0, -40.0)), ((-96.0, 0.0), (-104.0, 0.0)), dtype=d),
    ]
    masked = FullRow((0.0, 1.0), (5.0, 1.0), False)
    return [*found, FullCase((FullRow((0.0, 1.0), (1.0, 0.0)), masked), d, d), FullCase((masked,), d, d)]


def _beside_nan(domain: Domain) -> FullCase:
    """A row that is no distribution, between two that are."""
    rows = ((0.0, 1.0), (1.0, 0.0)), ((0.0, math.nan), (0.0, 1.0)), ((0.0, 0.5), (0.0, 0.0))
    return _case(*rows, dtype=domain.dtype)


def _rows(outcome: Outcome, case: FullCase, name: str) -> np.ndarray[Any, Any]:
    """A figure of every valid row."""
    rows = outcome.fields.get("rows")
    if not isinstance(rows, dict) or name not in rows:
        raise NotProvided(f"does not return rows with {name}")
    values = np.asarray(rows[name], dtype=np.float64).ravel()
    if values.size != case.size:
        raise BadResult(f"rows[{name!r}] has {values.size} elements for {case.size} rows")
    return values[[row.valid for row in case.rows]]


@_rule(
    "FV-01",
    statement="|TV, KL(Q||P), KL(P||Q), JSD, overlap, gap of a row - exact| <= bound(row; algorithm)",
    cases=partial(_cases, kinds=_EVERY),
    special=_specials,
)
def row_figures(case: FullCase, ctx: Context) -> list[Measurement]:
    """Every row, both directions, where supports differ (inf) and where a side is no distribution (NaN)."""
    outcome, exact = ctx.call(case), ctx.exact(case)
    bound = exact.row_allowed(ctx.algorithm)
    rows = [i for i, row in enumerate(case.rows) if row.valid]
    return [
        values_within(
            _rows(outcome, case, name),
            [row.figures[name] for row in exact.rows],
            [b[name] for b in bound],
            name,
            rows=rows,
        )
        for name in ROW_FIGURES
    ]


@_rule(
    "FV-02",
    statement="counts exact; |mean, max over rows - exact| <= bound",
    cases=partial(_cases, kinds=_EVERY),
    special=lambda d: [*_specials(d), _beside_nan(d)],
)
def summary(case: FullCase, ctx: Context) -> list[Measurement]:
    """Means weigh by valid rows; the maximum takes NaN; bit-equal rows and one arg-max are counted."""
    names, figures = provided(ctx, (*COUNTS, *FIGURES)), [n for n in FIGURES if n in ctx.fields]
    outcome, exact = ctx.call(case), ctx.exact(case)
    bound = exact.allowed(ctx.algorithm)
    return [
        count_measurement(outcome, exact, [n for n in names if n in COUNTS]),
        values_within(
            [number(outcome, n) for n in figures],
            [exact.figures[n] for n in figures],
            [bound[n] for n in figures],
            tuple(figures),
        ),
    ]


@_rule(
    "FV-03",
    statement="the sides swapped: TV, JSD, overlap, gap stay; KL(Q||P) and KL(P||Q) swap",
    cases=_cases,
    special=_specials,
)
def swapped(case: FullCase, ctx: Context) -> list[Measurement]:
    """KL is named by its direction: the rollout's distribution is Q. Real: torch's kl_div takes them the other way."""
    rows = tuple(dataclasses.replace(row, rollout=row.trainer, trainer=row.rollout) for row in case.rows)
    other = case.replace(rows=rows, rollout_dtype=case.trainer_dtype, trainer_dtype=case.rollout_dtype)
    got, want = ctx.call(other), ctx.call(case)
    bound = ctx.exact(case).row_allowed(ctx.algorithm)
    turned = {"kl_rollout_trainer": "kl_trainer_rollout", "kl_trainer_rollout": "kl_rollout_trainer"}
    return [
        values_within(
            _rows(got, other, turned.get(name, name)),
            [mp.mpf(float(x)) for x in _rows(want, case, name)],
            [2 * b[name] for b in bound],
            f"{turned.get(name, name)} of the swapped sides",
            case=other,
        )
        for name in ROW_FIGURES
    ]


@_rule("FV-04", statement="equal logits: TV, KL, JSD, gap = 0 exactly, overlap 1, one arg-max", cases=_cases)
def identical(case: FullCase, ctx: Context) -> list[Measurement]:
    """Equal rows differ in nothing, exactly. (JSD owes its bound only, unless `small_differences`.)"""
    rows = tuple(dataclasses.replace(row, trainer=row.rollout) for row in case.rows)
    twin = case.replace(rows=rows, trainer_dtype=case.rollout_dtype)
    outcome = ctx.call(twin)
    zero = ["tv", "kl_rollout_trainer", "kl_trainer_rollout", "logprob_gap"]
    zero += ["jsd"] if "small_differences" in ctx.implementation.provides else []
    return [
        *(holds(_rows(outcome, twin, n) == 0, label=f"{n} = 0", rows=[-1] * _count(twin), case=twin) for n in zero),
        holds(_rows(outcome, twin, "top_k_overlap") == 1, label="overlap = 1", rows=[-1] * _count(twin), case=twin),
    ]


def _count(case: FullCase) -> int:
    return sum(row.valid for row in case.rows)


@_rule(
    "FV-05",
    statement="0 <= TV <= 1, 0 <= JSD <= ln 2, KL >= 0, 2 TV^2 <= KL, 0 <= overlap <= 1",
    cases=_cases,
    special=_specials,
)
def ranges(case: FullCase, ctx: Context) -> list[Measurement]:
    """Pinsker's inequality and the ranges hold within the bounds, whatever the data; nothing is below 0 at all."""
    outcome, bound = ctx.call(case), ctx.exact(case).row_allowed(ctx.algorithm)
    got = {name: _rows(outcome, case, name) for name in ROW_FIGURES}
    room = {name: np.array([b[name] for b in bound]) for name in ROW_FIGURES}
    out = [
        holds(got["tv"] <= 1 + room["tv"], label="TV <= 1", rows=[-1] * len(bound)),
        holds(got["jsd"] <= math.log(2) + room["jsd"], label="JSD <= ln 2", rows=[-1] * len(bound)),
    ]
    out += [
        holds(got[n] >= -room[n], label=f"{n} >= 0", rows=[-1] * len(bound)) for n in ROW_FIGURES if n != "logprob_gap"
    ]
    for name in ("kl_rollout_trainer", "kl_trainer_rollout"):
        left = 2 * np.maximum(got["tv"] - room["tv"], 0) ** 2
        out.append(holds(left <= got[name] + room[name], label=f"2 TV^2 <= {name}", rows=[-1] * len(bound)))
    return out


@_rule(
    "FV-06",
    statement="logits differing by at most 2^-6: |KL - exact| <= gamma(V + 64) sum Q (delta^2)",
    cases=partial(_cases, kinds=("identical", "ulps", "close")),
    special=lambda d: _specials(d)[:2],
    requires={"small_differences"},
)
def small_differences(case: FullCase, ctx: Context) -> list[Measurement]:
    """The divergence of nearly equal rows is second order in the difference; sum Q (ln Q - ln P) has lost it.

    With delta the difference of the logits and x = delta - ln sum Q exp(delta), x is off by a few roundings of the
    largest delta of weight, and KL = sum Q (exp x - 1 - x) by as many of sum Q delta^2.
    """
    outcome, exact = ctx.call(case), ctx.exact(case)
    u = FORMATS["float32" if ctx.algorithm.accumulate == "compute" else ctx.algorithm.accumulate].u
    k = float(gamma(case.width + 64, u))
    rows = [r for r in exact.rows if r.sound]
    spread = [
        math.fsum(float(a) * (p - q) ** 2 for a, q, p in zip(r.probs[0], *r.logits, strict=True) if q > -math.inf)
        for r in rows
    ]
    back = [
        math.fsum(float(a) * (p - q) ** 2 for a, q, p in zip(r.probs[1], *r.logits, strict=True) if p > -math.inf)
        for r in rows
    ]
    out = []
    for name, size in (("kl_rollout_trainer", spread), ("kl_trainer_rollout", back), ("jsd", spread)):
        out.append(
            values_within(
                _rows(outcome, case, name),
                [r.figures[name] for r in rows],
                [2 * k * s + 5e-324 for s in size],
                f"{name}, second order",
            )
        )
    return out


@_rule(
    "FV-16",
    statement="|TV, KL, JSD - exact| <= 2 gamma(V + 64) (itself + sum of P, Q (1 + gap), leader left out)",
    cases=partial(_cases, kinds=("certain", "far", "unrelated")),
    special=_specials,
    requires={"small_differences"},
)
def certain_rows(case: FullCase, ctx: Context) -> list[Measurement]:
    """Two policies that are nearly certain of the same token differ by little, and that little keeps its digits.

    The log-prob of the leader is -ln(1 + the others), which errs by u of the others; that of another token by u of its
    gap to the leader. Every term of the sums errs by its slope times these, and by a few roundings of itself.
    Where the leader's log-prob is y - ln of a sum that includes its own 1, all of it is lost beyond gaps of 37.
    """
    outcome, exact = ctx.call(case), ctx.exact(case)
    inner = FORMATS["float32" if ctx.algorithm.accumulate == "compute" else ctx.algorithm.accumulate]
    k = 2 * float(gamma(case.width + 64, inner.u))
    rows = [r for r in exact.rows if r.sound]
    others = [sum(_beside_the_leader(y, probs) for y, probs in zip(r.logits, r.probs, strict=True)) for r in rows]
    kept = [i for i, r in enumerate(exact.rows) if r.sound]
    return [
        values_within(
            _rows(outcome, case, name)[kept],
            [r.figures[name] for r in rows],
            [
                k * (float(r.figures[name]) + other) + 1024 * case.width * inner.min_normal
                if mp.isfinite(r.figures[name])
                else 0.0
                for r, other in zip(rows, others, strict=True)
            ],
            f"{name} of the row",
        )
        for name in ("tv", "kl_rollout_trainer", "kl_trainer_rollout", "jsd")
    ]


def _beside_the_leader(y: tuple[float, ...], probs: tuple[Any, ...]) -> float:
    """The sum of P (1 + gap) over all tokens but the leading one."""
    leader = y.index(max(y))
    return math.fsum(
        float(x) * (1 + y[leader] - v)
        for i, (x, v) in enumerate(zip(probs, y, strict=True))
        if i != leader and v > -math.inf
    )


def _tempered(domain: Domain) -> list[tuple[FullCase, float]]:
    """The usual cases, and one whose logits overflow when they are divided."""
    hot = _case(((8.0, 8.0, -math.inf), (8.0, 8.0, 8.0)), ((8.0, 8.0, 8.0), (8.0, 8.0, 8.0)), dtype=domain.dtype)
    return [*((case, 0.7) for case in _specials(domain)), (hot, 2.0**-1022)]


@_rule(
    "FV-17",
    statement="temperature = T: the figures of z/T, divided in float64; z/T that overflows is shifted first",
    cases=partial(_cases, kinds=_EVERY, temperatures=(0.5, 0.7, 1.3, 4.0)),
    special=lambda domain: [c.replace(options=(*c.options, ("temperature", t))) for c, t in _tempered(domain)],
    requires={"temperature"},
)
def temperature(case: FullCase, ctx: Context) -> list[Measurement]:
    """Both sides are divided by the same T, never rounded to their dtype.

    With `overflow_safe` a finite row stays a distribution where z/T overflows.
    """
    if "overflow_safe" not in ctx.implementation.provides and case.option["temperature"] < 2.0**-1000:
        return []
    outcome, exact = ctx.call(case), ctx.exact(case)
    bound = exact.row_allowed(ctx.algorithm)
    figures = [
        values_within(_rows(outcome, case, name), [r.figures[name] for r in exact.rows], [b[name] for b in bound], name)
        for name in ROW_FIGURES
    ]
    return [*figures, count_measurement(outcome, exact, provided(ctx, COUNTS))]


@_rule(
    "FV-07",
    statement="figures independent of what stands in masked rows, bit for bit",
    cases=partial(_cases, kinds=_EVERY),
    special=_specials,
)
def masked_content(case: FullCase, ctx: Context) -> list[Measurement]:
    """Masks select rows."""
    names = provided(ctx, (*COUNTS, *FIGURES))
    want, out = ctx.call(case), []
    for rubbish in (math.nan, math.inf, 1e4):
        rows = tuple(
            row if row.valid else dataclasses.replace(row, rollout=(rubbish,) * case.width) for row in case.rows
        )
        spoiled = case.replace(rows=rows)
        out.append(same_fields(ctx.call(spoiled), want, names, note=f", {rubbish:g} in masked rows", case=spoiled))
    return out


@_rule(
    "FV-08",
    statement="rows in any order, and in any company: each row's figures have the same bits",
    cases=_cases,
    requires={"batch_invariant"},
)
def row_by_row(case: FullCase, ctx: Context) -> list[Measurement]:
    """Reversed, and alone: chunks and neighbours change nothing."""
    want = ctx.call(case)
    back = case.replace(rows=case.rows[::-1])
    got = ctx.call(back)
    out = []
    for name in ROW_FIGURES:
        mine = _rows(want, case, name)
        out.append(same(_rows(got, back, name)[::-1], mine, label=name, rows=[-1] * mine.size, case=back))
    kept = [i for i, row in enumerate(case.rows) if row.valid]
    if kept:
        alone = case.only(kept[0])
        single = ctx.call(alone)
        out += [
            same(_rows(single, alone, name), _rows(want, case, name)[:1], label=f"{name}, alone", rows=[-1], case=alone)
            for name in ROW_FIGURES
        ]
    return out


@_rule(
    "FV-09",
    statement="bits(figures) do not depend on chunk_bytes",
    cases=partial(_cases, kinds=_EVERY, max_rows=5),
    special=_specials,
    requires={"chunk_bytes"},
)
def chunks(case: FullCase, ctx: Context) -> Measurement:
    """One row at a time gives the figures of all at once."""
    names = provided(ctx, (*COUNTS, *FIGURES))
    single = case.replace(options=(*case.options, ("chunk_bytes", 1)))
    return same_fields(ctx.call(single), ctx.call(case), names, note=", one row a chunk", case=single)


@_rule(
    "FV-18",
    statement="a row of 40,000 tokens: bits(figures) independent of the number of threads and of other rows",
    cases=lambda d: st.sampled_from(
        [_case((row, row[::-1]), dtype=d.dtype) for row in ((0.0, 1.0, 2.5), (-3.0, 0.5, 0.25, 2.0, 1.0))]
    ),
    requires={"batch_invariant"},
    devices=("cpu",),
)
def wide_rows(case: FullCase, ctx: Context) -> list[Measurement]:
    """The case's row, repeated to 40,000 tokens: alone on one thread, alone on four, and twice on four.

    Real: this reference. torch sums a lone row of 32,768 entries in parts, one a thread, and several rows one by one,
    so the chunk size and OMP_NUM_THREADS changed bits.
    """
    times = -(-40_000 // case.width)
    row = FullRow(case.rows[0].rollout * times, case.rows[0].trainer * times)
    alone, pair = case.replace(rows=(row,)), case.replace(rows=(row, row))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        want = ctx.call(alone)
        torch.set_num_threads(4)
        got = ((ctx.call(alone), alone, "four threads"), (ctx.call(pair), pair, "four threads, two rows"))
    finally:
        torch.set_num_threads(before)
    return [
        same(_rows(outcome, wide, name)[:1], _rows(want, alone, name), label=f"{name}, {what}", rows=[-1])
        for outcome, wide, what in got
        for name in ROW_FIGURES
    ]


@_rule(
    "FV-10",
    statement="N = 0: valid = 0, counts 0, every other figure NaN",
    cases=lambda d: _cases(d).map(
        lambda c: c.replace(rows=tuple(dataclasses.replace(row, valid=False) for row in c.rows))
    ),
)
def all_masked(case: FullCase, ctx: Context) -> Measurement:
    """Nothing compared is not agreement."""
    names = provided(ctx, (*COUNTS, *FIGURES))
    outcome = ctx.call(case)
    ok = [number(outcome, n) == 0 if n in COUNTS else math.isnan(number(outcome, n)) for n in names]
    return holds(ok, label=tuple(f"{n} of no row" for n in names), rows=[-1] * len(names))


@_rule(
    "FV-11",
    statement="the token of the largest gap has the largest gap, the lowest id among equals",
    cases=_cases,
    special=_specials,
)
def gap_token(case: FullCase, ctx: Context) -> Measurement:
    """Where to look first. A token whose gap is within both bounds of the largest is right too."""
    outcome, exact = ctx.call(case), ctx.exact(case)
    got = _rows(outcome, case, "gap_token")
    ok = []
    for token, row, bound in zip(got, exact.rows, exact.row_allowed(ctx.algorithm), strict=True):
        gaps = [mp.mpf(0) if a == b else abs(a - b) for a, b in zip(*row.logs, strict=True)]
        near_enough = 0 <= token < len(gaps) and gaps[int(token)] >= max(gaps) - 2 * bound["logprob_gap"]
        sure = max(gaps) == mp.inf or row.bit_equal  # a common offset leaves every implementation its own roundings
        ok.append(token == row.gap_token if sure else near_enough)
    return holds(ok, label="gap_token", rows=[-1] * len(ok))


@_rule("FV-12", statement="batch + batch: counts double, means and maxima stay", cases=_cases, special=_specials)
def replicated(case: FullCase, ctx: Context) -> list[Measurement]:
    """Means over rows are not sums over the batch. Real: torch's kl_div(reduction='mean') divides by B V."""
    names = provided(ctx, (*COUNTS, *FIGURES))
    twice = case.replace(rows=case.rows * 2)
    got, want, bound = ctx.call(twice), ctx.call(case), ctx.exact(case).allowed(ctx.algorithm)
    counted = [n for n in names if n in COUNTS]
    figures = [n for n in names if n in FIGURES]
    return [
        holds(
            [number(got, n) == number(want, n) * (1 if n == "valid" else 2) for n in counted],
            label=tuple(f"{n} doubles" for n in counted),
            rows=[-1] * len(counted),
            case=twice,
        ),
        near(got, want, figures, [2 * bound[n] for n in figures], case=twice),
    ]


@_rule(
    "FV-13",
    statement="unequal shapes, integer logits, no vocabulary, a mask with 0.5, overlap_k < 1 => error",
    cases=_cases,
    requires={"checks_arguments"},
)
def bad_input(case: FullCase, ctx: Context) -> Measurement:
    """Nothing is broadcast."""
    z, mask = torch.zeros(2, 3, device=ctx.device), torch.ones(2, device=ctx.device)
    wrong: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "vocabulary": ((z, z[:, :2], mask), {}),
        "broadcast": ((z, z[:1], mask), {}),
        "mask shape": ((z, z, mask[:1]), {}),
        "mask 0.5": ((z, z, mask * 0.5), {}),
        "integer logits": ((z.long(), z, mask), {}),
        "V = 0": ((z[:, :0], z[:, :0], mask), {}),
    }
    if "overlap_k" in ctx.implementation.provides:
        wrong["overlap_k 0"] = ((z, z, mask), {"overlap_k": 0})
    ok = [refuses(ctx.implementation.fn, *arguments, **named) for arguments, named in wrong.values()]
    return holds(ok, label=tuple(f"{x} raises" for x in wrong), rows=[-1] * len(wrong))


@_rule("FV-14", statement="bits(logits), bits(mask) unchanged by the call", cases=partial(_cases, kinds=_EVERY))
def inputs_unmodified(case: FullCase, ctx: Context) -> Measurement:
    """No division by a temperature, and no fill, in place."""
    return holds(not ctx.call(case).modified, label="inputs unmodified", rows=[-1])


@_rule("FV-15", statement="bits(figures) = bits(figures) again", cases=_cases, requires={"run_to_run"})
def run_to_run(case: FullCase, ctx: Context) -> Measurement:
    """The same call gives the same bits."""
    return same_fields(ctx.call(case), ctx.call(case), provided(ctx, (*COUNTS, *FIGURES)))
