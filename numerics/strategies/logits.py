"""Rows of logits by regime, temperatures, layouts, and whole cases of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from numerics.formats import FORMATS, Format
from numerics.strategies.cases import LAYOUTS, Logits, LogitsCase, Tail
from numerics.strategies.scalars import check_choice, check_format, line_of

__all__ = ["REGIMES", "layouts", "logits", "logits_cases", "temperatures"]

#: name -> what a row of it looks like
REGIMES: Mapping[str, str] = {
    "mixed": "sixteenths between -20 and 20",
    "equal": "all entries equal",
    "near_ties": "entries within a few ULPs of each other",
    "dominant": "one entry 5 to 120 above all others, so that its log-prob is near 0",
    "offset": "a common offset of up to the format's range, entries a few ULPs of it apart",
    "gaps": "gaps to the maximum from 0 up to beyond where exp underflows",
    "huge": "entries anywhere on the format's line",
    "holes": "some entries -inf, at least one not",
    "padded": "the last entries are a padding value such as 0, -1e4 or the format's minimum",
    "all_neg_inf": "nothing but -inf",
    "nan": "a NaN somewhere",
    "pos_inf": "a +inf somewhere",
}
FINITE_REGIMES = ("mixed", "equal", "near_ties", "dominant", "offset", "gaps", "padded")
ORDINARY_REGIMES = (*FINITE_REGIMES, "holes")

#: passing a temperature: left out, a Python float, a 0-d tensor, a tensor of the shape of token_ids
TEMPERATURE_FORMS = ("absent", "float", "zero_dim", "per_token")


def layouts() -> st.SearchStrategy[str]:
    """Ways the rows lie in memory (see `numerics.strategies.cases.LAYOUTS`)."""
    return st.sampled_from(LAYOUTS)


def temperatures(*, min_value: float = 2.0**-20, max_value: float = 2.0**20) -> st.SearchStrategy[float]:
    """Temperatures: 1, powers of two, the usual 0.6 / 0.7 / 1.3, and anything in between, tiny and huge ones too.

    They are float64 numbers, mostly not representable in float32 or bfloat16: rounding them wrongly must show.
    """
    if not 0 < min_value <= max_value < math.inf:
        raise InvalidArgument(f"need 0 < min_value <= max_value < inf, got {min_value=}, {max_value=}")
    usual = [t for t in (1.0, 0.7, 0.6, 1.3, 0.5, 2.0, 0.1, 0.25, 4.0, 1.1) if min_value <= t <= max_value]
    anything = st.floats(min_value, max_value)
    exponents = (math.ceil(math.log2(min_value)), math.floor(math.log2(max_value)))
    powers = [st.integers(*exponents).map(lambda e: 2.0**e)] if exponents[0] <= exponents[1] else []
    return st.one_of(*([st.sampled_from(usual)] if usual else []), *powers, anything)


@st.composite
def logits(
    draw: st.DrawFn,
    *,
    dtype: str = "float32",
    min_width: int = 1,
    max_width: int = 9,
    regimes: Collection[str] = ORDINARY_REGIMES,
) -> tuple[float, ...]:
    """One row of logits on the grid of ``dtype``, from one of `REGIMES`."""
    fmt = check_format("dtype", dtype)
    check_choice("regimes", regimes, REGIMES)
    if not 1 <= min_width <= max_width:
        raise InvalidArgument(f"need 1 <= min_width <= max_width, got {min_width=}, {max_width=}")
    width = draw(st.integers(min_width, max_width), label="width")
    return draw(_row(fmt, width, tuple(regimes)), label="row")


@lru_cache(maxsize=64)
def _numbers(width: int) -> st.SearchStrategy[list[int]]:
    """``width`` integers from 0 to 1920, as two bytes each: one draw, many times faster than a list of integers."""
    return st.binary(min_size=2 * width, max_size=2 * width).map(
        lambda data: [int.from_bytes(data[k : k + 2], "big") % 1921 for k in range(0, len(data), 2)]
    )


@st.composite
def _row(draw: st.DrawFn, fmt: Format, width: int, regimes: tuple[str, ...]) -> tuple[float, ...]:
    regime = draw(st.sampled_from(regimes))
    numbers = draw(_numbers(width))
    if regime in ("equal", "offset", "near_ties"):
        return _tied(draw, fmt, regime, numbers)
    if regime == "huge":
        return tuple(draw(st.lists(line_of(fmt), min_size=width, max_size=width)))
    if regime == "gaps":
        numbers[draw(st.integers(0, width - 1))] = 0
        return tuple(fmt.round(-n / 16) for n in numbers)
    values = [fmt.round(_sixteenths(n)) for n in numbers]
    place = draw(st.integers(0, width - 1))
    if regime == "dominant":
        # five at least; ninety-six and more is where a float32 probability underflows
        lead = 5 + draw(st.integers(0, 115))
        values = [fmt.round(v / 8) for v in values]
        values[place] = fmt.round(max(values) + lead)
    elif regime == "holes":
        values = [
            -math.inf if n % 2 and j != place else v for j, (n, v) in enumerate(zip(numbers, values, strict=True))
        ]
    elif regime == "padded":
        padding = draw(st.sampled_from([0.0, fmt.round(-1e4), -fmt.max]))
        values = [padding if j > place else v for j, v in enumerate(values)]
    elif regime == "all_neg_inf":
        values = [-math.inf] * width
    elif regime == "nan":
        values[place] = math.nan
    elif regime == "pos_inf":
        values[place] = math.inf
    return tuple(values)


def _sixteenths(n: int) -> float:
    """0, 1/16, -1/16, 2/16, ...: between -20 and 20, simplest first."""
    k = n % 641
    return ((k + 1) // 2) * (1 if k % 2 else -1) / 16


def _tied(draw: st.DrawFn, fmt: Format, regime: str, numbers: list[int]) -> tuple[float, ...]:
    """Entries at or a few ULPs below a base: of ordinary size, or (offset) anywhere in the format's range."""
    if regime == "offset":
        exponent = draw(st.integers(4, fmt.emax - 1))
        base = math.ldexp(1.0 + draw(st.integers(0, 7)) / 8, exponent)
        base = base if draw(st.booleans()) else -base
    else:
        base = fmt.round(draw(st.integers(-320, 320)) / 16)
    spread = {"equal": 1, "near_ties": 4, "offset": 6}[regime]
    top = fmt.ordinal(base)
    return tuple(fmt.from_ordinal(top - n % spread) for n in numbers)


@st.composite
def logits_cases(
    draw: st.DrawFn,
    *,
    dtype: str = "float32",
    min_rows: int = 1,
    max_rows: int = 6,
    min_width: int = 1,
    max_width: int = 9,
    regimes: Collection[str] = ORDINARY_REGIMES,
    temperature_forms: Collection[str] = ("absent", "float"),
    mask_forms: Collection[str] = ("absent",),
    layout_names: Collection[str] = ("contiguous",),
    tails: bool = True,
    allow_overflow: bool = False,
) -> LogitsCase:
    """Cases of ``token_logprobs`` and ``entropy``: rows of one width, each of its own regime.

    tails: now and then some hundred further columns. allow_overflow: let logits / temperature leave the compute
    dtype's range (otherwise such a row gets temperature 1).
    """
    fmt = check_format("dtype", dtype)
    check_choice("regimes", regimes, REGIMES)
    check_choice("temperature_forms", temperature_forms, TEMPERATURE_FORMS)
    check_choice("mask_forms", mask_forms, ("absent", "bool", "int64", "float32"))
    check_choice("layout_names", layout_names, LAYOUTS)
    if not 0 <= min_rows <= max_rows:
        raise InvalidArgument(f"need 0 <= min_rows <= max_rows, got {min_rows=}, {max_rows=}")
    if not 1 <= min_width <= max_width:
        raise InvalidArgument(f"need 1 <= min_width <= max_width, got {min_width=}, {max_width=}")
    width = draw(st.integers(min_width, max_width), label="width")
    temperature = draw(st.sampled_from(list(temperature_forms)), label="temperature form")
    mask = draw(st.sampled_from(list(mask_forms)), label="mask form")
    layout = draw(st.sampled_from(list(layout_names)), label="layout")
    tail = draw(_tails(), label="tail") if tails else None
    compute = FORMATS["float64" if dtype == "float64" else "float32"]
    rows = draw(
        st.lists(
            _case_row(
                fmt=fmt,
                compute=compute,
                width=width,
                regimes=tuple(regimes),
                hot=temperature != "absent",
                masked=mask != "absent",
                allow_overflow=allow_overflow,
            ),
            min_size=min_rows,
            max_size=max_rows,
        ),
        label="rows",
    )
    if temperature in ("float", "zero_dim") and rows:
        shared = rows[0].temperature
        if not allow_overflow and any(_overflows(row.values, shared, compute) for row in rows):
            shared = 1.0
        rows = [Logits(row.values, row.token, shared, row.valid) for row in rows]
    return LogitsCase(rows=tuple(rows), dtype=dtype, temperature=temperature, mask=mask, layout=layout, tail=tail)


_ANY_TEMPERATURE = temperatures()


@st.composite
def _case_row(
    draw: st.DrawFn,
    *,
    fmt: Format,
    compute: Format,
    width: int,
    regimes: tuple[str, ...],
    hot: bool,
    masked: bool,
    allow_overflow: bool,
) -> Logits:
    values = draw(_row(fmt, width, regimes))
    # the most probable token half of the time: log-probs near 0 are where formulas differ
    top = max(range(width), key=lambda j: -math.inf if math.isnan(values[j]) else values[j])
    token = top if draw(st.booleans()) else draw(st.integers(0, width - 1))
    temperature = draw(_ANY_TEMPERATURE) if hot else 1.0
    if not allow_overflow and _overflows(values, temperature, compute):
        temperature = 1.0
    return Logits(values, token, temperature, draw(st.booleans()) if masked else True)


def _overflows(values: tuple[float, ...], temperature: float, compute: Format) -> bool:
    biggest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    return biggest / temperature > compute.max / 2


@lru_cache(maxsize=1)
def _tails() -> st.SearchStrategy[Tail | None]:
    some: Any = st.builds(
        Tail,
        count=st.integers(1, 600),
        seed=st.integers(0, 99),
        low=st.sampled_from([-8.0, -30.0, 0.0]),
        high=st.sampled_from([0.0, 8.0]),
    )
    none: Any = st.none()
    return st.one_of(none, none, none, some)
