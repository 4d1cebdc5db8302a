"""Metric keys of SkyRL."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="skyrl",
    title="SkyRL",
    source="skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py at a9564572e (2026-08-21)",
    keys=(
        key(
            "policy/rollout_train_logprobs_abs_diff_mean",
            "logprobs_diff_mean",
            "same",
            "mean abs(d)",
            "micro-batch means weigh alike",
        ),
        key(
            "policy/rollout_train_logprobs_abs_diff_max",
            "logprobs_diff_max",
            "same",
            "max abs(d)",
            "Python's max: a NaN is lost by order",
        ),
        key("policy/rollout_train_logprobs_abs_diff_min", "", "none", "min abs(d)"),
        key("policy/rollout_train_logprobs_abs_diff_std", "logprobs_diff_std", "other", "std from a mean of means"),
        key("is_ratio_mean", "ratio_mean", "diluted", "mean of w times mask"),
        key("is_ratio_std", "ratio_std", "diluted", "std of w times mask"),
        key("is_ratio_min", "ratio_min", "diluted", "min of w times mask", "0 with any padding"),
        key("is_ratio_max", "ratio_max", "diluted", "max of w times mask"),
        key(
            "tis_token_clip_high_ratio",
            "correction.truncated_high_fraction",
            "same",
            "share of w above the cap",
            "d clamped at 20 first",
        ),
        key(
            "tis_seq_clip_high_ratio",
            "correction.truncated_high_fraction",
            "same",
            "share of sequence ratios above the cap",
        ),
        key("token_mask_ratio", "correction.kept_fraction", "other", "1 - kept_fraction"),
    ),
)
