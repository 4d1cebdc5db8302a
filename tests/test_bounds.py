"""The bounds: they grow as they say, correct code comes near them, wrong code exceeds them; and the judge."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from numerics.formats import FORMATS
from numerics.strategies.cases import LogitsCase
from numerics.suite import bounds, slack
from numerics.suite.builtin import BUILTIN
from numerics.suite.implementation import Algorithm, Implementation
from numerics.suite.measure import DIGITS, Exact, Measurement, mp, same, severities, within
from numerics.suite.slack import rows

INF, NAN = math.inf, math.nan
SINGLE = FORMATS["float32"]
SHIFTED, LOGSUMEXP = Algorithm(formula="shifted"), Algorithm(formula="logsumexp")
algorithms = pytest.mark.parametrize(
    "algorithm",
    [SHIFTED, LOGSUMEXP, Algorithm(formula="shifted", accumulate="float64"), Algorithm(accumulate="bfloat16")],
    ids=lambda a: f"{a.formula}-{a.accumulate}",
)


# --- monotonicity -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("u", [2.0**-8, 2.0**-11, 2.0**-24, 2.0**-53])
def test_gamma(u: float) -> None:
    assert bounds.gamma(0, u) == 0
    assert bounds.gamma(1, u) == u / (1 - u)
    assert np.isinf(bounds.gamma(np.array([1 / u, 2 / u, 1e3 / u]), u)).all()
    k = np.sort([1.0, 2.0, 7.0, 100.0, 0.25 / u, 0.75 / u, 1 / u - 1])
    grown = bounds.gamma(k, u)
    assert np.isfinite(grown).all()
    assert (np.diff(grown) > 0).all()
    assert (grown >= k * u).all()


def conditioning(**changes: float) -> bounds.Conditioning:
    plain = {
        "n": 50.0,
        "gap": 3.0,
        "top": 10.0,
        "log_s": 1.5,
        "mean_gap": 2.0,
        "mean_square_gap": 6.0,
        "spread": 8.0,
        "value": -4.5,
        "slack": 0.0,
    }
    return bounds.Conditioning(**{k: np.array([v]) for k, v in {**plain, **changes}.items()})


#: what each bound grows with, for both formulas and for "logsumexp" alone (which knows |lse| and the logits' size)
GROWS: dict[Callable[..., Any], tuple[set[str], set[str]]] = {
    bounds.token_logprobs: ({"n", "gap", "log_s", "mean_gap", "value", "slack"}, {"top"}),
    bounds.entropy: ({"n", "log_s", "mean_gap", "mean_square_gap", "value", "slack"}, {"top", "spread"}),
}


@algorithms
@pytest.mark.parametrize("dtype", list(FORMATS))
@pytest.mark.parametrize("bound", GROWS, ids=lambda f: f.__name__)
def test_bounds_of_rows_grow_with_what_they_depend_on(
    bound: Callable[..., Any], dtype: str, algorithm: Algorithm
) -> None:
    always, with_lse = GROWS[bound]
    grows = always | (with_lse if algorithm.formula == "logsumexp" else set())
    for field in (f.name for f in dataclasses.fields(bounds.Conditioning)):
        # the gap counts beside |lse| only where it is the larger of the two
        base = {"top": 0.0, "log_s": 0.25} if field == "gap" else {}
        steps = [-x if field == "value" else x for x in (1.0, 4.0, 16.0, 64.0)]
        found = [float(bound(conditioning(**{**base, field: x}), algorithm, dtype)[0]) for x in steps]
        assert all(x > 0 for x in found)
        assert found == sorted(found), field
        assert (found[-1] > found[0]) == (field in grows), field


@algorithms
def test_a_bound_is_infinite_beyond_the_accumulator(algorithm: Algorithm) -> None:
    u = bounds.formats_of(algorithm, "float32")[0]
    for bound in GROWS:
        assert np.isinf(bound(conditioning(n=2 / u), algorithm, "float32")).all()


@pytest.mark.parametrize("bound", GROWS, ids=lambda f: f.__name__)
def test_bounds_of_rows_know_the_arithmetic(bound: Callable[..., Any]) -> None:
    """Narrower accumulation, a sloppier exp or log, and the unshifted formula are granted more."""
    c = conditioning()

    def of(dtype: str = "float32", **changes: Any) -> float:
        return float(bound(c, Algorithm(**{"formula": "shifted", **changes}), dtype)[0])

    # (float16 has more digits than bfloat16, but what vanishes below its range costs more)
    assert of(accumulate="float64") < of() < min(of(accumulate="float16"), of(accumulate="bfloat16"))
    assert of("float64") < of(accumulate="float64") < of("float32")
    assert of("bfloat16") == of("float16") == of("float32")  # the input's format costs nothing: it is upcast
    assert of() < of(exp_ulps=200.0)
    assert of() < of(log_ulps=200.0)
    assert of() < of(formula="logsumexp")


def test_gradient_grows_with_gaps_and_with_one_over_temperature() -> None:
    c, probs, onehot = conditioning(), np.array([[0.3, 0.1]]), np.array([[1.0, 0.0]])

    def of(gaps: float = 2.0, t: float = 1.0, algorithm: Algorithm = SHIFTED, dtype: str = "float32") -> Any:
        return bounds.gradient(c, probs, np.array([[gaps, gaps]]), onehot, np.array([t]), algorithm, dtype)

    assert (of(gaps=2.0) < of(gaps=200.0)).all()
    assert (of(t=1.0) < of(t=0.01)).all()
    assert (of(algorithm=SHIFTED) < of(algorithm=LOGSUMEXP)).all()
    assert (of(dtype="float32") < of(dtype="float16")).all()  # stored in the logits' dtype
    assert (of(dtype="float16") < of(dtype="bfloat16")).all()
    assert np.isfinite(of(gaps=INF)).all()  # a removed entry


def test_statistics_grow_with_what_they_depend_on() -> None:
    def grows(values: list[float]) -> bool:
        return all(a < b for a, b in itertools.pairwise(values))

    assert grows([float(bounds.kept_mass(n, 1.0, SHIFTED, "float32")) for n in (1, 10, 1000)])
    assert grows([float(bounds.kept_mass(10, g, SHIFTED, "float32")) for g in (0.0, 1.0, 50.0)])
    assert grows([bounds.mean(x, 50, 50, SINGLE, 0.0) for x in (0.1, 1.0, 10.0)])
    assert grows([bounds.mean(1.0, 50, steps, SINGLE, 0.0) for steps in (50, 58, 500)])
    assert grows([bounds.mean(1.0, 50, 50, SINGLE, e) for e in (0.0, 1e-7, 1e-3)])
    assert grows([bounds.std(x, 20.0, 50, 50, SINGLE, 0.0) for x in (0.1, 1.0, 10.0)])
    assert grows([bounds.std(1.0, x, 50, 50, SINGLE, 0.0) for x in (1.0, 10.0, 1000.0)])
    assert grows([bounds.std(1.0, 1.0, 50, steps, SINGLE, 0.0) for steps in (50, 58, 500)])
    assert grows([bounds.std(1.0, 1.0, 50, 50, SINGLE, e) for e in (0.0, 1e-7, 1e-3)])
    assert grows([bounds.pearson(steps, SINGLE.u, 0.0, 0.0) for steps in (2, 50, 5000)])
    assert grows([bounds.pearson(50, SINGLE.u, e, 0.0) for e in (0.0, 1e-7, 1e-2, 0.4)])
    assert bounds.pearson(50, SINGLE.u, 0.1, 0.2) == bounds.pearson(50, SINGLE.u, 0.2, 0.1)
    # nothing is promised where sums or squares may leave the range
    assert bounds.mean(SINGLE.max / 4, 8, 8, SINGLE, 0.0) == INF
    assert bounds.std(1.0, 1e19, 8, 8, SINGLE, 0.0) == INF
    assert bounds.mean(0.0, 0, 0, SINGLE, 0.0) == 0


@pytest.mark.parametrize(
    ("steps", "u", "x", "y"),
    [
        (10, SINGLE.u, 0.5, 0.0),
        (10, SINGLE.u, 0.0, 0.5),
        (10, SINGLE.u, INF, 0.0),
        (10, SINGLE.u, NAN, 0.0),
        (10, SINGLE.u, 0.0, NAN),
        (10, SINGLE.u, 0.49, 0.49),
        (2**24, SINGLE.u, 0.0, 0.0),
    ],
)
def test_pearson_told_nothing_promises_nothing(steps: int, u: float, x: float, y: float) -> None:
    assert bounds.pearson(steps, u, x, y) == pytest.approx(2.0, abs=0.1)
    assert bounds.pearson(steps, u, x, y) <= 2.0


# --- sharpness ----------------------------------------------------------------------------------------------

BY_ROW = [x for xs in BUILTIN.values() for x in xs if x.contract in ("token_logprobs", "entropy")]
ids = {"ids": lambda x: f"{x.name}-{x.contract}" if isinstance(x, Implementation) else x}


@pytest.mark.parametrize(("implementation", "dtype"), [(x, name) for x in BY_ROW for name in x.dtypes], **ids)
def test_correct_code_comes_near_its_bound_and_stays_inside(implementation: Implementation, dtype: str) -> None:
    """A bound of which no correct code ever uses 1/64 would not see most errors."""
    *_, found = slack.measure_rows(implementation, dtype, rows=4000, seed=1)
    print(f"{found.contract} {found.implementation} {dtype}: {found.largest:.3f} of the bound in {found.rows} rows")
    assert found.over == 0, found.worst
    assert found.undecided == 0
    assert 1 / 64 < found.largest <= 1
    assert found.float64 + found.extended + found.exact == found.rows >= 4000


BY_FIGURE = [x for xs in BUILTIN.values() for x in xs if x.contract in slack.CONTRACTS]


@pytest.mark.parametrize("contract", slack.CONTRACTS)
def test_correct_figures_stay_inside_their_bounds_and_some_come_near(contract: str) -> None:
    """Worst cases over all orders of a sum are rarely near, so the float64 reference alone need not be."""
    nearest = 0.0
    for implementation in BY_FIGURE:
        if implementation.contract == contract:
            *_, found = slack.measure_figures(implementation, "float32", count=80)
            print(f"{contract} {found.implementation}: {found.largest:.3f} of the bound in {found.rows} cases")
            assert found.over == 0, found.worst
            assert found.largest == max(found.figures.values())
            nearest = max(nearest, found.largest)
    assert 1 / 64 < nearest <= 1


def test_a_wrong_figure_is_over_its_bound_and_named() -> None:
    """A deviation with ddof 0: every other figure stays inside."""
    right = next(x for x in BY_FIGURE if x.name == "reference" and x.contract == "divergence")

    def wrong(rollout: Any, trainer: Any, mask: Any, **named: Any) -> Any:
        found = right.fn(rollout, trainer, mask, **named)
        n = found.valid_count
        return dataclasses.replace(found, ratio_std=found.ratio_std * math.sqrt((n - 1) / n))

    *_, found = slack.measure_figures(dataclasses.replace(right, fn=wrong), "float32", count=20)
    assert found.over > 0
    assert [name for name, ratio in found.figures.items() if ratio > 1] == ["ratio_std"]


def test_wrong_code_is_over_the_bound_and_its_row_can_be_replayed() -> None:
    """log(softmax) loses everything below exp's range; log-probs rounded to bfloat16 keep 8 bits."""
    right = next(x for x in BY_ROW if x.name == "torch" and x.contract == "token_logprobs")

    def wrong(logits: Any, token_ids: Any, **named: Any) -> Any:
        return right.fn(logits, token_ids, **named).bfloat16().float()

    *_, found = slack.measure_rows(dataclasses.replace(right, fn=wrong), "float32", rows=500)
    assert found.over > 0
    assert found.largest > 100
    names = {"inf": INF, "nan": NAN, "LogitsCase": LogitsCase, "Logits": rows.Logits}
    assert eval(found.worst, names).size == 1


def test_extended_precision_and_mpmath_decide_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the platform's long double is too narrow every open row goes to mpmath; the figures are the same."""
    reference = next(x for x in BY_ROW if x.name == "reference" and x.contract == "token_logprobs")
    *_, quick = slack.measure_rows(reference, "float64", rows=600)
    monkeypatch.setattr(rows, "EXTENDED_BITS", 53)
    *_, slow = slack.measure_rows(reference, "float64", rows=600)
    assert slow.extended == 0 < slow.exact
    assert np.abs(np.concatenate(quick.ratios) - np.concatenate(slow.ratios)).max() < 2.0**-8
    *_, capped = slack.measure_rows(reference, "float64", rows=600, exact_rows=50)
    assert (capped.exact, capped.undecided, capped.over) == (50, slow.exact - 50, 0)


def test_a_textbook_variance_is_over_the_bound_of_std() -> None:
    """E[x^2] - E[x]^2 cancels (kappa squared); two passes do not (kappa). All in float32."""
    x = (100 + np.arange(48) % 5 * 2.0**-6).astype(np.float32)
    n = np.float32(len(x))
    values = [Fraction(float(v)) for v in x]
    centre = sum(values) / len(values)
    exact = math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - 1))
    rms = math.sqrt(sum(v * v for v in values) / len(values))
    allowed = bounds.std(exact, rms, len(x), len(x), SINGLE, 0.0)
    total = squares = np.float32(0)
    for v in x:
        total, squares = total + v, squares + v * v
    one_pass = np.sqrt(max((squares - total * total / n) / (n - np.float32(1)), np.float32(0)))
    two_pass = np.sqrt(((x - x.sum() / n) ** 2).sum() / (n - np.float32(1)))
    assert one_pass.dtype == two_pass.dtype == np.float32
    assert abs(float(two_pass) - exact) <= allowed < abs(float(one_pass) - exact)


def test_a_pearson_of_uncentred_moments_is_over_the_bound() -> None:
    rng = np.random.default_rng(3)
    x = (-30 + rng.normal(0, 2.0**-6, 40)).astype(np.float32)
    y = (x + rng.normal(0, 2.0**-8, 40)).astype(np.float32)
    exact = float(np.corrcoef(x.astype(np.float64), y.astype(np.float64))[0, 1])
    errors = [
        math.sqrt(40) * float(bounds.gamma(43, SINGLE.u)) * 2 * 31 / float(np.linalg.norm(v - v.mean(dtype=float)))
        for v in (x, y)
    ]
    allowed = bounds.pearson(40, SINGLE.u, *errors)
    assert allowed < 1
    dx, dy = x - x.mean(), y - y.mean()
    centred = (dx * dy).sum() / np.sqrt((dx * dx).sum() * (dy * dy).sum())
    n = np.float32(40)
    moments = [n * (a * b).sum() - a.sum() * b.sum() for a, b in ((x, y), (x, x), (y, y))]
    textbook = moments[0] / np.sqrt(max(moments[1], np.float32(1e-9)) * max(moments[2], np.float32(1e-9)))
    assert abs(float(centred) - exact) <= allowed < abs(float(textbook) - exact)


# --- the judge ----------------------------------------------------------------------------------------------


def judged(got: float, want: float, allowed: float, *, radius: float = 0.0, refine: Any = None) -> float:
    exact = Exact(
        value=np.array([want]), radius=np.array([radius]), refine=lambda i: mp.mpf(want) if refine is None else refine
    )
    return float(severities(within(got, exact, allowed, label="x"))[0])


@pytest.mark.parametrize(
    ("got", "want", "allowed", "severity"),
    [
        (1.0, 1.0, 0.0, 0.0),
        (1.0, np.nextafter(1.0, 2.0), 0.0, INF),
        (0.0, -0.0, 0.0, 0.0),  # a distance does not see the sign of zero
        (1.5, 1.0, 1.0, 0.5),
        (2.0, 1.0, 1.0, 1.0),
        (3.0, 1.0, 1.0, 2.0),
        (3.0, 1.0, INF, 0.0),  # nothing is promised
        (NAN, NAN, 1.0, 0.0),
        (NAN, 1.0, INF, INF),  # no bound excuses what is not finite
        (1.0, NAN, INF, INF),
        (INF, INF, 0.0, 0.0),
        (INF, -INF, INF, INF),
        (INF, 1.0, INF, INF),
        (-INF, -INF, 1.0, 0.0),
        (1.0, -INF, INF, INF),
    ],
)
def test_judging_a_distance(got: float, want: float, allowed: float, severity: float) -> None:
    assert judged(got, want, allowed) == severity


@pytest.mark.parametrize("allowed", [2.0**-20, 1.0, 2.0**-140])
@pytest.mark.parametrize(("side", "over"), [(-1, False), (0, False), (1, True)], ids=["inside", "on", "outside"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_exact_number_decides_at_the_border(allowed: float, side: int, over: bool, sign: int) -> None:
    """|got - want| misses the bound by 1e-50 of it: float64 sees equality, the radius sends it to 60 digits."""
    truth = sign * mp.mpf(allowed) * (1 + side * mp.mpf("1e-50"))
    found = judged(0.0, sign * allowed, allowed, radius=allowed * 2.0**-40, refine=truth)
    assert (found > 1) == over
    assert found == pytest.approx(1.0)


@pytest.mark.parametrize(("radius", "over"), [(2.0**-30, False), (2.0**-20, True)])
def test_within_the_radius_float64_does_not_decide(radius: float, over: bool) -> None:
    """The refined number is asked only where the radius could change the verdict."""
    far = mp.mpf(2)
    assert (judged(0.0, 1 - 2.0**-21, 1.0, radius=radius, refine=far) > 1) == over
    near = mp.mpf("0.5")
    assert (judged(0.0, 1 + 2.0**-21, 1.0, radius=radius, refine=near) > 1) != over


@pytest.mark.parametrize(("truth", "severity"), [("1", 0.0), ("1.00000000000000000000000000000000000000001", INF)])
def test_nothing_allowed_and_a_radius(truth: str, severity: float) -> None:
    assert judged(1.0, 1.0, 0.0, radius=1e-16, refine=mp.mpf(truth)) == severity
    assert mp.dps == DIGITS > 40


def test_a_bound_that_is_no_number_excuses_nothing() -> None:
    """A NaN where the bound should be is a defect of the judge, and must not pass an implementation."""
    assert judged(123.0, 1.0, NAN, radius=1e-16) > 1
    assert judged(123.0, 1.0, 1.0, radius=NAN) > 1


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        (0.0, 0.0, True),
        (-0.0, -0.0, True),
        (0.0, -0.0, False),
        (-0.0, 0.0, False),
        (NAN, NAN, True),
        (-NAN, NAN, True),
        (NAN, 0.0, False),
        (INF, INF, True),
        (INF, -INF, False),
        (1.0, np.nextafter(1.0, 2.0), False),
        (5e-324, 0.0, False),
    ],
)
def test_judging_bits(got: float, want: float, equal: bool) -> None:
    assert severities(same(got, want, label="x"))[0] == (0.0 if equal else INF)


def test_elements_are_judged_one_by_one() -> None:
    got = np.array([1.0, NAN, 3.0, INF])
    exact = Exact(value=np.ones(4), radius=np.zeros(4), refine=lambda i: mp.mpf(1))
    m: Measurement = within(got, exact, [1.0, 1.0, 4.0, INF], label=("a", "b", "c", "d"))
    assert severities(m).tolist() == [0.0, INF, 0.5, INF]
    assert [m.label(i) for i in range(4)] == ["a", "b", "c", "d"]
    assert (
        severities(within([], exact.__class__(value=np.ones(0), radius=np.ones(0), refine=abs), [], label="x")).size
        == 0
    )
