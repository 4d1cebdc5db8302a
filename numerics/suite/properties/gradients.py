"""Rules of the gradient of ``token_logprobs``."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import numpy as np

from numerics.formats import FORMATS
from numerics.strategies.cases import Logits, LogitsCase
from numerics.suite import bounds, oracle, special
from numerics.suite.measure import Exact, Measurement, holds, within
from numerics.suite.properties.logprobs import cases
from numerics.suite.property import Context, Property, rule

__all__ = ["RULES"]

RULES: dict[str, Property] = {}
_rule = partial(rule, RULES, contract="token_logprobs")


def _measure(case: LogitsCase, ctx: Context) -> Measurement:
    case = case.replace(backward=True)
    gradient = ctx.call(case).gradient
    assert gradient is not None
    exact, onehot = oracle.gradient(case)
    scored = ctx.exact(case.replace(backward=False))
    compute = np.float64 if case.dtype == "float64" else np.float32
    temperatures = case.temperatures.astype(compute).astype(np.float64)
    allowed = bounds.gradient(
        scored.conditioning, scored.probs, scored.gaps, onehot, temperatures, ctx.algorithm, case.dtype
    )
    allowed = np.where(np.isneginf(case.values), 0.0, allowed)  # a removed entry gets exactly 0
    allowed, limit = allowed.ravel(), FORMATS[case.dtype].max
    with np.errstate(over="ignore"):
        beyond = np.abs(exact.value) - allowed > limit * (1 + FORMATS[case.dtype].u)  # infinite in the logits' dtype
        unclear = ~beyond & (np.abs(exact.value) + allowed >= limit)
    finite = np.repeat(np.isfinite(scored.logprobs.value) & case.valid, case.width)
    places = np.flatnonzero(finite & ~unclear)
    value = np.where(beyond, np.copysign(np.inf, exact.value), exact.value)
    return within(
        gradient[places],
        Exact(value=value[places], radius=exact.radius[places], refine=lambda k: exact.refine(int(places[k]))),
        allowed[places],
        label="d lp / d logit",
        rows=np.repeat(np.arange(case.size), case.width)[places],
        format=case.dtype,
    )


@_rule(
    "LP-30",
    statement="|d lp/dz_j - (onehot_j - softmax_j)/T| <= bound; exactly 0 at removed entries",
    cases=partial(cases, tails=False),
    special=lambda d: [c for c in special.logits(d) if c.tail is None],
    requires={"autograd"},
)
def gradient(case: LogitsCase, ctx: Context) -> Measurement:
    """The gradient is the one-hot minus the softmax, over the temperature; a cut or -inf entry gets exactly 0."""
    return _measure(case, ctx)


@_rule(
    "LP-31",
    statement="masked row => gradient exactly 0, whatever it holds",
    cases=partial(cases, mask_forms=("bool", "int64"), temperature_forms=("absent",), tails=False),
    requires={"autograd", "mask"},
)
def masked_gradient(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """NaN times 0 is NaN: a mask that multiplies lets rubbish at a masked place into the gradient."""
    width = len(case.rows[0].values)
    spoiled = case.map_rows(
        lambda row: row if row.valid else Logits((math.nan,) * width, 0, row.temperature, valid=False)
    )
    gradient = ctx.call(spoiled.replace(backward=True)).gradient
    assert gradient is not None
    masked = np.repeat(~case.valid, case.width)
    return [
        holds(
            gradient[masked] == 0,
            label="gradient at a masked row is 0",
            rows=np.repeat(np.arange(case.size), width)[masked],
        ),
        holds(
            np.isfinite(gradient[~masked]),
            label="gradient at a valid row is finite",
            rows=np.repeat(np.arange(case.size), width)[~masked],
        ),
    ]


@_rule(
    "LP-32",
    statement="-inf value => gradient 0 in its whole row; NaN value => NaN in its own row only",
    cases=partial(
        cases,
        regimes=("holes", "nan", "all_neg_inf", "mixed", "pos_inf"),
        temperature_forms=("absent",),
        tails=False,
        min_width=2,
    ),
    special=special.nonfinite_logits,
    requires={"autograd", "nonfinite_gradients"},
)
def nonfinite_gradient(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """One impossible token does not poison the batch, and an undefined one is not hidden."""
    case = case.replace(backward=True)
    outcome = ctx.call(case)
    assert outcome.gradient is not None
    gradient = outcome.gradient.reshape(case.size, case.width)
    value = ctx.exact(dataclasses.replace(case, backward=False)).logprobs.value
    impossible, undefined, sound = np.isneginf(value), np.isnan(value), np.isfinite(value)
    return [
        holds((gradient[impossible] == 0).all(axis=1), label="-inf: gradient 0", rows=np.flatnonzero(impossible)),
        holds(np.isnan(gradient[undefined]).all(axis=1), label="NaN: gradient NaN", rows=np.flatnonzero(undefined)),
        holds(np.isfinite(gradient[sound]).all(axis=1), label="finite: gradient finite", rows=np.flatnonzero(sound)),
    ]
