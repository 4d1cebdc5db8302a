"""Metric keys of ms-swift."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="ms_swift",
    title="ms-swift",
    source="swift/rlhf_trainers/grpo_trainer.py at 3602360a5 (2026-08-22)",
    keys=(
        key("rollout_correction/kl", "k1", "same", "mean(q - p)", "the mask multiplies; a mean of rank means"),
        key(
            "rollout_correction/k3_kl",
            "k3",
            "clamped",
            "mean of min(exp d - 1 - d, 10), d clamped at 20",
            "10 where it is 49.6",
        ),
        key("rollout_correction/chi2_token", "chi2_token", "clamped", "mean exp(2 clip(d, ±20)) - 1"),
        key(
            "rollout_correction/chi2_seq",
            "chi2_seq_geometric",
            "same",
            "mean over rows of exp(2 mean d_r) - 1",
            "geometric: verl means the product by this name",
        ),
        key(
            "rollout_correction/training_ppl",
            "ppl_trainer",
            "same",
            "mean over rows of exp(-mean p_r)",
            "rows without a token count as 1",
        ),
        key(
            "rollout_correction/rollout_ppl",
            "ppl_rollout",
            "same",
            "mean over rows of exp(-mean q_r)",
            "rows without a token count as 1",
        ),
        key(
            "rollout_correction/is_weight_mean",
            "correction.ratio_truncated_mean",
            "same",
            "mean weight after truncation",
        ),
        key(
            "rollout_correction/clipped_frac",
            "correction.truncated_high_fraction",
            "same",
            "share of ratios above the cap",
        ),
        key(
            "rollout_correction/ess",
            "correction.ess_fraction_truncated",
            "other",
            "ESS of weights lifted to [1/C, C], zeroed ones too",
            "0.645 where it is 0.25",
        ),
    ),
)
