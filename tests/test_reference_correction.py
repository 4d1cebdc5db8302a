"""Corrections of hand-worked examples, their gradients, and the errors that bad rules raise."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import pytest
import torch

import numerics
from numerics import Correction, CorrectionState, correction

INF, NAN = math.inf, math.nan
LN2 = math.log(2)

#: three rows: on policy, both tails, one masked token that holds rubbish
Q = torch.tensor([[-1.0, -1.0, -1.0], [-2.0, -3.0, -4.0], [-1.0, 5.0, NAN]], dtype=torch.float64)
D = torch.tensor([[0.0, 0.0, 0.0], [LN2, -LN2, 2 * LN2], [-2 * LN2, INF, NAN]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 0, 0]])


def run(**options: Any) -> Correction:
    return correction(Q, Q + D, MASK, compare_dtype=torch.float64, **options)


@pytest.mark.parametrize(
    ("options", "weights", "kept"),
    [
        (
            {"rule": "truncate", "level": "token", "upper": 3.0},
            [[1, 1, 1], [2, 0.5, 3], [0.25, 0, 0]],
            [[1, 1, 1], [1, 1, 1], [1, 0, 0]],
        ),
        (
            {"rule": "truncate", "level": "token", "lower": 0.75, "upper": 3.0},
            [[1, 1, 1], [2, 0.75, 3], [0.75, 0, 0]],
            [[1, 1, 1], [1, 1, 1], [1, 0, 0]],
        ),
        (
            {"rule": "truncate", "level": "sequence", "upper": 10.0},
            [[1, 1, 1], [4, 4, 4], [0.25, 0, 0]],
            [[1, 1, 1], [1, 1, 1], [1, 0, 0]],
        ),
        (
            {"rule": "truncate", "level": "sequence_geometric", "upper": 10.0},
            [[1, 1, 1], [4 ** (1 / 3)] * 3, [0.25, 0, 0]],
            [[1, 1, 1], [1, 1, 1], [1, 0, 0]],
        ),
        (
            {"rule": "zero", "level": "token", "lower": 0.3, "upper": 3.0},
            [[1, 1, 1], [2, 0.5, 0], [0, 0, 0]],
            [[1, 1, 1], [1, 1, 0], [0, 0, 0]],
        ),
        (
            {"rule": "zero", "level": "sequence", "lower": 0.3, "upper": 3.0},
            [[1, 1, 1], [0, 0, 0], [0, 0, 0]],
            [[1, 1, 1], [0, 0, 0], [0, 0, 0]],
        ),
        (
            {"rule": "reject", "level": "token", "statistic": "k1", "threshold": 0.5},
            [[1, 1, 1], [1, 0, 1], [0, 0, 0]],  # k1 = -d: an unlikely token is rejected, a likely one is not
            [[1, 1, 1], [1, 0, 1], [0, 0, 0]],
        ),
        (
            {"rule": "reject", "level": "token", "statistic": "k2", "threshold": 0.5},
            [[1, 1, 1], [1, 1, 0], [0, 0, 0]],
            [[1, 1, 1], [1, 1, 0], [0, 0, 0]],
        ),
        (
            {"rule": "reject", "level": "row_sum", "statistic": "k1", "threshold": 0.0},
            [[1, 1, 1], [1, 1, 1], [0, 0, 0]],  # sums 0, -2 ln 2, 2 ln 2
            [[1, 1, 1], [1, 1, 1], [0, 0, 0]],
        ),
        (
            {"rule": "reject", "level": "row_mean", "statistic": "k3", "threshold": 0.6},
            [[1, 1, 1], [0, 0, 0], [0, 0, 0]],  # (0.307 + 0.193 + 1.614) / 3 = 0.705, and 0.636
            [[1, 1, 1], [0, 0, 0], [0, 0, 0]],
        ),
        (
            {"rule": "reject", "level": "row_max", "statistic": "k3", "threshold": 0.7},
            [[1, 1, 1], [0, 0, 0], [1, 0, 0]],
            [[1, 1, 1], [0, 0, 0], [1, 0, 0]],
        ),
        (
            {"rule": "veto", "level": "row_min", "threshold": 0.4},
            [[1, 1, 1], [1, 1, 1], [0, 0, 0]],
            [[1, 1, 1], [1, 1, 1], [0, 0, 0]],
        ),
    ],
)
def test_rules_by_hand(options: dict[str, Any], weights: list[list[float]], kept: list[list[int]]) -> None:
    got = run(**options)
    assert got.weights.flatten().tolist() == pytest.approx([w for row in weights for w in row], rel=2**-50)
    assert got.mask.int().tolist() == kept


def test_diagnostics_by_hand() -> None:
    got = run(rule="truncate", level="token", lower=0.3, upper=3.0).diagnostics
    ratios = [1.0, 1.0, 1.0, 2.0, 0.5, 4.0, 0.25]
    cut = [min(max(w, 0.3), 3.0) for w in ratios]
    assert (got.valid_count, got.row_count, got.unit_count) == (7, 3, 7)
    assert got.ratio_mean == pytest.approx(sum(ratios) / 7, rel=2**-51)
    assert (got.ratio_min, got.ratio_max) == pytest.approx((0.25, 4.0), rel=2**-51)  # raw, beyond the caps
    assert got.ratio_truncated_mean == pytest.approx(sum(cut) / 7, rel=2**-51)
    assert (got.ratio_truncated_min, got.ratio_truncated_max) == (0.3, 3.0)
    assert (got.truncated_low_fraction, got.truncated_high_fraction) == (1 / 7, 1 / 7)
    assert got.ess_fraction == pytest.approx(sum(ratios) ** 2 / (7 * sum(w * w for w in ratios)), rel=2**-49)
    assert got.ess_fraction_truncated == pytest.approx(sum(cut) ** 2 / (7 * sum(w * w for w in cut)), rel=2**-49)
    assert (got.kept_fraction, got.kept_row_fraction) == (1.0, 1.0)
    assert math.isnan(got.statistic_mean)


def test_what_is_no_number_is_dropped_and_counted() -> None:
    q, p = torch.tensor([[-1.0, NAN], [-INF, -1.0]]), torch.tensor([[-1.0, -1.0], [-INF, -1.0]])
    for level, weights, undefined in (("token", [1.0, 0.0, 0.0, 1.0], 2), ("sequence", [0.0] * 4, 2)):
        got = correction(q, p, rule="truncate", level=level, upper=2.0)
        assert got.weights.flatten().tolist() == weights
        assert got.mask.flatten().tolist() == [w > 0 for w in weights]
        assert got.diagnostics.undefined_count == undefined
        assert got.diagnostics.nonfinite_count == 2


@pytest.mark.parametrize("d", [88.0, 89.0, 110.0, 720.0, INF])
def test_overflow_goes_to_the_cap_and_is_outside(d: float) -> None:
    q, p = torch.tensor([0.0]), torch.tensor([d])
    assert correction(q, p, rule="truncate", level="token", upper=2.0).weights.item() == 2.0
    assert correction(q, p, rule="zero", level="token", lower=0.5, upper=2.0).weights.item() == 0.0


def test_normalised_weights_have_mean_one_over_units() -> None:
    token = run(rule="truncate", level="token", upper=3.0, normalize=True)
    assert token.weights[MASK.bool()].mean().item() == pytest.approx(1.0, rel=2**-50)
    assert token.normaliser == token.diagnostics.ratio_truncated_mean
    rows = run(rule="truncate", level="sequence", upper=10.0, normalize=True)
    assert rows.weights[:, 0].mean().item() == pytest.approx(1.0, rel=2**-50)  # over rows, not tokens
    nothing = run(rule="zero", level="token", lower=7.0, upper=9.0, normalize=True)
    assert nothing.weights.eq(0).all()
    assert nothing.normaliser == 1.0


@pytest.mark.parametrize(
    ("level", "slope"),
    [
        ("token", [[1, 1, 1], [2, 0.5, 0], [0.25, 0, 0]]),
        ("sequence", [[3, 3, 3], [0, 0, 0], [0.25, 0, 0]]),
        ("sequence_geometric", [[1, 1, 1], [4 ** (1 / 3)] * 3, [0.25, 0, 0]]),
    ],
)
def test_gradient_of_the_sum_of_weights(level: str, slope: list[list[float]]) -> None:
    p = (Q + D).clone().requires_grad_()
    got = correction(
        Q, p, MASK, rule="truncate", level=level, upper=3.0, differentiable=True, compare_dtype=torch.float64
    )
    assert torch.equal(got.weights.detach(), run(rule="truncate", level=level, upper=3.0).weights)
    got.weights.sum().backward()
    assert p.grad is not None
    assert p.grad.flatten().tolist() == pytest.approx([x for row in slope for x in row], rel=2**-48)


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_geometric"])
def test_a_graph_leaves_the_weight_of_an_impossible_token_at_zero(level: str) -> None:
    q, p = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-INF, -1.0]], requires_grad=True)
    got = correction(q, p, rule="truncate", level=level, upper=2.0, differentiable=True)
    assert got.weights.tolist() == [[0.0, 1.0 if level == "token" else 0.0]]
    got.weights.sum().backward()
    assert p.grad is not None
    assert p.grad.tolist() == [[0.0, 1.0 if level == "token" else 0.0]]


def test_gradient_of_a_long_row_in_bfloat16() -> None:
    """2000 gradients of 1 are 2000; added in bfloat16 they would stop at 256."""
    q = torch.full((1, 2000), -1.0, dtype=torch.bfloat16)
    p = q.clone().requires_grad_()
    correction(q, p, rule="truncate", level="sequence", upper=2.0, differentiable=True).weights.sum().backward()
    assert p.grad is not None
    assert p.grad.eq(2000).all()


def test_a_long_row_of_float16_does_not_overflow() -> None:
    q = torch.full((1, 8), -10000.0, dtype=torch.float16)
    got = correction(q, q.clone().requires_grad_(), rule="truncate", level="sequence", upper=2.0, differentiable=True)
    assert got.weights.eq(1).all()


def test_normalised_weights_carry_no_gradient_through_the_normaliser() -> None:
    p = (Q + D).clone().requires_grad_()
    got = correction(
        Q,
        p,
        MASK,
        rule="truncate",
        level="token",
        upper=3.0,
        normalize=True,
        differentiable=True,
        compare_dtype=torch.float64,
    )
    got.weights.sum().backward()
    assert p.grad is not None
    free = [1, 1, 1, 2, 0.5, 0, 0.25, 0, 0]
    assert p.grad.flatten().tolist() == pytest.approx([w / got.normaliser for w in free], rel=2**-48)


def test_row_ids_may_be_any_integers_in_any_order() -> None:
    keep = MASK.bool()
    ids = torch.tensor([[-7] * 3, [40] * 3, [2] * 3])[keep]
    shuffled = torch.tensor([6, 3, 0, 4, 1, 5, 2])
    named = {"rule": "truncate", "level": "sequence", "upper": 10.0}
    got = correction(
        Q[keep][shuffled], (Q + D)[keep][shuffled], row_ids=ids[shuffled], compare_dtype=torch.float64, **named
    )
    want = run(**named)
    assert torch.equal(got.weights, want.weights[keep][shuffled])
    assert got.diagnostics == want.diagnostics


def test_python_memory_is_of_the_rows_not_of_the_tokens() -> None:
    """A million tokens in 100 rows: what Python holds is the exact sums (tensors are not traced)."""
    q = torch.full((100, 10_000), -1.0)
    tracemalloc.start()
    try:
        got = correction(q, q, rule="truncate", level="sequence", upper=2.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got.diagnostics.ratio_mean == 1.0
    assert peak < 16 * 2**20


def test_weights_are_constants_by_default() -> None:
    p = (Q + D).clone().requires_grad_()
    assert not correction(Q, p, MASK, rule="truncate", level="token", upper=3.0).weights.requires_grad


def test_packed_rows() -> None:
    keep = MASK.bool()
    ids = torch.arange(3)[:, None].expand(3, 3)[keep]
    padded = run(rule="truncate", level="sequence", upper=10.0)
    packed = correction(
        Q[keep],
        (Q + D)[keep],
        rule="truncate",
        level="sequence",
        upper=10.0,
        row_ids=ids,
        compare_dtype=torch.float64,
    )
    assert torch.equal(packed.weights, padded.weights[keep])
    assert packed.diagnostics == padded.diagnostics


def test_a_state_is_any_partition_of_the_rows() -> None:
    rule = {"rule": "truncate", "level": "sequence", "upper": 3.0}
    whole = CorrectionState(**rule).update(Q, Q + D, MASK)
    parts = [CorrectionState(**rule).update(Q[i], (Q + D)[i], MASK[i]) for i in (2, 0, 1)]
    assert parts[0].merge(parts[1].merge(parts[2])).compute() == whole.compute()
    assert CorrectionState.from_json(whole.to_json()).compute() == whole.compute()
    with pytest.raises(ValueError, match=r"upper is 3\.0 here and 2\.0 there"):
        whole.merge(CorrectionState(**{**rule, "upper": 2.0}))


TIS: dict[str, Any] = {"rule": "truncate", "level": "token", "upper": 2.0}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rule": "clip"}, ValueError, "rule is 'clip'; it must be one of truncate, zero, reject, veto"),
        ({"level": "row_sum"}, ValueError, "level of rule 'truncate' is 'row_sum'; it must be one of token, sequence"),
        ({"upper": None}, ValueError, "rule 'truncate' needs upper"),
        ({"upper": -1.0}, ValueError, r"upper is -1\.0; it must be finite and not negative"),
        ({"upper": NAN}, ValueError, "upper is nan; it must be finite and not negative"),
        ({"upper": INF}, ValueError, "upper is inf"),
        ({"upper": 10**400}, ValueError, "it must be finite"),
        ({"upper": 1e40}, ValueError, r"upper is 1e\+40, beyond 3\.4e\+38, the largest weight in torch\.float32"),
        ({"upper": 0.0}, ValueError, "upper is 0; a cap of 0 leaves no weight"),
        ({"upper": "2"}, TypeError, "upper must be a number, got str"),
        ({"lower": 3.0}, ValueError, r"lower is 3\.0 and upper is 2\.0; lower must not exceed upper"),
        ({"threshold": 1.0}, ValueError, "rule 'truncate' does not use threshold, but threshold is 1.0"),
        ({"statistic": "k3"}, ValueError, "does not use statistic"),
        ({"rule": "reject", "upper": None, "statistic": "k4", "threshold": 1.0}, ValueError, "statistic is 'k4'"),
        ({"rule": "reject", "upper": None, "threshold": 1.0}, ValueError, "rule 'reject' needs statistic"),
        ({"rule": "veto", "upper": None, "level": "row_min"}, ValueError, "rule 'veto' needs threshold"),
    ],
)
def test_bad_rules(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        numerics.correction(Q, Q, MASK, **{**TIS, **change})


def test_a_threshold_of_k1_may_be_negative() -> None:
    got = run(rule="reject", level="token", statistic="k1", threshold=-0.5)
    assert got.mask.int().tolist() == [[0, 0, 0], [1, 0, 1], [0, 0, 0]]


def test_nothing() -> None:
    got = correction(torch.zeros(2, 0), torch.zeros(2, 0), **TIS)
    assert got.weights.shape == (2, 0)
    assert got.diagnostics.valid == 0
    assert math.isnan(got.diagnostics.kept_fraction)
