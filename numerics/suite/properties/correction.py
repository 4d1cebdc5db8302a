"""Rules of ``correction``: weights, kept tokens, diagnostics, tails, gradients, bad input."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from numerics.formats import FORMATS
from numerics.strategies.cases import PairCase, PairRow
from numerics.strategies.pairs import PAIR_KINDS
from numerics.suite.bounds import gamma
from numerics.suite.measure import Measurement, holds, mp, same
from numerics.suite.oracle_correction import COUNTS, FIGURES
from numerics.suite.properties.correction_fields import (
    cases,
    judged,
    kept_tokens,
    masked_weights,
    options,
    positions,
    specials,
    values_within,
    weights_of,
)
from numerics.suite.properties.divergence_fields import pairs_of
from numerics.suite.properties.fields import count_measurement, no_promise, number, provided, same_fields
from numerics.suite.property import Context, Property, refuses, rule

__all__ = ["RULES"]

RULES: dict[str, Property] = {}
_rule = partial(rule, RULES, contract="correction")
_CALM = ("identical", "ulps", "far", "near_certain")


@_rule(
    "CR-01",
    statement="truncate: |weight - min(max(w, lower), upper)| <= bound; zero: w inside [lower, upper], else 0",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=specials,
)
def weights(case: PairCase, ctx: Context) -> Measurement:
    """Weights are right at every level, and where exp overflows: the cap, or 0 outside.

    Real: d = 89 gives weight 0 in NeMo-RL (overflow to 0 before the clamp), NaN in OpenRLHF (inf times False), 0.5 for
    0.0067 in OpenRLHF (an undeclared floor); a clamp of d at 20 in verl and SkyRL.
    """
    outcome = ctx.call(case)
    right = judged(outcome, case, ctx)
    return values_within(
        weights_of(outcome, case), right.weights, right.weights_allowed, "weight", format=outcome.format
    )


@_rule(
    "CR-02",
    statement="kept = valid tokens whose unit lies inside the bounds, whole rows at row levels",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=specials,
)
def kept(case: PairCase, ctx: Context) -> Measurement:
    """A rejection is one decision for each unit, in the units of its definition.

    Real: verl's token_k1 thresholds bound 1/w, so "0.5_3.0" keeps w = 0.4 and rejects 2.5.
    """
    outcome = ctx.call(case)
    got, right = kept_tokens(outcome, case), judged(outcome, case, ctx)
    return same([float(k) for k in got], [float(k) for k in right.kept], label="kept", rows=[-1] * len(got))


@_rule(
    "CR-03",
    statement="every count = its definition, exactly",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=specials,
)
def counts(case: PairCase, ctx: Context) -> Measurement:
    """Tokens, rows with a token, units, non-finite tokens and undefined units."""
    names = provided(ctx, COUNTS)
    outcome = ctx.call(case)
    return count_measurement(outcome, judged(outcome, case, ctx), names)


@_rule(
    "CR-04",
    statement="|diagnostic - exact| <= bound: raw before truncation, both tails, after truncation, kept, ESS",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=specials,
)
def diagnostics(case: PairCase, ctx: Context) -> Measurement:
    """Raw figures are of the ratios before anything was cut, shares count both tails.

    Real: TRL and NeMo report the ratio after the clip, so its maximum never exceeds the cap; SkyRL's minimum is of
    ratio times mask; ROLL divides kept tokens by all places; verl's ESS divides by zero when all weights are 0.
    """
    names = provided(ctx, FIGURES)
    outcome = ctx.call(case)
    right = judged(outcome, case, ctx)
    names = [n for n in names if not (mp.isfinite(right.figures[n]) and no_promise(n, right.allowed[n]))]
    return values_within(
        [number(outcome, n) for n in names],
        [right.figures[n] for n in names],
        [right.allowed[n] for n in names],
        tuple(names),
    )


@_rule(
    "CR-05",
    statement="weight = 0 at masked and at dropped places; kept is False at masked ones",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=specials,
)
def zero_elsewhere(case: PairCase, ctx: Context) -> list[Measurement]:
    """A weight is 0 wherever the loss must not look. Real: verl's weights keep NaN at masked places."""
    outcome = ctx.call(case)
    got = kept_tokens(outcome, case)
    dropped = weights_of(outcome, case)[[not k for k in got]] if got else np.zeros(0)
    assert outcome.kept is not None
    outside = np.delete(outcome.kept, positions(case))
    return [
        holds(masked_weights(outcome, case) == 0, label="masked weight is 0", rows=[-1] * (outside.size)),
        holds(~outside, label="masked place is not kept", rows=[-1] * outside.size),
        holds(dropped == 0, label="dropped weight is 0", rows=[-1] * dropped.size),
    ]


@_rule(
    "CR-06",
    statement="NaN ratio or statistic: weight 0, not kept, its whole row at row levels, counted",
    cases=partial(cases, kinds=("nan", "infinite", "far", "identical")),
    special=lambda d: [c for c in specials(d) if not all(math.isfinite(v) for pair in c.tokens for v in pair)],
)
def undefined(case: PairCase, ctx: Context) -> list[Measurement]:
    """What is no number is not on policy. Real: SkyRL's sequence masks and open-instruct's weights keep NaN."""
    outcome = ctx.call(case)
    right = judged(outcome, case, ctx)
    got = weights_of(outcome, case)
    out = [holds(np.isfinite(got), label="weight is finite", rows=[-1] * got.size)]
    if "undefined_count" in ctx.fields:
        out.append(count_measurement(outcome, right, ["undefined_count"]))
    return out


@_rule(
    "CR-07",
    statement="truncate: weight does not fall as d grows, up to d = inf",
    cases=lambda d: st.lists(
        st.sampled_from([-math.inf, -700.0, -110.0, -89.0, -20.0, -1.0, 0.0, 0.5, 1.0, 20.0, 88.0, 89.0, 110.0, 720.0]),
        min_size=2,
        max_size=5,
        unique=True,
    ).map(lambda ds: _ladder(ds, d.dtype)),
    special=lambda d: [_ladder([-math.inf, -110.0, 0.0, 88.0, 89.0, 110.0], d.dtype)],
)
def monotone(case: PairCase, ctx: Context) -> Measurement:
    """A larger ratio never gets a smaller weight: nothing wraps to 0 at overflow (NeMo-RL: 2 at d = 88, 0 at 89)."""
    got = weights_of(ctx.call(case), case)
    return holds(got[1:] >= got[:-1], label="weight monotone in d", rows=[-1] * (got.size - 1))


def _ladder(ds: list[float], dtype: str) -> PairCase:
    row = [(-1.0, -1.0 + x) for x in sorted(ds)]
    return pairs_of(row, dtype=dtype).replace(options=options("truncate", "token", upper=2.0))


@_rule(
    "CR-08",
    statement="kept_fraction, kept_row_fraction, ratio_truncated_* = those of the weights and mask that came back",
    cases=partial(cases, levels=("token", "row_sum", "row_mean", "row_max", "row_min")),
    special=lambda d: [c for c in specials(d) if c.option["level"] in ("token", "row_max", "row_min")],
)
def recomputed(case: PairCase, ctx: Context) -> Measurement:
    """Diagnostics describe the weights that are returned, not others."""
    names = provided(
        ctx,
        ("kept_fraction", "kept_row_fraction", "ratio_truncated_mean", "ratio_truncated_min", "ratio_truncated_max"),
    )
    outcome = ctx.call(case)
    got = weights_of(outcome, case)
    if not got.size:
        return holds([], label="recomputed")
    keep = kept_tokens(outcome, case)
    right = judged(outcome, case, ctx)
    lengths = [len(row) for row in case.row_tokens]
    starts = np.cumsum([0, *lengths])
    rows = [any(keep[a:b]) for a, b in itertools.pairwise(starts)]
    want = {
        "kept_fraction": mp.mpf(sum(keep)) / len(keep),
        "kept_row_fraction": mp.mpf(sum(rows)) / len(rows),
        "ratio_truncated_mean": sum((mp.mpf(float(x)) for x in got), mp.mpf(0)) / got.size,
        "ratio_truncated_min": mp.mpf(float(got.min())),
        "ratio_truncated_max": mp.mpf(float(got.max())),
    }
    # the weights came back rounded to their format
    worst = FORMATS[outcome.format].u * float(np.abs(got).max()) + FORMATS[outcome.format].min_normal
    names = [n for n in names if not no_promise(n, right.allowed[n])]
    return values_within(
        [number(outcome, n) for n in names],
        [want[n] for n in names],
        [right.allowed[n] + (2 * worst if n.startswith("ratio") else 0.0) for n in names],
        tuple(f"{n} of what came back" for n in names),
    )


_RAW = ("ratio_mean", "ratio_min", "ratio_max", "ratio_std", "ess_fraction")


@_rule(
    "CR-09",
    statement="raw ratio figures do not depend on the bounds, bit for bit",
    cases=partial(cases, rules=("truncate", "zero")),
    special=lambda d: [c for c in specials(d) if c.option["rule"] in ("truncate", "zero")],
)
def raw_statistics(case: PairCase, ctx: Context) -> Measurement:
    """Figures taken after the cut can never show that the cut bites (TRL#5231)."""
    names = provided(ctx, _RAW)
    other = dict(case.options) | {"upper": 1e6} | ({"lower": 0.0} if case.option["rule"] == "zero" else {})
    wide = case.replace(options=tuple(other.items()))
    got, want = ctx.call(wide), ctx.call(case)
    return same(
        [number(got, n) for n in names],
        [number(want, n) for n in names],
        label=tuple(f"{n} under other bounds" for n in names),
        rows=[-1] * len(names),
        format="float64",
        case=wide,
    )


@_rule(
    "CR-10",
    statement="p = q, 1 inside the bounds: every weight is 1, every token is kept, exactly",
    cases=partial(cases, kinds=("ulps", "far", "near_certain", "improbable")),
    special=specials,
)
def identical(case: PairCase, ctx: Context) -> list[Measurement]:
    """Identical finite sides are on policy. Real: AReaL's binary_kl rejects identical certain tokens."""
    rows = tuple(dataclasses.replace(row, trainer=row.rollout) for row in case.rows)
    twin = case.replace(rows=rows, trainer_dtype=case.rollout_dtype)
    option = twin.option
    inside = (option.get("lower") or 0.0) <= 1.0 <= option.get("upper", 1.0)
    if option["rule"] in ("reject", "veto"):
        inside = 0.0 <= option["threshold"] <= (1.0 if option["rule"] == "veto" else math.inf)
    if not inside or not all(math.isfinite(v) for pair in twin.tokens for v in pair):
        return []
    outcome = ctx.call(twin)
    got, keep = weights_of(outcome, twin), kept_tokens(outcome, twin)
    return [
        holds(got == 1, label="weight is 1", rows=[-1] * got.size, case=twin),
        holds(keep, label="kept", rows=[-1] * got.size, case=twin),
    ]


@_rule(
    "CR-11",
    statement="d sum(weights) / d trainer = w (n_r w at level sequence), 0 where it was cut or masked",
    cases=lambda d: cases(d, rules=("truncate", "zero"), kinds=(*_CALM, "infinite", "nan")).map(_differentiated),
    special=lambda d: [
        _differentiated(c) for c in [*specials(d), *_long_rows(d.dtype)] if c.option["rule"] in ("truncate", "zero")
    ],
    requires={"autograd", "differentiable"},
)
def gradient(case: PairCase, ctx: Context) -> list[Measurement]:
    """Exactly 0 at masked places even where they hold NaN; none through what was cut; a row's tokens are summed in the
    format of the weights, not of the log-probs.

    Real: the gradient of where(m, x w, 0) with w = NaN is NaN (verl). A sum of ones in bfloat16 stops at 256.
    """
    outcome = ctx.call(case)
    right = judged(outcome, case, ctx)
    assert outcome.gradient is not None
    got = outcome.gradient[positions(case)]
    outside = np.delete(outcome.gradient, positions(case))
    leaf, weight = FORMATS[case.trainer_dtype], FORMATS[outcome.format]
    lengths = [len(row) if case.option["level"] != "token" else 1 for row in case.row_tokens for _ in row]
    times = lengths if case.option["level"] == "sequence" else [1] * len(lengths)
    want, allowed, settled = [], [], []
    for w, bound, cut, length, factor in zip(
        right.weights, right.weights_allowed, right.cut, lengths, times, strict=True
    ):
        slope = mp.mpf(0) if cut else w * factor
        of_sum = factor * (2 * bound + float(gamma(length + 2, weight.u)) * (float(w) + bound))
        want.append(slope)
        allowed.append(0.0 if cut else of_sum + leaf.u * (float(slope) + of_sum) + leaf.min_normal)
        settled.append(cut is not None and slope + allowed[-1] < leaf.max)
    open_ones = [0 <= g <= w + a or not w + a < leaf.max for g, w, a in zip(got, want, allowed, strict=True)]
    chosen = [i for i, known in enumerate(settled) if known]
    return [
        values_within(
            got[chosen],
            [want[i] for i in chosen],
            [allowed[i] for i in chosen],
            "gradient",
            format=case.trainer_dtype,
        ),
        holds(
            [x or known for x, known in zip(open_ones, settled, strict=True)], label="gradient on a border in [0, w]"
        ),
        holds(outside == 0, label="masked gradient is 0", rows=[-1] * outside.size),
    ]


def _long_rows(dtype: str) -> list[PairCase]:
    """More tokens than a bfloat16 counts, on policy."""
    return [
        pairs_of([(-1.0, -1.0)] * 300, [(-1.0, -1.25)], dtype=dtype).replace(
            options=options("truncate", level, upper=2.0)
        )
        for level in ("sequence", "sequence_geometric")
    ]


def _differentiated(case: PairCase) -> PairCase:
    extra = () if "differentiable" in case.option else (("differentiable", True),)
    return case.replace(options=(*case.options, *extra), backward=True, layout="contiguous")


@_rule(
    "CR-12",
    statement="weights carry no gradient unless differentiable is asked for",
    cases=partial(cases, kinds=_CALM),
)
def detached(case: PairCase, ctx: Context) -> Measurement:
    """Truncated importance weights are constants of the loss; a gradient through them is another estimator."""
    tensors = case.tensors(ctx.device)
    trainer = tensors["trainer"].detach().clone().requires_grad_()
    result = ctx.implementation.fn(tensors["rollout"], trainer, tensors["mask"], **case.keywords())
    found = result[0] if isinstance(result, tuple) else result.weights
    return holds(not found.requires_grad, label="weights carry no gradient", rows=[-1])


@_rule(
    "CR-13",
    statement="normalize: weights / mean over units; all zero stays 0",
    cases=lambda d: cases(d, rules=("truncate", "zero"), kinds=_CALM).map(
        lambda c: c.replace(options=(*c.options, ("normalize", True)))
    ),
    special=lambda d: [
        c.replace(options=(*c.options, ("normalize", True)))
        for c in specials(d)
        if c.option["rule"] in ("truncate", "zero")
    ],
    requires={"normalize"},
)
def normalized(case: PairCase, ctx: Context) -> Measurement:
    """The mean over tokens (or rows) is 1, padding not counted; a batch of zeros is not divided by zero."""
    outcome = ctx.call(case)
    right = judged(outcome, case, ctx)
    return values_within(
        weights_of(outcome, case), right.weights, right.weights_allowed, "normalised weight", format=outcome.format
    )


@_rule(
    "CR-14",
    statement="N = 0: no weight, counts 0, every figure NaN",
    cases=partial(cases, patterns=("none",), kinds=tuple(PAIR_KINDS)),
)
def all_masked(case: PairCase, ctx: Context) -> list[Measurement]:
    """Nothing kept of nothing is no share. Real: SkyRL adds 0 for an empty micro-batch, verl raises."""
    names = provided(ctx, (*COUNTS, *FIGURES))
    outcome = ctx.call(case)
    ok = [number(outcome, n) == 0 if n in COUNTS else math.isnan(number(outcome, n)) for n in names]
    return [
        holds(ok, label=tuple(f"{n} on an empty selection" for n in names), rows=[-1] * len(names)),
        holds(outcome.values == 0, label="weights are 0", rows=[-1] * outcome.values.size),
    ]


@_rule(
    "CR-15",
    statement="rows of one token: token, sequence and geometric weights agree",
    cases=lambda d: cases(d, rules=("truncate", "zero"), levels=("token",), kinds=_CALM, patterns=("one",)),
)
def one_token_rows(case: PairCase, ctx: Context) -> list[Measurement]:
    """A sum and a mean over one token are the token."""
    outcome = ctx.call(case)
    right = judged(outcome, case, ctx)
    if right.open_units:
        return []
    out = []
    for level in ("sequence", "sequence_geometric"):
        other = case.replace(options=tuple((dict(case.options) | {"level": level}).items()))
        got = ctx.call(other)
        there = judged(got, other, ctx)
        if there.open_units:
            continue
        mine = weights_of(outcome, case)
        allowed = [a + b for a, b in zip(right.weights_allowed, there.weights_allowed, strict=True)]
        want = [mp.mpf(float(x)) for x in mine]
        out.append(values_within(weights_of(got, other), want, allowed, f"weight, {level}", case=other))
    return out


@_rule(
    "CR-16",
    statement="shares in [0, 1], low + high <= 1, min <= mean <= max, ESS in {0} or [1/units, 1], weight <= cap",
    cases=cases,
    special=specials,
)
def ranges(case: PairCase, ctx: Context) -> Measurement:
    """Real: slime's opsm_clipfrac is 4, ROLL's ratio mask mean is 4, ms-swift's ESS is 0.65 for one weight of four."""
    shares = ("truncated_low_fraction", "truncated_high_fraction", "kept_fraction", "kept_row_fraction")
    names = provided(ctx, (*shares, "ess_fraction_truncated", "ratio_truncated_max"))
    outcome = ctx.call(case)
    right = judged(outcome, case, ctx)
    if not case.tokens:
        return holds([], label="ranges")
    ok = {f"{n} in [0, 1]": 0 <= number(outcome, n) <= 1 for n in names if n in shares}
    if {"truncated_low_fraction", "truncated_high_fraction"} <= set(names):
        both = number(outcome, "truncated_low_fraction") + number(outcome, "truncated_high_fraction")
        ok["low + high <= 1"] = both <= 1 + float(gamma(2, 2.0**-53))
    room = right.allowed["ess_fraction_truncated"]
    if "ess_fraction_truncated" in names and math.isfinite(room):
        ess = number(outcome, "ess_fraction_truncated")
        units = len(case.tokens) if case.option["rule"] in ("reject", "veto") else right.counts["unit_count"]
        ok["ESS/n in {0} or [1/n, 1]"] = ess == 0 or 1 / units - room <= ess <= 1 + room
    if "ratio_truncated_max" in names and case.option["rule"] in ("truncate", "zero"):
        ok["weight <= cap"] = number(outcome, "ratio_truncated_max") <= case.option["upper"]
    return holds(list(ok.values()), label=tuple(ok), rows=[-1] * len(ok))


@_rule(
    "CR-17",
    statement="unknown rule or level, bounds missing, out of order, negative or NaN, unequal shapes => error",
    cases=partial(cases, kinds=("far",)),
    requires={"checks_arguments"},
)
def bad_input(case: PairCase, ctx: Context) -> Measurement:
    """A rule that is not exactly known is not guessed."""
    q = torch.full((2, 3), -0.5, device=ctx.device)
    mask = torch.ones(2, 3, device=ctx.device)
    tis: dict[str, Any] = {"rule": "truncate", "level": "token", "upper": 2.0}
    wrong: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "rule": ((q, q, mask), tis | {"rule": "clip"}),
        "level": ((q, q, mask), tis | {"level": "row_sum"}),
        "no bound": ((q, q, mask), {"rule": "truncate", "level": "token"}),
        "bounds out of order": ((q, q, mask), tis | {"lower": 3.0}),
        "negative bound": ((q, q, mask), tis | {"lower": -1.0}),
        "NaN bound": ((q, q, mask), tis | {"upper": math.nan}),
        "superfluous bound": ((q, q, mask), tis | {"threshold": 1.0}),
        "statistic": ((q, q, mask), {"rule": "reject", "level": "token", "statistic": "k4", "threshold": 1.0}),
        "shape": ((q, q[:1], mask), tis),
        "mask 0.5": ((q, q, mask * 0.5), tis),
        "integer log-probs": ((q.long(), q, mask), tis),
    }
    ok = [refuses(ctx.implementation.fn, *arguments, **named) for arguments, named in wrong.values()]
    return holds(ok, label=tuple(f"{x} raises" for x in wrong), rows=[-1] * len(wrong))


@_rule(
    "CR-18",
    statement="reject k1 <= tau keeps w >= exp(-tau); k3 and k2 decide at any small threshold",
    cases=lambda d: st.tuples(
        st.sampled_from(["k1", "k2", "k3"]),
        st.lists(st.integers(-40, 40), min_size=1, max_size=5),
        st.integers(3, 20),
    ).map(lambda t: _graded(*t, d.dtype)),
    special=lambda d: [_graded(k, [-3, -1, 0, 1, 3], s, d.dtype) for k in ("k1", "k2", "k3") for s in (3, 10)],
    requires={"small_differences"},
)
def thresholds(case: PairCase, ctx: Context) -> Measurement:
    """A threshold is in nats of the statistic it names, and small ones are told apart where exp(d) - 1 - d is noise.

    The differences lie half a step off every threshold, so that no rounding of a careful statistic decides.
    """
    outcome = ctx.call(case)
    right = judged(outcome, case, ctx)
    got = kept_tokens(outcome, case)
    return same([float(k) for k in got], [float(k) for k in right.kept], label="kept", rows=[-1] * len(got))


def _graded(statistic: str, steps: list[int], shift: int, dtype: str) -> PairCase:
    unit = 2.0**-shift
    fmt = FORMATS[dtype]
    tau = {"k1": 1.5 * unit, "k2": (1.5 * unit) ** 2 / 2, "k3": (1.5 * unit) ** 2 / 2}[statistic]
    row = [(0.0, fmt.round(k * unit)) for k in steps]
    return pairs_of(row, dtype=dtype).replace(options=options("reject", "token", statistic=statistic, threshold=tau))


@_rule(
    "CR-28",
    statement="bits(weights, kept, figures) with differentiable = bits without",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=specials,
    requires={"autograd", "differentiable"},
)
def same_when_differentiable(case: PairCase, ctx: Context) -> list[Measurement]:
    """A graph changes no value. Seen here: w + w (p - p.detach()) is NaN where p is -inf and w is 0."""
    twin = _differentiated(case).replace(layout=case.layout, backward=False)
    want, got = ctx.call(case), ctx.call(twin)
    names = [n for n in (*COUNTS, *FIGURES) if n in ctx.fields]
    return [
        same(got.values, want.values, label="weight", rows=[-1] * got.values.size, format=got.format, case=twin),
        holds(kept_tokens(got, twin) == kept_tokens(want, case), label="kept", rows=[-1], case=twin),
        same_fields(got, want, names, case=twin),
    ]


@_rule(
    "CR-30",
    statement="compare_dtype = float64: weights, kept and figures by the same definitions, in float64",
    cases=partial(cases, compare_dtypes=("float64",), kinds=tuple(PAIR_KINDS)),
    special=lambda d: [
        *(c.replace(compare_dtype="float64") for c in specials(d)),
        PairCase(
            (PairRow((-1.0,), (-1.0 - 2.0**-40,), (True,)),),
            d.dtype,
            "float64",
            compare_dtype="float64",
            options=options("truncate", "token", upper=2.0),
        ),
    ],
    requires={"compare_dtype"},
)
def compare_in_float64(case: PairCase, ctx: Context) -> list[Measurement]:
    """Nothing is narrowed then, neither the log-probs nor the weights."""
    outcome = ctx.call(case)
    right = judged(outcome, case, ctx)
    got = kept_tokens(outcome, case)
    names = [n for n in FIGURES if n in ctx.fields]
    names = [n for n in names if not (mp.isfinite(right.figures[n]) and no_promise(n, right.allowed[n]))]
    return [
        values_within(weights_of(outcome, case), right.weights, right.weights_allowed, "weight", format=outcome.format),
        same([float(k) for k in got], [float(k) for k in right.kept], label="kept", rows=[-1] * len(got)),
        values_within(
            [number(outcome, n) for n in names],
            [right.figures[n] for n in names],
            [right.allowed[n] for n in names],
            tuple(names),
        ),
    ]
