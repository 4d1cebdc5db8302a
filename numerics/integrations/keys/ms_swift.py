"""Metric keys of ms-swift."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

_TRAINER = "swift/rlhf_trainers/grpo_trainer.py::GRPOTrainer"
_ONE = "rows without a token count as 1"
_ZERO = "rows without a token count as 0"

FRAMEWORK = Framework(
    name="ms_swift",
    title="ms-swift",
    repository="modelscope/ms-swift",
    commit="3602360a5",
    date="2026-08-22",
    logged="per rank and micro-batch, then a mean that weighs them alike and drops NaN; the mask multiplies, so that a "
    "NaN at a masked place reaches every figure",
    keys=(
        *at(
            f"{_TRAINER}._compute_rollout_offpolicy_metrics",
            key("rollout_correction/kl", "k1", "same", "mean(q - p)"),
            key(
                "rollout_correction/k3_kl",
                "k3",
                "clamped",
                "mean min(exp d - 1 - d, 10), d clamped at ±20",
                "10 where it is 49.6",
            ),
            key("rollout_correction/training_ppl", "ppl_trainer", "same", "mean over rows of exp(-mean p_r)", _ONE),
            key("rollout_correction/training_log_ppl", "log_ppl_trainer", "same", "mean over rows of -mean p_r", _ZERO),
            key("rollout_correction/rollout_ppl", "ppl_rollout", "same", "mean over rows of exp(-mean q_r)", _ONE),
            key("rollout_correction/rollout_log_ppl", "log_ppl_rollout", "same", "mean over rows of -mean q_r", _ZERO),
            key(
                "rollout_correction/log_ppl_diff",
                "log_ppl_diff_mean",
                "same",
                "mean over rows of mean(q_r - p_r)",
                _ZERO,
            ),
            key(
                "rollout_correction/log_ppl_abs_diff",
                "log_ppl_diff_abs_mean",
                "same",
                "mean over rows of abs(mean(q_r - p_r))",
                _ZERO,
            ),
            key(
                "rollout_correction/log_ppl_diff_max",
                "log_ppl_diff_max",
                "same",
                "max over rows of mean(q_r - p_r)",
                "at least 0 if a row has no token",
            ),
            key(
                "rollout_correction/log_ppl_diff_min",
                "log_ppl_diff_min",
                "same",
                "min over rows of mean(q_r - p_r)",
                "at most 0 if a row has no token",
            ),
            key("rollout_correction/ppl_ratio", "ppl_ratio", "same", "mean over rows of exp(mean(q_r - p_r))", _ONE),
            key("rollout_correction/chi2_token", "chi2_token", "clamped", "mean exp(2 clip(d, ±20)) - 1"),
            key(
                "rollout_correction/chi2_seq",
                "chi2_seq_geometric",
                "same",
                "mean over rows of exp(2 mean d_r) - 1, mean d_r clamped at ±20",
                "geometric: verl, slime and rLLM mean the product by this name, as its own docstring does",
            ),
        ),
        *at(
            f"{_TRAINER}._compute_is_correction_metrics",
            key(
                "rollout_correction/is_weight_mean",
                "correction.ratio_truncated_mean",
                "same",
                "mean weight over tokens, after truncation",
                "sequence_truncate weighs rows by their tokens; sequence_mask keeps the token ratios of kept rows",
                rules=("truncate/token", "zero/token"),
            ),
            key(
                "rollout_correction/clipped_frac",
                "correction.truncated_high_fraction",
                "same",
                "share of w, in sequence modes of exp(mean d_r), above the cap",
                rules=("truncate/token", "zero/token", "truncate/sequence_geometric", "zero/sequence_geometric"),
            ),
            key(
                "rollout_correction/ess",
                "correction.ess_fraction_truncated",
                "other",
                "ESS of weights lifted to [1/C, C], zeroed ones too",
                "0.645 where it is 0.25",
            ),
        ),
    ),
)
