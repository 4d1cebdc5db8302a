"""Cases of ``correction``: pairs with a rule, its level and its bounds."""

from __future__ import annotations

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
    max_rows: int = 4,
) -> PairCase:
    """Cases of ``correction``: ragged rows under one rule."""
    case = draw(
        pair_cases(dtype=dtype, trainer_dtypes=trainer_dtypes, kinds=kinds, patterns=patterns, max_rows=max_rows)
    )
    return case.replace(packed=False, options=draw(rule_options(rules=rules, levels=levels), label="rule"))
