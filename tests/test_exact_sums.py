"""Sums that do not round, against rational arithmetic and mpmath; nothing here has a tolerance without a reason."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numerics.reference import sums
from numerics.reference.interval import clustered_interval, student_quantile
from numerics.reference.moments import CoMoments, Extremes, Moments
from numerics.reference.sums import NOTHING, UNIT, DigitSums, ExactSum, exact_products, exact_sums, quotient, root
from numerics.reference.weights import WeightSums, WideSum, log_quotient

TINY = 5e-324  #: the smallest float64
BIGGEST = 1.7976931348623157e308
EPS = 2.0**-52
FEW = settings(max_examples=150, deadline=None)

EDGES = st.sampled_from([0.0, -0.0, TINY, -TINY, 2.0**-1022, -(2.0**-1022), BIGGEST, -BIGGEST, 1.0, -1.0, 1 + EPS])
FINITE = st.one_of(EDGES, st.floats(allow_nan=False, allow_infinity=False), st.floats(-1e-3, 1e-3), st.floats(-30, 30))
ANY = st.one_of(FINITE, st.sampled_from([math.inf, -math.inf, math.nan]))


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def value(s: ExactSum) -> Fraction:
    return Fraction(s.units, 1 << UNIT)


def ulps(got: float, want: mpmath.mpf) -> float:
    """The error of a float64 in steps of float64 at the value wanted."""
    with mpmath.workdps(60):
        return float(abs(mpmath.mpf(got) - want) / math.ulp(float(want)))


@contextmanager
def flushing() -> Iterator[None]:
    """Flush-to-zero on, as a trainer may have it; always off again."""
    if not torch.set_flush_denormal(True):
        pytest.fail("this CPU has no flush-to-zero mode")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads; on a busy machine they wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---------------------------------------------------------------------------------------------------------------- sums


@FEW
@given(st.lists(FINITE, max_size=40))
def test_a_sum_is_the_sum_of_rationals(xs: list[float]) -> None:
    [[got]] = exact_sums(row(*xs))
    assert got.finite
    assert value(got) == sum(map(Fraction, xs))


@FEW
@given(st.lists(st.tuples(FINITE, FINITE), max_size=40))
def test_a_sum_of_products_is_that_of_rationals(pairs: list[tuple[float, float]]) -> None:
    xs, ys = row(*(x for x, _ in pairs)), row(*(y for _, y in pairs))
    [got] = exact_products(xs, ys)
    assert got.finite
    assert value(got) == sum(Fraction(x) * Fraction(y) for x, y in pairs)


@FEW
@given(st.lists(st.tuples(ANY, st.integers(0, 3)), max_size=40))
def test_groups_are_sums_of_their_own(pairs: list[tuple[float, int]]) -> None:
    """A group without columns is the empty sum; what is not finite is counted and adds nothing."""
    xs, groups = row(*(x for x, _ in pairs)), torch.tensor([g for _, g in pairs], dtype=torch.int64)
    two_rows = torch.cat([xs, -xs])
    found = exact_sums(two_rows, groups, 4)
    for sign, line in zip((1, -1), found, strict=True):
        for g, got in enumerate(line):
            own = [sign * x for x, of in pairs if of == g]
            assert value(got) == sum(Fraction(x) for x in own if math.isfinite(x))
            assert (got.plus, got.minus, got.nans) == (own.count(math.inf), own.count(-math.inf), nans(own))


def nans(xs: list[float]) -> int:
    return sum(map(math.isnan, xs))


@FEW
@given(st.lists(st.tuples(ANY, ANY), max_size=20))
def test_products_that_are_not_finite_are_those_of_ieee(pairs: list[tuple[float, float]]) -> None:
    """A factor that is not finite decides; a finite product that overflows float64 is kept exactly."""
    xs, ys = row(*(x for x, _ in pairs)), row(*(y for _, y in pairs))
    [got] = exact_products(xs, ys)
    strange = [x * y for x, y in pairs if not (math.isfinite(x) and math.isfinite(y))]
    assert (got.plus, got.minus, got.nans) == (strange.count(math.inf), strange.count(-math.inf), nans(strange))
    finite = [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]
    assert value(got) == sum(Fraction(x) * Fraction(y) for x, y in finite)


@FEW
@given(st.lists(ANY, max_size=30), st.randoms(use_true_random=False), st.integers(1, 7))
def test_any_order_and_any_partition_give_the_same_sum(xs: list[float], luck: random.Random, size: int) -> None:
    whole = exact_sums(row(*xs))[0][0]
    shuffled = luck.sample(xs, len(xs))
    parts = [exact_sums(row(*shuffled[i : i + size]))[0][0] for i in range(0, len(xs), size)]
    luck.shuffle(parts)
    merged = NOTHING
    for part in parts:
        merged = merged.merge(part)
    assert merged == whole
    assert whole.merge(NOTHING) == NOTHING.merge(whole) == whole


@pytest.mark.parametrize("columns", [0, 1, sums._CHUNK - 1, sums._CHUNK, sums._CHUNK + 1, 2 * sums._CHUNK + 5])
def test_more_columns_than_one_chunk(columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    x = torch.randn(2, columns, generator=generator, dtype=torch.float64)
    x = torch.ldexp(x, torch.randint(-40, 40, x.shape, generator=generator))
    groups = torch.randint(0, 3, (columns,), generator=generator)
    exact = [list(map(Fraction, line)) for line in x.tolist()]
    assert [value(s[0]) for s in exact_sums(x)] == [sum(line) for line in exact]
    owner = groups.tolist()
    want = [
        [sum((f for f, of in zip(line, owner, strict=True) if of == g), Fraction(0)) for g in range(3)]
        for line in exact
    ]
    assert [[value(s) for s in line] for line in exact_sums(x, groups, 3)] == want
    [xx, xy] = exact_products(x[[0, 0]], x)
    assert value(xx) == sum(a * a for a in exact[0])
    assert value(xy) == sum(a * b for a, b in zip(*exact, strict=True))


def test_digits_are_poured_before_they_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """An int64 place holds 2^29 additions; with room for 10 the sum of many chunks is the same."""
    x = torch.randn(3, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e5
    groups = torch.arange(400) % 7
    want = exact_sums(x, groups, 7), exact_products(x, x), WeightSums.of(x[0] / 1e4)
    monkeypatch.setattr(sums, "_CHUNK", 16)
    monkeypatch.setattr(sums, "_FULL", 10)
    assert (exact_sums(x, groups, 7), exact_products(x, x), WeightSums.of(x[0] / 1e4)) == want


def test_the_largest_digits_do_not_overflow_an_int64() -> None:
    """``_FULL`` additions of what fills a place most: (2^55 - 1) 2^31, whose middle digit is below 2^32 + 2^31."""
    one = DigitSums(1, 4, torch.device("cpu"))
    one.add(torch.tensor([(1 << 55) - 1]), torch.tensor([31]))
    assert max(one.digits()[0]) * sums._FULL < 1 << 63


def test_sums_read_the_bits_whatever_the_thread_count_or_layout() -> None:
    x = torch.randn(5, 40_001, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    want, threads = exact_sums(x), torch.get_num_threads()
    want_products = exact_products(x, x.flip(0))
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            assert exact_sums(x) == want
            assert exact_sums(x.T.contiguous().T) == want
            assert exact_products(x, x.flip(0)) == want_products
    finally:
        torch.set_num_threads(threads)


def test_flush_to_zero_changes_no_sum() -> None:
    """Subnormals count with the mode on, also as factors: inf times the smallest number is inf and not inf times 0."""
    generator = torch.Generator().manual_seed(2)
    small = torch.randint(-(1 << 51), 1 << 51, (4, 500), generator=generator)
    x = (small.abs() | (small & (-(1 << 63)))).view(torch.float64)  # subnormal bits of either sign
    x = torch.cat([x, torch.randn(4, 500, generator=generator, dtype=torch.float64)], -1)
    y = torch.cat([torch.tensor([[math.inf, -math.inf, TINY]] * 4, dtype=torch.float64), x[:, 3:].flip(-1)], -1)
    groups = torch.arange(1000) % 3
    want = exact_sums(x), exact_sums(x, groups, 3), exact_products(x, y), exact_products(y, x)
    with flushing():
        assert (torch.tensor([TINY], dtype=torch.float64) * 1.0).item() == 0.0  # the mode is on
        got = exact_sums(x), exact_sums(x, groups, 3), exact_products(x, y), exact_products(y, x)
    assert got == want
    assert [s.plus + s.minus for s in want[2]] == [2] * 4


@FEW
@given(st.lists(ANY, min_size=1, max_size=12), st.integers(1, 10**20))
def test_over_rounds_once(xs: list[float], divisor: int) -> None:
    got = exact_sums(row(*xs))[0][0].over(divisor)
    if all(map(math.isfinite, xs)):
        exact = sum(map(Fraction, xs)) / divisor
        try:
            want = float(exact)
        except OverflowError:
            want = math.inf if exact > 0 else -math.inf
    else:
        want = sum(x for x in xs if not math.isfinite(x))
    assert got == want or (math.isnan(got) and math.isnan(want))


def test_over_nothing_is_no_number() -> None:
    assert math.isnan(NOTHING.over(0))
    assert NOTHING.over(3) == 0.0


BIG = st.integers(0, 4500).flatmap(lambda bits: st.integers(0, 1 << bits))


@FEW
@given(BIG, BIG.map(lambda n: n + 1), st.booleans())
def test_a_quotient_is_rounded_correctly(n: int, d: int, negative: bool) -> None:
    n = -n if negative else n
    try:
        want = float(Fraction(n, d))
    except OverflowError:
        want = math.inf if n > 0 else -math.inf
    assert quotient(n, d) == want


@FEW
@given(BIG, BIG.map(lambda n: n + 1))
def test_a_root_is_within_its_bound(n: int, d: int) -> None:
    """0.5 + 2^-10 ulps: the integer root is cut off after 64 digits or more, then rounded once."""
    got = root(n, d)
    with mpmath.workprec(200):
        want = mpmath.sqrt(mpmath.mpf(n) / d)
        if want >= mpmath.mpf(2) ** 1024:
            assert got in (BIGGEST, math.inf)
        else:
            assert abs(got - want) <= (0.5 + 2.0**-10) * math.ulp(got)


@pytest.mark.parametrize("x", [0, 1, 2, 4, 9, 10**30, 1 << 4000])
def test_roots_of_squares_are_exact(x: int) -> None:
    assert root(x * x, 1) == quotient(x, 1)
    assert root(x * x, 49) == quotient(x, 7)


# ------------------------------------------------------------------------------------------------------------- moments

MODERATE = st.one_of(EDGES.filter(lambda x: abs(x) < 1e300), st.floats(-1e150, 1e150), st.floats(-1e-150, 1e-150))


@FEW
@given(st.lists(MODERATE, min_size=2, max_size=20), st.integers(0, 2))
def test_a_deviation_is_that_of_the_rationals(xs: list[float], ddof: int) -> None:
    """Where all values are alike it is exactly 0; nothing cancels, nothing underflows before the last rounding."""
    got = Moments.of(row(*xs))[0].std(ddof)
    n, exact = len(xs), list(map(Fraction, xs))
    if n <= ddof:
        assert math.isnan(got)
        return
    mean = sum(exact) / n
    variance = sum((x - mean) ** 2 for x in exact) / (n - ddof)
    with mpmath.workprec(200):
        want = mpmath.sqrt(mpmath.mpf(variance.numerator) / variance.denominator)
        assert abs(got - want) <= (0.5 + 2.0**-10) * math.ulp(got)


@FEW
@given(st.lists(st.tuples(MODERATE, MODERATE), min_size=2, max_size=12))
def test_a_correlation_is_that_of_the_rationals(pairs: list[tuple[float, float]]) -> None:
    xs, ys = zip(*pairs, strict=True)
    [x, y] = Moments.of(torch.tensor([xs, ys], dtype=torch.float64))
    got = CoMoments(x=x, y=y, products=exact_products(row(*xs), row(*ys))[0]).pearson()
    n = len(pairs)
    mean_x, mean_y = sum(map(Fraction, xs)) / n, sum(map(Fraction, ys)) / n
    a, b = [Fraction(v) - mean_x for v in xs], [Fraction(v) - mean_y for v in ys]
    scale = sum(v * v for v in a) * sum(v * v for v in b)
    if not scale:
        assert math.isnan(got)
        return
    cov = sum(v * w for v, w in zip(a, b, strict=True))
    with mpmath.workprec(200):
        want = mpmath.sign(cov.numerator) * mpmath.sqrt(
            mpmath.mpf((cov**2 / scale).numerator) / (cov**2 / scale).denominator
        )
        assert abs(got - want) <= (0.5 + 2.0**-10) * math.ulp(got)
    assert -1 <= got <= 1


def test_an_uncorrelated_pair_has_a_plain_zero() -> None:
    xs, ys = row(-1, 0, 1), row(1, 0, 1)
    got = CoMoments(x=Moments.of(xs)[0], y=Moments.of(ys)[0], products=exact_products(xs, ys)[0]).pearson()
    assert math.copysign(1.0, got) == 1.0
    assert got == 0.0


@FEW
@given(st.lists(ANY, min_size=1, max_size=8))
def test_extremes_have_the_same_bits_in_any_order(xs: list[float]) -> None:
    """NaN wins; a zero is +0, whichever came first."""
    bits = set()
    for order in (xs, xs[::-1]):
        got = Extremes()
        for x in order:
            got = got.merge(Moments.of(row(x))[0].extremes)
        whole = Extremes().merge(Moments.of(row(*order))[0].extremes)
        bits |= {(got.low.hex(), got.high.hex()), (whole.low.hex(), whole.high.hex())}
    assert len(bits) == 1
    want = (math.nan, math.nan) if nans(xs) else (min(xs) + 0.0, max(xs) + 0.0)
    assert bits == {tuple(x.hex() for x in want)}


# ------------------------------------------------------------------------------------------------------------- weights


def weighed(*d: float) -> WeightSums:
    return WeightSums.of(torch.tensor(d, dtype=torch.float64))


def exact_ess(d: list[float]) -> mpmath.mpf:
    w = [mpmath.exp(mpmath.mpf(x) - max(d)) for x in d]
    return mpmath.fsum(w) ** 2 / (len(w) * mpmath.fsum(x * x for x in w))


SIZES = [0.0, 1e-9, 1.0, 20.0, 88.0, 300.0, 745.0, 1e4, 7e5]
SCALES = sorted({s * x for x in SIZES for s in (1, -1)})
#: a weight is off by the error of the reduced argument, of torch's exp (1 ulp, so 2 halves) and of rounding to 53
#: digits: 3 ulps are 3 * 2^-52, relatively, in w; (sum w)^2 / sum w^2 doubles that twice. One rounding at the end.
ESS_BOUND = 13 * EPS


@pytest.mark.parametrize("d", SCALES)
@pytest.mark.parametrize("n", [1, 3, 5000])
def test_equal_weights_have_an_effective_size_of_exactly_one(d: float, n: int) -> None:
    """Also where a sum of high digits would overflow an int64 after 2^11 weights: exp(-1) has k = -1, so 31 mod 32."""
    sums_ = WeightSums.of(torch.full((n,), d, dtype=torch.float64))
    assert sums_.ess_fraction() == 1.0
    # ln(mean w^2) = 2 d: two halves of an ulp in w, doubled; absolute where d is near 0
    assert abs(sums_.log_mean_square() - 2 * d) <= max(8 * EPS, 4 * math.ulp(2 * d))


@pytest.mark.parametrize("d", [-0.7, -1.0, 20.8, 21.5, -1.4, 43.0])
def test_many_weights_in_the_last_bits_of_a_digit(d: float) -> None:
    """The sum of 20,000 weights is 20,000 times one of them, for exponents at the upper end of a 32-bit digit."""
    one, many = weighed(d), WeightSums.of(torch.full((20_000,), d, dtype=torch.float64))
    for single, whole in ((one.first, many.first), (one.second, many.second)):
        assert whole.digits == {i: 20_000 * digit for i, digit in single.digits.items()}


@pytest.mark.parametrize("centre", SCALES)
@pytest.mark.parametrize("spread", [0.0, 1e-9, 0.5, 5.0, 40.0, 400.0])
def test_effective_size_and_mean_square_against_mpmath(centre: float, spread: float) -> None:
    d = (centre + spread * torch.randn(50, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).tolist()
    got = weighed(*d)
    with mpmath.workdps(60):
        want = exact_ess(d)
        assert abs(got.ess_fraction() - want) <= ESS_BOUND * want
        log = mpmath.log(mpmath.fsum(mpmath.exp(2 * mpmath.mpf(x)) for x in d) / 50)
        # relative 8 EPS in mean w^2 is absolute in its logarithm; log and the product with ln 2 round relatively
        assert abs(got.log_mean_square() - log) <= 8 * EPS + 4 * EPS * abs(log)


def test_mixed_scales() -> None:
    for d in itertools.combinations(SCALES, 3):
        with mpmath.workdps(60):
            want = exact_ess(list(d))
            assert abs(weighed(*d).ess_fraction() - want) <= ESS_BOUND * want


LOG_WEIGHTS = st.one_of(
    st.sampled_from(SCALES),
    st.floats(-50, 50),
    st.floats(-1e6, 1e6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.just(-math.inf),
)


@FEW
@given(st.lists(LOG_WEIGHTS, min_size=1, max_size=20))
def test_effective_size_is_a_share(d: list[float]) -> None:
    got, n = weighed(*d).ess_fraction(), len(d)
    if max(d) == -math.inf:
        assert got == 0.0
    else:
        assert 1 / n <= got <= 1


@FEW
@given(st.lists(LOG_WEIGHTS, min_size=1, max_size=20), st.randoms(use_true_random=False), st.integers(1, 6))
def test_any_partition_of_weights_gives_the_same_state(d: list[float], luck: random.Random, size: int) -> None:
    """The window depends on the largest weight alone; so whether small ones come first or last changes nothing."""
    whole = weighed(*d)
    for order in (sorted(d), sorted(d, reverse=True), luck.sample(d, len(d))):
        merged = WeightSums()
        for i in range(0, len(d), size):
            merged = merged.merge(weighed(*order[i : i + size]))
        assert merged == whole
        tree = [weighed(x) for x in order]
        while len(tree) > 1:
            tree = [a.merge(b) for a, b in itertools.zip_longest(tree[::2], tree[1::2], fillvalue=WeightSums())]
        assert tree[0] == whole


def test_a_partition_of_many_weights() -> None:
    d = 30 * torch.randn(30_000, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    whole = WeightSums.of(d)
    for size in (1 << 13, 7001):
        merged = WeightSums()
        for part in torch.split(d, size):
            merged = merged.merge(WeightSums.of(part))
        assert merged == whole


@FEW
@given(st.lists(st.tuples(st.integers(-40, 40), st.integers(1, 1 << 60)), min_size=1, max_size=12))
def test_a_window_drops_what_is_too_small_and_nothing_else(pairs: list[tuple[int, int]]) -> None:
    whole, merged = WideSum.of(pairs), WideSum()
    for pair in pairs:
        merged = merged.merge(WideSum.of([pair]))
    assert merged == whole
    exact = sum(Fraction(digit) * Fraction(2) ** (32 * i) for i, digit in pairs)
    n, low = whole.scaled()
    kept = n * Fraction(2) ** (32 * low)
    assert kept <= exact
    top = max(i for i, _ in pairs)
    assert exact - kept <= len(pairs) * Fraction(2) ** (60 + 32 * (top - 12))


def test_what_the_window_drops_is_far_below_the_sum() -> None:
    """Below 2^-349 of the sum, a term: exp(-250) of it (2^-360) may go, exp(-150) stays with all its digits."""
    one = weighed(0.0)
    assert one.merge(weighed(-100.0)).second != one.second
    near = one.merge(weighed(-150.0)).first.scaled()
    assert near[0] * Fraction(2) ** (32 * near[1]) - 2**52 == Fraction(weight(-150.0))
    for d in (-300.0, -1e9, -1e300):
        assert one.merge(weighed(d)).first == one.first


def weight(d: float) -> Fraction:
    n, i = weighed(d).first.scaled()
    return n * Fraction(2) ** (32 * i)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [2.0**31, 2.0**40, 1e30, 1e300, BIGGEST])
def test_log_weights_of_any_size(sign: int, size: float) -> None:
    """From 2^31 on a weight is the nearest power of two, from 2^1022 on all are alike: documented, never an error."""
    d = sign * size
    assert weighed(d, d, d).ess_fraction() == 1.0
    pair = weighed(d, 0.0).ess_fraction()
    assert pair == 0.5
    counted = math.copysign(min(size, 2.0**1022), d)
    log = weighed(d).log_mean_square()
    assert abs(log - 2 * counted) <= max(math.log(2), 2 * math.ulp(2 * counted))


def test_weights_that_are_no_numbers() -> None:
    assert math.isnan(weighed().ess_fraction())
    assert math.isnan(weighed().log_mean_square())
    assert weighed(-math.inf, -math.inf).ess_fraction() == 0.0
    assert weighed(-math.inf, -math.inf).log_mean_square() == -math.inf
    assert weighed(-math.inf, 5.0).ess_fraction() == 0.5  # the zero weight is counted
    assert math.isnan(weighed(math.inf, 5.0).ess_fraction())
    assert weighed(math.inf, 5.0).log_mean_square() == math.inf
    assert math.isnan(weighed(math.nan, math.inf).ess_fraction())
    assert math.isnan(weighed(math.nan, math.inf).log_mean_square())


@FEW
@given(st.integers(1, 1 << 200), st.integers(1, 1 << 200), st.integers(-400, 400))
def test_log_quotient_against_mpmath(n: int, d: int, exponent: int) -> None:
    """Two logs and a product of 1 ulp each outside [1/2, 2], where the result is at least ln 2 and half of the larger
    part; inside log1p of a quotient that is rounded once."""
    got = log_quotient(n, d, exponent)
    with mpmath.workprec(600):
        want = mpmath.log(mpmath.mpf(n) * mpmath.mpf(2) ** exponent / d)
    assert (got == want == 0) or ulps(got, want) <= 4


@pytest.mark.parametrize("bits", [1, 5, 20, 52, 60, 100, 190])
@pytest.mark.parametrize("sign", [1, -1])
def test_log_quotient_near_one_keeps_its_digits(bits: int, sign: int) -> None:
    d = 3**130 << 1  # no power of two, about 2^207
    n = d + sign * (d >> bits)
    with mpmath.workprec(900):
        want = mpmath.log(mpmath.mpf(n) / d)
    assert ulps(log_quotient(n, d), want) <= 2
    assert ulps(log_quotient(n << 700, d, -700), want) <= 2
    assert ulps(log_quotient(n, d << 700, 700), want) <= 2


# ------------------------------------------------------------------------------------------------------------ interval


def student(degrees: int) -> mpmath.mpf:
    """The 0.975 quantile by bisection of the distribution function, which is a finite sum (A&S 26.7.3-4)."""
    half = mpmath.mpf(degrees) / 2

    def above(t: mpmath.mpf) -> bool:
        return bool(mpmath.betainc(half, 0.5, 0, degrees / (degrees + t * t), regularized=True) < mpmath.mpf("0.05"))

    low, high = mpmath.mpf("1.9"), mpmath.mpf(13)
    for _ in range(75):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return low


def test_quantiles_in_closed_form() -> None:
    with mpmath.workdps(40):
        p = mpmath.mpf("0.975")
        one = mpmath.tan(mpmath.pi * (p - mpmath.mpf(1) / 2))
        two = (2 * p - 1) / mpmath.sqrt(2 * p * (1 - p))
        a = 4 * p * (1 - p)
        q = mpmath.cos(mpmath.acos(mpmath.sqrt(a)) / 3) / mpmath.sqrt(a)
        four = 2 * mpmath.sqrt(q - 1)
        normal = mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1)
    for degrees, want in ((1, one), (2, two), (4, four)):
        assert ulps(student_quantile(degrees), want) <= 4
    assert ulps(student_quantile(10**18), normal) <= 4


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 7, 10, 30, 99, 313, 640, 999, 1000, 1001, 1002, 1100, 1200, 5000])
def test_quantiles_against_mpmath(degrees: int) -> None:
    with mpmath.workdps(30):
        assert ulps(student_quantile(degrees), student(degrees)) <= 4


def test_the_quantile_of_a_million_degrees() -> None:
    """By Newton from the normal quantile: at 10^6 degrees the density is that of the distribution asked."""
    with mpmath.workdps(40):
        n = mpmath.mpf(10**6)
        c = mpmath.gamma((n + 1) / 2) / (mpmath.sqrt(n * mpmath.pi) * mpmath.gamma(n / 2))
        target, t = mpmath.mpf("0.475"), mpmath.mpf("1.96")
        for _ in range(6):
            area = mpmath.quad(lambda x: c * (1 + x * x / n) ** (-(n + 1) / 2), [0, 1, t])
            t -= (area - target) / (c * (1 + t * t / n) ** (-(n + 1) / 2))
        assert ulps(student_quantile(10**6), t) <= 4


def test_quantiles_fall_as_degrees_rise() -> None:
    found = [student_quantile(n) for n in (*range(1, 40), 500, 999, 1000, 1001, 1002, 2000, 10**4, 10**9)]
    assert found == sorted(found, reverse=True)


def interval(rows: list[list[float]]) -> tuple[float, float, float]:
    s = torch.tensor([[sum(map(Fraction, r)).__float__() for r in rows]], dtype=torch.float64)
    n = torch.tensor([[len(r) for r in rows]], dtype=torch.float64)
    [ss, sn, nn] = exact_products(torch.cat([s, s, n]), torch.cat([s, n, n]))
    return clustered_interval(exact_sums(s)[0][0], ss, sn, nn, rows=len(rows), tokens=sum(map(len, rows)))


@FEW
@given(st.lists(st.lists(st.integers(-8, 8).map(lambda i: i / 4), min_size=1, max_size=5), min_size=2, max_size=6))
def test_an_interval_by_hand(rows: list[list[float]]) -> None:
    """The definition as it stands: residuals of the rows about the mean over tokens, in rational arithmetic."""
    B, N = len(rows), sum(map(len, rows))
    gap = sum((sum(map(Fraction, r)) for r in rows), Fraction(0)) / N
    variance = Fraction(B, B - 1) * sum((sum(map(Fraction, r)) - gap * len(r)) ** 2 for r in rows) / N**2
    se, low, high = interval(rows)
    with mpmath.workdps(50):
        want = mpmath.sqrt(mpmath.mpf(variance.numerator) / variance.denominator)
    assert (se == want == 0) or ulps(se, want) <= 0.51
    half = student_quantile(B - 1) * se
    # the ends: the centre rounded once, the product once, the sum once
    assert abs(Fraction(low) - (gap - Fraction(half))) <= Fraction(2 * (math.ulp(half) + math.ulp(float(gap))))
    assert abs(Fraction(high) - (gap + Fraction(half))) <= Fraction(2 * (math.ulp(half) + math.ulp(float(gap))))
    assert low <= high


def test_rows_in_proportion_have_no_error() -> None:
    """s_r = g n_r in every row: nothing is left, and the root of exactly 0 is 0, where floats would leave 1e-17."""
    assert interval([[0.1], [0.1], [0.1]])[0] == 0.0
    assert interval([[0.25, 0.75], [0.5], [1.0, 0.0, 0.5]])[0] == 0.0


def test_an_interval_needs_two_rows_of_numbers() -> None:
    assert all(map(math.isnan, interval([[0.5, 0.25]])))
    assert all(map(math.isnan, clustered_interval(*[NOTHING] * 4, rows=0, tokens=0)))
    infinite = ExactSum(plus=1)
    assert all(map(math.isnan, clustered_interval(infinite, infinite, infinite, NOTHING, rows=3, tokens=9)))
