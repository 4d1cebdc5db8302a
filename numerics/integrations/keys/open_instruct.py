"""Metric keys of open-instruct."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="open_instruct",
    title="open-instruct",
    source="open_instruct/grpo_utils.py and open_instruct/grpo_fast.py at e6c3044aa (2026-08-20)",
    keys=(
        key(
            "debug/vllm_vs_local_logprob_diff_mean",
            "logprobs_diff_mean",
            "same",
            "mean abs(d)",
            "the last sample of the epoch wins; NaN becomes 1.0",
        ),
        key(
            "debug/vllm_vs_local_logprob_diff_max",
            "logprobs_diff_max",
            "same",
            "max abs(d)",
            "the last sample of the epoch wins",
        ),
        key("debug/vllm_vs_local_logprob_diff_std", "logprobs_diff_std", "same", "std of abs(d)", "0 for one token"),
        key(
            "debug/vllm_local_reverse_kl",
            "k1",
            "other",
            "mean(exp q (q - p))",
            "weighs by q twice: 0.255 where KL is 0.511",
        ),
        key("val/rho_weight", "correction.ratio_truncated_mean", "clamped", "mean of the weight, d clamped at 10"),
        key("val/rho_drop_frac", "correction.kept_fraction", "other", "1 - kept_fraction"),
        key(
            "val/rho_drop_low_frac",
            "correction.truncated_low_fraction",
            "same",
            "share of ratios below the lower bound",
        ),
        key(
            "val/rho_drop_high_frac",
            "correction.truncated_high_fraction",
            "same",
            "share of ratios above the upper bound",
        ),
        key("val/rho_clipfrac", "correction.truncated_high_fraction", "same", "share of ratios that were clipped"),
    ),
)
