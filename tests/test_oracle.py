"""The oracle against mpmath, closed forms and brute force: what judges everybody must itself be judged."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerics.formats import FORMATS
from numerics.strategies import REGIMES, logits_cases
from numerics.strategies.cases import Logits, LogitsCase, PairCase, PairRow, Tail
from numerics.strategies.logits import TEMPERATURE_FORMS
from numerics.suite import bounds, exact, measure, oracle, oracle_pairs
from numerics.suite.builtin import BUILTIN
from numerics.suite.implementation import Algorithm

INF, NAN = math.inf, math.nan
mp: Any = mpmath.MPContext()
mp.dps = 100  # more digits than the oracle's own 60

every_dtype = pytest.mark.parametrize("dtype", list(FORMATS))


def row(*values: float, token: int = 0, temperature: float = 1.0) -> Logits:
    return Logits(values, token, temperature)


def compute_format(case: LogitsCase) -> Any:
    return FORMATS["float64" if case.dtype == "float64" else "float32"]


def true_y(case: LogitsCase, i: int) -> list[Any]:
    """y - max y for y = z / T by its definition, in rational arithmetic: one rounding, or none where that overflows.

    (Shifted before it becomes a number of 100 digits, which a row of 1e86 and small differences would exhaust.)
    """
    compute = compute_format(case)
    t = Fraction(compute.round(float(case.temperatures[i])))
    z = case.values[i].tolist()
    divided = [compute.round(Fraction(v) / t) if math.isfinite(v) else v for v in z]
    overflows = any(math.isinf(y) and math.isfinite(v) for y, v in zip(divided, z, strict=True))
    y = [Fraction(v) / t if math.isfinite(v) else v for v in z] if overflows else divided
    if any(math.isnan(v) or v == INF for v in z) or all(v == -INF for v in z):
        return [mp.nan] * len(z)
    top = max(Fraction(v) for v in y if v != -INF)
    shifted = [v if v == -INF else Fraction(v) - top for v in y]
    return [mp.mpf(v.numerator) / v.denominator if isinstance(v, Fraction) else mp.mpf(v) for v in shifted]


def softmax(y: list[Any]) -> tuple[list[Any], Any]:
    """Probabilities and the log-sum-exp of a row whose maximum is 0."""
    weights = [mp.exp(v) for v in y]
    total = mp.fsum(weights)
    return [w / total for w in weights], mp.log(total)


def is_distribution(y: list[Any]) -> bool:
    return not mp.isnan(y[0])


def drawn(dtype: str, **options: Any) -> st.SearchStrategy[LogitsCase]:
    """Every regime: tails, offsets up to the format's range, rows whose division overflows, rows without a value."""
    options = {"max_rows": 3, "regimes": tuple(REGIMES), "allow_overflow": True, **options}
    return logits_cases(dtype=dtype, temperature_forms=TEMPERATURE_FORMS, **options)


def holds(exact_: measure.Exact, i: int, want: Any) -> None:
    """Element ``i``: value and radius hold ``want``, and the refined number has 50 of its digits."""
    value, radius, refined = float(exact_.value[i]), float(exact_.radius[i]), mp.mpf(str(exact_.refine(i)))
    if not mp.isfinite(want) or not math.isfinite(value):
        assert radius == 0
        # beyond float64's range the value is the infinity it rounds to
        assert mp.isnan(want) if math.isnan(value) else FORMATS["float64"].round(want) == value
        return
    assert abs(value - want) <= radius
    assert abs(refined - want) <= abs(want) * mp.mpf("1e-50") + mp.mpf("1e-50")


# --- value, entropy and gradient against mpmath ----------------------------------------------------------------


def check_logprobs(case: LogitsCase) -> None:
    scored = oracle.score(case)
    for i in range(case.size):
        y = true_y(case, i)
        holds(scored.logprobs, i, y[case.tokens[i]] - softmax(y)[1] if is_distribution(y) else mp.nan)


def check_entropy(case: LogitsCase) -> None:
    found = oracle.entropy(case)
    for i in range(case.size):
        y = true_y(case, i)
        if not is_distribution(y):
            holds(found, i, mp.nan)
            continue
        p, lse = softmax(y)
        holds(found, i, mp.fsum(a * (lse - v) for a, v in zip(p, y, strict=True) if a))


def check_gradient(case: LogitsCase) -> None:
    found, onehot = oracle.gradient(case)
    compute = compute_format(case)
    for i in range(case.size):
        y, t = true_y(case, i), mp.mpf(compute.round(float(case.temperatures[i])))
        p, lse = softmax(y) if is_distribution(y) else ([mp.nan] * len(y), mp.nan)
        # a log-prob that rounds to -inf in the output's format, half an ulp below its range, has gradient 0
        limit = mp.mpf(compute.max) + mp.mpf(compute.ulp(compute.max)) / 2
        zero = not case.valid[i] or (is_distribution(y) and y[case.tokens[i]] - lse <= -limit)
        for j in range(case.width):
            holds(found, i * case.width + j, mp.mpf(0) if zero else (int(onehot[i, j]) - p[j]) / t)


CHECKS = {"logprobs": check_logprobs, "entropy": check_entropy, "gradient": check_gradient}


@every_dtype
@pytest.mark.parametrize("check", CHECKS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_radius_holds_mpmath(check: str, dtype: str, data: st.DataObject) -> None:
    options = {} if check != "gradient" else {"max_rows": 2, "tails": False, "mask_forms": ("absent", "bool")}
    CHECKS[check](data.draw(drawn(dtype, **options)))


TOP = FORMATS["float64"].max
HARD = {
    "certain": LogitsCase((row(37.0, 0.0), row(37.0, 0.0, token=1))),  # 1 - p is below float64's resolution of 1
    "certain in float64": LogitsCase((row(800.0, 0.0),), "float64"),  # 1 - p is below its range
    "square of the gap overflows": LogitsCase((row(0.0, -1e200),), "float64"),
    "padded with the minimum": LogitsCase((row(0.0, -TOP), row(1.0, -TOP, token=1)), "float64"),
    "gap overflows": LogitsCase((row(TOP, -TOP), row(TOP, -TOP, token=1)), "float64"),
    "division overflows": LogitsCase((row(3e38, -3e38, temperature=2.0**-20),), temperature="float"),
    "division overflows in float64": LogitsCase((row(1e300, 9e299, temperature=2.0**-40),), "float64", "float"),
    "division underflows": LogitsCase((row(1e-40, 0.0, temperature=2.0**20),), temperature="float"),
    "wide": LogitsCase((row(0.5), row(8.0)), tail=Tail(5000, 3)),
    "hot and wide": LogitsCase((row(0.5, temperature=1e-3),), temperature="float", tail=Tail(500, 3)),
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("check", CHECKS)
def test_the_radius_holds_mpmath_in_hard_cases(check: str, name: str) -> None:
    if check == "gradient" and HARD[name].width > 100:
        pytest.skip("a row of its gradient costs mpmath V^2 exponentials")
    CHECKS[check](HARD[name])


@every_dtype
def test_a_support_is_scored_as_if_the_rest_were_minus_infinity(dtype: str) -> None:
    case = LogitsCase((row(1.0, 2.0, -1.0, 0.5, token=1), row(0.0, 0.0, 0.0, 3.0, token=3)), dtype)
    kept = (frozenset({1, 3}), frozenset({0, 3}))
    holes = LogitsCase((row(-INF, 2.0, -INF, 0.5, token=1), row(0.0, -INF, -INF, 3.0, token=3)), dtype)
    assert np.array_equal(oracle.score(case, kept).logprobs.value, oracle.score(holes).logprobs.value)
    assert np.array_equal(oracle.entropy(case, kept).value, oracle.entropy(holes).value)


def test_real_vocab_removes_columns_whatever_they_hold() -> None:
    for padding in (0.0, NAN, INF):
        case = LogitsCase((row(1.0, 2.0, padding),), cuts=(("real_vocab", 2),))
        assert oracle.score(case).logprobs.value[0] == oracle.score(LogitsCase((row(1.0, 2.0),))).logprobs.value[0]


# --- closed forms -----------------------------------------------------------------------------------------------


@every_dtype
@pytest.mark.parametrize("width", [1, 2, 3, 10, 1000])
@pytest.mark.parametrize("base", [0.0, 0.5, -96.0, 2.0**14])
def test_a_uniform_row(dtype: str, width: int, base: float) -> None:
    case = LogitsCase((Logits((base,) * width, width - 1),), dtype)
    holds(oracle.score(case).logprobs, 0, -mp.log(width))
    holds(oracle.entropy(case), 0, mp.log(width))
    gradient, _ = oracle.gradient(case)
    holds(gradient, width - 1, 1 - mp.mpf(1) / width)
    holds(gradient, 0, mp.mpf(int(width == 1)) - mp.mpf(1) / width)


@every_dtype
@pytest.mark.parametrize("gap", [1.0, 30.0, 100.0, 1000.0, 60000.0])
def test_one_gap(dtype: str, gap: float) -> None:
    gap = FORMATS[dtype].round(gap)
    certain, unlikely = (oracle.score(LogitsCase((row(0.0, -gap, token=k),), dtype)).logprobs for k in (0, 1))
    holds(certain, 0, -mp.log1p(mp.exp(-mp.mpf(gap))))
    holds(unlikely, 0, -gap - mp.log1p(mp.exp(-mp.mpf(gap))))


@pytest.mark.parametrize(
    ("values", "token", "want"),
    [
        ((0.0, NAN, 1.0), 0, NAN),
        ((0.0, INF, 1.0), 1, NAN),
        ((-INF, -INF), 0, NAN),
        ((NAN, -INF), 1, NAN),
        ((-INF, 0.0), 0, -INF),
        ((-INF, 0.0), 1, 0.0),
        ((-1.25,), 0, 0.0),
    ],
)
def test_precedence(values: tuple[float, ...], token: int, want: float) -> None:
    found = oracle.score(LogitsCase((row(*values, token=token),))).logprobs
    assert found.value[0] == want or (math.isnan(want) and math.isnan(found.value[0]))
    assert found.radius[0] == 0 or want == 0


def test_temperature_is_rounded_once_to_the_compute_dtype() -> None:
    z = (20.0, 0.0)
    for dtype, t in (("bfloat16", float(np.float32(0.7))), ("float32", float(np.float32(0.7))), ("float64", 0.7)):
        case = LogitsCase((row(*z, token=1, temperature=0.7),), dtype, temperature="float")
        compute = compute_format(case)
        y = mp.mpf(compute.round(Fraction(20) / Fraction(t)))
        holds(oracle.score(case).logprobs, 0, -y - mp.log1p(mp.exp(-y)))


@pytest.mark.parametrize("module", [oracle, oracle_pairs, measure, bounds, exact])
def test_no_torch_in_the_oracle(module: Any) -> None:
    imported = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert "torch" not in imported
    assert imported & {"numpy", "mpmath", "numerics"}  # the walk sees imports at all


# --- caches -----------------------------------------------------------------------------------------------------


def pairs(*tokens: tuple[float, float], **options: Any) -> PairCase:
    return PairCase((PairRow(*(tuple(side) for side in zip(*tokens, strict=True)), (True,) * len(tokens)),), **options)


def test_zeros_and_nans_are_not_confused_by_a_cache() -> None:
    """+0 == -0 and hash alike in Python, so a cache keyed by the numbers would answer one with the other."""
    for order in itertools.permutations([(0.0, 0.0, 0), (0.0, -0.0, 1), (-0.0, 0.0, 1), (-0.0, -0.0, 0)]):
        oracle_pairs.mismatch.cache_clear()
        for q, p, bits in order:
            found = oracle_pairs.mismatch(pairs((q, p))).counts
            assert (found["bit_mismatch_count"], found["logprobs_mismatch_count"]) == (bits, 0)
    plus, minus = LogitsCase((row(0.0, 1.0),)), LogitsCase((row(-0.0, 1.0),))
    assert plus != minus
    assert not np.signbit(plus.values[0, 0])
    assert np.signbit(minus.values[0, 0])
    assert np.signbit(minus.tensors("cpu")["logits"].numpy()[0, 0])
    assert LogitsCase((row(NAN),)) == LogitsCase((row(float("nan")),))
    assert pairs((NAN, -1.0)) != pairs((-1.0, NAN))


def test_writing_into_tensors_leaves_the_case_alone() -> None:
    case = LogitsCase((row(0.5, 1.0),), "float64", tail=Tail(3, 1))
    before = case.values.copy()
    case.tensors("cpu")["logits"].fill_(NAN)
    assert np.array_equal(case.values, before)


# --- mismatch ---------------------------------------------------------------------------------------------------


def close(got: Any, want: Any) -> bool:
    return bool(abs(got - want) <= abs(want) * measure.mp.mpf("1e-50"))


def test_mismatch_of_a_hand_case() -> None:
    """Differences 0, 1/2, 1, 1/4; one masked place holds NaN."""
    case = PairCase(
        (
            PairRow((-1.0, -1.0), (-1.0, -1.5), (True, True)),
            PairRow((NAN, -2.0, -0.5), (1e30, -1.0, -0.25), (False, True, True)),
        )
    )
    found = oracle_pairs.mismatch(case)
    assert found.counts == {
        "valid": 1,
        "valid_count": 4,
        "nonfinite_count": 0,
        "narrowed_count": 0,
        "positive_count": 0,
        "overflow_count": 0,
        "logprobs_mismatch_count": 3,
        "bit_mismatch_count": 3,
    }
    d = [Fraction(0), Fraction(1, 2), Fraction(1), Fraction(1, 4)]
    mean = sum(d) / 4
    variance = sum((x - mean) ** 2 for x in d) / 3
    assert found.figures["logprobs_diff_max"] == 1
    assert found.figures["logprobs_diff_mean"] == measure.mp.mpf(7) / 16 == measure.mp.mpf(float(mean))
    root = measure.mp.sqrt(measure.mp.mpf(variance.numerator) / variance.denominator)
    assert close(found.figures["logprobs_diff_std"], root)
    assert sum(found.histogram) == 4
    assert found.histogram[0] == 1
    # -1 -> -1.5: half a binade, 2^22 steps, so bin 23; -2 -> -1 and -0.5 -> -0.25: a whole one, 2^23, bin 24
    assert (found.histogram[23], found.histogram[24]) == (1, 2)


@pytest.mark.parametrize(
    ("q", "p", "want"),
    [
        ((-1.0, -2.0, -3.0), (-1.0, -3.0, -2.0), 0.5),
        ((-1.0, -2.0), (-4.0, -8.0), 1.0),
        ((-1.0, -2.0), (-8.0, -4.0), -1.0),
        ((-1.0, -1.0, -1.0), (-1.0, -2.0, -3.0), NAN),
        ((-1.0,), (-2.0,), NAN),
        ((-1.0, -INF), (-2.0, -1.0), NAN),
        ((-1.0, -1.0, -2.0, -2.0), (-1.0, -2.0, -1.0, -2.0), 0.0),
    ],
)
def test_pearson_of_known_vectors(q: tuple[float, ...], p: tuple[float, ...], want: float) -> None:
    got = oracle_pairs.mismatch(pairs(*zip(q, p, strict=True))).figures["logprobs_pearson"]
    assert measure.mp.isnan(got) if math.isnan(want) else abs(got - want) < 1e-50


@pytest.mark.parametrize(
    ("q", "p", "maximum", "mean", "mismatched", "bits", "nonfinite"),
    [
        (-INF, -INF, 0, 0, 0, 0, 1),
        (-INF, -1.0, INF, INF, 1, 1, 1),
        (INF, -INF, INF, INF, 1, 1, 1),
        (NAN, -1.0, NAN, NAN, 1, 1, 1),
        (NAN, NAN, NAN, NAN, 1, 0, 1),
        (-1.0, -1.0, 0, 0, 0, 0, 0),
    ],
)
def test_mismatch_of_nonfinite_tokens(
    q: float, p: float, maximum: float, mean: float, mismatched: int, bits: int, nonfinite: int
) -> None:
    found = oracle_pairs.mismatch(pairs((q, p)))
    for name, want in (("logprobs_diff_max", maximum), ("logprobs_diff_mean", mean)):
        assert found.figures[name] == want or (math.isnan(want) and measure.mp.isnan(found.figures[name]))
    counts = found.counts
    assert (counts["logprobs_mismatch_count"], counts["bit_mismatch_count"], counts["nonfinite_count"]) == (
        mismatched,
        bits,
        nonfinite,
    )


def test_mismatch_casts_before_it_compares() -> None:
    wide = (-0.1, -0.1 - 2.0**-40)  # one float32 number
    single = pairs(wide, rollout_dtype="float64", trainer_dtype="float64")
    found = oracle_pairs.mismatch(single)
    assert (found.counts["narrowed_count"], found.counts["logprobs_mismatch_count"]) == (2, 0)
    double = oracle_pairs.mismatch(single.replace(compare_dtype="float64"))
    assert (double.counts["narrowed_count"], double.counts["logprobs_mismatch_count"]) == (0, 1)
    assert double.figures["logprobs_diff_max"] == measure.mp.mpf(wide[0]) - measure.mp.mpf(wide[1])


def test_mismatch_of_nothing_and_of_one_ulp() -> None:
    nothing = oracle_pairs.mismatch(PairCase(()))
    assert set(nothing.counts.values()) == {0}
    assert all(measure.mp.isnan(v) for v in nothing.figures.values())
    one_ulp = oracle_pairs.mismatch(pairs((-0.10000000149011612, -0.10000000894069672)))
    assert one_ulp.histogram[:3] == (0, 1, 0)
    assert one_ulp.counts["logprobs_mismatch_count"] == 1
    assert one_ulp.figures["probs_diff_max"] == 0
    over = oracle_pairs.mismatch(pairs((1.0, 95.0)))
    assert (over.counts["overflow_count"], over.counts["positive_count"]) == (1, 2)
    assert over.figures["probs_diff_max"] == measure.mp.inf


def exp_arguments(name: str) -> list[float]:
    """Arguments of exp whose images lie next to the midpoint of two values: exp(x) = 1 + x + x^2/2."""
    fmt = FORMATS[name]
    half = [-(k + 0.5) * fmt.u for k in (*range(12), 101, 1000)] + [(2 * k + 1) * fmt.u for k in (*range(12), 500)]
    rng = np.random.default_rng(5)
    midpoints = np.exp(rng.uniform(-80, 80, 60))
    logs = [
        fmt.round(mp.log(mp.mpf(fmt.round(float(m))) + mp.mpf(fmt.ulp(fmt.round(float(m)))) / 2)) for m in midpoints
    ]
    edges = [math.log(fmt.max), math.log(fmt.min_normal), math.log(fmt.min_subnormal)]
    near = [fmt.from_ordinal(fmt.ordinal(fmt.round(e)) + k) for e in edges for k in range(-4, 5)]
    return [fmt.round(x) for x in (*half, *logs, *near, 0.0, -0.0, -INF, INF, -800.0, 800.0, fmt.min_subnormal)]


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_exp_is_correctly_rounded(name: str) -> None:
    fmt = FORMATS[name]
    limit = mp.mpf(fmt.max) + mp.mpf(fmt.ulp(fmt.max)) / 2
    for x in exp_arguments(name):
        got, true = oracle_pairs._exp(x, name), mp.exp(mp.mpf(x)) if x != -INF else mp.mpf(0)
        assert fmt.contains(got)
        if math.isinf(got):
            assert true >= limit
            continue
        assert true < limit
        # nearer than either neighbour (a tie is impossible: exp of a non-zero rational is irrational)
        for neighbour in (fmt.next_down(got), fmt.next_up(got)):
            assert abs(true - got) < abs(true - neighbour) or math.isinf(neighbour), (x, got)


# --- cuts -------------------------------------------------------------------------------------------------------


def brute_force(y: list[float], options: dict[str, Any]) -> frozenset[int]:
    """Each cut by its definition, on the distribution renormalised over the survivors of the one before."""
    alive = sorted(range(len(y)), key=lambda j: (-y[j], j))
    for name in options.get("cut_order", ("min_p", "top_k", "top_p")):
        limit = options.get(name)
        if limit is None:
            continue
        total = mp.fsum(mp.exp(mp.mpf(y[j])) for j in alive)
        p = [mp.exp(mp.mpf(y[j])) / total for j in alive]
        if name == "min_p":
            keep = sum(v >= mp.mpf(limit) * p[0] for v in p)
        elif name == "top_k":
            keep = min(limit, len(alive))
        else:
            keep = sum(mp.fsum(p[:k]) < mp.mpf(limit) for k in range(len(p))) if limit < 1 else len(p)
        kept = alive[: max(keep, 1)]
        if options.get("ties") == "all":
            kept = [j for j in alive if j in kept or y[j] == y[kept[-1]]]
        alive = kept
    return frozenset(alive)


@st.composite
def cut_cases(draw: st.DrawFn) -> LogitsCase:
    """Small rows with many ties, every order of the cuts, thresholds that masses of 1/n meet exactly."""
    values = draw(st.lists(st.integers(-12, 12).map(lambda n: n / 4), min_size=1, max_size=7))
    options: dict[str, Any] = {
        "top_k": draw(st.none() | st.integers(1, 9)),
        "top_p": draw(st.none() | st.sampled_from([0.25, 0.5, 0.75, 0.9, 1.0]) | st.floats(0.01, 1.0)),
        "min_p": draw(st.none() | st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0.0, 1.0)),
        "cut_order": draw(st.permutations(["min_p", "top_k", "top_p"]).map(tuple)),
        "ties": draw(st.sampled_from(["lowest_id", "all"])),
    }
    return LogitsCase((row(*values),), cuts=tuple((k, v) for k, v in options.items() if v is not None))


REFERENCE = next(x.algorithm for x in BUILTIN["reference"] if x.contract == "token_logprobs")
counted = {"all": 0, "single": 0}


@pytest.mark.parametrize("algorithm", [REFERENCE, Algorithm()], ids=["float64", "compute"])
@settings(max_examples=250, deadline=None)
@given(case=cut_cases())
def test_supports_hold_brute_force(algorithm: Algorithm, case: LogitsCase) -> None:
    (accepted,) = oracle.supports(case, algorithm)
    want = brute_force(list(case.rows[0].values), dict(case.cuts))
    assert want in accepted
    # whatever else is accepted differs by a border that rounding can move: a prefix of the same ranking
    ordered = sorted(accepted, key=len)
    assert all(a < b for a, b in itertools.pairwise(ordered))
    counted["all"] += 1
    counted["single"] += len(accepted) == 1


def test_supports_are_mostly_one() -> None:
    """An oracle that accepts everything proves nothing."""
    if not counted["all"]:
        pytest.skip("needs the examples of test_supports_hold_brute_force")
    assert counted["single"] > 0.8 * counted["all"], counted


@pytest.mark.parametrize(
    ("values", "cuts", "want"),
    [
        ((1.0, 2.0, 2.0, 0.0), {"top_k": 1}, [{1}]),  # a tie goes to the lowest id
        ((1.0, 2.0, 2.0, 0.0), {"top_k": 1, "ties": "all"}, [{1, 2}]),
        ((0.0, 0.0, 0.0, 0.0), {"top_p": 0.6}, [{0, 1, 2}]),
        ((0.0, 0.0, 0.0, 0.0), {"top_p": 0.5}, [{0, 1}, {0, 1, 2}]),  # at the border: either
        ((0.0, 0.0, 0.0, 0.0), {"top_p": 0.6, "ties": "all"}, [{0, 1, 2, 3}]),
        ((0.0, -1.0), {"min_p": 0.36}, [{0, 1}]),
        ((0.0, -1.0), {"min_p": 0.37}, [{0}]),
        ((0.0, -1.0), {"min_p": 1.0}, [{0}]),
        ((0.0, -1.0, -2.0), {"top_p": 1.0, "min_p": 0.0, "top_k": 9}, [{0, 1, 2}]),
        ((3.0, 0.0, 0.0), {"top_p": 1e-9}, [{0}]),
        # top-k first leaves (1/2, 1/2), so that 0.6 needs both; top-p first needs three of (1/4, ...)
        ((0.0,) * 4, {"top_k": 2, "top_p": 0.45}, [{0}]),
        ((0.0,) * 4, {"top_k": 2, "top_p": 0.45, "cut_order": ("min_p", "top_p", "top_k")}, [{0, 1}]),
        ((NAN, 0.0), {"top_k": 1}, [{0, 1}]),  # no distribution, nothing to cut
    ],
)
def test_supports_of_hand_cases(values: tuple[float, ...], cuts: dict[str, Any], want: list[set[int]]) -> None:
    (accepted,) = oracle.supports(LogitsCase((row(*values),), cuts=tuple(cuts.items())), REFERENCE)
    assert set(accepted) == set(map(frozenset, want))
