"""verl's off-policy metrics and its aggregators: `numerics.divergence`'s values, hand-worked sums."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import numerics
from numerics.integrations.verl import (
    KEYS,
    OFFPOLICY_KEYS,
    VERL_REDUCERS,
    VERL_WEIGHTS,
    MetricsAggregator,
    compute_offpolicy_metrics,
    reduce_metrics,
)
from numerics.reference.aggregate import REDUCERS

Q = torch.tensor([[-1.0, -2.0, -0.5], [-3.0, -1.0, -1.0], [0.0, 0.0, 0.0]])
P = torch.tensor([[-1.25, -1.5, -0.5], [-2.5, -1.0, 9.0], [-4.0, -4.0, -4.0]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0]])


def test_every_figure_is_that_of_divergence() -> None:
    ours = numerics.divergence(Q, P, MASK).as_dict()
    assert compute_offpolicy_metrics(P, Q, MASK) == {key: ours[field] for field, key in OFFPOLICY_KEYS.items()}


def test_a_row_without_a_token_is_no_row() -> None:
    """verl#7771: verl's perplexity counts the third row as 1."""
    assert compute_offpolicy_metrics(P, Q, MASK) == compute_offpolicy_metrics(P[:2], Q[:2], MASK[:2])


def test_without_a_rollout_the_trainers_perplexity_remains() -> None:
    got = compute_offpolicy_metrics(P, None, MASK)
    assert got == {k: compute_offpolicy_metrics(P, Q, MASK)[k] for k in ("training_ppl", "training_log_ppl")}


def test_all_masked_is_nan_and_an_overflow_keeps_its_logarithm() -> None:
    assert math.isnan(compute_offpolicy_metrics(P, Q, MASK * 0)["kl"])
    far = compute_offpolicy_metrics(torch.zeros(1, 2), torch.full((1, 2), -400.0), torch.ones(1, 2))
    assert far["chi2_token"] == math.inf
    assert far["log1p_chi2_token"] == 800.0


def test_declared_reducers_exist_and_the_count_is_summed() -> None:
    assert set(VERL_REDUCERS.values()) <= set(REDUCERS)
    assert VERL_REDUCERS["training/rollout_logprobs_mismatch_count"] == "sum"
    assert VERL_REDUCERS["training/rollout_probs_diff_max"] == "max"
    assert VERL_REDUCERS["rollout_corr/log_ppl_diff_min"] == "min"


def test_aggregator_takes_what_verls_takes() -> None:
    aggregator = MetricsAggregator()
    count, mean, high = (
        "training/rollout_logprobs_mismatch_count",
        "training/rollout_logprobs_diff_mean",
        "training/rollout_logprobs_diff_max",
    )
    first = {count: 3, mean: 0.5, high: math.nan, "timing_s/gen": 1.5, "training/global_step": 7, "flag": True}
    second = {count: 4, mean: 0.1, high: 0.5, "timing_s/gen": 2.0, "training/global_step": 8, "text": "x"}
    aggregator.add_step_metrics(first, sample_count=10)
    aggregator.add_step_metrics({**second, "counter": {"a": 1}}, sample_count=30)
    aggregator.add_step_metrics({"counter": {"a": 2, "b": 1}, "global_seqlen/max": torch.tensor([9.0])})
    got = aggregator.get_aggregated_metrics()
    assert got[count] == 7
    assert got[mean] == pytest.approx(0.2, rel=2**-52)
    assert math.isnan(got[high])  # verl's max keeps or loses the NaN by order
    assert (got["timing_s/gen"], got["training/global_step"], got["global_seqlen/max"]) == (3.5, 8.0, 9.0)
    assert got["counter"] == {"a": 3, "b": 1}
    assert "flag" not in got
    assert "text" not in got


def test_means_without_weights_weigh_alike_and_differences_are_of_aggregates() -> None:
    aggregator = MetricsAggregator()
    for low, high in ((1.0, 5.0), (2.0, 9.0)):
        aggregator.add_step_metrics(
            {"actor/pg_loss": low, "global_seqlen/min": low, "global_seqlen/max": high, "global_seqlen/mean": 0.0}
        )
    got = aggregator.get_aggregated_metrics()
    assert got["actor/pg_loss"] == 1.5
    assert MetricsAggregator().get_aggregated_metrics() == {}


def test_an_unknown_key_is_an_error_that_names_near_ones() -> None:
    with pytest.raises(KeyError, match="did you mean 'training/rollout_probs_diff_max'"):
        MetricsAggregator().add_step_metrics({"training/rollout_prob_diff_max": 1.0})
    asked = MetricsAggregator(unknown=lambda key: "max")
    asked.add_step_metrics({"mine": 1.0})
    asked.add_step_metrics({"mine": 3.0})
    assert asked.get_aggregated_metrics() == {"mine": 3.0}
    assert asked.undeclared == ["mine"]


# --- weights of means


def test_means_weigh_by_tokens_or_rows_where_the_step_says_how_many() -> None:
    count, mean = KEYS["valid_count"], KEYS["logprobs_diff_mean"]
    ppl, kl = "rollout_corr/training_ppl", "rollout_corr/kl"
    tokens, rows = "rollout_corr/valid_count", "rollout_corr/row_count"
    aggregator = MetricsAggregator()
    aggregator.add_step_metrics({count: 1, mean: 1.0, ppl: 2.0, kl: 4.0, tokens: 1, rows: 3}, sample_count=100)
    aggregator.add_step_metrics({count: 3, mean: 0.0, ppl: 6.0, kl: 0.0, tokens: 3, rows: 1}, sample_count=1)
    got = aggregator.get_aggregated_metrics()
    assert (got[mean], got[kl], got[ppl]) == (0.25, 1.0, 3.0)
    assert (got[count], got[tokens], got[rows]) == (4, 4, 4)


def test_a_step_without_tokens_does_not_spoil_a_mean() -> None:
    count, mean = KEYS["valid_count"], KEYS["logprobs_diff_mean"]
    aggregator = MetricsAggregator()
    aggregator.add_step_metrics({count: 0, mean: math.nan}, sample_count=8)
    assert math.isnan(aggregator.get_aggregated_metrics()[mean])
    aggregator.add_step_metrics({count: 2, mean: 0.5}, sample_count=8)
    assert aggregator.get_aggregated_metrics()[mean] == 0.5


def test_every_logged_key_is_declared_and_means_have_a_weight() -> None:
    logged = {*KEYS.values(), *(f"rollout_corr/{key}" for key in OFFPOLICY_KEYS.values())}
    assert logged <= set(VERL_REDUCERS)
    assert {key for key in logged if VERL_REDUCERS[key] == "mean"} <= set(VERL_WEIGHTS)
    assert {*VERL_WEIGHTS, *VERL_WEIGHTS.values()} <= set(VERL_REDUCERS)
    assert all(VERL_REDUCERS[weight] == "sum" for weight in VERL_WEIGHTS.values())


def test_reset_and_counters_that_hold_no_numbers() -> None:
    aggregator = MetricsAggregator(unknown=lambda key: "sum")
    aggregator.add_step_metrics({"own": 1, "counter": {"a": 1}, "texts": {"a": "x"}})
    assert aggregator.get_aggregated_metrics() == {"own": 1, "counter": {"a": 1}}
    assert aggregator.step_count == 1
    aggregator.reset()
    assert (aggregator.step_count, aggregator.undeclared, aggregator.get_aggregated_metrics()) == (0, [], {})


# --- reduce_metrics


def test_lists_are_reduced_as_declared() -> None:
    given: dict[str, Any] = {
        "training/rollout_logprobs_mismatch_count": [1, 2, 3],
        "training/rollout_logprobs_diff_max": [0.5, math.nan, 0.25],
        "rollout_corr/log_ppl_diff_min": torch.tensor([3.0, 1.0, 2.0]),
        "actor/pg_loss": [0.1] * 10,  # 0.1 ten times is 0.9999999999999999 in floating sums
        "actor/lr": [3, 2, 1],
        "timing_s/gen": [[1.0, 2.0], [3.0]],
        "actor/grad_norm": 2.0,
        "actor/entropy": [],
        "timing_s/none": [],
        "critic/vf_loss": SimpleNamespace(aggregate=lambda: 7.0),  # verl's Metric
    }
    copy = dict(given)
    got = reduce_metrics(given)
    assert math.isnan(got.pop("training/rollout_logprobs_diff_max"))
    assert math.isnan(got.pop("actor/entropy"))
    assert got == {
        "training/rollout_logprobs_mismatch_count": 6,
        "rollout_corr/log_ppl_diff_min": 1.0,
        "actor/pg_loss": 0.1,
        "actor/lr": 1,
        "timing_s/gen": 6.0,
        "actor/grad_norm": 2.0,
        "timing_s/none": 0,
        "critic/vf_loss": 7.0,
    }
    assert given == copy
    assert all(given[key] is copy[key] for key in given)  # verl writes into the dictionary it is given


def test_what_reduce_metrics_refuses() -> None:
    with pytest.raises(KeyError, match="did you mean 'actor/pg_loss'"):
        reduce_metrics({"actor/pg_los": [1.0]})
    with pytest.raises(TypeError, match="'actor/pg_loss' holds a str; a metric is a list of numbers"):
        reduce_metrics({"actor/pg_loss": [1.0, "x"]})
    assert reduce_metrics({"own": [1, 5]}, unknown=lambda key: "min") == {"own": 1}
