"""Rules of ``divergence``: counts and figures, what each estimates, limits, emptiness, non-finite values, bad input."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from numerics.formats import FORMATS
from numerics.strategies.cases import PairCase
from numerics.strategies.pairs import PAIR_KINDS
from numerics.suite.bounds import gamma
from numerics.suite.measure import Exact, Measurement, holds, mp, within
from numerics.suite.oracle_divergence import COUNTS, FIGURES, ROW_FIGURES, TOKEN_FIGURES, token_terms
from numerics.suite.properties.divergence_fields import allowed, cases, exact_figures, pairs_of, specials
from numerics.suite.properties.fields import count_measurement, number, provided
from numerics.suite.property import Context, Property, refuses, rule

__all__ = ["RULES"]

RULES: dict[str, Property] = {}
_rule = partial(rule, RULES, contract="divergence")
_INTERVAL = ("normalization_gap_se", "normalization_gap_low", "normalization_gap_high")


@_rule(
    "DV-01",
    statement="every count = its definition, exactly",
    cases=partial(cases, kinds=tuple(PAIR_KINDS)),
    special=specials,
)
def counts(case: PairCase, ctx: Context) -> Measurement:
    """Tokens, rows with a token, non-finite tokens, changed values and overflowing ratios are integers and exact."""
    return count_measurement(ctx.call(case), ctx.exact(case), provided(ctx, COUNTS))


@_rule("DV-02", statement="|token figure - exact| <= bound(tokens; algorithm)", cases=cases, special=specials)
def token_figures(case: PairCase, ctx: Context) -> Measurement:
    """Means, extremes and deviations over tokens are right over the whole range of d.

    Real: a clamp at ±20 or ±10 that caps the metric (verl, slime, ms-swift, miles), k3 as exp(d) - 1 - d in float32,
    E[w^2] - E[w]^2 (verl), weights lifted by 1e-8 (verl, miles).
    """
    names = provided(ctx, TOKEN_FIGURES)
    return exact_figures(ctx.call(case), ctx.exact(case), names, ctx)


@_rule("DV-03", statement="|row figure - exact| <= bound(rows; algorithm)", cases=cases, special=specials)
def row_figures(case: PairCase, ctx: Context) -> Measurement:
    """Figures of rows are means over the rows that have a token, of a sum or a mean over each row's tokens.

    Real: ``chi2_seq`` is of the product in verl and of the geometric mean in ms-swift; all-masked rows count
    (verl#7771).
    """
    names = [n for n in provided(ctx, ROW_FIGURES) if n not in _INTERVAL]
    return exact_figures(ctx.call(case), ctx.exact(case), names, ctx)


@_rule(
    "DV-04",
    statement="gap interval = g ± t(B - 1, 0.975) sqrt(B/(B - 1) sum_r (s_r - g n_r)^2) / N",
    cases=partial(cases, max_rows=6),
    special=specials,
)
def interval(case: PairCase, ctx: Context) -> Measurement:
    """The interval is clustered by row: tokens of one row are not independent."""
    return exact_figures(ctx.call(case), ctx.exact(case), provided(ctx, _INTERVAL), ctx)


_ENUMERATED = ("k1", "k3", "kl_trainer_rollout", "jsd", "chi2_token", "normalization_gap", "sampling_entropy")


def _policies(numbers: tuple[list[int], list[int]]) -> PairCase:
    """A batch in which token x comes c_x times: its means are expectations under q(x) = c_x / sum c."""
    c, b = numbers
    n = min(len(c), len(b))
    q = [math.log(c[x] / sum(c[:n])) for x in range(n)]
    p = [math.log(b[x] / sum(b[:n])) for x in range(n)]
    single = FORMATS["float32"]
    row = [(single.round(q[x]), single.round(p[x])) for x in range(n) for _ in range(c[x])]
    return pairs_of(row)


_WEIGHTS = st.lists(st.integers(1, 9), min_size=2, max_size=4)


@_rule(
    "DV-05",
    statement="sum_x q(x) est(p(x), q(x)) = KL(q||p), KL(p||q), JSD, chi^2, H(q), 0",
    cases=lambda d: st.tuples(_WEIGHTS, _WEIGHTS).map(_policies),
    special=lambda d: [_policies(([1, 1], [9, 1])), _policies(([5, 3, 2], [2, 3, 5]))],
    dtypes=("float32",),
)
def expectations(case: PairCase, ctx: Context) -> Measurement:
    """Every estimator is unbiased for the divergence it names: checked by enumerating a small vocabulary.

    Real: NeMo's JSD is reversed (0.168 for 0.102), its policy_kl_error is no KL(p||q) (1.267 for 0.368), open-instruct
    weighs by q twice (0.255 for 0.511).
    """
    names = provided(ctx, _ENUMERATED)
    tokens, bound = case.tokens, allowed(ctx.exact(case), ctx)
    n = len(tokens)
    symbols = []  # (q(x), p(x) up to normalisation, log q as given, log p as given)
    for q, p in sorted(set(tokens)):
        count = round(n * math.exp(q))
        symbols += [(mp.mpf(count) / n, mp.exp(mp.mpf(p)), q, p)] * (tokens.count((q, p)) // count)
    z = sum(s[1] for s in symbols)
    want, moved = dict.fromkeys(_ENUMERATED, mp.mpf(0)), dict.fromkeys(_ENUMERATED, mp.mpf(0))
    for big_q, unscaled, q, p in symbols:
        big_p = unscaled / z
        middle = (big_p + big_q) / 2
        w = big_p / big_q
        value = {
            "k1": big_q * mp.log(big_q / big_p),
            "k3": big_q * mp.log(big_q / big_p),
            "kl_trainer_rollout": big_p * mp.log(big_p / big_q),
            "jsd": (big_p * mp.log(big_p / middle) + big_q * mp.log(big_q / middle)) / 2,
            "chi2_token": (big_p - big_q) ** 2 / big_q,
            "normalization_gap": mp.mpf(0),
            "sampling_entropy": -big_q * mp.log(big_q),
        }
        # log-probs are float32: an estimate moves by at most twice its slope times what rounding moved d
        of_q, of_d = abs(mp.log(big_q) - q), abs(mp.log(big_p) - p) + abs(mp.log(big_q) - q)
        slope = {
            "k1": 1,
            "k3": 1 + w,
            "kl_trainer_rollout": w * (1 + abs(mp.log(w))),
            "jsd": 1 + w * (1 + abs(mp.log(w))),
            "chi2_token": 2 * w * w,
            "normalization_gap": w,
        }
        for name in _ENUMERATED:
            want[name] += value[name]
            moved[name] += 2 * big_q * (of_q if name == "sampling_entropy" else slope[name] * of_d)
    outcome = ctx.call(case)
    values = [want[name] for name in names]
    return within(
        [number(outcome, name) for name in names],
        Exact(
            value=np.array([float(v) for v in values]),
            radius=np.array([abs(float(v)) * 2.0**-52 + 5e-324 for v in values]),
            refine=lambda i: values[i],
        ),
        [bound[name] + float(moved[name]) for name in names],
        label=tuple(f"E[{name}]" for name in names),
        rows=[-1] * len(names),
        format="float64",
    )


@_rule(
    "DV-06",
    statement="k2, k3, jsd >= 0; exp|d| >= 1; 1/N <= ESS/N <= 1; shares in [0, 1]; min <= mean <= max",
    cases=cases,
    special=specials,
)
def ranges(case: PairCase, ctx: Context) -> Measurement:
    """A divergence that is negative, or an effective sample size above the sample, is wrong whatever the data.

    Real: k3 as exp(d) - 1 - d is -6e-8 at d = 4e-7 (fifteen frameworks); NeMo's JSD of one token is 9.3; ESS/N of equal
    weights e^-20 is 34 in verl.
    """
    lower = {"k2": 0.0, "k3": 0.0, "jsd": 0.0, "mult_prob_error": 1.0, "fraction_above": 0.0, "ratio_min": 0.0}
    upper = {"ess_fraction": 1.0, "fraction_above": 1.0}
    names = provided(ctx, (*lower, "ess_fraction", "ratio_mean"))
    outcome, exact = ctx.call(case), ctx.exact(case)
    bound = allowed(exact, ctx)
    if not case.tokens:
        return holds([], label="ranges")
    if "small_differences" not in ctx.implementation.provides:
        lower["jsd"] = -bound["jsd"]  # as it is written its terms cancel; expm1(d) - d, of k3, never falls below 0
    if "ess_fraction" in names and exact.figures["ess_fraction"] > 0 and math.isfinite(bound["ess_fraction"]):
        lower["ess_fraction"] = 1 / len(case.tokens) - bound["ess_fraction"]
        upper["ess_fraction"] += bound["ess_fraction"]
    else:
        upper.pop("ess_fraction")
    ok: dict[str, bool] = {}
    for name in names:
        value = number(outcome, name)
        if name in lower:
            ok[f"{name} >= {lower[name]:g}"] = value >= lower[name]
        if name in upper:
            ok[f"{name} <= {upper[name]:g}"] = value <= upper[name]
    if {"ratio_min", "ratio_mean", "ratio_max"} <= ctx.fields and math.isfinite(bound["ratio_mean"]):
        low, mean, high = (number(outcome, f"ratio_{x}") for x in ("min", "mean", "max"))
        ok["ratio_min <= ratio_mean <= ratio_max"] = (
            low - bound["ratio_mean"] <= mean <= high + bound["ratio_mean"] and low <= high
        )
    return holds(list(ok.values()), label=tuple(ok), rows=[-1] * len(ok))


@_rule(
    "DV-07",
    statement="p = q: k1, k2, k3, KL, JSD, gap, chi^2 = 0; ratios, ESS/N, exp|d| = 1; exactly",
    cases=partial(cases, kinds=("ulps", "far", "near_certain", "improbable")),
    special=specials,
)
def identical(case: PairCase, ctx: Context) -> list[Measurement]:
    """Identical finite sides are on policy, exactly.

    Real: NeMo's JSD of p = q = -110 is NaN, AReaL's binary_kl rejects identical certain tokens.
    """
    rows = tuple(dataclasses.replace(row, trainer=row.rollout) for row in case.rows)
    twin = case.replace(rows=rows, trainer_dtype=case.rollout_dtype)
    if not twin.tokens:
        return []
    names = provided(ctx, FIGURES)
    outcome, exact = ctx.call(twin), ctx.exact(twin)
    fixed = {n: exact.figures[n] for n in names if mp.isfinite(exact.figures[n]) and "ppl_r" not in n}
    fixed = {n: v for n, v in fixed.items() if v in (0, 1) and not n.startswith(("ppl_t", "log_ppl_r", "log_ppl_t"))}
    fixed.pop("sampling_entropy", None)
    return [
        holds(
            [number(outcome, n) == float(v) for n, v in fixed.items()],
            label=tuple(f"{n} = {int(v)}" for n, v in fixed.items()),
            rows=[-1] * len(fixed),
            case=twin,
        )
    ]


_SMALL = ("k2", "k3", "jsd", "normalization_gap", "chi2_token", "signed_mean", "kl_trainer_rollout")


@_rule(
    "DV-08",
    statement="one token, d -> 0: |k3 - exact| <= gamma(64) k3, and k3/(d^2/2) -> 1, JSD/(d^2/8) -> 1",
    cases=lambda d: st.builds(
        _close_pair, st.integers(0, 63), st.integers(1, 63), st.integers(2, 60), st.booleans(), st.just(d.dtype)
    ),
    special=lambda d: [
        pairs_of([(0.0, v)], dtype="float32") for v in (-1e-6, -1e-9, -4e-7, -1e-30, -3e-4, -0.01, -0.3, 1e-6, 4e-7)
    ],
    requires={"small_differences"},
)
def small_differences(case: PairCase, ctx: Context) -> Measurement:
    """Small differences keep their relative accuracy: `expm1(d) - d` has lost every digit of k3 at d = 1e-8.

    The bound is relative: an evaluation by a series or a stable form takes fewer than 64 roundings (the reference's
    longest, 14 terms of a series by Horner's rule, takes 46), none of which cancels.
    """
    names = provided(ctx, _SMALL)
    [(q, p)] = ctx.exact(case).rows[0]
    terms = token_terms(q, p)
    inner = ctx.exact(case).compare if ctx.algorithm.accumulate == "compute" else FORMATS[ctx.algorithm.accumulate]
    k = float(gamma(64, inner.u))
    values = [terms[n] for n in names]
    outcome = ctx.call(case)
    return within(
        [number(outcome, n) for n in names],
        Exact(
            value=np.array([float(v) for v in values]),
            radius=np.array([abs(float(v)) * 2.0**-52 + 5e-324 for v in values]),
            refine=lambda i: values[i],
        ),
        [k * abs(float(v)) + inner.min_normal for v in values],
        label=tuple(f"{n}, relative" for n in names),
        rows=[0] * len(names),
        format="float64",
    )


def _close_pair(a: int, b: int, shift: int, up: bool, dtype: str) -> PairCase:
    fmt = FORMATS[dtype]
    q = fmt.round(-a * 2.0**-shift)
    p = fmt.round(q + (1 if up else -1) * b * 2.0 ** -(shift + 6))
    return pairs_of([(q, p)], dtype=dtype)


@_rule(
    "DV-09",
    statement="ESS(c w) = ESS(w); ln(1 + chi^2) moves by 2 ln c: for any c, also e^±700",
    cases=lambda d: st.builds(
        _shifted_pairs,
        st.lists(st.integers(-64, 64), min_size=1, max_size=6),
        st.sampled_from([-700, -300, -110, -20, 20, 110, 300, 700]),
        st.just(d.dtype),
    ),
    special=lambda d: [_shifted_pairs([0, 0, 0], c, d.dtype) for c in (-300, -20, 300)],
    requires={"log_space"},
)
def scale_free(case: PairCase, ctx: Context) -> list[Measurement]:
    """Effective sample sizes do not know the scale of the weights. Real: +1e-8 in verl, a floor of 1e-8 in miles."""
    names = provided(ctx, ("ess_fraction", "log1p_chi2_token"))
    exact = ctx.exact(case)
    return [exact_figures(ctx.call(case), exact, names, ctx)]


def _shifted_pairs(eighths: list[int], shift: int, dtype: str) -> PairCase:
    coarse = FORMATS[dtype]
    return pairs_of([(coarse.round(-shift), coarse.round(e / 8)) for e in eighths], dtype=dtype)


_MONOTONE_UP = ("signed_mean", "ratio_mean", "ratio_max", "seq_ratio_mean", "normalization_gap", "chi2_token")
_MONOTONE_SIZE = ("k2", "k3", "jsd", "mult_prob_error", "fraction_above")


@_rule(
    "DV-10",
    statement="one token: ratio, gap, chi^2 do not fall as d grows; k2, k3, JSD, exp|d| do not fall as |d| grows",
    cases=lambda d: st.lists(
        st.sampled_from([0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 21.0, 30.0, 40.0, 80.0, 88.0, 89.0, 110.0, 360.0, 720.0]),
        min_size=2,
        max_size=3,
        unique=True,
    ).flatmap(
        lambda ds: st.sampled_from([1, -1]).map(
            lambda sign: pairs_of(*[[(-1.0, -1.0 + sign * x)] for x in sorted(ds)], dtype=d.dtype)
        )
    ),
    special=lambda d: [
        pairs_of(*[[(0.0, s * x)] for x in (20.0, 30.0, 88.0, 89.0, 110.0, 800.0)], dtype=d.dtype) for s in (1, -1)
    ],
)
def monotone(case: PairCase, ctx: Context) -> list[Measurement]:
    """A worse token never looks better: no saturation turns back, no overflow becomes 0.

    Each row is one call; the rows are steps of at least 1/2 nat apart, far beyond any rounding.
    """
    names = provided(ctx, (*_MONOTONE_UP, *_MONOTONE_SIZE))
    alone = [case.only(i) for i in range(case.size)]
    outcomes = [ctx.call(one) for one in alone]
    out = []
    for i in range(1, case.size):
        (q0, p0), (q1, p1) = alone[i - 1].tokens[0], alone[i].tokens[0]
        grows = p1 - q1 > p0 - q0
        ok = []
        for name in names:
            before, after = (number(o, name) for o in outcomes[i - 1 : i + 1])
            up = name in _MONOTONE_SIZE or grows
            ok.append(after >= before if up else after <= before)
        out.append(holds(ok, label=tuple(f"{n} monotone" for n in names), rows=[i] * len(names)))
    return out


@_rule(
    "DV-11",
    statement="exp d overflows: ratio, k3, KL, chi^2 = inf, counted; ln(1 + chi^2) = 2d - ln N",
    cases=lambda d: st.lists(st.integers(0, 30), min_size=1, max_size=4).map(
        lambda tail: pairs_of([(-730.0, 0.0), *[(-float(t), -float(t) - 0.5) for t in tail]], dtype=d.dtype)
    ),
    special=lambda d: [pairs_of([(-1000.0, 0.0)], dtype=d.dtype), pairs_of([(-360.0, 0.0)], dtype=d.dtype)],
    requires={"log_space"},
)
def overflow(case: PairCase, ctx: Context) -> list[Measurement]:
    """Finite input whose exp overflows gives inf, never a clamp; the count says so and the logarithm stays finite."""
    figures = provided(ctx, ("ratio_mean", "ratio_max", "k3", "kl_trainer_rollout", "chi2_token", "log1p_chi2_token"))
    outcome, exact = ctx.call(case), ctx.exact(case)
    return [
        count_measurement(outcome, exact, provided(ctx, COUNTS)),
        exact_figures(outcome, exact, figures, ctx),
    ]


@_rule(
    "DV-12",
    statement="N = 0: valid = 0, counts 0, every other figure NaN",
    cases=partial(cases, patterns=("none",), kinds=tuple(PAIR_KINDS)),
)
def all_masked(case: PairCase, ctx: Context) -> Measurement:
    """Nothing compared is not agreement. Real: 0 in TRL, SkyRL, slime; a rank without tokens pulls every mean to 0."""
    names = provided(ctx, (*COUNTS, *FIGURES))
    outcome = ctx.call(case)
    ok = [number(outcome, n) == 0 if n in COUNTS else math.isnan(number(outcome, n)) for n in names]
    return holds(ok, label=tuple(f"{n} on an empty selection" for n in names), rows=[-1] * len(names))


@_rule(
    "DV-13",
    statement="N = 1: ratio_std NaN; B = 1: interval NaN; every mean = its one term",
    cases=partial(cases, patterns=("one",), max_rows=1),
)
def one_token(case: PairCase, ctx: Context) -> Measurement:
    """One token has no deviation, one row no interval."""
    names = provided(ctx, ("ratio_std", *_INTERVAL))
    if len(case.tokens) != 1:
        return holds([], label="one token")
    outcome = ctx.call(case)
    return holds(
        [math.isnan(number(outcome, n)) for n in names],
        label=tuple(f"{n} is NaN" for n in names),
        rows=[-1] * len(names),
    )


@_rule(
    "DV-14",
    statement="d = -inf: w = w d = 0, JSD = ln(2)/2, k1 = k2 = k3 = inf; d = +inf: w, k2, k3, KL, JSD = inf; else NaN",
    cases=partial(cases, kinds=("nan", "infinite", "far", "identical")),
    special=lambda d: [
        pairs_of([(-1.0, -math.inf), (-1.0, -1.5)], dtype=d.dtype),
        pairs_of([(-math.inf, -1.0), (-1.0, -1.5)], dtype=d.dtype),
        pairs_of([(-math.inf, -math.inf), (-1.0, -1.5)], [(-2.0, -1.0)], dtype=d.dtype),
        pairs_of([(math.nan, -1.0), (-1.0, -1.5)], [(-2.0, -1.0)], dtype=d.dtype),
        pairs_of([(-1.0, -math.inf)], dtype=d.dtype),
    ],
)
def nonfinite(case: PairCase, ctx: Context) -> Measurement:
    """A non-finite log-prob is never hidden: no weight 1, no nan_to_num, no dropped token, no sentinel.

    Real: AReaL gives p = -inf the ratio 1, miles and open-instruct replace NaN, torchtitan drops the token and its
    place in the denominator.
    """
    names = provided(ctx, FIGURES)
    return exact_figures(ctx.call(case), ctx.exact(case), names, ctx)


@_rule(
    "DV-15",
    statement="fraction_above(eps) = #{not |d| <= eps} / N for every eps",
    cases=partial(cases, kinds=("identical", "ulps", "close", "far", "nan")),
    special=lambda d: [
        pairs_of([(-1.0, -1.5), (-1.0, -1.0)], dtype=d.dtype).replace(options=(("epsilon", e),))
        for e in (0.0, 0.5, 2.0)
    ],
    requires={"epsilon"},
)
def shares(case: PairCase, ctx: Context) -> list[Measurement]:
    """A token counts as apart unless its difference is known to be within epsilon: NaN counts."""
    names = provided(ctx, ("fraction_above",))
    given = [case] if case.options else [case.replace(options=(("epsilon", e),)) for e in (0.0, 1e-6, 0.25)]
    return [exact_figures(ctx.call(one), ctx.exact(one), names, ctx, case=one) for one in given]


@_rule(
    "DV-16",
    statement="unequal shapes, integer log-probs, a mask with 0.5 or NaN, epsilon < 0 => error",
    cases=partial(cases, kinds=("far",)),
    requires={"checks_arguments"},
)
def bad_input(case: PairCase, ctx: Context) -> Measurement:
    """Never a warning with a made-up value: nothing is broadcast, a mask does not weigh."""
    q = torch.full((2, 3), -0.5, device=ctx.device)
    mask = torch.ones(2, 3, device=ctx.device)
    wrong: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "trainer shape": ((q, q[:, :2], mask), {}),
        "broadcast": ((q, q[:1], mask), {}),
        "mask shape": ((q, q, mask[:1]), {}),
        "mask 0.5": ((q, q, mask * 0.5), {}),
        "mask NaN": ((q, q, mask * math.nan), {}),
        "integer log-probs": ((q.long(), q, mask), {}),
    }
    if "epsilon" in ctx.implementation.provides:
        wrong |= {f"epsilon {e}": ((q, q, mask), {"epsilon": e}) for e in (-1.0, math.nan)}
    if "row_ids" in ctx.implementation.provides:
        wrong["row_ids shape"] = ((q, q, mask), {"row_ids": torch.zeros(3, dtype=torch.int64, device=ctx.device)})
        wrong["row_ids float"] = ((q, q, mask), {"row_ids": q})
    ok = [refuses(ctx.implementation.fn, *arguments, **named) for arguments, named in wrong.values()]
    return holds(ok, label=tuple(f"{x} raises" for x in wrong), rows=[-1] * len(wrong))


@_rule(
    "DV-17",
    statement="k3 = gap + k1; ratio = 1 + gap; signed_mean = -k1; log_ppl_diff = log_ppl_trainer - log_ppl_rollout",
    cases=partial(cases, kinds=("identical", "ulps", "far", "near_certain")),
    special=specials,
)
def identities(case: PairCase, ctx: Context) -> Measurement:
    """Figures of the same terms agree with each other, sign by sign."""
    relations = {
        "k3": (("normalization_gap", 1), ("k1", 1)),
        "ratio_mean": (("normalization_gap", 1),),
        "signed_mean": (("k1", -1),),
        "log_ppl_diff_mean": (("log_ppl_trainer", 1), ("log_ppl_rollout", -1)),
    }
    known = [n for n, parts in relations.items() if {n, *(m for m, _ in parts)} <= ctx.fields]
    names = provided(ctx, known)
    if not case.tokens:
        return holds([], label="identities")
    outcome, bound = ctx.call(case), allowed(ctx.exact(case), ctx)
    names = [n for n in names if all(math.isfinite(bound[m]) for m in (n, *(m for m, _ in relations[n])))]
    want = [
        (1.0 if n == "ratio_mean" else 0.0) + math.fsum(sign * number(outcome, m) for m, sign in relations[n])
        for n in names
    ]
    # the right side is itself rounded twice at most, in float64
    room = [
        bound[n] + sum(bound[m] for m, _ in relations[n]) + float(gamma(3, 2.0**-53)) * abs(v)
        for n, v in zip(names, want, strict=True)
    ]
    return within(
        [number(outcome, n) for n in names],
        Exact(value=np.array(want), radius=np.zeros(len(want)), refine=lambda i: mp.mpf(want[i])),
        room,
        label=tuple(f"{n} from its parts" for n in names),
        rows=[-1] * len(names),
        format="float64",
    )
