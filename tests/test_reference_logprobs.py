"""The reference's token log-probs, entropy and cuts against mpmath, numpy and exact fractions, edge by edge."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from numerics import functional, reference
from numerics.formats import FORMATS, bits_differ, format_of
from numerics.reference import removed_by_cuts

INF, NAN = math.inf, math.nan
MP = mpmath.MPContext()
MP.dps = 250
DTYPES = {name: fmt.dtype for name, fmt in FORMATS.items()}
FUNCTIONS = (functional.token_logprobs, functional.token_logprobs_pair, functional.entropy)
ROWS = (
    [2.0, 0.0, -1.0],
    [0.0, 0.0, 0.0, 0.0],
    [0.1, -0.2, 0.3, -0.4, 0.5],
    [20.06, 3.0, 1.0],  # close to certain: the log-prob is -4e-8
    [-30.0, -31.0, -32.0, -33.0, -34.0],  # every exp underflows without the shift in half precision
    [8192.0, 8192.0, 8184.0],  # a common offset far above the differences
    [-INF, -INF, 10.0, -INF, 9.0],
    [1e4, 0.0, -1e4],
    [1e-40, 0.0, -1e-40],
    [5.0],
)

each_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


def call(function: Callable[..., Any], logits: torch.Tensor, ids: torch.Tensor, **keywords: Any) -> torch.Tensor:
    """The one tensor that matters: entropy takes no ids, the pair's second half is the processed one."""
    result = function(logits, **keywords) if function is functional.entropy else function(logits, ids, **keywords)
    return result[1] if isinstance(result, tuple) else result


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and not bits_differ(a, b).any()


def every_token(row: Sequence[float], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The row once for each of its tokens, [V, V], and the tokens."""
    return torch.tensor(row, dtype=torch.float64).to(dtype).repeat(len(row), 1), torch.arange(len(row))


def exact(logits: torch.Tensor, temperature: float) -> tuple[list[Any], Any, float]:
    """Log-probs of all tokens and the entropy with 60 digits, from y = fl(z/T); and what float64 may add to 1/2 ulp.

    First order: every exp(y_j - max) has relative error 2^-53 (gap_j + 3), their sum n more, log1p and the final
    difference 4 of what they work on; ``n + 16`` units of everything in sight cover it.
    """
    compute = np.float64 if logits.dtype == torch.float64 else np.float32
    y = [float(v) for v in logits.to(torch.float64).numpy().astype(compute) / compute(temperature)]
    top, finite = max(y), [v for v in y if v > -INF]
    gaps = sorted(MP.mpf(top) - MP.mpf(v) for v in finite)
    log_s = MP.log1p(MP.fsum(MP.exp(-g) for g in gaps[1:]))  # log(1 + 1e-87) would need more than 60 digits
    values = [-log_s - (MP.mpf(top) - MP.mpf(v)) if v > -INF else -MP.inf for v in y]
    entropy = log_s + MP.fsum(MP.exp(-g - log_s) * g for g in gaps)
    tail = MP.fsum(MP.exp(-g) * (1 + g) ** 2 for g in gaps if g > 0)
    return values, entropy, float(2.0**-53 * (len(y) + 16) * tail)


def assert_rounded(got: torch.Tensor, want: Sequence[Any], slack: float) -> None:
    """Each element is ``want`` rounded once, where the float64 evaluation before it adds slack + 4 units of |want|."""
    for value, goal in zip(got.tolist(), want, strict=True):
        if not MP.isfinite(goal):
            assert value == goal
            continue
        fmt = format_of(got)
        allowed = MP.mpf(fmt.ulp(fmt.round(goal))) / 2 + slack + 2.0**-51 * abs(goal)
        assert abs(MP.mpf(value) - goal) <= allowed, (value, MP.nstr(goal, 20))


# --- values ------------------------------------------------------------------------------------------------------


@each_dtype
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.001, 3.0])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_values_are_the_exact_ones_rounded(row: list[float], temperature: float, dtype: torch.dtype) -> None:
    logits, ids = every_token(row, dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    values, entropy, slack = exact(logits[0], temperature)
    got = reference.token_logprobs(logits, ids, temperature=temperature)
    assert got.dtype == wide
    assert (got <= 0).all()
    assert_rounded(got, values, slack)
    raw, processed = reference.token_logprobs_pair(logits, ids, temperature=temperature)
    assert same(processed, got)
    assert same(raw, reference.token_logprobs(logits, ids))
    spread = reference.entropy(logits[:1], temperature=temperature)
    assert spread.dtype == wide
    assert_rounded(spread, [entropy], slack)


@pytest.mark.parametrize(
    ("dtype", "row", "temperature", "token", "want"),
    [
        ("float32", [3e38, -3e38], 0.5, 0, 0.0),
        ("float32", [3e38, -3e38], 0.5, 1, -INF),  # -1.2e39 rounds to -inf in float32
        ("float32", [-3e38, -3e38], 0.5, 0, -math.log(2)),  # unshifted this row would be all -inf
        ("float32", [3e38, 3e38, -INF], 1e-9, 1, -math.log(2)),
        ("float32", [2.0**127, 2.0**127 - 2.0**103], 0.25, 1, -(2.0**105)),
        ("float16", [65504.0, -65504.0, 65504.0], 1e-35, 2, -math.log(2)),
        ("bfloat16", [2.0**127, 2.0**127], 2.0**-140, 0, -math.log(2)),  # T is a subnormal float32, and still valid
        ("float64", [1e308, 1e308], 1e-3, 1, -math.log(2)),
        ("float64", [1e308, -1e308], 1e-3, 1, -INF),
    ],
)
def test_a_row_that_overflows_in_the_division_is_shifted_first(
    dtype: str, row: list[float], temperature: float, token: int, want: float
) -> None:
    # a second, ordinary row beside it keeps its bits
    logits = torch.tensor([row, [1.0, 0.5, -2.0][: len(row)]], dtype=DTYPES[dtype])
    ids = torch.tensor([token, 1])
    got = reference.token_logprobs(logits, ids, temperature=temperature)
    assert got[0].item() == format_of(got).round(want)
    assert same(got[1:], reference.token_logprobs(logits[1:], ids[1:], temperature=temperature))
    assert torch.isfinite(reference.entropy(logits, temperature=temperature)).all()


@pytest.mark.parametrize("row", [[1e308, -1e308], [1e308, -INF, -1e308], [1.7e308, -1e300, -1.7e308]], ids=str)
def test_an_entropy_is_finite_where_only_a_gap_overflows(row: list[float]) -> None:
    logits = torch.tensor(row, dtype=torch.float64, requires_grad=True)
    got = reference.entropy(logits)
    got.backward()
    assert got.item() == 0.0
    assert (logits.grad == 0).all()


@each_function
@pytest.mark.parametrize("row", [[NAN, 1.0, 2.0], [INF, 1.0, 2.0], [INF, INF, NAN], [-INF, -INF, -INF]], ids=str)
def test_a_row_that_is_no_distribution_gives_nan_and_only_there(function: Any, row: list[float]) -> None:
    logits = torch.tensor([row, [1.0, 2.0, 3.0]], dtype=torch.float32)
    for token, cuts in itertools.product(range(3), ({}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1})):
        got = call(function, logits, torch.tensor([token, 2]), **cuts)
        assert torch.isnan(got[0])
        assert torch.isfinite(got[1])


def test_a_hole_is_impossible_and_leaves_the_others_their_bits() -> None:
    logits, ids = every_token([1.0, -INF, 0.5, -INF], torch.float32)
    got = reference.token_logprobs(logits, ids)
    assert torch.isneginf(got[[1, 3]]).all()
    # exp(-1000 - 1) is 0, and the rule promises the same bits; deleting the holes is the same distribution
    assert same(got[[0, 2]], reference.token_logprobs(logits.clamp(min=-1000.0), ids)[[0, 2]])
    assert same(got[[0, 2]], reference.token_logprobs(logits[:2, [0, 2]], torch.tensor([0, 1])))
    assert same(reference.entropy(logits), reference.entropy(logits[:, [0, 2]]))


@each_dtype
def test_one_token_is_certain(dtype: torch.dtype) -> None:
    logits = torch.tensor([[-3e4], [0.0], [7.0]], dtype=dtype)
    assert (reference.token_logprobs(logits, torch.zeros(3, dtype=torch.int64)) == 0).all()
    assert (reference.entropy(logits) == 0).all()


@each_function
def test_columns_beyond_the_real_vocabulary_do_not_exist(function: Any) -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5, NAN, INF], [0.0, 1.0, 2.0, -INF, 99.0]])
    ids = torch.tensor([2, 0])
    for keywords in ({"temperature": 0.7}, {"top_k": 2}, {"top_p": 0.8, "temperature": 2.0}):
        want = call(function, logits[:, :3], ids, **keywords)
        assert same(call(function, logits, ids, real_vocab=3, **keywords), want)
    assert same(call(function, logits[:, :3], ids, real_vocab=3), call(function, logits[:, :3], ids))


# --- temperature and dtypes ------------------------------------------------------------------------------------------


@each_function
@each_dtype
@pytest.mark.parametrize("temperature", [0.7, 1 / 3, 1.1, 5.0])
def test_every_form_of_a_temperature_gives_the_same_bits(function: Any, dtype: torch.dtype, temperature: float) -> None:
    logits = torch.linspace(-8, 8, 48).view(2, 3, 8).to(dtype)
    ids = torch.arange(6).view(2, 3)
    want = call(function, logits, ids, temperature=temperature)
    wide = torch.tensor(temperature, dtype=torch.float64)
    forms: list[Any] = [wide, wide.expand(2, 3), wide.repeat(2, 3)]
    if want.dtype == torch.float32:
        forms += [wide.float(), wide.float().repeat(2, 3), float(wide.float())]  # already rounded: the same T
    if temperature == 5.0:
        forms += [5, torch.tensor(5), torch.full((2, 3), 5), torch.tensor(5.0, dtype=torch.bfloat16)]
    for form in forms:
        assert same(call(function, logits, ids, temperature=form), want)
    one = call(function, logits, ids)
    for form in (1.0, 1, torch.tensor(1.0), torch.ones(2, 3)):
        assert same(call(function, logits, ids, temperature=form), one)


@each_function
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_upcast_first_and_does_not_round_the_temperature(function: Any, dtype: torch.dtype) -> None:
    logits = torch.linspace(-9, 9, 40).view(5, 8).to(dtype)
    ids = torch.arange(5)
    got = call(function, logits, ids, temperature=0.7)
    assert same(got, call(function, logits.float(), ids, temperature=0.7))
    rounded = float(torch.tensor(0.7, dtype=dtype))  # 0.69921875 in bfloat16
    assert not same(got, call(function, logits, ids, temperature=rounded))


def test_each_token_has_its_own_temperature_and_masked_ones_do_not_matter() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]]).repeat(4, 1)
    ids, mask = torch.tensor([0, 1, 2, -100]), torch.tensor([1, 1, 1, 0])
    for bad in (NAN, INF, 0.0, -1.0, 1e-60):
        ts = torch.tensor([0.5, 1.0, 2.0, bad], dtype=torch.float64)
        got = reference.token_logprobs(logits, ids, temperature=ts, mask=mask)
        want = [reference.token_logprobs(logits[0], ids[i], temperature=float(ts[i])) for i in range(3)]
        assert same(got, torch.stack([*want, torch.tensor(0.0)]))


# --- shapes, strides, masks ------------------------------------------------------------------------------------------


@each_function
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 1, 2), (0,), (3, 0), (0, 2, 2)], ids=str)
@pytest.mark.parametrize("cuts", [{}, {"min_p": 0.1, "top_k": 2, "top_p": 0.9}], ids=["plain", "cut"])
def test_any_leading_shape(function: Any, shape: tuple[int, ...], cuts: dict[str, Any]) -> None:
    n = math.prod(shape)
    flat, ids = torch.linspace(-3, 3, 4 * n).view(n, 4), torch.arange(n) % 4
    for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8):
        got = call(function, flat.view(*shape, 4), ids.to(dtype).view(shape), **cuts)
        assert got.shape == shape
        assert same(got.reshape(-1), call(function, flat, ids, **cuts))


@each_function
@each_dtype
def test_strides_do_not_matter_and_inputs_are_not_modified(function: Any, dtype: torch.dtype) -> None:
    base, ids = torch.linspace(-5, 5, 24).view(4, 6).to(dtype), torch.tensor([0, 5, 2, 3])
    views = {
        "transposed": base.t().contiguous().t(),
        "sliced": torch.stack([base, base * NAN], -1)[..., 0],
        "offset": torch.cat([base.new_zeros(3), base.flatten()])[3:].view(4, 6),
        "reversed": base.flip(0, 1).contiguous().flip(0, 1),
    }
    kept, ids_kept = base.clone(), ids.clone()
    want = call(function, base, ids, temperature=0.7, top_k=4)
    for view in views.values():
        assert same(call(function, view, ids, temperature=0.7, top_k=4), want)
    expanded, one_id = base[:1].expand(4, 6), ids[:1].expand(4)
    mask, ts = torch.ones(1).expand(4), torch.tensor([0.7], dtype=torch.float64).expand(4)
    got = call(function, expanded, one_id, temperature=ts, mask=mask, top_k=4)
    assert same(got, want[:1].repeat(4))
    assert same(base, kept)
    assert torch.equal(ids, ids_kept)
    assert base._version == 0  # not even written and restored


@each_function
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float32, torch.bfloat16], ids=str)
def test_masks_select(function: Any, dtype: torch.dtype) -> None:
    logits = torch.tensor([[NAN, 1.0], [INF, 0.0], [1.0, 2.0], [-INF, -INF], [3e38, 1e30]])
    ids = torch.tensor([-100, 7, 1, 2**40, -1])
    got = call(function, logits, ids, mask=torch.tensor([0, 0, 1, 0, 0]).to(dtype), temperature=0.5)
    want = call(function, logits[2], ids[2], temperature=0.5)
    assert same(got, torch.stack([torch.tensor(0.0)] * 2 + [want] + [torch.tensor(0.0)] * 2))
    assert same(call(function, logits, ids, mask=torch.zeros(5, dtype=dtype)), torch.zeros(5))


# --- cuts ------------------------------------------------------------------------------------------------------------


def kept_by_hand(weights: Sequence[int], order: Sequence[str], ties: str, **cuts: Any) -> set[int]:
    """The cuts on exact probabilities weights / sum; asserts that no mass or threshold lies on its border."""
    alive = set(range(len(weights)))
    for name in order:
        ranked = sorted(alive, key=lambda j: (-weights[j], j))
        total, limit = sum(weights[j] for j in alive), cuts[name]
        masses = [Fraction(sum(weights[j] for j in ranked[:k]), total) for k in range(len(ranked))]
        if name == "min_p":
            ratios = [Fraction(weights[j], weights[ranked[0]]) for j in ranked]
            assert min(abs(r - Fraction(limit)) for r in ratios) > 1e-6
            n = sum(r >= limit for r in ratios)
        elif name == "top_p":
            assert min(abs(m - Fraction(limit)) for m in masses) > 1e-6
            n = sum(m < limit for m in masses)
        else:
            n = min(limit, len(ranked))
        last = weights[ranked[n - 1]]
        alive = {j for k, j in enumerate(ranked) if k < n or (ties == "all" and weights[j] == last)}
    return alive


def kept(logits: Any, **cuts: Any) -> list[int]:
    removed = removed_by_cuts(torch.tensor([logits], dtype=torch.float64), **cuts)
    assert removed.dtype == torch.bool
    assert removed.shape == (1, len(logits))
    return (~removed[0]).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("ties", ["lowest_id", "all"])
@pytest.mark.parametrize("order", list(itertools.permutations(["min_p", "top_k", "top_p"])), ids="-".join)
def test_cuts_on_exact_probabilities(order: tuple[str, ...], ties: str) -> None:
    limits = itertools.product([0.2003, 0.61], [1, 2, 3, 5], [0.1234, 0.4001, 0.77, 0.9501])
    rows = ([1, 2, 3, 4], [3, 3, 3, 3], [4, 1, 4, 1, 1], [9, 7, 1, 1, 1, 2], [1, 5, 5, 1, 8])
    for weights, (min_p, top_k, top_p) in itertools.product(rows, limits):
        cuts = {"min_p": min_p, "top_k": top_k, "top_p": top_p}
        want = kept_by_hand(weights, order, ties, **cuts)
        assert kept([math.log(w) for w in weights], cut_order=order, ties=ties, **cuts) == sorted(want), (weights, cuts)


@pytest.mark.parametrize(
    ("logits", "cuts", "want"),
    [
        ([1.0, 2.0, 2.0, 2.0, 3.0], {"top_k": 3}, [1, 2, 4]),
        ([1.0, 2.0, 2.0, 2.0, 3.0], {"top_k": 3, "ties": "all"}, [1, 2, 3, 4]),
        ([2.0, 2.0, 2.0], {"top_k": 1}, [0]),
        ([2.0, 2.0, 2.0], {"top_k": 1, "ties": "all"}, [0, 1, 2]),
        # equal masses of 1/4 are exact: strictly before the third lies 0.5, which is not < 0.5
        ([0.0, 0.0, 0.0, 0.0], {"top_p": 0.5}, [0, 1]),
        ([0.0, 0.0, 0.0, 0.0], {"top_p": math.nextafter(0.5, 1)}, [0, 1, 2]),
        ([0.0, 0.0, 0.0, 0.0], {"top_p": 0.5, "ties": "all"}, [0, 1, 2, 3]),
        ([0.0, -5.0, 0.0], {"min_p": 1.0}, [0, 2]),  # p_i >= max p holds for every maximum
        ([0.0, -1e9, -3.0], {"min_p": 5e-324}, [0, 2]),  # a mass of 0 is below any threshold above 0
        ([0.0, 9.0, 0.0], {"top_p": 5e-324}, [1]),  # one arg-max always survives
        ([-INF, 1.0, -INF, 0.0], {"top_p": 0.9999999}, [1, 3]),
        ([-INF, 1.0, -INF, 0.0], {"top_k": 1}, [1]),
        ([1.0, 0.0, -9.0], {"top_k": 3}, [0, 1, 2]),
        ([1.0, 0.0, -9.0], {"top_k": 10**6, "top_p": 1, "min_p": 0}, [0, 1, 2]),
        ([1.0, -INF, -800.0], {"top_p": 1.0, "min_p": 0.0}, [0, 1, 2]),
        ([1.0, 0.0, -9.0], {}, [0, 1, 2]),
    ],
)
def test_borders_of_the_cuts(logits: list[float], cuts: dict[str, Any], want: list[int]) -> None:
    assert kept(logits, **cuts) == want


def test_cut_log_probs_are_renormalised_and_removed_tokens_impossible() -> None:
    weights = [8, 4, 2, 1, 1]
    logits, ids = every_token([math.log(w) for w in weights], torch.float64)
    cuts = {"top_k": 3, "temperature": 1.0}
    raw, got = functional.token_logprobs_pair(logits, ids, **cuts)
    np.testing.assert_allclose(got[:3].exp(), np.array([8, 4, 2]) / 14, rtol=1e-14)
    np.testing.assert_allclose(raw.exp(), np.array(weights) / 16, rtol=1e-14)  # the raw side knows no cuts
    assert torch.isneginf(got[3:]).all()
    p = np.array([8, 4, 2]) / 14
    np.testing.assert_allclose(functional.entropy(logits[:1], **cuts), -(p * np.log(p)).sum(), rtol=1e-14)
    # temperature comes before the cuts: T = 2 flattens 8:4:2:1:1 so that top-p 0.7 keeps three tokens, not two
    assert torch.isfinite(functional.token_logprobs(logits, ids, top_p=0.7)).sum() == 2
    assert torch.isfinite(functional.token_logprobs(logits, ids, top_p=0.7, temperature=2.0)).sum() == 3


# --- gradients -------------------------------------------------------------------------------------------------------


def gradient(function: Any, logits: torch.Tensor, ids: torch.Tensor, **keywords: Any) -> torch.Tensor:
    leaf = logits.clone().requires_grad_()
    call(function, leaf, ids, **keywords).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


@each_dtype
@pytest.mark.parametrize("temperature", [1.0, 0.7, 4.0])
def test_gradient_is_onehot_minus_softmax_over_t(dtype: torch.dtype, temperature: float) -> None:
    logits, ids = every_token([1.5, -2.0, 0.25, 0.25, -INF], dtype)
    got = gradient(reference.token_logprobs, logits[:4], ids[:4], temperature=temperature).to(torch.float64)
    compute = np.float64 if dtype == torch.float64 else np.float32
    y = (logits[:4].to(torch.float64).numpy().astype(compute) / compute(temperature)).astype(np.float64)
    weights = np.exp(y - y.max(-1, keepdims=True))
    want = (np.eye(5)[:4] - weights / weights.sum(-1, keepdims=True)) / float(compute(temperature))
    # float64 inside; then one rounding on the way to the compute dtype, one in its division, one to the logits' dtype
    u = 2 * FORMATS["float64" if dtype == torch.float64 else "float32"].u + format_of(dtype).u
    assert (np.abs(got.numpy() - want) <= u * (1 + 2**-4) * np.abs(want) + 2.0**-49).all()
    assert (got[:, 4] == 0).all()


@each_function
def test_gradients_at_special_places(function: Any) -> None:
    rows = [[NAN, 1.0, INF], [1.0, 2.0, 3.0], [1.0, NAN, 2.0], [-INF, -INF, -INF], [INF, 1.0, 0.0], [2.0, -INF, 1.0]]
    logits, ids = torch.tensor(rows), torch.tensor([0, 1, 0, 2, 1, 1])
    mask = torch.tensor([0, 1, 1, 1, 1, 1])
    got = gradient(function, logits, ids, mask=mask, temperature=0.7)
    assert (got[0] == 0).all()  # masked, whatever it holds
    assert torch.isfinite(got[[1, 5]]).all()
    assert (got[1] != 0).all()
    assert torch.isnan(got[2:5]).all()
    if function is functional.entropy:
        assert (got[5, [0, 2]] != 0).all()
        assert got[5, 1] == 0
    else:
        assert (got[5] == 0).all()  # the chosen token is impossible: -inf, and no push in any direction
    assert same(got[1:2], gradient(function, logits[1:2], ids[1:2], temperature=0.7))
    nothing = gradient(function, logits, ids, mask=torch.zeros(6))
    assert (nothing == 0).all()


@each_function
def test_removed_tokens_get_gradient_zero(function: Any) -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0, NAN], [3.0, 2.0, 1.0, 0.0, INF]])
    cuts = {"top_k": 2, "real_vocab": 4, "temperature": 2.0}
    got = gradient(function, logits, torch.tensor([1, 1]), **cuts)
    assert (got[:, 2:] == 0).all()
    assert (got[:, :2] != 0).all()
    if function is not functional.entropy:
        assert (gradient(function, logits, torch.tensor([2, 3]), **cuts) == 0).all()  # a removed token: -inf


def test_an_overflowed_row_has_a_finite_gradient() -> None:
    logits = torch.tensor([[3e38, 3e38], [3e38, -3e38], [1.0, 2.0]])
    got = gradient(reference.token_logprobs, logits, torch.tensor([0, 1, 0]), temperature=0.5)
    assert torch.equal(got[:2], torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
    assert torch.isfinite(got).all()


@each_function
@pytest.mark.parametrize("cuts", [{}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}, {"real_vocab": 4}], ids=str)
def test_gradcheck(function: Any, cuts: dict[str, Any]) -> None:
    logits = torch.tensor([[0.3, -1.1, 0.9, 0.2, -0.4], [1.0, 1.5, -2.0, 0.0, 0.4], [NAN] * 5], dtype=torch.float64)
    mask, ts = torch.tensor([1, 1, 0]), torch.tensor([0.7, 1.9, 0.0])
    ids = torch.tensor([2, 1, -100])  # the arg-max, which every cut keeps

    def value(head: torch.Tensor) -> torch.Tensor:
        return call(function, torch.cat([head, logits[2:]]), ids, mask=mask, temperature=ts, **cuts)

    assert torch.autograd.gradcheck(value, (logits[:2].clone().requires_grad_(),))


# --- bad input -------------------------------------------------------------------------------------------------------

LOGITS, IDS = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]]), torch.tensor([0, 2])
_BOTH_SHAPES = r"\(3,\).*\(2,\)|\(2,\).*\(3,\)"
BAD_KEYWORDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(
        ({"temperature": form(t)}, ValueError, rf"temperature is {t!r}; it must be finite and > 0")
        for t in (0.0, -1.0, NAN, INF, 1e-60)
        for form in (float, lambda t: torch.tensor(t, dtype=torch.float64))
    ),
    ({"temperature": torch.tensor([1.0, 0.0])}, ValueError, "temperature is 0.0; .*greedy"),
    ({"temperature": torch.tensor([1.0, 1.0, 1.0])}, ValueError, _BOTH_SHAPES),
    ({"temperature": torch.tensor([1.0])}, ValueError, r"\(1,\).*\(2,\)"),
    ({"temperature": "hot"}, TypeError, "temperature must be a number or a tensor, got str"),
    ({"temperature": True}, TypeError, "temperature must be a number or a tensor, got bool"),
    ({"temperature": None}, TypeError, "temperature must be a number or a tensor, got NoneType"),
    ({"mask": torch.tensor([1, 1, 0])}, ValueError, "mask.*" + _BOTH_SHAPES),
    ({"mask": torch.tensor(1)}, ValueError, r"mask has shape \(\)"),
    ({"mask": torch.tensor([1, 2])}, ValueError, "mask holds 2; only 0 and 1"),
    ({"mask": torch.tensor([0, -1])}, ValueError, "mask holds -1; only 0 and 1"),
    ({"mask": torch.tensor([0.5, 1.0])}, ValueError, "mask holds 0.5; only 0 and 1"),
    ({"mask": torch.tensor([1.0, NAN])}, ValueError, "mask holds nan; only 0 and 1"),
    ({"mask": [1, 0]}, TypeError, "mask must be a torch.Tensor or None, got list"),
    ({"mask": torch.ones(2, device="meta")}, ValueError, "mask is on meta but logits.* is on cpu"),
    *(({"real_vocab": n}, ValueError, rf"real_vocab is {n}; it must be an int in \[1, 3\]") for n in (0, -1, 4)),
    *(({"min_p": p}, ValueError, rf"min_p is {p}; it must lie in \[0, 1\]") for p in (-0.1, 1.1, NAN)),
    *(({"top_k": k}, ValueError, f"top_k is {k}; it must be an integer >= 1") for k in (0, -1, 2.0, True)),
    *(({"top_p": p}, ValueError, rf"top_p is {p}; it must lie in \(0, 1\]") for p in (0.0, -0.1, 1.1, NAN)),
    ({"cut_order": ("top_k", "top_p")}, ValueError, r"cut_order is \('top_k', 'top_p'\); it must hold each of"),
    ({"cut_order": ("min_p", "top_k", "top_k")}, ValueError, "cut_order is"),
    ({"cut_order": ("min_p", "top_k", "top_q")}, ValueError, "cut_order is"),
    ({"ties": "random"}, ValueError, "ties is 'random'; it must be one of"),
    ({"backend": "cuda"}, ValueError, "backend is 'cuda'; it must be one of auto, reference"),
]


@each_function
@pytest.mark.parametrize(("keywords", "error", "message"), BAD_KEYWORDS, ids=lambda x: str(x)[:40])
def test_bad_keywords(function: Any, keywords: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(function, LOGITS, IDS, **keywords)


@each_function
@pytest.mark.parametrize(
    ("logits", "error", "message"),
    [
        (torch.ones(2, 3, dtype=torch.int64), TypeError, "logits has dtype torch.int64; it must be floating"),
        (torch.ones(2, 3, dtype=torch.complex64), TypeError, "logits has dtype torch.complex64"),
        (np.ones((2, 3)), TypeError, "logits must be a torch.Tensor, got ndarray"),
        (None, TypeError, "logits must be a torch.Tensor, got NoneType"),
        (torch.ones(2, 0), ValueError, r"logits has shape \(2, 0\); its last axis must hold at least one token"),
        (torch.ones(0, 0), ValueError, r"logits has shape \(0, 0\)"),
        (torch.tensor(1.0), ValueError, r"logits has shape \(\)"),
    ],
)
def test_bad_logits(function: Any, logits: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(function, logits, IDS)


@pytest.mark.parametrize("function", FUNCTIONS[:2], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.tensor([0, 3]), IndexError, r"token_ids\[1\] is 3, outside \[0, 3\)"),
        (torch.tensor([-100, 0]), IndexError, r"token_ids\[0\] is -100, outside \[0, 3\)"),
        (torch.tensor([0, 2**32]), IndexError, rf"token_ids\[1\] is {2**32}, outside"),  # aliases 0 in 32 bits
        (torch.tensor([0, 1, 2]), ValueError, r"logits has shape \(2, 3\) but token_ids has shape \(3,\)"),
        (torch.tensor([[0, 1]]), ValueError, r"logits has shape \(2, 3\) but token_ids has shape \(1, 2\)"),
        (torch.tensor([0.0, 1.0]), TypeError, "token_ids has dtype torch.float32; it must be an integer dtype"),
        (torch.tensor([True, False]), TypeError, "token_ids has dtype torch.bool"),
        (torch.tensor([0, 1], device="meta"), ValueError, "logits is on cpu but token_ids is on meta"),
        ([0, 1], TypeError, "token_ids"),
        (np.array([0, 1]), TypeError, "token_ids"),
        (None, TypeError, "token_ids"),
    ],
)
def test_bad_token_ids(function: Any, ids: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        function(LOGITS, ids)


@pytest.mark.parametrize(
    ("call_it", "error", "message"),
    [
        (lambda f: f(LOGITS, torch.tensor([0, 2**63 + 1], dtype=torch.uint64)), IndexError, f"is {2**63 + 1}, outside"),
        (lambda f: f(LOGITS, IDS, temperature=torch.tensor(1 + 2j)), TypeError, "temperature"),
        (lambda f: f(LOGITS, IDS, temperature=10**400), ValueError, "must be finite"),
    ],
    ids=["uint64 id", "complex temperature", "huge integer temperature"],
)
def test_bad_input_of_rare_types(call_it: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call_it(reference.token_logprobs)


def test_an_id_out_of_range_is_named_with_its_place_and_respects_real_vocab() -> None:
    logits, ids = torch.zeros(2, 3, 4), torch.tensor([[0, 1, 9], [3, 0, 5]])
    with pytest.raises(IndexError, match=r"token_ids\[1, 2\] is 5, outside \[0, 4\)"):
        reference.token_logprobs(logits, ids, mask=torch.tensor([[1, 1, 0], [1, 1, 1]]))
    with pytest.raises(IndexError, match=r"token_ids\[1, 0\] is 3, outside \[0, 3\)"):
        reference.token_logprobs(logits, ids, mask=torch.tensor([[1, 1, 0], [1, 1, 0]]), real_vocab=3)
