"""The terms of a divergence against mpmath with 60 digits, and the fact on which partition invariance rests."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch

from numerics.reference.terms import jsd_term, k3_term, weighted_difference

Term = Callable[[torch.Tensor], torch.Tensor]


def exact_k3(d: mpmath.mpf) -> mpmath.mpf:
    return mpmath.expm1(d) - d


def exact_weighted(d: mpmath.mpf) -> mpmath.mpf:
    return mpmath.exp(d) * d


def exact_jsd(d: mpmath.mpf) -> mpmath.mpf:
    w = mpmath.exp(d)
    return (w * d - (1 + w) * mpmath.log((1 + w) / 2)) / 2


#: In units of u = 2^-53, relative to the term; one ulp is at least u times the term, so n u are at most n ulps. exp,
#: expm1 and log1p of torch are within 1 ulp = 2 u; every operation adds u.
#:
#: k3. Series (abs(d) < 0.5): the last step of Horner is u, the one before it enters with d/3 <= 1/6: (2 + 1.4)/6 u and
#: the step's own u over 0.85 give 1.9 u; d d/2 and the product 1 u each: 4 u. Direct: 2 u of expm1 and u of the
#: difference; expm1/k3 is largest at 0.5, 4.37: 9.8 u.
#: w d: 2 u of exp, u of the product: 3 u.
#: jsd, x = -abs(d), f = A - B, halves exact. Near (x > -1): A = expm1(x) x/2 has 3 u. In B expm1(x/2)^2 has 5 u, over
#: 2 exp(x/2) 8 u, log1p of it 10 u (its condition is below 1), times (1 + w) 13 u. A/f <= 2.09 and B/f <= 1.09: 21.5 u.
#: Far: worst at -1, where w x = -0.368 (3 u), ln 2 - log1p(w) = 0.380 (2 u of 0.313, 0.54 u of w, 0.5 u of ln 2, u of
#: the difference: 1.9 u in all), times 1 + w = 1.368 with 3 u more: (1.1 + 2.6 + 1.6)/0.152 u + u = 36 u. For d > 0
#: the factor exp(d) adds 3 u: 39 u.
BOUNDS: list[tuple[Term, Callable[[mpmath.mpf], mpmath.mpf], float]] = [
    (k3_term, exact_k3, 9.8),
    (weighted_difference, exact_weighted, 3.0),
    (jsd_term, exact_jsd, 39.0),
]


def grid() -> torch.Tensor:
    """1e-300 to 700 by magnitude, the borders of every branch with their neighbours, both signs."""
    generator = torch.Generator().manual_seed(0)
    magnitudes = 10.0 ** (torch.rand(1500, generator=generator, dtype=torch.float64) * 302.8 - 300)
    common = 10.0 ** (torch.rand(1500, generator=generator, dtype=torch.float64) * 12 - 10)
    wide = 700 * torch.rand(1000, generator=generator, dtype=torch.float64)
    around = torch.tensor([x for b in (1e-2, 0.25, 0.5, 1.0, 2.0, 37.0, 80.0, 690.0) for x in beside(b)]).double()
    d = torch.cat([magnitudes.clamp(max=700), common, wide, around, torch.tensor([1e-300, 1e-160, 700.0]).double()])
    return torch.cat([d, -d])


def beside(x: float) -> list[float]:
    return [x, math.nextafter(x, 0), math.nextafter(x, math.inf), x * (1 - 1e-3), x * (1 + 1e-3)]


def worst(term: Term, exact: Callable[[mpmath.mpf], mpmath.mpf], d: torch.Tensor) -> tuple[float, float]:
    """The largest error in ulps, and where."""
    errors = []
    with mpmath.workdps(60):
        for x, got in zip(d.tolist(), term(d).tolist(), strict=True):
            with mpmath.workdps(60 if abs(x) > 1e-9 else 700):  # the exact forms cancel, too
                want = exact(mpmath.mpf(x))
            errors.append((float(abs(mpmath.mpf(got) - want) / math.ulp(float(want))), x))
    return max(errors)


@pytest.mark.parametrize(("term", "exact", "bound"), BOUNDS, ids=["k3", "weighted", "jsd"])
def test_terms_keep_their_digits(
    term: Term, exact: Callable[[mpmath.mpf], mpmath.mpf], bound: float, record_property: Callable[[str, object], None]
) -> None:
    ulps, where = worst(term, exact, grid())
    record_property("worst_ulps", ulps)
    print(f"{term.__name__}: at most {ulps:.2f} ulps, at d = {where!r}")
    assert ulps <= bound, f"d = {where!r}"


@pytest.mark.parametrize("term", [k3_term, jsd_term])
def test_terms_are_never_negative(term: Term) -> None:
    """Not for tiny d, where the textbook forms are noise, and not for subnormal ones."""
    steps = torch.arange(-5000, 5000, dtype=torch.float64)
    for d in (grid(), steps * 5e-324, steps * 1e-166, steps * 1e-162, steps * 1e-9, steps * 0.1):
        assert bool((term(d) >= 0).all())
    assert term(torch.zeros(2, dtype=torch.float64)).tolist() == [0.0, 0.0]


def test_k3_becomes_half_a_square() -> None:
    d = torch.tensor([s * 10.0**-k for k in range(8, 140, 3) for s in (1, -1)], dtype=torch.float64)
    ratio = k3_term(d) / (d * d / 2)
    # 1 + d/3 + ..., and 4 u of rounding
    assert bool(((ratio - 1).abs() <= d.abs() / 3 + 4 * 2.0**-53).all())


def test_jsd_becomes_an_eighth_of_a_square() -> None:
    d = torch.tensor([s * 10.0**-k for k in range(8, 140, 3) for s in (1, -1)], dtype=torch.float64)
    # exp(d/2) (d^2/8) (1 + O(d^2)), and 21.5 u of rounding
    assert bool(((jsd_term(d) / (d * d / 8) - 1).abs() <= d.abs() + 24 * 2.0**-53).all())


def test_terms_of_infinities_and_nan() -> None:
    d = torch.tensor([math.inf, -math.inf, math.nan], dtype=torch.float64)
    assert k3_term(d).tolist()[:2] == [math.inf, math.inf]
    assert weighted_difference(d).tolist()[:2] == [math.inf, 0.0]
    assert jsd_term(d).tolist()[:2] == [math.inf, math.log(2) / 2]
    for term in (k3_term, weighted_difference, jsd_term):
        assert math.isnan(term(d).tolist()[2])


ELEMENTWISE: dict[str, Term] = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log1p": lambda x: torch.log1p(x.abs()),
    "log": lambda x: torch.log(x.abs()),
    "square": lambda x: x**2,
    "weight_log": lambda x: torch.log(torch.exp(x)),
    "k3": k3_term,
    "weighted": weighted_difference,
    "jsd": jsd_term,
}


def pieces(x: torch.Tensor, f: Term) -> list[tuple[int, torch.Tensor]]:
    """f of slices of many lengths at many offsets, in the memory of x and on their own."""
    n = x.numel()
    cuts = [(first, size) for first in range(17) for size in (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 100)]
    cuts += [(n - size, size) for size in range(1, 20)] + [(3, n - 5), (n // 2, 40), (n // 3, 2 * n // 3)]
    both = [(first, x[first : first + size]) for first, size in cuts]
    return [(first, f(part)) for first, part in both] + [(first, f(part.clone())) for first, part in both]


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("scale", [1e-5, 0.3, 3.0, 60.0])
def test_a_term_has_the_same_bits_at_every_place(name: str, scale: float) -> None:
    """What partition invariance rests on: no vector tail, offset, alignment or thread gives other bits."""
    f = ELEMENTWISE[name]
    x = scale * torch.randn(4099, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = f(x).view(torch.int64)
    for first, part in pieces(x, f):
        assert torch.equal(part.view(torch.int64), whole[first : first + part.numel()]), (first, part.numel())
    order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(2))
    assert torch.equal(f(x[order]).view(torch.int64), whole[order])
    assert torch.equal(f(x[:4096].reshape(64, 64)).view(torch.int64).reshape(-1), whole[:4096])


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_term_has_the_same_bits_on_any_number_of_threads(name: str) -> None:
    """100,003 elements are split over threads at places that depend on their number."""
    f, threads = ELEMENTWISE[name], torch.get_num_threads()
    x = torch.randn(100_003, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    try:
        torch.set_num_threads(1)
        want = f(x).view(torch.int64)
        for n in (2, 3):
            torch.set_num_threads(n)
            assert torch.equal(f(x).view(torch.int64), want)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.cat([f(part) for part in torch.split(x, 777)]).view(torch.int64), want)
