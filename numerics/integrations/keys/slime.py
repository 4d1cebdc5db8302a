"""Metric keys of slime."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="slime",
    title="slime",
    source="slime/backends/megatron_utils/loss.py and examples/.../mis.py at 624b824a8 (2026-08-21)",
    keys=(
        key(
            "train_rollout_logprob_abs_diff",
            "logprobs_diff_mean",
            "row_mean",
            "sum over samples of (masked sum / mask total)",
            "current or old log-probs, by use_rollout_logprobs",
        ),
        key("mis_kl", "k1", "same", "mean(q - p)", "log-ratio clamped at 20 elsewhere in the same helper"),
        key("mis_k3_kl", "k3", "same", "mean(exp d - 1 - d)", "as exp(d) - 1 - d, which is below 0 for small d"),
        key("mis_training_ppl", "ppl_trainer", "row_mean", "mean over samples of exp(-mean p_r)"),
        key("mis_rollout_ppl", "ppl_rollout", "row_mean", "mean over samples of exp(-mean q_r)"),
        key("mis_chi2_token", "chi2_token", "clamped", "mean exp(2 clip(d, ±20)) - 1"),
        key("mis_chi2_seq", "chi2_seq", "clamped", "mean over samples of exp(2 clip(sum d_r, ±20)) - 1"),
        key("mis_tis_weight_before_bound", "correction.ratio_mean", "same", "mean w before truncation"),
        key("mis_tis_weight_after_bound", "correction.ratio_truncated_mean", "same", "mean weight after truncation"),
        key("tis", "correction.ratio_truncated_mean", "row_mean", "sum over samples of the row's mean weight"),
        key(
            "tis_clipfrac",
            "correction.truncated_high_fraction",
            "other",
            "share of tokens whose weight changed",
            "NaN counts as changed",
        ),
    ),
)
