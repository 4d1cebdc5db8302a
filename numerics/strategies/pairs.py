"""Pairs of log-probs of the same token, masks, rows of them, and whole cases."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from numerics.formats import FORMATS, Format
from numerics.strategies.cases import PairCase, PairRow
from numerics.strategies.scalars import check_choice, check_format

__all__ = [
    "FINITE_KINDS",
    "MASK_PATTERNS",
    "ORDINARY_KINDS",
    "PAIR_KINDS",
    "RATIO_KINDS",
    "logprob_pairs",
    "masks",
    "pair_cases",
    "pair_rows",
]

#: name -> how rollout (q) and trainer (p) differ
PAIR_KINDS: Mapping[str, str] = {
    "identical": "q and p are the same number",
    "ulps": "q and p lie 1 to 40 ULPs apart, on the coarser of their two grids",
    "rounded": "p is q rounded to bfloat16",
    "far": "two unrelated log-probs between -30 and 0",
    "near_certain": "both within 1e-4 of 0, a probability near 1",
    "subnormal": "differences that vanish when subnormals are flushed to zero",
    "zeros": "+0 and -0 in any combination",
    "improbable": "log-probs below -88, whose probabilities are subnormal or 0",
    "positive": "a log-prob above 0",
    "wide": "float64 values that float32 does not hold (in float64 inputs; otherwise like far)",
    "close": "both near 0 and apart by 1e-12 to 1e-2, where exp(d) - 1 - d cancels",
    "extreme": "ratios of e^20 to e^700 and their inverses, about the edges of float32's and float64's exp",
    "infinite": "-inf or +inf on one or both sides",
    "nan": "NaN on one or both sides",
}
FINITE_KINDS = tuple(kind for kind in PAIR_KINDS if kind not in ("close", "extreme", "infinite", "nan"))
#: what ratios are checked on besides
RATIO_KINDS = (*FINITE_KINDS, "close", "extreme")
ORDINARY_KINDS = ("identical", "ulps", "rounded", "far", "near_certain", "improbable")
MASK_PATTERNS = ("all", "none", "one", "right_padded", "left_padded", "holes")


@st.composite
def masks(draw: st.DrawFn, *, length: int, patterns: Collection[str] = MASK_PATTERNS) -> tuple[bool, ...]:
    """A mask of ``length`` places: all, none, one, padded on one side, or with holes."""
    check_choice("patterns", patterns, MASK_PATTERNS)
    if length < 0:
        raise InvalidArgument(f"length={length} is negative")
    pattern = draw(st.sampled_from(list(patterns)))
    if pattern == "holes":
        return tuple(draw(st.lists(st.booleans(), min_size=length, max_size=length)))
    cut = draw(st.integers(0, max(length - 1, 0)))
    return {
        "all": (True,) * length,
        "none": (False,) * length,
        "one": tuple(j == cut for j in range(length)),
        "right_padded": tuple(j <= cut for j in range(length)),
        "left_padded": tuple(j >= cut for j in range(length)),
    }[pattern]


@st.composite
def logprob_pairs(
    draw: st.DrawFn,
    *,
    rollout_dtype: str = "float32",
    trainer_dtype: str = "float32",
    kinds: Collection[str] = tuple(PAIR_KINDS),
) -> tuple[float, float]:
    """``(q, p)``: the rollout's and the trainer's log-prob of one token, each on the grid of its dtype."""
    check_choice("kinds", kinds, PAIR_KINDS)
    q_format, p_format = (
        check_format("rollout_dtype", rollout_dtype),
        check_format("trainer_dtype", trainer_dtype),
    )
    return draw(_pair(q_format, p_format, tuple(kinds)))


@st.composite
def _pair(draw: st.DrawFn, q_format: Format, p_format: Format, kinds: tuple[str, ...]) -> tuple[float, float]:
    kind = draw(st.sampled_from(kinds))
    ordinary = -draw(st.integers(1, 1920)) / 64.0
    coarse = q_format if q_format.precision <= p_format.precision else p_format
    base = coarse.round(ordinary)
    if kind == "identical":
        q = p = base
    elif kind == "ulps":
        steps = draw(st.integers(1, 40) | st.just(1)) * draw(st.sampled_from([-1, 1]))
        q, p = base, coarse.from_ordinal(coarse.ordinal(base) + steps)
    elif kind == "rounded":
        q = draw(st.floats(-30, -(2.0**-10)).map(q_format.round))
        p = FORMATS["bfloat16"].round(q)
    elif kind == "near_certain":
        q, p = (-draw(st.integers(0, 1000)) * 2.0**-24 for _ in "qp")
    elif kind == "subnormal":
        q, p = (-draw(st.integers(0, 20)) * coarse.min_subnormal for _ in "qp")
    elif kind == "zeros":
        q, p = draw(st.sampled_from([(0.0, -0.0), (-0.0, 0.0), (0.0, 0.0), (-0.0, -0.0)]))
    elif kind == "improbable":
        q, p = (-88.0 - draw(st.integers(0, 1000)) / 32.0 for _ in "qp")
    elif kind == "positive":
        q, p = base, draw(st.integers(1, 1600)) / 16.0
    elif kind == "wide":
        q, p = base, base * (1.0 + draw(st.integers(-8, 8)) * 2.0**-40)
    elif kind == "close":
        q, p = (-draw(st.integers(0, 64)) * 2.0 ** -draw(st.integers(12, 40)) for _ in "qp")
    elif kind == "extreme":
        d = draw(st.sampled_from([20.0, 30.0, 87.0, 88.0, 89.0, 110.0, 350.0, 700.0])) + draw(st.integers(-8, 8)) / 8.0
        q, p = (base, base + d) if draw(st.booleans()) else (base, base - d)
    elif kind == "infinite":
        q, p = draw(st.permutations([base, -math.inf, math.inf, -math.inf]).map(lambda x: (x[0], x[1])))
    elif kind == "nan":
        q, p = draw(st.sampled_from([(math.nan, base), (base, math.nan), (math.nan, math.nan), (-math.inf, math.nan)]))
    else:
        q, p = base, -draw(st.integers(1, 1920)) / 64.0
    return q_format.round(q), p_format.round(p)


@st.composite
def pair_rows(
    draw: st.DrawFn,
    *,
    rollout_dtype: str = "float32",
    trainer_dtype: str = "float32",
    kinds: Collection[str] = tuple(PAIR_KINDS),
    patterns: Collection[str] = MASK_PATTERNS,
    max_length: int = 8,
    constant: bool = False,
) -> PairRow:
    """One sequence of pairs with its mask. constant: may repeat one pair over the row."""
    pair = _pair(
        check_format("rollout_dtype", rollout_dtype),
        check_format("trainer_dtype", trainer_dtype),
        tuple(kinds),
    )
    pairs = draw(st.lists(pair, min_size=1, max_size=max_length))
    if constant and pairs and draw(st.booleans()):
        pairs = [pairs[0]] * len(pairs)
    valid = draw(masks(length=len(pairs), patterns=patterns))
    return PairRow(tuple(q for q, _ in pairs), tuple(p for _, p in pairs), valid)


@st.composite
def pair_cases(
    draw: st.DrawFn,
    *,
    dtype: str = "float32",
    kinds: Collection[str] = tuple(PAIR_KINDS),
    patterns: Collection[str] = MASK_PATTERNS,
    mask_forms: Collection[str] = ("bool", "int64", "float32"),
    trainer_dtypes: Collection[str] = tuple(FORMATS),
    compare_dtypes: Collection[str] = ("float32",),
    max_rows: int = 4,
    max_length: int = 8,
    flush_to_zero: bool = False,
) -> PairCase:
    """Cases of ``mismatch``: ragged rows, the rollout in ``dtype``, the trainer in one of ``trainer_dtypes``."""
    check_choice("kinds", kinds, PAIR_KINDS)
    check_choice("patterns", patterns, MASK_PATTERNS)
    check_choice("mask_forms", mask_forms, ("bool", "int64", "float32"))
    check_choice("trainer_dtypes", trainer_dtypes, FORMATS)
    check_choice("compare_dtypes", compare_dtypes, ("float32", "float64"))
    trainer = draw(st.sampled_from([dtype, *trainer_dtypes]), label="trainer dtype")
    mask = draw(st.sampled_from(list(mask_forms)), label="mask form")
    some = draw(st.lists(st.sampled_from(list(kinds)), min_size=1, max_size=3, unique=True), label="kinds")
    rows = draw(
        st.lists(
            pair_rows(
                rollout_dtype=dtype,
                trainer_dtype=trainer,
                kinds=some,
                patterns=patterns,
                max_length=max_length,
                constant=True,
            ),
            min_size=1,
            max_size=max_rows,
        ),
        label="rows",
    )
    return PairCase(
        rows=tuple(rows),
        rollout_dtype=dtype,
        trainer_dtype=trainer,
        compare_dtype=draw(st.sampled_from(list(compare_dtypes)), label="compare dtype"),
        mask=mask,
        padding=draw(st.sampled_from([0.0, math.nan, -math.inf, 1e30 if dtype != "float16" else 6e4]), label="padding"),
        pad_left=draw(st.booleans(), label="pad left"),
        packed=draw(st.booleans(), label="packed"),
        layout=draw(st.sampled_from(["contiguous", "transposed", "sliced", "offset"]), label="layout"),
        flush_to_zero=flush_to_zero,
    )
