"""The reference's mismatch figures against exact fractions and plain float64 numpy, field by field."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from numerics import functional
from numerics.formats import FORMATS
from numerics.reference import Mismatch, MismatchState
from numerics.reference.moments import CoMoments, Moments
from numerics.reference.sums import UNIT, exact_products

INF, NAN = math.inf, math.nan
MP = mpmath.MPContext()
MP.dps = 60
F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
COUNTS = tuple(f.name for f in dataclasses.fields(Mismatch) if f.name.endswith("count"))
FIGURES = tuple(f"{what}_diff_{how}" for what in ("logprobs", "probs") for how in ("max", "mean", "std"))
PEARSONS = ("probs_pearson", "logprobs_pearson")
TINY, TINY64 = 2.0**-149, 5e-324


def run(
    rollout: Any, trainer: Any, mask: Any = None, *, dtypes: Sequence[torch.dtype] = (F32, F32), **kw: Any
) -> Mismatch:
    q, p = (torch.tensor(x, dtype=F64).to(dtype) for x, dtype in zip((rollout, trainer), dtypes, strict=True))
    return functional.mismatch(q, p, None if mask is None else torch.tensor(mask), **kw)


@contextmanager
def flush_to_zero() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def bits(value: Any) -> Any:
    """What two equal results share: floats by their bits, all NaNs alike."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    return value


def same(a: Mismatch, b: Mismatch, fields: Sequence[str] | None = None) -> bool:
    names = fields or tuple(a.as_dict())
    return all(bits(getattr(a, name)) == bits(getattr(b, name)) for name in names)


def histogram(distances: dict[int, int], length: int = 34) -> tuple[int, ...]:
    """``{bin: tokens}`` as a tuple; bin -1 is the last one."""
    out = [0] * length
    for place, tokens in distances.items():
        out[place] += tokens
    return tuple(out)


# --- figures ---------------------------------------------------------------------------------------------------------

ROLLOUT = [-0.5, -2.0, -0.125, -7.5, -1.0, -0.0078125]
TRAINER = [-0.25, -2.0, -0.1875, -7.0, -3.0, -0.0078125]


def real(x: Fraction) -> Any:
    return MP.mpf(x.numerator) / x.denominator


def exact_figures(q: Sequence[float], p: Sequence[float], ddof: int, fmt: str) -> dict[str, Any]:
    """Every figure with 60 digits, from the cast pair; P and Q are the correctly rounded exponentials."""
    P, Q = ([FORMATS[fmt].round(MP.exp(MP.mpf(v))) for v in x] for x in (p, q))
    out: dict[str, Any] = {}
    for name, a, b in (("logprobs", p, q), ("probs", P, Q)):
        xs, ys = [Fraction(v) for v in a], [Fraction(v) for v in b]
        d, n = [abs(x - y) for x, y in zip(xs, ys, strict=True)], len(xs)
        mean, mx, my = sum(d) / n, sum(xs) / n, sum(ys) / n
        sxy = sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True))
        sxx, syy = sum((x - mx) ** 2 for x in xs), sum((y - my) ** 2 for y in ys)
        out[f"{name}_diff_max"], out[f"{name}_diff_mean"] = real(max(d)), real(mean)
        out[f"{name}_diff_std"] = MP.sqrt(real(sum((v - mean) ** 2 for v in d) / (n - ddof)))
        out[f"{name}_pearson"] = real(sxy) / MP.sqrt(real(sxx) * real(syy))
    return out


@pytest.mark.parametrize("fmt", ["float32", "float64"])
@pytest.mark.parametrize("ddof", [0, 1, 2])
@pytest.mark.parametrize("mask", [None, [1, 1, 0, 1, 1, 1], [1, 0, 0, 1, 1, 0]], ids=str)
def test_figures_are_the_exact_ones(mask: list[int] | None, ddof: int, fmt: str) -> None:
    dtype = FORMATS[fmt].dtype
    got = run(ROLLOUT, TRAINER, mask, dtypes=(dtype, dtype), compare_dtype=dtype, ddof=ddof)
    pairs = [(q, p) for q, p, m in zip(ROLLOUT, TRAINER, mask or [1] * 6, strict=True) if m]
    q, p = zip(*pairs, strict=True)
    n, u = len(q), 2.0**-53
    for name, want in exact_figures(q, p, ddof, fmt).items():
        # two-pass moments in float64: n roundings a sum and a few more, relative to figures of one magnitude; float64's
        # own exp (within 1 ulp of P <= 1) moves the probabilities' figures by up to 2^-52 each
        exp_error = 2 * u if fmt == "float64" and name.startswith("probs") else 0.0
        allowed = (4 * n + 8) * u * abs(want) + exp_error * (64 if name.endswith("pearson") else 2)
        assert abs(MP.mpf(getattr(got, name)) - want) <= allowed, name
    assert (got.valid, got.valid_count, got.compare_dtype) == (1, n, fmt)
    assert got.logprobs_mismatch_count == got.bit_mismatch_count == sum(a != b for a, b in pairs)
    assert sum(got.ulp_histogram) == n
    assert got.ulp_histogram[0] == sum(a == b for a, b in pairs)


def test_one_ulp_apart_with_equal_probabilities() -> None:
    got = run([-0.10000000149], [-0.10000000894])
    assert (got.logprobs_mismatch_count, got.bit_mismatch_count, got.valid_count) == (1, 1, 1)
    assert got.probs_diff_max == got.probs_diff_mean == 0.0
    assert got.logprobs_diff_max == got.logprobs_diff_mean == 2.0**-27
    assert got.ulp_histogram == histogram({1: 1})


def test_exp_is_rounded_correctly_to_float32() -> None:
    ps = torch.linspace(-104, 0, 997, dtype=F32)  # subnormal probabilities and zero as well
    got = functional.mismatch(torch.full_like(ps, -INF), ps)  # exp(-inf) = 0, so the differences are P itself
    want = [FORMATS["float32"].round(MP.exp(MP.mpf(v))) for v in ps.tolist()]
    assert got.probs_diff_max == 1.0
    assert got.probs_diff_mean == pytest.approx(math.fsum(want) / 997, rel=1000 * 2.0**-53)
    assert got.nonfinite_count == 997


# --- no token, one token, special values -----------------------------------------------------------------------------

_EMPTY = [(shape, None) for shape in [(0,), (3, 0), (0, 2, 2)]] + [(s, 0) for s in [(), (4,), (2, 3), (2, 1, 3)]]


@pytest.mark.parametrize(("shape", "mask"), _EMPTY, ids=str)
@pytest.mark.parametrize("fill", [-1.0, NAN, INF])
def test_nothing_valid(shape: tuple[int, ...], mask: int | None, fill: float) -> None:
    x = torch.full(shape, fill)
    got = functional.mismatch(x, x - 1, None if mask is None else torch.zeros(shape))
    assert all(getattr(got, name) == 0 for name in ("valid", *COUNTS))
    assert all(math.isnan(getattr(got, name)) for name in (*FIGURES, *PEARSONS))
    assert got.ulp_histogram == histogram({})
    assert same(got, MismatchState().compute())


def test_one_token() -> None:
    got = run([-1.0], [-0.5])
    assert (got.valid, got.valid_count, got.logprobs_mismatch_count) == (1, 1, 1)
    assert got.logprobs_diff_max == got.logprobs_diff_mean == 0.5
    P, Q = (FORMATS["float32"].round(MP.exp(MP.mpf(v))) for v in (-0.5, -1.0))
    assert got.probs_diff_max == got.probs_diff_mean == P - Q
    for name in ("logprobs_diff_std", "probs_diff_std", *PEARSONS):
        assert math.isnan(getattr(got, name))
    assert run([-1.0], [-0.5], ddof=0).logprobs_diff_std == 0.0


#: q, p -> nonfinite, value mismatches, bit mismatches, |d|, |P - Q|, bin
SPECIAL = [
    (NAN, NAN, 1, 1, 0, NAN, NAN, -1),
    (NAN, -1.0, 1, 1, 1, NAN, NAN, -1),
    (-1.0, NAN, 1, 1, 1, NAN, NAN, -1),
    (-INF, -INF, 1, 0, 0, 0.0, 0.0, 0),
    (INF, INF, 1, 0, 0, 0.0, 0.0, 0),
    (-INF, INF, 1, 1, 1, INF, INF, 32),
    (-INF, 0.0, 1, 1, 1, INF, 1.0, 31),
    (0.0, -0.0, 0, 0, 1, 0.0, 0.0, 0),
    (-0.0, -0.0, 0, 0, 0, 0.0, 0.0, 0),
    (-INF, -FORMATS["float32"].max, 1, 1, 1, INF, 0.0, 1),  # neighbours on the ordered line
    (TINY, -TINY, 0, 1, 1, 2 * TINY, 0.0, 2),
]


@pytest.mark.parametrize("case", SPECIAL, ids=lambda c: f"{c[0]} {c[1]}")
@pytest.mark.parametrize("beside", [0, 3])
def test_special_values_are_never_hidden(case: tuple[Any, ...], beside: int) -> None:
    q, p, nonfinite, unequal, other_bits, d, e, place = case
    got = run([q, *[-1.0] * beside], [p, *[-1.0] * beside])
    assert got.nonfinite_count == nonfinite
    assert got.logprobs_mismatch_count == unequal
    assert got.bit_mismatch_count == other_bits
    assert got.ulp_histogram == tuple(map(sum, zip(histogram({place: 1}), histogram({0: beside}), strict=True)))
    for name, want in (("logprobs_diff", d), ("probs_diff", e)):
        assert bits(getattr(got, f"{name}_max")) == bits(want)
        assert getattr(got, f"{name}_mean") == pytest.approx(want / (1 + beside), rel=2**-52, nan_ok=True)
    assert math.isnan(got.logprobs_diff_std) == (not math.isfinite(d) or beside == 0)
    if nonfinite:
        assert math.isnan(got.logprobs_pearson)


@pytest.mark.parametrize(
    ("q", "p"),
    [([-1.0, -1.0, -1.0], [-1.0, -2.0, -3.0]), ([-0.1] * 5, [-0.3] * 5), ([0.0, -0.0], [-1.0, -2.0])],
)
def test_a_constant_side_has_no_correlation(q: list[float], p: list[float]) -> None:
    for got in (run(q, p), run(p, q)):
        assert math.isnan(got.logprobs_pearson)
        assert math.isnan(got.probs_pearson)


def test_constant_is_decided_before_the_moments_are_rounded() -> None:
    assert run([-0.1] * 5, [-0.3] * 5).logprobs_diff_std == 0.0
    # in float64 the mean of three times 0.1 is not 0.1, so that the computed second moment is not 0
    wide = {"dtypes": (F64, F64), "compare_dtype": F64}
    for got in (run([-0.1] * 3, [-0.1, -0.2, -0.4], **wide), run([-0.1, -0.2, -0.4], [-0.1] * 3, **wide)):
        assert math.isnan(got.logprobs_pearson)
        assert math.isnan(got.probs_pearson)
    assert run([-0.1] * 3, [-0.2] * 3, **wide).logprobs_diff_std == 0.0


def test_correlation_stays_within_one_at_any_scale() -> None:
    x = np.linspace(-9, -0.1, 1001)
    for q, p, sign in ((x, x, 1), (x, x * 0.5, 1), (x, -10 - x, -1)):
        r = run(q, p).logprobs_pearson
        assert abs(r) <= 1
        assert r == pytest.approx(sign, abs=1e-6)
    for scale in (1e-200, 1e200):  # second moments that float64 does not hold
        got = run([scale, 2 * scale], [scale, 3 * scale], dtypes=(F64, F64), compare_dtype=F64)
        assert got.logprobs_pearson == 1.0


# --- casts and the counts of values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtypes", list(itertools.product([F64, F32, F16, BF16], repeat=2)), ids=str)
def test_mixed_dtypes_are_cast_once(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    q, p = ([-0.1, -2.7, -0.003, -11.1], [-0.11, -2.7, -0.004, -11.3])
    got = run(q, p, dtypes=dtypes)
    casts = [[float(torch.tensor(v, dtype=F64).to(d).to(F32)) for v in x] for x, d in zip((q, p), dtypes, strict=True)]
    assert same(dataclasses.replace(got, narrowed_count=0), run(*casts))
    assert got.narrowed_count == 4 * dtypes.count(F64)  # no other dtype loses anything in float32
    assert run(q, p, dtypes=dtypes, compare_dtype=F64).narrowed_count == 0


def test_narrowed_values_are_counted_and_float64_keeps_them_apart() -> None:
    a, b = -0.1, math.nextafter(-0.1, 0)
    narrowed = run([a, -0.5, -1.0, NAN, -1e300, -1e-60], [b, -0.5, -1.0, NAN, -INF, -0.0], dtypes=(F64, F64))
    assert narrowed.narrowed_count == 4  # both of the first token, -1e300 -> -inf, -1e-60 -> -0
    assert narrowed.logprobs_mismatch_count == 1  # the NaN; what separated the others is gone
    assert run([a, NAN], [b, 0.0], [1, 0], dtypes=(F64, F64)).narrowed_count == 2
    wide = run([a, -0.5], [b, -0.5], dtypes=(F64, F64), compare_dtype=F64)
    assert (wide.narrowed_count, wide.logprobs_mismatch_count, wide.bit_mismatch_count) == (0, 1, 1)
    assert wide.logprobs_diff_max == b - a
    assert wide.ulp_histogram == histogram({0: 1, 1: 1}, 66)
    assert wide.compare_dtype == "float64"


def test_positive_and_overflowing_values_are_counted_per_value() -> None:
    q = [1.0, TINY, 0.0, -0.0, NAN, INF, 88.0, 89.0, 5.0]
    p = [1.0, -1.0, 0.0, -1.0, -1.0, -1.0, 89.0, 89.0, -INF]
    got = run(q, p)
    assert got.positive_count == 9  # 1, 1; tiny; inf; 88, 89; 89, 89; 5
    assert got.overflow_count == 3  # exp(89) > max float32 = exp(88.72...); inf itself is not finite
    assert got.nonfinite_count == 3
    assert run([88.0], [89.0]).probs_diff_max == INF
    assert run([89.0], [89.0]).probs_diff_max == 0.0
    wide = {"dtypes": (F64, F64), "compare_dtype": F64}
    assert run([89.0, 709.0], [89.5, 710.0], **wide).overflow_count == 1
    assert run(q, p, [0] * 9).positive_count == run(q, p, [0] * 9).overflow_count == 0


# --- ULPs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["float32", "float64"])
def test_histogram_bins_are_powers_of_two(fmt: str) -> None:
    form = FORMATS[fmt]
    options = {"dtypes": (form.dtype, form.dtype), "compare_dtype": form.dtype}
    for k in range(form.bits - 1):  # the largest distances cross zero
        for steps in {2**k - 1, 2**k, 2**k + 1}:
            low = form.from_ordinal(-form.max_ordinal)
            high = form.from_ordinal(-form.max_ordinal + steps)
            got = run([low], [high], **options)
            assert got.ulp_histogram == histogram({steps.bit_length(): 1}, form.bits + 2), steps
            assert run([high], [low], **options).ulp_histogram == got.ulp_histogram
    widest = run([-INF, NAN], [INF, 1.0], **options)
    assert widest.ulp_histogram == histogram({(2 * form.max_ordinal).bit_length(): 1, -1: 1}, form.bits + 2)


@pytest.mark.parametrize(
    ("dtypes", "compare", "tiny"),
    [
        ((F32, F32), F32, TINY),
        ((F64, F64), F64, TINY64),
        ((F64, F64), F32, TINY),  # the cast to a subnormal float32 is flushed by nothing either
        ((BF16, BF16), F32, 2.0**-133),
        ((F16, F32), F32, 2.0**-24),
    ],
    ids=str,
)
def test_flush_to_zero_changes_no_count(dtypes: Any, compare: torch.dtype, tiny: float) -> None:
    # built in IEEE mode: distances 1, 2, and further ones between subnormals and across the smallest normal
    wide = torch.tensor([0.0, tiny, -tiny, 3 * tiny, -5 * tiny, tiny, -0.0], dtype=F64)
    far = torch.tensor([-tiny, tiny, tiny, -4 * tiny, -5 * tiny, 0.0, 0.0], dtype=F64)
    q, p = wide.to(dtypes[0]), far.to(dtypes[1])
    want = functional.mismatch(q, p, compare_dtype=compare)
    assert (want.logprobs_mismatch_count, want.bit_mismatch_count, want.positive_count) == (4, 5, 5)
    with flush_to_zero():
        got = functional.mismatch(q, p, compare_dtype=compare)
    assert same(got, want, (*COUNTS, "valid", "ulp_histogram", "compare_dtype"))


def test_flush_to_zero_does_not_hide_what_the_cast_changed() -> None:
    q, p = torch.tensor([TINY64, 1e-310, 1e-50], dtype=F64), torch.tensor([0.0, -1e-310, 1.5 * TINY], dtype=F64)
    with flush_to_zero():
        got = functional.mismatch(q, p)
    assert (got.narrowed_count, got.logprobs_mismatch_count, got.bit_mismatch_count) == (5, 1, 2)


# --- shapes, masks, inputs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3), (6, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, F32, BF16], ids=str)
def test_masks_select_whatever_the_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    q, p, mask = torch.tensor(ROLLOUT), torch.tensor(TRAINER), torch.tensor([1, 0, 1, 1, 0, 1])
    want = functional.mismatch(q[mask == 1], p[mask == 1])
    for bad in (NAN, INF, -INF, 1e30):
        spoilt = [torch.where(mask == 1, x, bad).view(shape) for x in (q, p)]
        kept = [x.clone() for x in spoilt]
        assert same(functional.mismatch(*spoilt, mask.to(dtype).view(shape)), want)
        assert all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(spoilt, kept, strict=True))


def test_zero_dimensional_and_strided_inputs() -> None:
    assert same(functional.mismatch(torch.tensor(-1.0), torch.tensor(-0.5)), run([-1.0], [-0.5]))
    assert functional.mismatch(torch.tensor(-1.0), torch.tensor(-0.5), torch.tensor(0)).valid == 0
    q, p = torch.tensor(ROLLOUT).view(2, 3), torch.tensor(TRAINER).view(2, 3)
    want = functional.mismatch(q, p)
    assert same(functional.mismatch(q.t().contiguous().t(), torch.stack([p, p * NAN], -1)[..., 0]), want)
    row = functional.mismatch(q[:1].repeat(4, 1), p[:1].repeat(4, 1))
    assert same(functional.mismatch(q[:1].expand(4, 3), p[:1].expand(4, 3)), row)


def test_no_gradient_is_carried() -> None:
    q, p = torch.tensor(ROLLOUT, requires_grad=True), torch.tensor(TRAINER, requires_grad=True)
    got = functional.mismatch(q, p * 1.0, torch.ones(6, requires_grad=True))
    assert same(got, run(ROLLOUT, TRAINER))
    for value in got.as_dict().values():
        assert type(value) in (int, float, str, tuple)
    assert all(type(n) is int for n in got.ulp_histogram)


# --- states ----------------------------------------------------------------------------------------------------------

_PARTS = [
    ([-0.5, -2.0], [-0.25, -2.0]),
    ([-0.125], [-0.1875]),
    ([], []),
    ([-7.5, -1.0, -0.3], [-7.0, -3.0, -0.3]),
]


def state(q: Sequence[float], p: Sequence[float]) -> MismatchState:
    return MismatchState().update(torch.tensor(q), torch.tensor(p))


def test_any_order_of_merging_gives_the_whole() -> None:
    whole = state(*([x for part in _PARTS for x in part[side]] for side in (0, 1))).compute()
    for order in itertools.permutations(_PARTS):
        merged, updated = MismatchState(), MismatchState()
        for q, p in order:
            assert merged.merge(state(q, p)) is merged
            assert updated.update(torch.tensor(q), torch.tensor(p)) is updated
        a, b, c, d = (state(q, p) for q, p in order)
        for got in (merged.compute(), updated.compute(), a.merge(b).merge(c.merge(d)).compute()):
            assert same(got, whole, (*COUNTS, "valid", "ulp_histogram", "logprobs_diff_max", "probs_diff_max"))
            for name in (*FIGURES, *PEARSONS):
                assert getattr(got, name) == pytest.approx(getattr(whole, name), rel=64 * 2.0**-53), name


def test_every_count_adds_up() -> None:
    q, p = torch.tensor([-0.1, 89.0, NAN, 0.0], dtype=F64), torch.tensor([-0.5, 89.1, -1.0, -0.0], dtype=F64)
    one = MismatchState().update(q, p)
    want = {n: getattr(one.compute(), n) for n in COUNTS}
    assert want == {
        "valid_count": 4,
        "nonfinite_count": 1,
        "narrowed_count": 2,
        "positive_count": 2,
        "overflow_count": 2,
        "logprobs_mismatch_count": 3,
        "bit_mismatch_count": 4,
    }
    two = MismatchState().merge(one).update(q, p).compute()
    assert {n: getattr(two, n) for n in COUNTS} == {n: 2 * v for n, v in want.items()}
    assert two.ulp_histogram == tuple(2 * n for n in one.compute().ulp_histogram)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_non_finite_token_spoils_every_merge_alike(bad: float) -> None:
    parts = [([-1.0, -2.0], [-1.5, -2.0]), ([bad], [-1.0]), ([-3.0], [-3.5])]
    whole = state([-1.0, -2.0, bad, -3.0], [-1.5, -2.0, -1.0, -3.5]).compute()
    for order in itertools.permutations(parts):
        merged = MismatchState()
        for q, p in order:
            merged.merge(state(q, p))
        assert same(merged.compute(), whole, (*COUNTS, "logprobs_diff_max", "logprobs_diff_mean", "logprobs_diff_std"))
        assert math.isnan(merged.compute().logprobs_pearson)


def test_an_empty_state_changes_no_bit_and_the_other_side_stays() -> None:
    full = state([-0.3, -0.7, NAN], [-0.1, -0.9, 0.1])
    kept = full.compute()
    assert same(copy.deepcopy(full).merge(MismatchState()).compute(), kept)
    assert same(copy.deepcopy(full).update(torch.ones(0), torch.ones(0)).compute(), kept)
    assert same(MismatchState().merge(full).compute(), kept)
    MismatchState().merge(full).merge(full)
    assert same(full.compute(), kept)


def test_ddof_belongs_to_the_standard_deviations_only() -> None:
    seen = state([-0.5, -2.0, -1.0], [-0.25, -2.0, -3.0])
    d = np.array([0.25, 0.0, 2.0])
    for ddof in (0, 1, 2):
        got = seen.compute(ddof=ddof)
        assert got.logprobs_diff_std == pytest.approx(d.std(ddof=ddof), rel=2**-50)
        assert same(got, seen.compute(), [n for n in got.as_dict() if not n.endswith("std")])
    assert math.isnan(seen.compute(ddof=3).logprobs_diff_std)


def comoments(x: list[float], y: list[float]) -> CoMoments:
    xs, ys = torch.tensor([x], dtype=F64), torch.tensor([y], dtype=F64)
    return CoMoments(x=Moments.of(xs)[0], y=Moments.of(ys)[0], products=exact_products(xs, ys)[0])


def test_moments_of_hand_made_lists() -> None:
    x, y = [1.0, 4.0, 4.0, 7.0], [2.0, 1.0, 5.0, 6.0]
    both = comoments(x, y)
    unit = 2**UNIT
    assert (both.x.count, both.x.total.units, both.x.squares.units) == (4, 16 * unit, 82 * unit)
    assert (both.y.total.units, both.y.squares.units, both.products.units) == (14 * unit, 66 * unit, 68 * unit)
    assert both.pearson() == pytest.approx(12 / math.sqrt(306), rel=2**-52)
    assert (both.x.mean, both.x.minimum, both.x.maximum, both.x.std(0)) == (4.0, 1.0, 7.0, math.sqrt(4.5))
    halves = comoments(x[:1], y[:1]), comoments(x[1:], y[1:])
    assert halves[0].merge(halves[1]).merge(CoMoments()) == both == CoMoments().merge(halves[1].merge(halves[0]))
    assert Moments().merge(Moments()) == Moments()
    assert all(math.isnan(v) for v in (Moments().mean, Moments().maximum, Moments().std(), CoMoments().pearson()))


@pytest.mark.parametrize(("ddof", "error"), [(-1, ValueError), (math.nan, TypeError), (True, TypeError)])
def test_ddof_is_a_count(ddof: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="ddof"):
        state([-0.5], [-0.25]).compute(ddof=ddof)


# --- bad input -------------------------------------------------------------------------------------------------------

X = torch.zeros(2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f: f(X, torch.zeros(3)), ValueError, r"rollout has shape \(2,\) but trainer has shape \(3,\)"),
        (lambda f: f(torch.zeros(2, 1), X), ValueError, r"rollout has shape \(2, 1\) but trainer has shape \(2,\)"),
        (lambda f: f(torch.tensor(0.0), X), ValueError, r"rollout has shape \(\) but trainer has shape \(2,\)"),
        (lambda f: f(X, torch.zeros(2, device="meta")), ValueError, "rollout is on cpu but trainer is on meta"),
        (lambda f: f(X, X, torch.ones(3)), ValueError, r"mask has shape \(3,\) but rollout has shape \(2,\)"),
        (lambda f: f(X, X, torch.ones(2, device="meta")), ValueError, "mask is on meta but rollout is on cpu"),
        (lambda f: f(X, X, torch.tensor([1, 2])), ValueError, "mask holds 2; only 0 and 1"),
        (lambda f: f(X, X, torch.tensor([-1, 1])), ValueError, "mask holds -1; only 0 and 1"),
        (lambda f: f(X, X, torch.tensor([1.0, 0.5])), ValueError, "mask holds 0.5; only 0 and 1"),
        (lambda f: f(X, X, torch.tensor([1.0, NAN])), ValueError, "mask holds nan; only 0 and 1"),
        (lambda f: f(X, X, [1, 1]), TypeError, "mask must be a torch.Tensor or None, got list"),
        (lambda f: f(X.long(), X), TypeError, "rollout has dtype torch.int64; it must be floating"),
        (lambda f: f(X, X.bool()), TypeError, "trainer has dtype torch.bool; it must be floating"),
        (lambda f: f(X, X.to(torch.complex64)), TypeError, "trainer has dtype torch.complex64"),
        (lambda f: f([0.0, 0.0], X), TypeError, "rollout must be a torch.Tensor, got list"),
        (lambda f: f(X, np.zeros(2)), TypeError, "trainer must be a torch.Tensor, got ndarray"),
        (lambda f: f(X, None), TypeError, "trainer must be a torch.Tensor, got NoneType"),
    ],
)
@pytest.mark.parametrize("target", [functional.mismatch, MismatchState().update], ids=["mismatch", "update"])
def test_bad_tensors(target: Any, call: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(target)


@pytest.mark.parametrize("dtype", [F16, BF16, torch.int64, "float32", None], ids=str)
def test_bad_compare_dtype(dtype: Any) -> None:
    with pytest.raises(ValueError, match=rf"compare_dtype is {dtype}; it must be torch.float32 or torch.float64"):
        functional.mismatch(X, X, compare_dtype=dtype)


def test_states_of_other_formats_do_not_merge_and_backends_are_known() -> None:
    with pytest.raises(ValueError, match=r"compare_dtype is torch.float32 here and torch.float64 there"):
        MismatchState().merge(MismatchState(compare_dtype=F64))
    with pytest.raises(ValueError, match="backend is 'cuda'; it must be one of auto, reference"):
        functional.mismatch(X, X, backend="cuda")


def test_a_refused_update_leaves_the_state_alone() -> None:
    seen = state([-0.5, -2.0], [-0.25, -2.0])
    kept = seen.compute()
    with pytest.raises(ValueError, match="mask holds 3"):
        seen.update(X, X, torch.tensor([0, 3]))
    assert same(seen.compute(), kept)
