"""Formats and single numbers of a format."""

from __future__ import annotations

import math
from collections.abc import Collection
from difflib import get_close_matches

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from numerics.formats import FORMATS, Format

__all__ = ["check_choice", "check_format", "dtypes", "floats_of", "line_of"]


def check_format(name: str, value: str) -> Format:
    """The format called ``value``, or `InvalidArgument` naming the argument ``name``."""
    check_choice(name, (value,), tuple(FORMATS))
    return FORMATS[value]


def check_choice(name: str, values: Collection[str], known: Collection[str]) -> None:
    """`InvalidArgument` unless ``values`` is a non-empty part of ``known``."""
    if not values:
        raise InvalidArgument(f"{name}={values!r} is empty; choose from {sorted(known)}")
    for value in values:
        if value not in known:
            near = get_close_matches(str(value), list(known), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidArgument(f"{name}={value!r} is unknown{hint} (known: {', '.join(known)})")


def dtypes(*, names: Collection[str] = tuple(FORMATS)) -> st.SearchStrategy[str]:
    """Names of floating-point formats."""
    check_choice("names", names, tuple(FORMATS))
    return st.sampled_from(list(names))


def line_of(fmt: Format) -> st.SearchStrategy[float]:
    """Finite numbers of a format, every binade equally likely: Hypothesis draws wide integers mostly small."""
    binades, fractions = fmt.emax - fmt.emin + 1, 1 << (fmt.precision - 1)

    def value(binade: int, fraction: int, negative: bool) -> float:
        place = binade * fractions + fraction
        return fmt.from_ordinal(-place if negative else place)

    return st.builds(value, st.integers(0, binades), st.integers(0, fractions - 1), st.booleans())


def floats_of(
    *,
    dtype: str = "float32",
    allow_nan: bool = True,
    allow_infinity: bool = True,
    allow_subnormal: bool = True,
) -> st.SearchStrategy[float]:
    """Any number of a format, drawn along its ordered line, so that every binade is equally likely."""
    fmt = check_format("dtype", dtype)
    line = line_of(fmt)
    edges = [0.0, -0.0, fmt.min_normal, -fmt.min_normal, fmt.max, -fmt.max, 1.0, -1.0]
    if allow_infinity:
        edges += [math.inf, -math.inf]
    if allow_nan:
        edges.append(math.nan)
    small = st.integers(-8, 8).map(fmt.from_ordinal)
    drawn = st.one_of(line, st.sampled_from(edges), small)
    if allow_subnormal:
        return drawn
    return drawn.map(lambda x: math.copysign(0.0, x) if 0 < abs(x) < fmt.min_normal else x)
