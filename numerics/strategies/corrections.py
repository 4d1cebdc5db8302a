"""Cases of ``correction``: pairs with a rule, its level and its bounds."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from hypothesis import strategies as st

from numerics.formats import FORMATS
from numerics.strategies.cases import PairCase
from numerics.strategies.pairs import MASK_PATTERNS, RATIO_KINDS, pair_cases
from numerics.strategies.scalars import check_choice

__all__ = ["RULE_LEVELS", "correction_cases", "rule_options"]

#: rule -> levels
RULE_LEVELS: Mapping[str, tuple[str, ...]] = {
    "truncate": ("token", "sequence", "sequence_geometric"),
    "zero": ("token", "sequence", "sequence_geometric"),
    "reject": ("token", "row_sum", "row_mean", "row_max"),
    "veto": ("row_min",),
}
_UPPER = (1.0, 1.0009765625, 1.5, 2.0, 5.0, 1e4)
_LOWER = (0.0, 1e-3, 0.5, 0.9990234375, 1.0)


@st.composite
def rule_options(
    draw: st.DrawFn, *, rules: Collection[str] = tuple(RULE_LEVELS), levels: Collection[str] | None = None
) -> tuple[tuple[str, Any], ...]:
    """Keywords of one rule as pairs: rule, level and what it needs."""
    check_choice("rules", rules, RULE_LEVELS)
    rule = draw(st.sampled_from(list(rules)))
    level = draw(st.sampled_from([x for x in RULE_LEVELS[rule] if levels is None or x in levels]))
    options: list[tuple[str, Any]] = [("rule", rule), ("level", level)]
    if rule == "truncate":
        options.append(("upper", draw(st.sampled_from(_UPPER))))
        if draw(st.booleans()):
            options.append(("lower", draw(st.sampled_from(_LOWER))))
    elif rule == "zero":
        options += [("lower", draw(st.sampled_from(_LOWER))), ("upper", draw(st.sampled_from(_UPPER)))]
    elif rule == "reject":
        statistic = draw(st.sampled_from(["k1", "k2", "k3"]))
        limits = [0.0, 1e-8, 1e-3, 0.5, 10.0, *([-0.5] if statistic == "k1" else [])]
        options += [("statistic", statistic), ("threshold", draw(st.sampled_from(limits)))]
    else:
        options.append(("threshold", draw(st.sampled_from([0.0, 1e-4, 0.1, 0.5, 1.0]))))
    return tuple(options)


@st.composite
def correction_cases(
    draw: st.DrawFn,
    *,
    dtype: str = "float32",
    trainer_dtypes: Collection[str] = tuple(FORMATS),
    kinds: Collection[str] = RATIO_KINDS,
    patterns: Collection[str] = MASK_PATTERNS,
    rules: Collection[str] = tuple(RULE_LEVELS),
    levels: Collection[str] | None = None,
    compare_dtypes: Collection[str] = ("float32",),
    max_rows: int = 4,
) -> PairCase:
    """Cases of ``correction``: ragged rows under one rule; half of the bounds lie about a ratio that is there."""
    case = draw(
        pair_cases(
            dtype=dtype,
            trainer_dtypes=trainer_dtypes,
            kinds=kinds,
            patterns=patterns,
            compare_dtypes=compare_dtypes,
            max_rows=max_rows,
        )
    )
    options = draw(rule_options(rules=rules, levels=levels), label="rule")
    if draw(st.booleans(), label="bounds about a ratio"):
        options = draw(_about(case, options))
    return case.replace(packed=False, options=options)


@st.composite
def _about(draw: st.DrawFn, case: PairCase, options: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    """The rule with one bound near the ratio or the statistic of one of its units: on it, next to it, well off it."""
    found = dict(options)
    ds = [p - q for q, p in case.tokens if math.isfinite(p - q)]
    rows = [[p - q for q, p in row] for row in case.row_tokens]
    if found["level"] in ("sequence", "row_sum"):
        ds = [sum(row) for row in rows if math.isfinite(sum(row))]
    elif found["level"] in ("sequence_geometric", "row_mean"):
        ds = [sum(row) / len(row) for row in rows if math.isfinite(sum(row))]
    ds = [d for d in ds if abs(d) < 20.0]
    if not ds:
        return options
    d = draw(st.sampled_from(ds))
    off = 1.0 + draw(st.sampled_from([-1, 0, 0, 1])) * 2.0 ** -draw(st.sampled_from([52, 24, 20, 10, 3]))
    w = math.exp(d) * off
    if found["rule"] == "reject":
        statistic = {"k1": -d, "k2": d * d / 2, "k3": max(math.expm1(d) - d, 0.0)}[found["statistic"]]
        return tuple((found | {"threshold": statistic * off}).items())
    if found["rule"] == "veto":
        return tuple((found | {"threshold": w}).items())
    bounds = {"upper": max(w, found.get("lower", 0.0))}
    if "lower" in found and draw(st.booleans()):
        bounds = {"lower": w, "upper": w if draw(st.booleans()) else max(w, found["upper"])}
    return tuple((found | bounds).items())
