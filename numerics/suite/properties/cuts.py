"""Rules of processed log-probs: min-p, top-k and top-p."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from numerics.formats import FORMATS
from numerics.strategies.cases import Logits, LogitsCase
from numerics.strategies.logits import logits_cases
from numerics.suite import bounds, oracle
from numerics.suite.measure import Exact, Measurement, holds, same, within
from numerics.suite.properties.logprobs import output_format
from numerics.suite.property import Context, Domain, Property, rule

__all__ = ["RULES"]

RULES: dict[str, Property] = {}
_CUTS = ("min_p", "top_k", "top_p")
_rule = partial(rule, RULES, contract="token_logprobs", requires=_CUTS)

_LIMITS: dict[str, st.SearchStrategy[Any]] = {
    "min_p": st.sampled_from([0.05, 0.1, 0.5, 1.0]) | st.floats(0.0, 1.0),
    "top_k": st.integers(1, 12),
    "top_p": st.sampled_from([0.9, 0.5, 0.99, 0.1]) | st.floats(2.0**-10, 1.0),
}


@st.composite
def cut_cases(
    draw: st.DrawFn, domain: Domain, *, names: tuple[str, ...] = _CUTS, extra: tuple[Any, ...] = ()
) -> LogitsCase:
    """Rows of up to nine tokens with one to three cuts; ties are common."""
    case = draw(
        logits_cases(
            dtype=domain.dtype,
            max_rows=4,
            regimes=("mixed", "equal", "near_ties", "dominant", "gaps", "holes"),
            temperature_forms=[form for form in domain.temperature_forms if form != "zero_dim"],
            tails=False,
        )
    )
    chosen = draw(st.sets(st.sampled_from(names), min_size=1))
    return case.replace(cuts=(*((name, draw(_LIMITS[name])) for name in names if name in chosen), *extra))


def special_cuts(domain: Domain) -> list[LogitsCase]:
    """Reported cases: the nucleus at the right temperature, exclusive mass, ties, order."""
    fmt = FORMATS[domain.dtype]

    def case(values: tuple[float, ...], token: int, temperature: float = 1.0, **cuts: Any) -> LogitsCase:
        row = Logits(tuple(fmt.round(v) for v in values), token, temperature)
        return LogitsCase((row,), domain.dtype, temperature="float", cuts=tuple(cuts.items()))

    p4 = (-0.597836971282959, -1.3862943649291992, -1.8971199989318848, -2.995732307434082)  # fish-speech#1150
    p5 = (-0.9162907600402832, -1.2039728164672852, -1.6094379425048828, -2.3025851249694824)  # esm#360
    return [
        case(p4, 2, 2.0, top_p=0.7),
        case(p5, 2, top_p=0.8),
        case(p5, 3, top_p=0.8),
        case((1.0, 2.0, 2.0, 2.0, 3.0), 4, top_k=3),  # vllm#15478
        case((1.0, 2.0, 2.0, 2.0, 3.0), 3, top_k=3),
        case((5.0, 1.0, 0.0), 1, top_k=1),
        case((0.0, 0.0, 0.0, 0.0), 3, top_p=0.6),
        case((2.0, 1.9, 0.0, -1.0, -1.0), 2, top_k=3, top_p=0.9),
        case((1.0, 0.5, 0.25, -3.0), 1, min_p=0.5),  # against the maximum, not against 1
        case((0.0, -2.0), 0, min_p=1.0),
        case((0.0, -2.0), 1, top_k=5, top_p=1.0, min_p=0.0),
    ]


def _accepted(case: LogitsCase, ctx: Context) -> list[tuple[frozenset[int], ...]]:
    return oracle.supports(case, ctx.algorithm)


def _with_argmax(case: LogitsCase) -> LogitsCase:
    """Every row asked for its most probable token, the first one after the division, which may round two into a tie."""
    y, _ = oracle.scaled(case)
    rows = (dataclasses.replace(row, token=int(np.argmax(y[i]))) for i, row in enumerate(case.rows))
    return case.replace(rows=tuple(rows))


def _all_tokens(case: LogitsCase, i: int) -> LogitsCase:
    row = dataclasses.replace(case.rows[i], temperature=float(case.temperatures[i]))
    return case.replace(rows=tuple(dataclasses.replace(row, token=v) for v in range(case.width)))


@_rule(
    "LP-40",
    statement="lp = log(p_i / S) within bound on the kept set, -inf off it; kept = cuts in their order, S = kept mass",
    cases=cut_cases,
    special=special_cuts,
)
def processed(case: LogitsCase, ctx: Context) -> Measurement:
    """Every cut sees the softmax renormalised over the survivors of the one before.

    min-p keeps p_i >= min_p max p; top-k exactly k, ties to the lowest id; top-p keeps a token iff the mass ranked
    strictly before it is < top_p. Where a mass or threshold lies within its bound of the border, either
    support is right. Real: inclusive cumulative sums (esm#360), the nucleus taken at T = 1 (fish-speech#1150), k-th
    value thresholds that keep more than k (vllm#15478).
    """
    return _processed(case, ctx)


def _processed(case: LogitsCase, ctx: Context) -> Measurement:
    got = ctx.call(case).values
    options = _accepted(case, ctx)
    want, radius, allowed = (np.zeros(case.size) for _ in range(3))
    refine: list[Any] = []
    for i, accepted in enumerate(options):
        best: tuple[float, Any] | None = None
        for kept in accepted:
            exact = oracle.score(case, tuple(kept if j == i else options[j][0] for j in range(case.size)))
            value = exact.logprobs.value[i]
            apart = 0.0 if value == got[i] or (math.isnan(value) and math.isnan(got[i])) else abs(value - got[i])
            if best is None or apart < best[0] or math.isnan(best[0]):
                best = (apart, exact)
        assert best is not None
        chosen = best[1]
        want[i], radius[i] = chosen.logprobs.value[i], chosen.logprobs.radius[i]
        allowed[i] = bounds.token_logprobs(chosen.conditioning, ctx.algorithm, case.dtype)[i]
        refine.append(chosen.logprobs.refine)
    exact_values = Exact(value=want, radius=radius, refine=lambda i: refine[i](i))
    return within(got, exact_values, allowed, label="processed log-prob", format=output_format(case.dtype))


@_rule(
    "LP-41",
    statement="the arg-max survives every cut: -log V - bound <= lp_argmax <= 0",
    cases=cut_cases,
    special=special_cuts,
)
def argmax_survives(case: LogitsCase, ctx: Context) -> Measurement:
    """However small top_p and however large min_p, one most probable token is kept."""
    top = _with_argmax(case)
    rows = [i for i, row in enumerate(top.rows) if math.isfinite(max(row.values))]
    values = ctx.call(top).values[rows]
    # the most probable of V tokens has at least probability 1/V, whatever was cut
    slack = bounds.token_logprobs(oracle.score(top.replace(cuts=())).conditioning, ctx.algorithm, case.dtype)[rows]
    kept = (values <= 0) & (values >= -math.log(case.width) - slack)
    return holds(kept, label="arg-max is kept", rows=rows)


@_rule(
    "LP-42", statement="#{v : lp_v > -inf} = k under top-k alone (k < V)", cases=partial(cut_cases, names=("top_k",))
)
def exactly_k(case: LogitsCase, ctx: Context) -> Measurement:
    """top-k keeps exactly k tokens; equal logits are broken by the lowest id, as in vLLM's Triton sampler."""
    limit = dict(case.cuts)["top_k"]
    ok, rows = [], []
    for i, row in enumerate(case.rows):
        if not math.isfinite(max(row.values)):
            continue
        possible = sum(v > -math.inf for v in row.values)
        values = ctx.call(_all_tokens(case, i)).values
        ok.append(int((values > -math.inf).sum()) == min(limit, possible))
        rows.append(i)
    return holds(ok, label="exactly k kept", rows=rows)


@_rule(
    "LP-43",
    statement="lp_v(cuts) - lp_v = -log S for every kept v, within both bounds",
    cases=cut_cases,
    special=special_cuts,
)
def kept_mass(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """Renormalising shifts every kept log-prob by the same log S, the log of the kept mass.

    Real: TRL with top-p scores the trainer over the full softmax, so every difference is biased by log S (trl#6789).
    """
    out = []
    for i in range(case.size):
        if not math.isfinite(max(case.rows[i].values)):
            continue
        every = _all_tokens(case, i)
        after, before = ctx.call(every).values, ctx.call(every.replace(cuts=())).values
        kept = np.flatnonzero((after > -math.inf) & (before > -math.inf))
        if not len(kept):
            continue
        support = frozenset(int(v) for v in np.flatnonzero(after > -math.inf))
        full = oracle.score(every.replace(cuts=()))
        part = oracle.score(every, (support,) * every.size)
        with np.errstate(all="ignore"):
            shift = part.logprobs.value[kept] - full.logprobs.value[kept]
            radius = (
                part.logprobs.radius[kept]
                + full.logprobs.radius[kept]
                + 2.0**-50 * (1 + np.abs(full.logprobs.value[kept]))
            )
            allowed = sum(bounds.token_logprobs(x.conditioning, ctx.algorithm, case.dtype)[kept] for x in (full, part))
        exact = Exact(
            value=shift,
            radius=radius,
            refine=partial(_refined_shift, part, full, kept),
        )
        # the difference of the two results is taken here, in float64: exact for float32 results, else one rounding
        out.append(
            within(after[kept] - before[kept], exact, allowed, label="-log S", rows=[i] * len(kept), format="float64")
        )
    return out


def _refined_shift(part: oracle.Scored, full: oracle.Scored, at: Any, k: int) -> Any:
    return part.logprobs.refine(int(at[k])) - full.logprobs.refine(int(at[k]))


@_rule(
    "LP-44",
    statement="bits(lp(top_k >= V, top_p = 1, min_p = 0)) = bits(lp)",
    cases=lambda d: logits_cases(dtype=d.dtype, temperature_forms=d.temperature_forms),
)
def cuts_that_cut_nothing(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """A limit that removes nothing changes no bit."""
    want = ctx.call(case).values
    limits = ((("top_k", case.width),), (("top_k", case.width + 5),), (("top_p", 1.0),), (("min_p", 0.0),))
    return [
        same(
            ctx.call(case.replace(cuts=cuts)).values,
            want,
            label=f"{cuts[0][0]}={cuts[0][1]}",
            format=output_format(case.dtype),
        )
        for cuts in limits
    ]


@_rule(
    "LP-45",
    statement="the result follows cut_order: each order equals its own definition",
    cases=cut_cases,
    requires=(*_CUTS, "cut_order"),
    special=lambda d: [
        LogitsCase((Logits((2.0, 1.5, 1.0, 0.0), 1),), d.dtype, cuts=(("top_k", 2), ("top_p", 0.6))),
        LogitsCase((Logits((2.0, 1.5, 1.0, 0.0), 1),), d.dtype, cuts=(("top_k", 3), ("top_p", 0.55))),
    ],
)
def cut_order(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """top-k before top-p renormalises over k tokens first, and keeps another set than top-p before top-k."""
    return [
        _processed(case.replace(cuts=(*case.cuts, ("cut_order", order))), ctx)
        for order in (("min_p", "top_k", "top_p"), ("top_p", "top_k", "min_p"), ("top_k", "min_p", "top_p"))
    ]


@_rule(
    "LP-46",
    statement='ties="all" keeps every token equal to the last kept one',
    cases=lambda d: cut_cases(d, extra=(("ties", "all"),)),
    requires=(*_CUTS, "ties"),
    special=lambda d: [
        LogitsCase((Logits((1.0, 2.0, 2.0, 2.0, 3.0), 3),), d.dtype, cuts=(("top_k", 3), ("ties", "all"))),
    ],
)
def ties_all(case: LogitsCase, ctx: Context) -> Measurement:
    """The rule of transformers and vLLM's PyTorch sampler, by name."""
    return _processed(case, ctx)


@_rule(
    "LP-47",
    statement="top_k < 1, top_p not in (0, 1], min_p not in [0, 1] => error",
    cases=lambda d: logits_cases(dtype=d.dtype, max_rows=1, max_width=3, tails=False),
    requires=(*_CUTS, "checks_arguments"),
)
def bad_cuts(case: LogitsCase, ctx: Context) -> Measurement:
    """A limit out of range is an error, not a silent no-op (vLLM's -1 is None here)."""
    bad = [
        ("top_k", 0),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
    ]
    refused = [ctx.refuses(case.replace(cuts=(cut,))) for cut in bad]
    return holds(refused, label=tuple(f"{k}={v} raises" for k, v in bad), rows=[-1] * len(bad))


@_rule(
    "LP-48",
    statement="d lp / dz_v = 0 exactly at every removed token v",
    cases=cut_cases,
    requires=(*_CUTS, "autograd"),
)
def cut_gradient(case: LogitsCase, ctx: Context) -> Measurement:
    """Cuts are constants: no gradient flows through which tokens they keep."""
    top = _with_argmax(case)
    gradient = ctx.call(top.replace(backward=True)).gradient
    assert gradient is not None
    table = gradient.reshape(top.size, top.width)
    ok, rows = [], []
    for i, accepted in enumerate(_accepted(top, ctx)):
        if not math.isfinite(max(top.rows[i].values)):
            continue
        off = [[v for v in range(top.width) if v not in kept] for kept in accepted]
        ok.append(any(not table[i, removed].any() for removed in off))
        rows.append(i)
    return holds(ok, label="gradient 0 at removed tokens", rows=rows)
