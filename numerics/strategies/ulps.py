"""Cases of ``ulp_distance``."""

from __future__ import annotations

from hypothesis import strategies as st

from numerics.formats import Format
from numerics.strategies.cases import LAYOUTS, UlpCase
from numerics.strategies.scalars import check_format, floats_of

__all__ = ["ulp_cases"]


@st.composite
def _places(draw: st.DrawFn, fmt: Format) -> tuple[float, float]:
    a = draw(floats_of(dtype=fmt.name))
    if draw(st.booleans()):
        return a, draw(floats_of(dtype=fmt.name))
    if a != a:
        return a, a
    place = fmt.ordinal(a) + draw(st.integers(-9, 9))
    return a, fmt.from_ordinal(max(-fmt.max_ordinal, min(fmt.max_ordinal, place)))


@st.composite
def ulp_cases(draw: st.DrawFn, *, dtype: str = "float32", max_size: int = 12, flush_to_zero: bool = False) -> UlpCase:
    """Pairs anywhere on the line and pairs a few steps apart, with NaN, infinities, zeros and subnormals."""
    fmt = check_format("dtype", dtype)
    pairs = draw(st.lists(_places(fmt), min_size=1, max_size=max_size))
    layout = draw(st.sampled_from([name for name in LAYOUTS if name in ("contiguous", "offset", "sliced")]))
    return UlpCase(
        tuple(a for a, _ in pairs),
        tuple(b for _, b in pairs),
        dtype,
        layout=layout,
        flush_to_zero=flush_to_zero,
    )
