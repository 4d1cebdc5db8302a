"""Metric keys of SkyRL."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

_UTILS = "skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py"
_EMPTY = "rows without a token count, with ratio 1"

FRAMEWORK = Framework(
    name="skyrl",
    title="SkyRL",
    repository="NovaSky-AI/SkyRL",
    commit="a9564572e",
    date="2026-08-21",
    logged="rollout_train_*: one pass over the whole batch. The others: per micro-batch, then a mean over "
    "micro-batches and ranks that weighs them alike, Python's max and min for _max and _min",
    keys=(
        *at(
            "skyrl/train/trainer.py::RayPPOTrainer.fwd_logprobs_values_reward",
            key("policy/rollout_train_logprobs_abs_diff_mean", "logprobs_diff_mean", "same", "mean abs(d)"),
            key("policy/rollout_train_logprobs_abs_diff_max", "logprobs_diff_max", "same", "max abs(d)"),
            key("policy/rollout_train_logprobs_abs_diff_min", "", "none", "min abs(d)"),
            key(
                "policy/rollout_train_logprobs_abs_diff_std",
                "logprobs_diff_std",
                "same",
                "std of abs(d), ddof 1",
                "the Tinker backend gives sqrt(E[x^2] - E[x]^2) of means of micro-batches",
            ),
        ),
        *at(
            "skyrl/backends/skyrl_train/workers/worker_utils.py::compute_minibatch_rollout_logprob_diff_metrics",
            key(
                "minibatch_rollout_logprobs_abs_diff_mean",
                "logprobs_diff_mean",
                "same",
                "mean abs(d), p of the current policy",
                "0 from an all-masked micro-batch",
            ),
            key(
                "minibatch_rollout_logprobs_abs_diff_max",
                "logprobs_diff_max",
                "same",
                "max of abs(d) times mask",
                "a NaN at a masked place reaches it",
            ),
            key(
                "minibatch_rollout_logprobs_abs_diff_min", "", "none", "min of abs(d) times mask", "0 with any padding"
            ),
            key(
                "minibatch_rollout_logprobs_abs_diff_std",
                "logprobs_diff_std",
                "other",
                "sqrt(E[x^2] - E[x]^2) of means of micro-batches, x = abs(d), ddof 0",
            ),
        ),
        *at(
            f"{_UTILS}::compute_off_policy_correction",
            key("is_ratio_mean", "ratio_mean", "clamped", "mean exp clip(d, ±20)"),
            key("is_ratio_std", "ratio_std", "diluted", "std over all places of exp clip(d, ±20) times mask"),
            key(
                "is_ratio_min",
                "ratio_min",
                "diluted",
                "min over all places of exp clip(d, ±20) times mask",
                "0 with any padding",
            ),
            key("is_ratio_max", "ratio_max", "clamped", "max over all places of exp clip(d, ±20) times mask"),
        ),
        *at(
            f"{_UTILS}::compute_tis_ratio",
            key(
                "tis_token_clip_high_ratio",
                "correction.truncated_high_fraction",
                "same",
                "share of w above the cap",
                "tokens that the masks below drop do not count",
                rules=("truncate/token",),
            ),
            key(
                "tis_seq_clip_high_ratio",
                "correction.truncated_high_fraction",
                "same",
                "share of rows with exp(sum d_r) above the cap",
                _EMPTY,
                rules=("truncate/sequence",),
            ),
        ),
        *at(
            f"{_UTILS}::compute_token_mask",
            key(
                "token_mask_ratio",
                "correction.kept_fraction",
                "complement",
                "share of tokens with w outside the bounds",
                rules=("zero/token",),
            ),
        ),
        *at(
            f"{_UTILS}::compute_outlier_token_mask",
            key("outlier_seq_masked_ratio", "", "none", "share of rows with a w outside the bounds"),
            key("outlier_seq_over_high_ratio", "", "none", "share of rows with a w above the upper bound"),
            key(
                "outlier_seq_under_low_ratio",
                "correction.truncated_low_fraction",
                "same",
                "share of rows with a w below the lower bound",
                "rows without a token count as kept",
                rules=("veto/row_min",),
            ),
        ),
        *at(
            f"{_UTILS}::compute_sequence_mask",
            key(
                "geo_sequence_mask_masked_ratio",
                "correction.kept_row_fraction",
                "complement",
                "share of rows with exp(mean d_r) outside the bounds",
                f"{_EMPTY}; NaN counts as inside",
                rules=("zero/sequence_geometric",),
            ),
            key(
                "geo_sequence_mask_over_high_ratio",
                "correction.truncated_high_fraction",
                "same",
                "share of rows with exp(mean d_r) above the upper bound",
                _EMPTY,
                rules=("zero/sequence_geometric",),
            ),
            key(
                "geo_sequence_mask_under_low_ratio",
                "correction.truncated_low_fraction",
                "same",
                "share of rows with exp(mean d_r) below the lower bound",
                _EMPTY,
                rules=("zero/sequence_geometric",),
            ),
            key(
                "product_sequence_mask_masked_ratio",
                "correction.kept_row_fraction",
                "complement",
                "share of rows with exp(sum d_r) outside the bounds",
                f"{_EMPTY}; NaN counts as inside",
                rules=("zero/sequence",),
            ),
            key(
                "product_sequence_mask_over_high_ratio",
                "correction.truncated_high_fraction",
                "same",
                "share of rows with exp(sum d_r) above the upper bound",
                _EMPTY,
                rules=("zero/sequence",),
            ),
            key(
                "product_sequence_mask_under_low_ratio",
                "correction.truncated_low_fraction",
                "same",
                "share of rows with exp(sum d_r) below the lower bound",
                _EMPTY,
                rules=("zero/sequence",),
            ),
        ),
    ),
)
