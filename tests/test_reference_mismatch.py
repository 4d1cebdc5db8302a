"""The mismatch reference on hand-made inputs: every field, every edge, every error message."""

import math
import statistics

import pytest
import torch

import numerics
from numerics import reference
from numerics.reference.mismatch import MismatchState
from numerics.reference.state import CoMoments, Moments

NAN, INF = math.nan, math.inf
COUNTS = ("valid", "valid_count", "nonfinite_count", "narrowed_count", "positive_count", "overflow_count")


def tensor(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


def test_the_seed_example():
    """One ULP apart: the count sees it, probabilities cannot."""
    m = numerics.mismatch(tensor(-0.10000000149), tensor(-0.10000000894))
    assert (m.logprobs_mismatch_count, m.probs_diff_max, m.ulp_histogram[1]) == (1, 0.0, 1)
    assert m.logprobs_diff_max == 2.0**-27


def test_every_figure_against_plain_python():
    q, p = [-0.5, -1.0, -2.5, -3.0], [-0.5, -1.25, -2.0, -4.5]
    m = reference.mismatch(tensor(*q), tensor(*p))
    d = [abs(a - b) for a, b in zip(p, q, strict=True)]
    single = [[float(torch.tensor(v, dtype=torch.float64).exp().float()) for v in side] for side in (q, p)]
    e = [abs(a - b) for a, b in zip(*single, strict=True)]
    unit = 2.0**-50
    assert (m.logprobs_diff_max, m.probs_diff_max) == (1.5, max(e))
    assert abs(m.logprobs_diff_mean - statistics.fmean(d)) <= unit
    assert abs(m.logprobs_diff_std - statistics.stdev(d)) <= unit
    assert abs(m.probs_diff_mean - statistics.fmean(e)) <= unit
    assert abs(m.probs_diff_std - statistics.stdev(e)) <= unit
    assert abs(m.logprobs_pearson - statistics.correlation(q, p)) <= 8 * unit
    assert abs(m.probs_pearson - statistics.correlation(*single)) <= 8 * unit
    assert abs(reference.mismatch(tensor(*q), tensor(*p), ddof=0).logprobs_diff_std - statistics.pstdev(d)) <= unit


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 3)])
def test_nothing_compared_is_not_agreement(shape):
    m = reference.mismatch(torch.zeros(shape), torch.ones(shape), torch.zeros(shape))
    figures = {k: v for k, v in m.as_dict().items() if isinstance(v, float)}
    assert all(getattr(m, name) == 0 for name in (*COUNTS, "logprobs_mismatch_count", "bit_mismatch_count"))
    assert len(figures) == 8
    assert all(map(math.isnan, figures.values()))


def test_one_token_has_neither_deviation_nor_correlation():
    m = reference.mismatch(tensor(-1.0), tensor(-2.0))
    assert (m.logprobs_diff_mean, m.logprobs_diff_max) == (1.0, 1.0)
    assert all(map(math.isnan, (m.logprobs_diff_std, m.probs_diff_std, m.probs_pearson, m.logprobs_pearson)))


@pytest.mark.parametrize(
    ("q", "p", "unequal", "bits", "nonfinite", "largest"),
    [
        (0.0, -0.0, 0, 1, 0, 0.0),
        (-INF, -INF, 0, 0, 1, 0.0),
        (-INF, -1.0, 1, 1, 1, INF),
        (INF, -INF, 1, 1, 1, INF),
        (NAN, NAN, 1, 0, 1, NAN),
        (NAN, -1.0, 1, 1, 1, NAN),
        (-1e-45, -3e-45, 1, 1, 0, 2.0**-149),
    ],
)
def test_single_values(q, p, unequal, bits, nonfinite, largest):
    m = reference.mismatch(tensor(q, -1.0), tensor(p, -1.0))
    assert (m.logprobs_mismatch_count, m.bit_mismatch_count, m.nonfinite_count) == (unequal, bits, nonfinite)
    assert m.logprobs_diff_max == largest or (math.isnan(largest) and math.isnan(m.logprobs_diff_max))


def test_one_cast_for_mixed_dtypes():
    m = reference.mismatch(tensor(-1.0, -0.1, dtype=torch.bfloat16), tensor(-1.0, -0.1, dtype=torch.float64))
    assert m.logprobs_mismatch_count == 1
    assert m.narrowed_count == 1  # float64's -0.1 is no float32; bfloat16's is
    assert m.logprobs_diff_max == abs(float(torch.tensor(-0.1).bfloat16()) - float(torch.tensor(-0.1)))


def test_compare_in_float64():
    q, p = tensor(-1.0, dtype=torch.float64), tensor(-1.0 - 2.0**-50, dtype=torch.float64)
    assert reference.mismatch(q, p).logprobs_mismatch_count == 0
    m = reference.mismatch(q, p, compare_dtype=torch.float64)
    assert (m.logprobs_mismatch_count, m.narrowed_count, m.compare_dtype) == (1, 0, "float64")
    assert len(m.ulp_histogram) == 66
    assert m.ulp_histogram[3] == 1  # four steps of 2^-52


def test_positive_values_and_overflow_are_counted():
    m = reference.mismatch(tensor(1.0, 89.0, INF, -1.0), tensor(-1.0, -1.0, -1.0, -1.0))
    assert (m.positive_count, m.overflow_count) == (3, 1)
    assert m.probs_diff_max == INF


def test_histogram_at_powers_of_two():
    steps = [0, 1, 2, 3, 4, 7, 8, 1 << 20, (1 << 20) - 1]
    base = 0x3F800000
    q = torch.full((len(steps),), base, dtype=torch.int32).view(torch.float32)
    p = torch.tensor([base + s for s in steps], dtype=torch.int32).view(torch.float32)
    h = reference.mismatch(q, p).ulp_histogram
    assert {k: v for k, v in enumerate(h) if v} == {0: 1, 1: 1, 2: 2, 3: 2, 4: 1, 20: 1, 21: 1}
    assert len(h) == 34
    full = reference.mismatch(tensor(-INF), tensor(INF)).ulp_histogram
    assert full[32] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_under_flush_to_zero(dtype):
    q, p = tensor(-1e-40, -1.0, -2e-41, dtype=dtype), tensor(-2e-40, -1.0, 0.0, dtype=dtype)
    want = reference.mismatch(q, p)
    assert torch.set_flush_denormal(True)
    try:
        got = reference.mismatch(q, p)
    finally:
        torch.set_flush_denormal(False)
    assert got.logprobs_mismatch_count == want.logprobs_mismatch_count == 2
    assert (got.ulp_histogram, got.narrowed_count) == (want.ulp_histogram, want.narrowed_count)


@pytest.mark.parametrize("shape", [(), (4,), (2, 2), (1, 2, 2)])
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.uint8, torch.float32, torch.bfloat16])
def test_shapes_and_masks(shape, mask_dtype):
    size = math.prod(shape)
    q = -torch.arange(1.0, size + 1).reshape(shape)
    mask = torch.ones(shape, dtype=mask_dtype)
    assert reference.mismatch(q, 2 * q, mask).valid_count == size
    assert reference.mismatch(q, 2 * q, mask) == reference.mismatch(q, 2 * q)


def test_no_gradient_and_no_modification():
    q, p = tensor(-1.0, -2.0).requires_grad_(), tensor(-1.5, NAN).requires_grad_()
    m = reference.mismatch(q, p, tensor(1, 0))
    assert m.logprobs_diff_max == 0.5
    assert q.grad is None
    assert q._version == p._version == 0


def parts():
    return [(tensor(-0.5, -1.0), tensor(-0.5, -1.5)), (tensor(-3.0), tensor(-2.0)), (tensor(-0.1, -7.0, -2.0),) * 2]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_merging_in_any_order(order):
    pairs = parts()
    whole = reference.mismatch(*(torch.cat(side) for side in zip(*pairs, strict=True)))
    state = MismatchState()
    for k in order:
        state = state.merge(MismatchState().update(*pairs[k]))
    merged = state.compute()
    assert merged.logprobs_mismatch_count == whole.logprobs_mismatch_count == 2
    assert merged.ulp_histogram == whole.ulp_histogram
    assert merged.logprobs_diff_max == whole.logprobs_diff_max
    for name in ("logprobs_diff_mean", "logprobs_diff_std", "probs_diff_std", "probs_pearson", "logprobs_pearson"):
        assert abs(getattr(merged, name) - getattr(whole, name)) <= 2.0**-49


def test_an_empty_state_changes_no_bit():
    state = MismatchState().update(*parts()[0])
    before = repr(state.compute())
    assert repr(state.merge(MismatchState()).compute()) == before
    assert repr(MismatchState().merge(state).compute()) == before


def test_update_and_merge_return_the_state():
    state = MismatchState()
    assert state.update(tensor(-1.0), tensor(-1.0)) is state
    assert state.merge(MismatchState()) is state


def test_states_of_other_options_do_not_merge():
    with pytest.raises(ValueError, match=r"cannot merge a state of compare_dtype torch\.float64 into one of torch"):
        MismatchState().merge(MismatchState(compare_dtype=torch.float64))


def test_nan_wins_whatever_the_order():
    sound, spoiled = Moments.of(torch.tensor([1.0, 2.0]).double()), Moments.of(torch.tensor([NAN]).double())
    assert math.isnan(sound.merge(spoiled).maximum)
    assert math.isnan(spoiled.merge(sound).maximum)


def test_a_constant_has_deviation_0_and_no_correlation():
    third = torch.full((7,), 0.1).double()
    assert Moments.of(third).std() == 0.0
    assert math.isnan(CoMoments.of(third, torch.arange(7.0).double()).pearson())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((tensor(-1.0), tensor(-1.0, -2.0)), ValueError, r"rollout has shape \(1,\) but trainer has shape \(2,\)"),
        ((tensor(-1.0), torch.zeros(1, 1)), ValueError, r"nothing is broadcast"),
        ((tensor(1, dtype=torch.int64), tensor(-1.0)), TypeError, "rollout has dtype torch.int64; it must be floating"),
        ((tensor(-1.0), tensor(True, dtype=torch.bool)), TypeError, "trainer has dtype torch.bool"),
        (([-1.0], tensor(-1.0)), TypeError, "rollout must be a torch.Tensor, got list"),
        ((tensor(-1.0), tensor(-1.0), tensor(0.5)), ValueError, r"mask holds 0\.5; only 0 and 1"),
        ((tensor(-1.0), tensor(-1.0), tensor(NAN)), ValueError, "mask holds nan; only 0 and 1"),
        ((tensor(-1.0), tensor(-1.0), tensor(2, dtype=torch.int64)), ValueError, "mask holds 2; only 0 and 1"),
        ((tensor(-1.0), tensor(-1.0), tensor(1, 1)), ValueError, r"mask has shape \(2,\) but rollout has shape \(1,\)"),
        ((tensor(-1.0), tensor(-1.0), [1]), TypeError, "mask must be a torch.Tensor or None, got list"),
        ((tensor(-1.0), torch.zeros(1, device="meta")), ValueError, "rollout is on cpu but trainer is on meta"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        numerics.mismatch(*arguments)


def test_bad_options():
    with pytest.raises(ValueError, match=r"compare_dtype is torch\.float16; it must be torch\.float32 or torch"):
        numerics.mismatch(tensor(-1.0), tensor(-1.0), compare_dtype=torch.float16)
    with pytest.raises(ValueError, match="backend is 'fast'; it must be one of auto, reference"):
        numerics.mismatch(tensor(-1.0), tensor(-1.0), backend="fast")
