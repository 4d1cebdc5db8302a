"""verl's rollout correction by our rules: hand-worked batches, `numerics.correction`'s own values, what it refuses."""

from __future__ import annotations

import importlib
import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import numerics
from numerics.integrations import verl
from numerics.integrations.verl import (
    VERL_REDUCERS,
    VERL_WEIGHTS,
    compute_offpolicy_metrics,
    compute_rollout_correction_and_rejection_mask,
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from numerics.integrations.verl.correction import REJECTIONS, weights_of_sides

NAN, INF = math.nan, math.inf
LN2 = math.log(2)

#: ratios 1, 2, 1/2; then 4; then a row without a token. Masked places hold rubbish.
LOG_RATIO = torch.tensor([[0.0, LN2, -LN2], [2 * LN2, NAN, 900.0], [-INF, 3.0, NAN]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])


def weights_of(**options: Any) -> tuple[list[list[float]], dict[str, float]]:
    weights, figures = compute_rollout_correction_weights(LOG_RATIO, MASK, **options)
    assert weights.dtype == torch.float32
    assert all(key.startswith("rollout_is_") for key in figures)
    return weights.tolist(), {key.removeprefix("rollout_is_"): value for key, value in figures.items()}


def near(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-6, abs=1e-7, nan_ok=True)


# --- weights


@pytest.mark.parametrize("cap", [3, 3.0, "3.0", " 3 "])
def test_capped_token_weights_by_hand(cap: Any) -> None:
    weights, figures = weights_of(rollout_is_threshold=cap)
    assert [x for row in weights for x in row] == near([1, 2, 0.5, 3, 0, 0, 0, 0, 0])
    assert figures == near(
        {
            "mean": 6.5 / 4,
            "max": 3,
            "min": 0.5,
            "std": math.sqrt(3.6875 / 4),
            "eff_sample_size": 6.5**2 / (4 * 14.25),
            "ratio_fraction_high": 0.25,
            "ratio_fraction_low": 0,
            "seq_mean": (3.5 / 3 + 3) / 2,
            "seq_std": (3 - 3.5 / 3) / math.sqrt(2),
            "seq_max": 3,
            "seq_min": 3.5 / 3,
            "seq_max_deviation": 2,
            "seq_fraction_high": 0.5,
            "seq_fraction_low": 0,
            "ratio_mean": 7.5 / 4,
            "ratio_min": 0.5,
            "ratio_max": 4,
            "ratio_ess": 7.5**2 / (4 * 21.25),
            "undefined_count": 0,
        }
    )


def test_capped_sequence_weights_by_hand() -> None:
    weights, figures = weights_of(rollout_is="sequence", rollout_is_threshold=3.0)
    assert [x for row in weights for x in row] == near([1, 1, 1, 3, 0, 0, 0, 0, 0])
    assert (figures["mean"], figures["max"], figures["min"]) == near((1.5, 4, 1))  # ends are raw, as in verl
    assert (figures["ratio_fraction_high"], figures["seq_mean"]) == near((0.5, 2))


def test_two_bounds_drop_what_is_outside() -> None:
    weights, figures = weights_of(rollout_is_threshold="0.6_3")
    assert [x for row in weights for x in row] == near([1, 2, 0, 0, 0, 0, 0, 0, 0])
    assert (figures["oob_ratio"], figures["ratio_fraction_high"], figures["ratio_fraction_low"]) == (0.5, 0.25, 0.25)
    assert figures["mean"] == near(0.75)


def test_below_a_cap_alone_is_below_its_inverse() -> None:
    assert weights_of(rollout_is_threshold=1.9)[1]["ratio_fraction_low"] == 0.25
    assert weights_of(rollout_is_threshold=2.1)[1]["ratio_fraction_low"] == 0


def test_normalised_weights_have_mean_one() -> None:
    weights, figures = weights_of(rollout_is_threshold=3.0, rollout_is_batch_normalize=True)
    assert figures["batch_norm_factor"] == near(1.625)
    assert weights[0] == near([1 / 1.625, 2 / 1.625, 0.5 / 1.625])
    assert figures["mean"] == near(1.625)  # figures are of the weights before


def test_the_norm_is_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda pair: pair.add_(torch.tensor([3.5, 4.0])))
    weights, figures = weights_of(rollout_is_threshold=3.0, rollout_is_batch_normalize=True)
    assert figures["batch_norm_factor"] == near(10 / 8)
    assert weights[1][0] == near(3 / 1.25)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    ("threshold", "rule", "lower", "upper"), [(1.5, "truncate", None, 1.5), ("0.5_1.5", "zero", 0.5, 1.5)]
)
def test_weights_are_those_of_numerics_correction(
    level: str, threshold: Any, rule: str, lower: float | None, upper: float
) -> None:
    generator = torch.Generator().manual_seed(4)
    rollout, trainer = -torch.rand(2, 6, 9, generator=generator)
    mask = torch.randint(0, 2, (6, 9), generator=generator)
    expected = numerics.correction(rollout, trainer, mask, rule=rule, level=level, lower=lower, upper=upper)
    _, _, figures = compute_rollout_correction_and_rejection_mask(trainer, rollout, mask)
    assert not any("rollout_is" in key for key in figures)
    got, figures = weights_of_sides(rollout, trainer, mask, level=level, threshold=threshold, normalize=False)
    assert torch.equal(got, expected.weights)
    assert figures["rollout_is_ratio_fraction_high"] == expected.diagnostics.truncated_high_fraction


def test_a_ratio_that_is_not_defined_is_dropped_and_counted() -> None:
    ratio = torch.tensor([[0.0, NAN, LN2]])
    weights, figures = compute_rollout_correction_weights(ratio, torch.ones(1, 3))
    assert weights[0].tolist() == near([1, 0, 2])
    assert figures["rollout_is_undefined_count"] == 1


def test_an_overflow_gets_the_cap_and_all_zero_weights_are_no_error() -> None:
    weights, figures = compute_rollout_correction_weights(torch.tensor([[1000.0, 0.0]]), torch.ones(1, 2))
    assert weights.tolist() == [[2, 1]]
    assert figures["rollout_is_ratio_max"] == INF
    weights, figures = compute_rollout_correction_weights(
        torch.zeros(1, 2), torch.ones(1, 2), rollout_is_threshold="2_3", rollout_is_batch_normalize=True
    )
    assert weights.tolist() == [[0, 0]]
    assert (figures["rollout_is_mean"], figures["rollout_is_batch_norm_factor"]) == (0, 1)
    assert figures["rollout_is_oob_ratio"] == 1
    assert figures["rollout_is_eff_sample_size"] == 0


def test_all_masked_weights() -> None:
    weights, figures = compute_rollout_correction_weights(LOG_RATIO, MASK * 0)
    assert not weights.any()
    assert {k for k, v in figures.items() if not math.isnan(v)} == {"rollout_is_undefined_count"}


def test_nothing_flows_back_and_nothing_is_modified() -> None:
    given, mask = LOG_RATIO.clone().requires_grad_(), MASK.clone()
    weights, _ = compute_rollout_correction_weights(given, mask)
    kept, _ = compute_rollout_rejection_mask(given, mask, "token_k1", 2.0)
    assert not weights.requires_grad
    assert kept is not mask
    torch.testing.assert_close(given.detach(), LOG_RATIO, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(mask, MASK)


# --- rejections


def test_k1_bounds_the_inverse_ratio() -> None:
    mask, figures = compute_rollout_rejection_mask(LOG_RATIO, MASK, "token_k1", "0.4_3")
    assert mask.tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0]]  # 1 / 4 is below 0.4
    assert mask.dtype == MASK.dtype
    prefix = "rollout_rs_token_k1_"
    own = {key.removeprefix(prefix): value for key, value in figures.items() if key.startswith(prefix)}
    assert own == near(
        {
            "mean": -LN2 / 2,
            "max": LN2,
            "min": -2 * LN2,
            "fraction_high": 0,
            "fraction_low": 0.25,
            "std": LN2 * math.sqrt((0.25 + 0.25 + 2.25 + 2.25) / 4),
            "seq_mean": -LN2,
            "seq_std": math.sqrt(2) * LN2,
            "seq_max": 0,
            "seq_min": -2 * LN2,
            "seq_max_deviation": 2 * LN2,
            "seq_fraction_high": 0,
            "seq_fraction_low": 0.5,
            "masked_fraction": 0.25,
            "seq_masked_fraction": 0.5,
        }
    )
    assert (figures["rollout_rs_masked_fraction"], figures["rollout_rs_seq_masked_fraction"]) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("options", "threshold", "kept"),
    [
        ("token_k1", 3.0, [[1, 1, 1], [0, 0, 0]]),  # one number is "1/3_3"
        ("token_k2", 0.1, [[1, 0, 0], [0, 0, 0]]),
        ("token_k3", "0.25", [[1, 0, 1], [0, 0, 0]]),  # 0, 0.307, 0.193; 1.614
        ("seq_sum_k1", "0.2_3", [[1, 1, 1], [1, 0, 0]]),
        ("seq_mean_k1", "0.3_3", [[1, 1, 1], [0, 0, 0]]),
        ("seq_sum_k2", 0.3, [[0, 0, 0], [0, 0, 0]]),  # 0.480; 0.961
        ("seq_mean_k2", 0.3, [[1, 1, 1], [0, 0, 0]]),  # 0.160
        ("seq_sum_k3", 0.45, [[0, 0, 0], [0, 0, 0]]),  # exactly 0.5; 1.614
        ("seq_mean_k3", 0.2, [[1, 1, 1], [0, 0, 0]]),
        ("seq_max_k2", 1.0, [[1, 1, 1], [1, 0, 0]]),
        ("seq_max_k3", 0.31, [[1, 1, 1], [0, 0, 0]]),
        ("token_k2, seq_max_k3", "0.1,2", [[1, 0, 0], [0, 0, 0]]),
        ("seq_max_k2,token_k3", "1,0.25", [[1, 0, 1], [0, 0, 0]]),
        ("seq_max_k2,token_k3", 0.25, [[1, 0, 1], [0, 0, 0]]),  # one threshold for both
    ],
)
def test_every_rejection_by_hand(options: str, threshold: Any, kept: list[list[int]]) -> None:
    mask, figures = compute_rollout_rejection_mask(LOG_RATIO, MASK, options, threshold)
    assert mask.tolist() == [*kept, [0, 0, 0]]
    assert figures["rollout_rs_masked_fraction"] == 1 - sum(map(sum, kept)) / 4


def test_row_figures_are_of_sums_means_or_maxima() -> None:
    ends = {}
    for option in ("seq_sum_k2", "seq_mean_k2", "seq_max_k2"):
        figures = compute_rollout_rejection_mask(LOG_RATIO, MASK, option, 2.0)[1]
        ends[option] = figures[f"rollout_rs_{option}_min"], figures[f"rollout_rs_{option}_mean"]
    one, two = LN2**2 / 2, (2 * LN2) ** 2 / 2  # k2 of the second token; of the second row
    assert ends["seq_sum_k2"] == near((2 * one, (3 * 2 * one + two) / 4))
    assert ends["seq_mean_k2"] == near((2 * one / 3, (2 * one + two) / 4))
    assert ends["seq_max_k2"] == near((one, (3 * one + two) / 4))


def test_an_undefined_statistic_is_not_kept() -> None:
    ratio = torch.tensor([[0.0, NAN], [0.0, 0.0]])
    for option, kept in (("token_k3", [[1, 0], [1, 1]]), ("seq_mean_k3", [[0, 0], [1, 1]])):
        mask, _ = compute_rollout_rejection_mask(ratio, torch.ones(2, 2), option, 1.0)
        assert mask.tolist() == kept


@pytest.mark.parametrize("option", REJECTIONS)
def test_every_key_is_declared(option: str) -> None:
    _, figures = compute_rollout_rejection_mask(LOG_RATIO, MASK, option, 2.0)
    assert {f"rollout_corr/{key}" for key in figures} <= set(VERL_REDUCERS) & set(VERL_WEIGHTS)


def test_every_weight_key_is_declared() -> None:
    _, figures = compute_rollout_correction_weights(
        LOG_RATIO, MASK, rollout_is_threshold="0.5_2", rollout_is_batch_normalize=True
    )
    assert "rollout_is_oob_ratio" in figures
    assert {f"rollout_corr/{key}" for key in figures} <= set(VERL_REDUCERS) & set(VERL_WEIGHTS)


# --- both at once


def test_weights_and_mask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = ModuleType("verl.protocol")
    protocol.DataProto = SimpleNamespace(from_dict=lambda tensors: SimpleNamespace(batch=tensors))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "verl", ModuleType("verl"))
    monkeypatch.setitem(sys.modules, "verl.protocol", protocol)
    rollout = torch.tensor([[-1.0, -2.0], [-3.0, 0.0]])
    trainer = torch.tensor([[-1.5, -1.0], [-3.0, 0.0]])
    mask = torch.tensor([[True, True], [True, False]])
    weights, kept, figures = compute_rollout_correction_and_rejection_mask(
        trainer,
        rollout,
        mask,
        rollout_is="token",
        rollout_is_threshold=1.5,
        rollout_rs="token_k2",
        rollout_rs_threshold=0.3,
    )
    assert weights.batch["rollout_is_weights"].flatten().tolist() == near([math.exp(-0.5), 1.5, 1, 0])
    assert kept.tolist() == [[True, False], [True, False]]
    assert kept.dtype == torch.bool
    parts = compute_rollout_correction_weights(trainer - rollout, mask, rollout_is_threshold=1.5)[1]
    parts |= compute_rollout_rejection_mask(trainer - rollout, mask, "token_k2", 0.3)[1]
    parts |= compute_offpolicy_metrics(trainer, rollout, mask)
    assert figures == {f"rollout_corr/{key}": value for key, value in parts.items()}


def test_metrics_alone_need_no_verl_and_copy_the_mask() -> None:
    q, mask = torch.tensor([[-1.0]]), torch.tensor([[1.0]])
    weights, kept, figures = compute_rollout_correction_and_rejection_mask(q, q, mask)
    assert weights is None
    assert kept is not mask
    assert torch.equal(kept, mask)
    assert figures["rollout_corr/kl"] == 0
    assert set(figures) <= set(VERL_REDUCERS)


def test_sides_are_cast_before_they_are_subtracted() -> None:
    """In bfloat16 -8.0625 - -8 is rounded no less than the sides were; a float32 side keeps its own digits."""
    rollout, trainer = torch.tensor([[-8.0]], dtype=torch.bfloat16), torch.tensor([[-8.001]])
    _, _, figures = compute_rollout_correction_and_rejection_mask(
        trainer, rollout, torch.ones(1, 1), rollout_rs="token_k1", rollout_rs_threshold=2.0
    )
    assert figures["rollout_corr/rollout_rs_token_k1_mean"] == pytest.approx(0.001, rel=1e-3)


# --- what it refuses


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"rollout_is": "geometric"}, ValueError, "rollout_is is 'geometric'; it must be 'token' or 'sequence'"),
        ({"rollout_is_threshold": True}, TypeError, "rollout_is_threshold must be a number or text, not a boolean"),
        ({"rollout_is_threshold": [2.0]}, TypeError, "not list"),
        ({"rollout_is_threshold": "two"}, ValueError, "rollout_is_threshold is 'two'; it must be a positive number"),
        ({"rollout_is_threshold": 0.0}, ValueError, "positive"),
        ({"rollout_is_threshold": INF}, ValueError, "positive"),
        ({"rollout_is_threshold": "1_2_3"}, ValueError, "positive number or two"),
        ({"rollout_is_threshold": "3_2"}, ValueError, "the lower bound must be at most the upper"),
    ],
)
def test_bad_weight_options(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        compute_rollout_correction_weights(LOG_RATIO, MASK, **options)


@pytest.mark.parametrize(
    ("options", "threshold", "error", "match"),
    [
        ("token_k9", 1.0, ValueError, "rollout_rs has 'token_k9'; the options are token_k1"),
        ("", 1.0, ValueError, "it must name one or more of token_k1"),
        (None, 1.0, ValueError, "it must name one or more"),
        ("token_k1", None, ValueError, "rollout_rs needs rollout_rs_threshold"),
        ("token_k1", False, TypeError, "rollout_rs_threshold must be a number or text, not a boolean"),
        ("token_k1", "1,2", ValueError, "has 2 thresholds for 1 options"),
        ("token_k2", "1_2", ValueError, "it takes one upper bound, in nats"),
        ("token_k1", "2_1", ValueError, "the lower bound must be at most the upper"),
        ("token_k1", -1.0, ValueError, "rollout_rs_threshold of token_k1 is '-1.0'; it must be a positive number"),
    ],
)
def test_bad_rejection_options(options: Any, threshold: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        compute_rollout_rejection_mask(LOG_RATIO, MASK, options, threshold)


@pytest.mark.parametrize(
    "function",
    [compute_rollout_correction_weights, lambda x, m: compute_rollout_rejection_mask(x, m, "token_k1", 2.0)],
)
def test_bad_tensors(function: Any) -> None:
    with pytest.raises(ValueError, match="only 0 and 1"):
        function(LOG_RATIO, MASK * 2)
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(3, 3\)"):
        function(LOG_RATIO, MASK[:, :2])


# --- the adapters


def test_the_drop_in_passes_the_suite() -> None:
    results = numerics.check(verl.rollout_correction_drop_in, dtypes=["float32"], max_examples=10, seed=0)
    assert [str(r) for r in results if not r.ok] == []
    assert sum(r.status == "passed" for r in results) >= 20


def test_the_adapters_call_verls_own_functions_even_where_ours_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are asked for the same batch; a wrong weight of verl's must come back as it is."""

    def wrong(log_ratio: torch.Tensor, mask: torch.Tensor, **options: Any) -> tuple[torch.Tensor, dict[str, float]]:
        if options["rollout_is_threshold"] == 9.0:
            raise ZeroDivisionError
        names = "ratio_fraction_high", "mean", "min", "max", "eff_sample_size"
        return torch.full_like(log_ratio, 7.0), {f"rollout_is_{name}": -1.0 for name in names}

    ours = lambda *args, **options: pytest.fail("ours was called")  # noqa: E731
    ours.verls_own = wrong  # type: ignore[attr-defined]
    helper = ModuleType("verl.trainer.ppo.rollout_corr_helper")
    helper.compute_rollout_correction_weights = ours  # type: ignore[attr-defined]
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, helper.__name__, helper)
    q, p, mask = torch.tensor([-1.0]), torch.tensor([-2.0]), torch.tensor([1])
    rule = {"rule": "truncate", "level": "token"}
    weights, kept, fields = verl.rollout_correction.fn(q, p, mask, upper=2.0, **rule)
    assert (weights.tolist(), kept.tolist()) == ([7.0], [True])
    assert fields["ratio_truncated_mean"] == -1.0
    assert fields["ratio_mean"] == pytest.approx(math.exp(-1))  # verl has none that is the contract's: ours
    with pytest.raises(ZeroDivisionError):
        verl.rollout_correction.fn(q, p, mask, upper=9.0, **rule)
    weights, _, _ = verl.rollout_correction_nonzero.fn(q, p, mask, upper=9.0, **rule)
    assert weights.tolist() == pytest.approx([math.exp(-1)])


def test_without_verl_the_adapters_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verl", None)
    for name in [n for n in sys.modules if n.startswith("verl.")]:
        monkeypatch.delitem(sys.modules, name)
    module = importlib.import_module("numerics.integrations.verl.adapters")
    q = torch.tensor([[-1.0]])
    with pytest.raises(ImportError, match=r"cannot import verl .*tests/verl_optional/README\.md"):
        module.rollout_correction.fn(q, q, torch.ones(1, 1), rule="truncate", level="token", upper=2.0)
