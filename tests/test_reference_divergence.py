"""Divergences of hand-worked examples, with the errors that bad input raises."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

import numerics
from numerics import Divergence, DivergenceState, divergence
from numerics.reference.terms import jsd_term, k3_term
from numerics.suite.oracle_divergence import COUNTS, FIGURES

INF, NAN = math.inf, math.nan


def two_tokens() -> Divergence:
    """The example of docs/orientation.md: the trainer finds the first token twice as likely, the second half."""
    q = torch.tensor([[math.log(0.25), math.log(0.5)]], dtype=torch.float64)
    p = torch.tensor([[math.log(0.5), math.log(0.25)]], dtype=torch.float64)
    return divergence(q, p, compare_dtype=torch.float64)


def test_two_tokens_by_hand() -> None:
    got, ln2 = two_tokens(), math.log(2)
    want = {
        "valid_count": 2,
        "row_count": 1,
        "signed_mean": 0.0,
        "probs_signed_mean": 0.0,
        "k1": 0.0,
        "k2": ln2**2 / 2,
        "k3": 0.25,  # (2 - 1 - ln 2 + 1/2 - 1 + ln 2) / 2
        "kl_trainer_rollout": 0.75 * ln2,  # (2 ln 2 - ln 2 / 2) / 2
        "mult_prob_error": 2.0,
        "normalization_gap": 0.25,
        "ratio_mean": 1.25,
        "ratio_min": 0.5,
        "ratio_max": 2.0,
        "ratio_std": math.sqrt(2 * 0.75**2),
        "ess_fraction": 2.5**2 / (2 * 4.25),
        "chi2_token": 1.125,
        "log1p_chi2_token": math.log(2.125),
        "fraction_above": 1.0,
        "sampling_entropy": 1.5 * ln2,
        "ppl_rollout_token": 2**1.5,
        "ppl_trainer_token": 2**1.5,
        "seq_ratio_mean": 1.0,
        "chi2_seq": 0.0,
        "ppl_ratio": 1.0,
        "log_ppl_diff_mean": 0.0,
        "seq_mult_prob_error_mean": 2.0,
    }
    assert {n: getattr(got, n) for n in want} == {
        n: v if isinstance(v, int) else pytest.approx(v, rel=2**-50, abs=2**-52) for n, v in want.items()
    }
    assert math.isnan(got.normalization_gap_se)  # one row has no interval


def test_orientation() -> None:
    """The trainer finds every token more likely: d > 0, k1 < 0, ratios above 1, the rollout's perplexity is higher."""
    q = torch.tensor([[-1.0, -2.0], [-3.0, -1.0]])
    got = divergence(q, q + 0.5)
    assert (got.signed_mean, got.k1) == (0.5, -0.5)
    assert got.ratio_min == got.ratio_max == math.exp(0.5)
    assert got.ppl_rollout > got.ppl_trainer
    assert got.log_ppl_diff_mean == -0.5
    assert got.seq_ratio_mean == pytest.approx(math.e, rel=2**-51)
    assert got.seq_ratio_geometric_mean == math.exp(0.5)


def test_rows_are_the_last_axis_and_row_ids_of_packed_tokens() -> None:
    q = torch.tensor([[-1.0, -2.0, 0.0], [-3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    p = torch.tensor([[-1.5, -2.25, 9.0], [-2.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    padded = divergence(q, p, mask)
    keep = mask.bool()
    ids = torch.tensor([7, 7, -2])  # any integers
    assert divergence(q[keep], p[keep], row_ids=ids) == padded
    assert divergence(q[None], p[None], mask[None]) == padded
    assert padded.row_count == 2
    assert padded.log_ppl_diff_mean == (0.375 - 1.0) / 2
    assert (padded.log_ppl_diff_max, padded.log_ppl_diff_min) == (0.375, -1.0)
    assert divergence(q[keep], p[keep]).row_count == 1  # a 1-D tensor is one row


def test_the_interval_is_clustered_by_row() -> None:
    d = [[0.5, 0.25], [-0.5], [0.125]]
    q = torch.zeros(4)
    got = divergence(q, torch.tensor([x for row in d for x in row]), row_ids=torch.tensor([0, 0, 1, 2]))
    s = [sum(math.expm1(x) for x in row) for row in d]
    gap = sum(s) / 4
    se = math.sqrt(3 / 2 * sum((x - gap * len(row)) ** 2 for x, row in zip(s, d, strict=True))) / 4
    assert got.normalization_gap == pytest.approx(gap, rel=2**-51)
    assert got.normalization_gap_se == pytest.approx(se, rel=2**-49)
    t = 4.302652729749464  # Student's 0.975 quantile, two degrees of freedom
    assert got.normalization_gap_high == pytest.approx(gap + t * se, rel=2**-48)
    assert got.normalization_gap_low == pytest.approx(gap - t * se, rel=2**-48)


def test_nothing_to_compare() -> None:
    for q in (torch.zeros(0), torch.zeros(2, 0), torch.zeros(0, 3)):
        got = divergence(q, q).as_dict()
        assert all(got[n] == 0 for n in COUNTS)
        assert all(math.isnan(got[n]) for n in FIGURES)


@pytest.mark.parametrize(
    ("q", "p", "want"),
    [
        (-1.0, -INF, {"ratio_mean": 0.0, "kl_trainer_rollout": 0.0, "jsd": math.log(2) / 2, "k1": INF, "k3": INF}),
        (-INF, -1.0, {"ratio_mean": INF, "kl_trainer_rollout": INF, "jsd": INF, "k1": -INF, "k3": INF, "k2": INF}),
        (-INF, -INF, dict.fromkeys(("ratio_mean", "k1", "k2", "k3", "jsd", "ess_fraction", "fraction_x"), NAN)),
        (NAN, -1.0, dict.fromkeys(("ratio_mean", "ratio_max", "k1", "k2", "k3", "jsd", "ess_fraction"), NAN)),
    ],
)
def test_infinities(q: float, p: float, want: dict[str, float]) -> None:
    got = divergence(torch.tensor([q]), torch.tensor([p]))
    assert got.nonfinite_count == 1
    assert got.fraction_above == 1.0  # not known to be within epsilon
    for name in want.keys() - {"fraction_x"}:
        assert getattr(got, name) == want[name] or (math.isnan(want[name]) and math.isnan(getattr(got, name))), name


def test_all_weights_zero_and_one_infinite() -> None:
    zero = divergence(torch.tensor([-1.0, -2.0]), torch.tensor([-INF, -INF]))
    assert (zero.ess_fraction, zero.log1p_chi2_token, zero.ratio_max) == (0.0, -INF, 0.0)
    infinite = divergence(torch.tensor([-INF, -2.0]), torch.tensor([-1.0, -2.0]))
    assert math.isnan(infinite.ess_fraction)
    assert infinite.log1p_chi2_token == INF


@pytest.mark.parametrize("d", [-300.0, -20.0, 20.0, 89.0, 300.0, 800.0])
def test_ess_does_not_know_the_scale(d: float) -> None:
    got = divergence(torch.zeros(5), torch.full((5,), d))
    assert got.ess_fraction == 1.0
    assert got.log1p_chi2_token == pytest.approx(2 * d, rel=2**-51)
    assert got.ratio_overflow_count == (5 if d > 710 else 0)
    assert (got.chi2_token == INF) == (d > 355)


@pytest.mark.parametrize(("d", "k3"), [(1e-6, 5.000001666667083e-13), (1e-9, 5.000000001666667e-19), (-110.0, 109.0)])
def test_k3_over_the_whole_range(d: float, k3: float) -> None:
    got = divergence(
        torch.zeros(1, dtype=torch.float64), torch.tensor([d], dtype=torch.float64), compare_dtype=torch.float64
    )
    assert got.k3 == pytest.approx(k3, rel=2**-50)
    assert got.k3 / got.k2 == pytest.approx(1.0, rel=1e-5) or d == -110.0


def test_k3_at_89_is_finite_in_float64() -> None:
    got = divergence(torch.zeros(1), torch.tensor([89.0]))
    assert got.k3 == pytest.approx(math.expm1(89.0) - 89.0, rel=2**-50)


def test_terms_of_no_difference_are_zero() -> None:
    zero = torch.tensor([0.0, -0.0], dtype=torch.float64)
    assert k3_term(zero).tolist() == jsd_term(zero).tolist() == [0.0, 0.0]


def test_a_state_is_any_partition_of_the_rows() -> None:
    torch.manual_seed(3)
    q = -torch.rand(6, 5) * 4
    p, mask = q + 0.1 * torch.randn(6, 5), torch.rand(6, 5) > 0.3
    whole = divergence(q, p, mask)
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4]):
        state = DivergenceState()
        for i in order:
            state = DivergenceState().update(q[i], p[i], mask[i]).merge(state)
        assert state.compute() == whole


@pytest.mark.parametrize(
    ("arguments", "named", "error", "message"),
    [
        ((torch.zeros(2), torch.zeros(3)), {}, ValueError, r"rollout has shape \(2,\) but trainer has shape \(3,\)"),
        ((torch.zeros(2, dtype=torch.int64), torch.zeros(2)), {}, TypeError, "rollout has dtype torch.int64"),
        ((torch.zeros(2), torch.zeros(2), torch.tensor([0.5, 1.0])), {}, ValueError, "mask holds 0.5"),
        ((torch.zeros(2), torch.zeros(2)), {"epsilon": -1.0}, ValueError, "epsilon is -1.0"),
        ((torch.zeros(2), torch.zeros(2)), {"epsilon": NAN}, ValueError, "epsilon is nan"),
        ((torch.zeros(2), torch.zeros(2)), {"epsilon": "1"}, TypeError, "epsilon must be a number of nats, got str"),
        (
            (torch.zeros(2), torch.zeros(2)),
            {"compare_dtype": torch.float16},
            ValueError,
            "compare_dtype is torch.float16",
        ),
        ((torch.zeros(2), torch.zeros(2)), {"row_ids": [0, 1]}, TypeError, "row_ids must be a torch.Tensor"),
        ((torch.zeros(2), torch.zeros(2)), {"row_ids": torch.zeros(2)}, TypeError, "row_ids has dtype torch.float32"),
        (
            (torch.zeros(2), torch.zeros(2)),
            {"row_ids": torch.zeros(3, dtype=torch.int64)},
            ValueError,
            r"row_ids has shape \(3,\) but rollout has shape \(2,\)",
        ),
        ((torch.zeros(2), torch.zeros(2)), {"backend": "fast"}, ValueError, "backend is 'fast'"),
    ],
)
def test_bad_input(arguments: tuple[Any, ...], named: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        numerics.divergence(*arguments, **named)


def test_every_field_has_an_exact_answer() -> None:
    fields = {f.name for f in dataclasses.fields(Divergence)}
    assert fields - {"epsilon", "compare_dtype"} == {*COUNTS, *FIGURES}


def test_no_gradient_flows() -> None:
    p = torch.tensor([-1.0, -2.0], requires_grad=True)
    assert isinstance(divergence(torch.tensor([-1.0, -2.5]), p).k1, float)
    assert p.grad is None
