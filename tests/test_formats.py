"""numerics.formats against numpy, ml_dtypes and exact fractions.

The 16-bit formats are covered pattern by pattern; float32 and float64 by edge values and by drawn bit
patterns, which reach every binade, subnormals and NaN payloads alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from numerics import formats
from numerics.formats import FORMATS, Format

DATA = Path(__file__).parent / "data" / "cases.json"
CASES = [case for case in json.loads(DATA.read_text(encoding="utf-8"))["cases"] if case["quantity"] == "ulp_distance"]
NUMPY = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def over(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fmt", [FORMATS[name] for name in names], ids=names)


every_format = over(*FORMATS)
small_format = over("float16", "bfloat16")
large_format = over("float32", "float64")
drawn = settings(deadline=None)


# --- helpers -----------------------------------------------------------------------------------------------


def to_numpy(x: torch.Tensor) -> np.ndarray:
    """The same bits as a numpy array (torch has no bridge for bfloat16)."""
    fmt = formats.format_of(x)
    return x.contiguous().view(getattr(torch, f"int{fmt.bits}")).numpy().view(NUMPY[fmt.name])


def to_torch(x: np.ndarray, fmt: Format) -> torch.Tensor:
    return torch.from_numpy(x.view(f"int{fmt.bits}")).view(fmt.dtype)


def from_patterns(patterns: list[int], fmt: Format) -> np.ndarray:
    return np.array(patterns, dtype=f"uint{fmt.bits}").view(NUMPY[fmt.name])


def every_pattern(fmt: Format) -> np.ndarray:
    return from_patterns(range(1 << fmt.bits), fmt)


def values(x: np.ndarray | torch.Tensor) -> np.ndarray:
    """As float64, which holds every value of every format."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return (to_numpy(x) if isinstance(x, torch.Tensor) else x).astype(np.float64)


def assert_same_values(actual: Any, expected: Any) -> None:
    """Equal numbers; all NaNs are alike and so are the zeros (their sign has tests of its own)."""
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))


def assert_same_bits(actual: torch.Tensor, expected: np.ndarray) -> None:
    """Equal numbers and equal signs of zero; all NaNs are alike."""
    actual = to_numpy(actual)
    assert actual.dtype == expected.dtype
    assert_same_values(values(actual), values(expected))
    zero = values(expected) == 0
    assert_same_values(np.signbit(values(actual)[zero]), np.signbit(values(expected)[zero]))


def numpy_ulp(x: np.ndarray) -> np.ndarray:
    """numpy.spacing of |x|, and the gap below at max, where numpy reports the infinite gap above."""
    with np.errstate(all="ignore"):
        gap = np.spacing(np.abs(x))
        below = np.spacing(np.nextafter(np.abs(x), np.zeros_like(x)))
        return np.where(np.isinf(gap) & np.isfinite(x), below, gap)


def numpy_next(x: np.ndarray, towards: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.nextafter(x, np.full_like(x, towards))


def line(pattern: int, fmt: Format) -> int:
    """IEEE 754's sign and magnitude read as an integer: the ordered line, in Python integers."""
    sign, magnitude = divmod(pattern, 1 << (fmt.bits - 1))
    return -magnitude if sign else magnitude


def exact(fmt: Format, place: int) -> Fraction:
    """The value at ``place`` >= 0 by definition; at infinity's place, the power of two it stands for."""
    binade, fraction = divmod(place, 1 << (fmt.precision - 1))
    implicit = (1 << (fmt.precision - 1)) if binade else 0
    return (fraction + implicit) * Fraction(2) ** (max(binade, 1) - 1 + fmt.emin - fmt.precision + 1)


def as_mpf(value: Fraction) -> mpmath.mpf:
    with mpmath.workdps(60):
        return mpmath.mpf(value.numerator) / value.denominator


@contextmanager
def flush_to_zero() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the mode belongs to one thread: the pool's other threads would not flush
    try:
        if not torch.set_flush_denormal(True):
            pytest.skip("torch.set_flush_denormal: this CPU has no flush-to-zero mode")
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


# --- the formats themselves --------------------------------------------------------------------------------


@every_format
def test_constants_are_those_of_torch_and_numpy(fmt: Format) -> None:
    info, numpy_info = torch.finfo(fmt.dtype), ml_dtypes.finfo(NUMPY[fmt.name])
    assert (fmt.bits, fmt.dtype) == (info.bits, getattr(torch, fmt.name))
    assert (fmt.max, fmt.min_normal, 2 * fmt.u) == (info.max, info.tiny, info.eps)
    assert fmt.min_subnormal == float(numpy_info.smallest_subnormal)
    assert fmt.max_ordinal == int(np.array(np.inf, NUMPY[fmt.name]).view(f"uint{fmt.bits}"))


@every_format
def test_format_of_takes_a_dtype_a_tensor_or_a_name(fmt: Format) -> None:
    assert formats.format_of(fmt.dtype) is formats.format_of(torch.ones(2, dtype=fmt.dtype)) is fmt
    assert formats.format_of(fmt.name) is fmt


# --- all 65,536 patterns -----------------------------------------------------------------------------------


@small_format
def test_ordinal_numbers_every_value_in_order(fmt: Format) -> None:
    x = every_pattern(fmt)
    numbers = ~np.isnan(values(x))
    distinct, place = np.unique(values(x)[numbers], return_inverse=True)  # sorted; merges the zeros
    assert len(distinct) == 2 * fmt.max_ordinal + 1
    expected = place - fmt.max_ordinal  # consecutive, strictly increasing, 0 in the middle
    assert_same_values(formats.ordinal(to_torch(x, fmt))[torch.from_numpy(numbers)], expected)
    assert_same_values([fmt.ordinal(value) for value in values(x)[numbers].tolist()], expected)
    assert_same_values([fmt.from_ordinal(k) for k in range(-fmt.max_ordinal, fmt.max_ordinal + 1)], distinct)


def check_neighbours_and_ulp(fmt: Format, x: np.ndarray) -> None:
    """Tensor functions == Format's methods == numpy, NaNs included."""
    scalars, tensor = values(x).tolist(), to_torch(x, fmt)
    for name, expected in (
        ("next_up", numpy_next(x, math.inf)),
        ("next_down", numpy_next(x, -math.inf)),
        ("ulp", numpy_ulp(x)),
    ):
        result = getattr(formats, name)(tensor)
        assert result.dtype == fmt.dtype
        assert_same_values(values(result), values(expected))
        assert_same_values([getattr(fmt, name)(value) for value in scalars], values(expected))


@small_format
def test_neighbours_and_ulp_of_every_pattern(fmt: Format) -> None:
    check_neighbours_and_ulp(fmt, every_pattern(fmt))


@small_format
def test_distance_of_every_pattern_to_a_random_partner(fmt: Format) -> None:
    patterns = np.arange(1 << fmt.bits)
    partners = np.random.default_rng(0).permutation(patterns)
    a, b = (to_torch(from_patterns(p, fmt), fmt) for p in (patterns, partners))
    distance, defined = formats.ulp_distance(a, b)
    undefined = np.isnan(values(a)) | np.isnan(values(b))
    pairs = zip(patterns.tolist(), partners.tolist(), strict=True)
    expected = [abs(line(p, fmt) - line(q, fmt)) for p, q in pairs]
    assert_same_values(defined, ~undefined)
    assert_same_values(distance, np.where(undefined, 0, expected))


# --- float32 and float64 -----------------------------------------------------------------------------------


def edges(fmt: Format) -> np.ndarray:
    """Zeros, subnormals, the border to the normals, 1 and the top with their neighbours, infinities, NaN."""
    one = line(int(np.array(1, NUMPY[fmt.name]).view(f"uint{fmt.bits}")), fmt)
    normal, top = 1 << (fmt.precision - 1), fmt.max_ordinal
    positive = [0, 1, 2, *(middle + k for middle in (normal, one, top) for k in (-1, 0, 1)), top - 2]
    return from_patterns([sign + p for sign in (0, 1 << (fmt.bits - 1)) for p in positive], fmt)


def patterns_of(fmt: Format) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << fmt.bits) - 1)


@large_format
def test_neighbours_and_ulp_at_the_edges(fmt: Format) -> None:
    check_neighbours_and_ulp(fmt, edges(fmt))


@large_format
@drawn
@given(data=st.data())
def test_neighbours_and_ulp_of_drawn_patterns(fmt: Format, data: st.DataObject) -> None:
    x = from_patterns(data.draw(st.lists(patterns_of(fmt), min_size=1, max_size=50)), fmt)
    check_neighbours_and_ulp(fmt, x)


@large_format
@drawn
@given(data=st.data())
def test_ordinals_of_drawn_patterns(fmt: Format, data: st.DataObject) -> None:
    pattern = data.draw(patterns_of(fmt).filter(lambda p: abs(line(p, fmt)) <= fmt.max_ordinal))
    x = from_patterns([pattern], fmt)
    place = line(pattern, fmt)
    assert fmt.ordinal(values(x).item()) == place == formats.ordinal(to_torch(x, fmt)).item()
    assert fmt.from_ordinal(place) == values(x).item()


@every_format
def test_neighbours_and_ulp_at_the_special_points(fmt: Format) -> None:
    """The rules of the docstrings one by one, independent of numpy's conventions."""
    assert fmt.ordinal(0.0) == fmt.ordinal(-0.0) == 0
    assert (fmt.next_up(0.0), fmt.next_down(0.0)) == (fmt.min_subnormal, -fmt.min_subnormal)
    assert (fmt.next_up(-0.0), fmt.next_down(-0.0)) == (fmt.min_subnormal, -fmt.min_subnormal)
    assert (fmt.next_up(fmt.max), fmt.next_up(math.inf)) == (math.inf, math.inf)
    assert (fmt.next_down(-fmt.max), fmt.next_down(-math.inf)) == (-math.inf, -math.inf)
    assert (fmt.next_down(math.inf), fmt.next_up(-math.inf)) == (fmt.max, -fmt.max)
    assert (fmt.ulp(0.0), fmt.ulp(fmt.min_normal)) == (fmt.min_subnormal, fmt.min_subnormal)
    assert (fmt.ulp(1.0), fmt.ulp(fmt.max)) == (2 * fmt.u, fmt.max - fmt.next_down(fmt.max))
    for stays in (fmt.next_up(math.nan), fmt.next_down(math.nan), fmt.ulp(math.nan), fmt.ulp(math.inf)):
        assert math.isnan(stays)


# --- distance ----------------------------------------------------------------------------------------------


def check_distance(fmt: Format, a: float, b: float, expected: int | None) -> None:
    """Scalar and tensor, both ways round; None means undefined."""
    for left, right in ((a, b), (b, a)):
        assert fmt.distance(left, right) == expected
        pair = (torch.tensor(side, dtype=torch.float64).to(fmt.dtype) for side in (left, right))
        distance, defined = formats.ulp_distance(*pair)
        assert distance.dtype == (torch.uint64 if fmt.bits == 64 else torch.int64)
        assert defined.dtype == torch.bool
        assert (distance.item() if defined else None) == expected


MAX32 = FORMATS["float32"].max


@pytest.mark.parametrize(
    ("name", "a", "b", "expected"),
    [
        ("float32", -MAX32, MAX32, 4278190078),
        ("float32", -math.inf, math.inf, 4278190080),
        ("float32", -4.0, 4.0, 2164260864),
        ("float64", -math.inf, math.inf, 18437736874454810624),  # beyond int64
        ("float64", -1.0, 1.0, (1 << 63) - (1 << 53)),
        ("float64", -2.0, 2.0, 1 << 63),  # one more than int64 holds
        ("float16", -math.inf, math.inf, 63488),
        ("bfloat16", -math.inf, math.inf, 2 * 0x7F80),
        *((name, 0.0, -0.0, 0) for name in FORMATS),
        *((name, -fmt.min_subnormal, fmt.min_subnormal, 2) for name, fmt in FORMATS.items()),
        *((name, fmt.max, math.inf, 1) for name, fmt in FORMATS.items()),
        *((name, math.inf, math.inf, 0) for name in FORMATS),
        *((name, math.nan, b, None) for name in FORMATS for b in (math.nan, math.inf, 0.0, 1.0)),
    ],
)
def test_distance_is_exact(name: str, a: float, b: float, expected: int | None) -> None:
    check_distance(FORMATS[name], a, b, expected)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_distance_of_the_reported_cases(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    fmt = FORMATS[inputs["fmt"]]
    a, b = (fmt.round(float(inputs[side])) for side in "ab")
    check_distance(fmt, a, b, None if case["expected"] == "UNDEFINED" else case["expected"])


@every_format
@drawn
@given(data=st.data())
def test_distance_adds_up_along_the_line(fmt: Format, data: st.DataObject) -> None:
    places = st.integers(-fmt.max_ordinal, fmt.max_ordinal)
    low, middle, high = sorted(data.draw(st.tuples(places, places, places)))
    a, b, c = (fmt.from_ordinal(place) for place in (low, middle, high))
    check_distance(fmt, a, b, middle - low)
    check_distance(fmt, b, c, high - middle)
    check_distance(fmt, a, c, high - low)


# --- Format.round ------------------------------------------------------------------------------------------


@every_format
def test_round_agrees_with_numpy_on_short_mantissas(fmt: Format) -> None:
    """Two bits more than the format keeps: a quarter of the values are ties, in every binade.

    For bfloat16 such values are exact in float32, from where ml_dtypes rounds only once.
    """
    rng = np.random.default_rng(1)
    size, spare = 4000, fmt.precision + 1
    exponents = rng.integers(fmt.emin - fmt.precision - 2, fmt.emax + 1, size)
    if fmt.bits == 64:
        spare = 52  # float64 input has no more; the ties of the subnormal range remain
    mantissas = rng.integers(1 << spare, 2 << spare, size)
    x = np.ldexp(mantissas.astype(np.float64), exponents - spare) * rng.choice([-1, 1], size)
    source = x.astype(np.float32) if fmt.name == "bfloat16" else x
    assert_same_values(source, x)
    with np.errstate(all="ignore"):
        expected = source.astype(NUMPY[fmt.name])
    assert_same_values([fmt.round(value) for value in x.tolist()], values(expected))


@every_format
@drawn
@given(value=st.floats())
@example(value=math.nan)
@example(value=-math.inf)
@example(value=-0.0)
def test_round_agrees_with_numpy_on_any_float(fmt: Format, value: float) -> None:
    with np.errstate(all="ignore"):
        if fmt.name == "bfloat16":  # ml_dtypes goes from float64 through float32, rounding twice
            value = float(np.float32(value))
        expected = float(np.float64(value).astype(NUMPY[fmt.name]))
    rounded = fmt.round(value)
    assert_same_values(rounded, expected)
    if not math.isnan(value):
        assert math.copysign(1, rounded) == math.copysign(1, expected)  # -0.0 stays, and underflow makes one
    assert fmt.contains(value) == (math.isnan(value) or rounded == value)
    assert fmt.contains(rounded)


@every_format
@pytest.mark.parametrize("kind", [Fraction, as_mpf], ids=["Fraction", "mpf"])
@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
@drawn
@given(data=st.data())
def test_round_to_nearest_even_between_neighbours(
    fmt: Format, kind: Callable[[Fraction], Any], sign: int, data: st.DataObject
) -> None:
    """Also between max and infinity, whose place is even: the midpoint overflows, anything less is max."""
    place = data.draw(st.integers(0, fmt.max_ordinal - 1) | st.sampled_from([0, 1, fmt.max_ordinal - 1]))
    low, high = exact(fmt, place), exact(fmt, place + 1)
    middle = (low + high) / 2
    # far below float64's resolution, where a detour would make it a tie; as Fraction not a dyadic number
    nudge = middle / 3**90
    below, above = sign * fmt.from_ordinal(place), sign * fmt.from_ordinal(place + 1)
    assert fmt.round(kind(sign * low)) == below
    assert fmt.round(kind(sign * (middle - nudge))) == below
    assert fmt.round(kind(sign * (middle + nudge))) == above
    assert fmt.round(kind(sign * middle)) == (above if place % 2 else below)


@every_format
@pytest.mark.parametrize("sign", [1, -1])
def test_round_reads_sixty_digits(fmt: Format, sign: int) -> None:
    with mpmath.workdps(60):
        tie = sign * (1 + mpmath.mpf(fmt.u))
        assert fmt.round(tie) == sign
        assert fmt.round(tie + sign * mpmath.mpf(10) ** -50) == sign * (1 + 2 * fmt.u)


@every_format
def test_round_takes_ints_of_any_size(fmt: Format) -> None:
    assert [fmt.round(sign * 10**1000) for sign in (1, -1)] == [math.inf, -math.inf]
    assert fmt.round(int(fmt.max)) == fmt.max
    half_a_step = int(fmt.ulp(fmt.max)) // 2
    assert fmt.round(int(fmt.max) + half_a_step - 1) == fmt.max
    assert fmt.round(-int(fmt.max) - half_a_step) == -math.inf
    first_gap = 2**fmt.precision
    assert [fmt.round(first_gap + k) for k in (0, 1, 2, 3)] == [first_gap + k for k in (0, 0, 2, 4)]


@every_format
def test_round_underflows_with_the_sign(fmt: Format) -> None:
    for sign in (1, -1):
        rounded = fmt.round(Fraction(sign, 10**1000))
        assert rounded == 0
        assert math.copysign(1, rounded) == sign


@every_format
@pytest.mark.parametrize("kind", [float, mpmath.mpf], ids=["float", "mpf"])
def test_round_passes_the_non_finite(fmt: Format, kind: Callable[[str], Any]) -> None:
    assert math.isnan(fmt.round(kind("nan")))
    assert [fmt.round(kind(text)) for text in ("inf", "-inf", "0")] == [math.inf, -math.inf, 0]


# --- casts -------------------------------------------------------------------------------------------------


def subnormals_first(fmt: Format) -> np.ndarray:
    """Every pattern, or the edges and 20,000 drawn ones, half of them subnormal."""
    if fmt.bits == 16:
        return every_pattern(fmt)
    rng = np.random.default_rng(2)
    below_normal = 1 << (fmt.precision - 1)
    signs = rng.integers(0, 2, 10_000, dtype=np.uint64) << np.uint64(fmt.bits - 1)
    subnormal = rng.integers(0, below_normal, 10_000, dtype=np.uint64) | signs
    anywhere = rng.integers(0, (1 << fmt.bits) - 1, 10_000, dtype=np.uint64, endpoint=True)
    return np.concatenate([edges(fmt), from_patterns(subnormal, fmt), from_patterns(anywhere, fmt)])


def around_float32_subnormals() -> np.ndarray:
    """float64 values that end up subnormal, zero or barely normal in float32; many are exact ties."""
    rng = np.random.default_rng(3)
    border = 1 << 23  # min_normal in steps of min_subnormal
    steps = [np.arange(40) / 8, border + np.arange(-40, 40) / 8, rng.integers(0, 8 * border, 9000) / 8]
    steps = np.concatenate(steps)
    finer = steps * (1 + rng.choice([0, 2.0**-52, -(2.0**-52)], steps.size))
    x = np.ldexp(np.concatenate([steps, finer]), -149)
    return np.concatenate([x, -x])


CASTS = {
    f"{source}-{target}": (FORMATS[source], FORMATS[target], subnormals_first)
    for target in ("float64", "float32")
    for source in FORMATS
}
CASTS["tiny-float32"] = (FORMATS["float64"], FORMATS["float32"], lambda _: around_float32_subnormals())


@pytest.mark.parametrize("mode", [nullcontext, flush_to_zero], ids=["plain", "flush_to_zero"])
@pytest.mark.parametrize(("source", "target", "make"), CASTS.values(), ids=CASTS)
def test_casts_round_once_in_every_mode(
    source: Format,
    target: Format,
    make: Callable[[Format], np.ndarray],
    mode: Callable[[], AbstractContextManager[None]],
) -> None:
    x = make(source)
    with np.errstate(all="ignore"):
        expected = x.astype(NUMPY[target.name])
    before = x.tobytes()
    with mode():
        results = [formats.narrow(to_torch(x, source), target.dtype)]
        if target.bits == 64:
            results.append(formats.widen(to_torch(x, source)))
    for result in results:
        assert_same_bits(result, expected)
    assert x.tobytes() == before


@pytest.mark.parametrize(
    ("source", "target", "tiny"),
    [
        ("float32", "float64", FORMATS["float32"].min_subnormal),
        ("bfloat16", "float64", FORMATS["bfloat16"].min_subnormal),
        ("float64", "float32", FORMATS["float32"].min_subnormal),
    ],
)
def test_plain_cast_loses_subnormals_when_flushing(source: str, target: str, tiny: float) -> None:
    """Without this loss the flush_to_zero half of the test above could not fail."""
    x = torch.full((64,), tiny, dtype=torch.float64).to(FORMATS[source].dtype)
    with flush_to_zero():
        lost, kept = x.to(FORMATS[target].dtype), formats.narrow(x, FORMATS[target].dtype)
    assert not lost.any()
    assert kept.all()


@every_format
def test_the_line_is_the_same_when_flushing(fmt: Format) -> None:
    x = to_torch(subnormals_first(fmt), fmt)
    reverse = x.flip(0)

    def compute() -> list[torch.Tensor]:
        same = [formats.ordinal(x), formats.next_up(x), formats.next_down(x), formats.ulp(x)]
        return [*same, *formats.ulp_distance(x, reverse), formats.bits_differ(x, reverse)]

    plain = compute()
    with flush_to_zero():
        flushing = compute()
    for expected, actual in zip(plain, flushing, strict=True):
        if expected.is_floating_point():
            assert not formats.bits_differ(actual, expected).any()
        else:
            assert torch.equal(actual, expected)


@every_format
def test_scalars_are_the_same_when_flushing(fmt: Format) -> None:
    """torch's mode holds for Python's own floats too, hence "no FPU mode" is a promise to keep."""
    tiny, below_normal = fmt.min_subnormal, fmt.from_ordinal((1 << (fmt.precision - 1)) - 1)
    points, least = [tiny, -tiny, below_normal, fmt.min_normal], FORMATS["float64"].min_subnormal
    methods = [fmt.ordinal, fmt.next_up, fmt.next_down, fmt.ulp, fmt.round, fmt.contains]

    def compute() -> list[Any]:
        results = [method(point) for method in methods for point in points]
        results += [
            fmt.distance(-tiny, below_normal),
            fmt.from_ordinal(1),
            fmt.from_ordinal(-3),
            fmt.ulp(0.0),
        ]
        results += [fmt.round(Fraction(2) ** (fmt.emin - 1)), fmt.round(least), fmt.contains(least)]
        return [*results, fmt.min_subnormal]

    plain = compute()
    with flush_to_zero():
        flushing = compute()
    assert flushing == plain


# --- bits_differ -------------------------------------------------------------------------------------------


@every_format
def test_bits_differ(fmt: Format) -> None:
    sign, infinity = 1 << (fmt.bits - 1), fmt.max_ordinal
    nan, payload, negative = infinity + (1 << (fmt.precision - 2)), infinity + 1, sign + infinity + 3
    pairs = [
        (0, sign, True),  # +0, -0: one point of the line, two patterns
        (1, 2, True),
        (infinity, infinity + 1, True),  # inf, NaN
        (nan, payload, False),
        (nan, negative, False),
        (sign, sign, False),
        (5, 5, False),
        (infinity, infinity, False),
    ]
    a, b, expected = (list(column) for column in zip(*pairs, strict=True))
    for left, right in ((a, b), (b, a)):
        left, right = (to_torch(from_patterns(side, fmt), fmt) for side in (left, right))
        assert formats.bits_differ(left, right).tolist() == expected


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [torch.int64, torch.tensor([1]), "int64"], ids=["dtype", "tensor", "name"])
def test_format_of_refuses_integers(what: Any) -> None:
    with pytest.raises(TypeError, match=r"'int64'.*float64, float32, float16, bfloat16"):
        formats.format_of(what)


def test_distance_refuses_mixed_operands() -> None:
    a = torch.ones(3)
    with pytest.raises(ValueError, match=r"float32 but b is bfloat16"):
        formats.ulp_distance(a, a.bfloat16())
    with pytest.raises(ValueError, match=r"\(3,\) but b has \(3, 1\)"):
        formats.ulp_distance(a, a[:, None])
    with pytest.raises(ValueError, match=r"on cpu but b is on meta"):
        formats.ulp_distance(a, a.to("meta"))
    with pytest.raises(TypeError, match=r"'int64'"):
        formats.ulp_distance(a.long(), a.long())


@every_format
def test_scalars_off_the_line_are_refused(fmt: Format) -> None:
    with pytest.raises(ValueError, match=r"NaN.*no place on the ordered line"):
        fmt.ordinal(math.nan)
    for place in (fmt.max_ordinal + 1, -fmt.max_ordinal - 1):
        message = f"place {place} lies beyond infinity, {fmt.max_ordinal} for {fmt.name}"
        with pytest.raises(ValueError, match=message):
            fmt.from_ordinal(place)
    if fmt.bits < 64:  # every Python float is a float64
        for value in (1 + fmt.u, 2 * fmt.max, fmt.min_subnormal / 2):
            assert not fmt.contains(value)
            with pytest.raises(ValueError, match=rf"is not a {fmt.name}; round it first"):
                fmt.ordinal(value)


@pytest.mark.parametrize("value", ["1", None, 1j], ids=repr)
def test_round_refuses_other_types(value: Any) -> None:
    message = f"must be int, float, Fraction or mpmath.mpf, got {type(value).__name__}"
    with pytest.raises(TypeError, match=message):
        FORMATS["float32"].round(value)


# --- shapes and strides ------------------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "strided": lambda x: x[::3],
    "transposed": lambda x: x.reshape(4, -1).t(),
    "expanded": lambda x: x[:, None].expand(-1, 2),
    "scalar": lambda x: x[5],
    "empty": lambda x: x[:0].reshape(0, 3),
    "requires_grad": lambda x: x.clone().requires_grad_(x.is_floating_point()),
}
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ordinal": formats.ordinal,
    "next_up": formats.next_up,
    "next_down": formats.next_down,
    "ulp": formats.ulp,
    "distance": lambda x: formats.ulp_distance(x, torch.ones_like(x))[0],
    "defined": lambda x: formats.ulp_distance(x, torch.ones_like(x))[1],
    "bits_differ": lambda x: formats.bits_differ(x, torch.zeros_like(x)),
    "widen": formats.widen,
    "narrow": lambda x: formats.narrow(x, torch.float32),
}


@every_format
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_any_layout_gives_what_its_elements_give(
    fmt: Format,
    layout: Callable[[torch.Tensor], torch.Tensor],
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = to_torch(edges(fmt)[:24], fmt)
    picked, index = layout(x), layout(torch.arange(x.numel()))
    result, expected = function(picked).detach(), function(x)[index]
    assert result.shape == picked.shape
    assert result.dtype == expected.dtype
    if result.is_floating_point():
        assert_same_bits(result, to_numpy(expected))
    else:
        assert result.tolist() == expected.tolist()
