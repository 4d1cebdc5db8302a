"""Metric keys of miles."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="miles",
    title="miles",
    source="miles/backends/training_utils/loss_hub/ at 31f1ca961 (2026-08-21)",
    keys=(
        key(
            "train_rollout_logprob_abs_diff",
            "logprobs_diff_mean",
            "other",
            "mean abs(d) with NaN and infinities set to 0",
            "a token of probability 0 on one side counts as equal",
        ),
        key("train_rollout_kl", "k3", "clamped", "mean(exp d - 1 - d), d clamped at 10"),
        key(
            "ess_ratio",
            "ess_fraction",
            "row_mean",
            "mean over samples of (sum w)^2/(n max(sum w^2, 1e-8))",
            "0.015 for equal weights of e^-12",
        ),
        key("mis_kl", "k1", "same", "mean(q - p)"),
        key("mis_k3_kl", "k3", "same", "mean(exp d - 1 - d)", "as exp(d) - 1 - d, which is below 0 for small d"),
        key("mis_chi2_token", "chi2_token", "clamped", "mean exp(2 clip(d, ±20)) - 1"),
        key("mis_chi2_seq", "chi2_seq", "clamped", "mean over samples of exp(2 clip(sum d_r, ±20)) - 1"),
    ),
)
