"""Rules of ``token_logprobs``: values, temperature, non-finite rows, the pair."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from numerics.formats import FORMATS
from numerics.strategies.cases import Logits, LogitsCase
from numerics.strategies.logits import FINITE_REGIMES, ORDINARY_REGIMES, REGIMES, logits_cases
from numerics.suite import bounds, special
from numerics.suite.measure import Measurement, holds, same, within
from numerics.suite.property import Context, Domain, Property, rule

__all__ = ["RULES", "cases", "hot", "logprob_measurement", "output_format"]

RULES: dict[str, Property] = {}
_rule = partial(rule, RULES, contract="token_logprobs")


def cases(domain: Domain, **options: Any) -> st.SearchStrategy[LogitsCase]:
    """Finite rows and rows with holes, temperatures in the forms the implementation takes."""
    return logits_cases(**{"dtype": domain.dtype, "temperature_forms": domain.temperature_forms, **options})


def hot(domain: Domain, **options: Any) -> st.SearchStrategy[LogitsCase]:
    """Cases that pass a temperature."""
    forms = [form for form in domain.temperature_forms if form != "absent"]
    return cases(domain, **{"temperature_forms": forms, **options})


def output_format(dtype: str) -> str:
    """The format that a result must have: float64 for float64 logits, else float32."""
    return "float64" if dtype == "float64" else "float32"


def logprob_measurement(case: LogitsCase, ctx: Context, values: Any) -> Measurement:
    """Values of the valid rows against the oracle, within the bound of the declared algorithm."""
    exact = ctx.exact(case)
    allowed = bounds.token_logprobs(exact.conditioning, ctx.algorithm, case.dtype)
    rows = np.flatnonzero(case.valid)
    kept = dataclasses.replace(
        exact.logprobs,
        value=_overflowed_output(exact.logprobs.value, case.dtype)[rows],
        radius=exact.logprobs.radius[rows],
        refine=lambda k: exact.logprobs.refine(int(rows[k])),
    )
    return within(values[rows], kept, allowed[rows], label="log-prob", rows=rows, format=output_format(case.dtype))


def _overflowed_output(value: Any, dtype: str) -> Any:
    """A log-prob below the output format's range is -inf there."""
    fmt = FORMATS[output_format(dtype)]
    return np.where(value < -fmt.max * (1 + fmt.u / 2), -np.inf, value)


@_rule("LP-01", statement="|lp - exact| <= bound(n, gap, log s, |lp|; formula, u)", cases=cases, special=special.logits)
def within_bound(case: LogitsCase, ctx: Context) -> Measurement:
    """The value is right, in every dtype, for every finite row and every row with -inf holes.

    The bound is derived from the declared formula and accumulation format (``numerics.suite.bounds``), not tuned.
    """
    return logprob_measurement(case, ctx, ctx.call(case).values)


@_rule(
    "LP-02",
    statement="dtype(lp) = float32, or float64 for float64 logits",
    cases=partial(cases, max_rows=2, max_width=3, tails=False),
)
def output_dtype(case: LogitsCase, ctx: Context) -> Measurement:
    """A log-prob stored in bfloat16 keeps 8 bits: a perfect engine match then reports |d| of 0.01 to 0.03.

    Real: TRL, OpenRLHF, open-instruct and verl without flash-attention return bf16 log-probs for bf16 logits.
    """
    return holds(ctx.call(case).format == output_format(case.dtype), label="result dtype is the compute dtype")


@_rule(
    "LP-03",
    statement="bits(lp(z, T=1)) = bits(lp(z))",
    cases=partial(cases, temperature_forms=("absent",)),
    special=lambda d: [c for c in special.logits(d) if c.temperature == "absent"],
    requires={"temperature"},
)
def unit_temperature(case: LogitsCase, ctx: Context) -> Measurement:
    """Passing temperature 1 changes no bit, so that raw and processed agree where they are the same thing."""
    one = case.replace(temperature="float").map_rows(lambda row: dataclasses.replace(row, temperature=1.0))
    return same(ctx.call(one).values, ctx.call(case).values, label="log-prob", format=output_format(case.dtype))


@_rule(
    "LP-04",
    statement="bits(lp(z, float T)) = bits(lp(z, 0-d T)) = bits(lp(z, per-token T))",
    cases=partial(hot, temperature_forms=("float",)),
    special=lambda d: [c for c in special.logits(d) if c.temperature == "float"],
    requires={"temperature", "per_token_temperature"},
)
def temperature_forms(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """The same rounded T gives the same bits however it is passed.

    CUDA divides by a Python scalar through its reciprocal, so an implementation must materialise T on the device.
    """
    shared = case.map_rows(lambda row: dataclasses.replace(row, temperature=case.rows[0].temperature))
    want = ctx.call(shared).values
    return [
        same(ctx.call(shared.replace(temperature=form)).values, want, label=form, format=output_format(case.dtype))
        for form in ("zero_dim", "per_token")
    ]


@_rule(
    "LP-05",
    statement="bits(lp(z, T)) = bits(lp(float32(z), T))",
    cases=hot,
    special=lambda d: [c for c in special.logits(d) if c.temperature == "float"],
    requires={"temperature"},
    dtypes=("float16", "bfloat16"),
)
def upcast_first(case: LogitsCase, ctx: Context) -> Measurement:
    """Half-precision logits are upcast before anything else; in particular T is never rounded to their dtype.

    Real: verl rounds T to the logits' dtype, bf16(0.7) = 0.69921875; TRL, OpenRLHF, NeMo-RL, SkyRL divide in it: errors
    of 0.04 to 0.06 nats.
    """
    wide = case.replace(dtype="float32" if case.dtype != "float64" else "float64", tail=None)
    wide = wide.replace(
        rows=tuple(
            dataclasses.replace(row, values=tuple(values))
            for row, values in zip(wide.rows, case.values.tolist(), strict=True)
        )
    )
    return same(ctx.call(case).values, ctx.call(wide).values, label="log-prob", format="float32")


@_rule("LP-06", statement="lp <= 0", cases=cases, special=special.logits)
def not_positive(case: LogitsCase, ctx: Context) -> Measurement:
    """A probability does not exceed 1, not even by a rounding."""
    return holds(~(ctx.call(case).values > 0), label="log-prob <= 0")


@_rule(
    "LP-07",
    statement="|sum_v exp(lp_v) - 1| <= sum_v p_v expm1(bound_v)",
    cases=partial(cases, max_rows=1, tails=False),
    special=lambda d: [c for c in special.logits(d) if c.tail is None],
)
def normalised(case: LogitsCase, ctx: Context) -> Measurement:
    """The probabilities of all tokens of a row sum to 1."""
    row = case.rows[0]
    each = case.replace(rows=tuple(dataclasses.replace(row, token=v) for v in range(case.width)))
    exact = ctx.exact(each)
    allowed = bounds.token_logprobs(exact.conditioning, ctx.algorithm, case.dtype)
    finite = np.isfinite(exact.logprobs.value)
    probs = np.exp(exact.logprobs.value[finite])
    # the sum itself is evaluated in float64 with fsum: n + 2 roundings of 2^-53 at most, and exp within 4 ulps
    own = (case.width + 12) * 2.0**-53
    slack = float((probs * np.expm1(np.minimum(allowed[finite], 700.0))).sum()) + own
    total = math.fsum(math.exp(v) if v <= 700 else math.inf for v in ctx.call(each).values)
    return within(
        total,
        dataclasses.replace(exact.logprobs, value=np.ones(1), radius=np.zeros(1), refine=lambda i: 1.0),
        slack,
        label="sum of probabilities",
        rows=[-1],
        format="float64",
    )


@_rule(
    "LP-08",
    statement="z + c exact => lp(z + c) = lp(z) (bits if formula = shifted, else within both bounds)",
    cases=partial(cases, temperature_forms=("absent",), regimes=("mixed", "equal", "dominant", "holes"), tails=False),
)
def shift(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """Adding a constant that every logit can take exactly changes nothing.

    A shifted formula sees identical differences to the maximum, so its bits are the same; ``x - logsumexp(x)`` honestly
    loses u |c|.
    """
    fmt = FORMATS[case.dtype]
    out = []
    for c in (1.0, -64.0, 4096.0):
        moved = case.map_rows(partial(_moved, c=c))
        exact_sums = [
            i
            for i, (row, base) in enumerate(zip(moved.rows, case.rows, strict=True))
            if all(
                (fmt.contains(v) and v - c == b) or math.isinf(v) for v, b in zip(row.values, base.values, strict=True)
            )
        ]
        if not exact_sums:
            continue
        here, there = case.only(*exact_sums), moved.only(*exact_sums)
        got, want = ctx.call(there).values, ctx.call(here).values
        fmt_name = output_format(case.dtype)
        if ctx.algorithm.formula == "shifted":
            out.append(same(got, want, label=f"log-prob, shifted by {c:g}", rows=exact_sums, format=fmt_name))
            continue
        exact = ctx.exact(here)
        allowed = sum(
            bounds.token_logprobs(ctx.exact(x).conditioning, ctx.algorithm, case.dtype) for x in (here, there)
        )
        given = dataclasses.replace(
            exact.logprobs, value=want, radius=np.zeros(want.shape), refine=lambda i, w=want: w[i]
        )
        out.append(within(got, given, allowed, label=f"log-prob, shifted by {c:g}", rows=exact_sums, format=fmt_name))
    return out


def _moved(row: Logits, c: float) -> Logits:
    return dataclasses.replace(row, values=tuple(v + c for v in row.values))


@_rule(
    "LP-09",
    statement="bits(lp(z with -inf)) = bits(lp(z with max - G)), exp(-G) = 0",
    cases=partial(cases, temperature_forms=("absent",), regimes=("holes", "mixed"), min_width=2, tails=False),
    special=lambda d: [c for c in special.logits(d) if c.temperature == "absent" and c.tail is None],
)
def removed_columns(case: LogitsCase, ctx: Context) -> Measurement | list[Measurement]:
    """A -inf entry is a removed token: any finite value that far below the maximum has the same bits."""
    fmt = FORMATS[case.dtype]
    filled = []
    for row in case.rows:
        top = max(row.values)
        low = fmt.round(top - 2048.0)
        far = low if top - low >= 1500 else -fmt.max
        filled.append(dataclasses.replace(row, values=tuple(far if v == -math.inf else v for v in row.values)))
    finite = [
        i
        for i, (a, b) in enumerate(zip(case.rows, filled, strict=True))
        if a.values[a.token] != -math.inf
        and max(a.values) - min(b.values) >= (1500 if min(a.values) == -math.inf else 0)
    ]
    if not finite:
        return []
    got = ctx.call(case.only(*finite)).values
    want = ctx.call(case.replace(rows=tuple(filled)).only(*finite)).values
    return same(got, want, label="log-prob", rows=finite, format=output_format(case.dtype))


@_rule(
    "LP-21",
    statement="NaN or +inf in the row, or only -inf => NaN; chosen -inf => -inf; V = 1 => 0",
    cases=partial(
        cases, regimes=[r for r in REGIMES if r not in ("huge",)], temperature_forms=("absent",), tails=False
    ),
    special=special.nonfinite_logits,
)
def nonfinite_rows(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """Non-finite input is never hidden and never spreads to another row; a finite row keeps its value."""
    values = ctx.call(case).values
    lone = [i for i in range(case.size) if case.width == 1 and math.isfinite(case.rows[i].values[0])]
    out = [logprob_measurement(case, ctx, values)]
    if lone:
        out.append(holds(values[lone] == 0, label="V = 1 gives 0", rows=lone))
    return out


@_rule(
    "LP-22",
    statement="finite z, T > 0 => lp is neither NaN nor +inf, and within bound, even where z/T overflows",
    cases=partial(hot, regimes=("huge", "offset", "dominant", "mixed"), allow_overflow=True, tails=False, max_width=4),
    special=lambda d: (
        [
            LogitsCase((Logits((FORMATS[d.dtype].max, -FORMATS[d.dtype].max), t, 0.25),), d.dtype, temperature="float")
            for t in (0, 1)
        ]
        + [LogitsCase((Logits((-65504.0, 65504.0), 1, 2.0**-126),), d.dtype, temperature="float")]
    ),
    requires={"temperature", "overflow_safe"},
)
def overflow(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """Where z/T leaves the compute dtype's range the row is shifted by its maximum before dividing."""
    values = ctx.call(case).values
    return [
        holds(~(np.isnan(values) | (values > 0)), label="neither NaN nor above 0"),
        logprob_measurement(case, ctx, values),
    ]


@_rule(
    "LP-23",
    statement="pair(z, T, cuts) = (lp(z), lp(z, T, cuts)), bit for bit",
    cases=partial(hot, regimes=(*ORDINARY_REGIMES, "nan", "all_neg_inf")),
    special=special.nonfinite_logits,
    requires={"pair", "temperature"},
)
def pair(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """Raw and processed from one set of logits are the two single calls: metrics compare like with like."""
    both = ctx.call(case.replace(pair=True)).values
    fmt = output_format(case.dtype)
    return [
        same(both[: case.size], ctx.call(case.replace(temperature="absent")).values, label="raw", format=fmt),
        same(both[case.size :], ctx.call(case).values, label="processed", format=fmt),
    ]


@_rule(
    "LP-24",
    statement="lp(z, real_vocab=n) = lp(z[..., :n]), bit for bit, whatever the padding holds",
    cases=partial(cases, min_width=2, temperature_forms=("absent",), regimes=FINITE_REGIMES, tails=False),
    requires={"real_vocab"},
)
def real_vocab(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """Padding columns of the embedding are no tokens (verl#2656: three phantom columns took all the mass)."""
    n = case.width - 1
    rows = [dataclasses.replace(row, token=min(row.token, n - 1)) for row in case.rows]
    cut = case.replace(rows=tuple(dataclasses.replace(row, values=row.values[:n]) for row in rows))
    want = ctx.call(cut).values
    out = []
    for padding in (0.0, math.nan, math.inf, FORMATS[case.dtype].max):
        padded = case.replace(
            rows=tuple(dataclasses.replace(row, values=(*row.values[:n], padding)) for row in rows),
            cuts=(("real_vocab", n),),
        )
        out.append(same(ctx.call(padded).values, want, label=f"padding {padding:g}", format=output_format(case.dtype)))
    return out
