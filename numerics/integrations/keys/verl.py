"""Metric keys of verl."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="verl",
    title="verl",
    source="verl/utils/debug/metrics.py and verl/trainer/ppo/rollout_corr_helper.py at 1dda039b9 (2026-08-22)",
    keys=(
        key("training/rollout_probs_diff_valid", "valid", "same", "1 if N > 0, else 0"),
        key("training/rollout_probs_diff_max", "probs_diff_max", "same", "max abs(P - Q)", "exp in the input's dtype"),
        key(
            "training/rollout_probs_diff_mean",
            "probs_diff_mean",
            "same",
            "mean abs(P - Q)",
            "its docstring says log-prob difference; exp in the input's dtype",
        ),
        key(
            "training/rollout_probs_diff_std",
            "probs_diff_std",
            "same",
            "std of abs(P - Q), ddof 1",
            "exp in the input's dtype; averaged over steps",
        ),
        key(
            "training/rollout_actor_probs_pearson_corr",
            "probs_pearson",
            "same",
            "Pearson of P and Q",
            "a constant side gives a number there",
        ),
        key(
            "training/rollout_logprobs_mismatch_count",
            "logprobs_mismatch_count",
            "same",
            "tokens with p != q",
            "proposed to verl",
        ),
        key("training/rollout_logprobs_diff_max", "logprobs_diff_max", "same", "max abs(d)", "proposed to verl"),
        key("training/rollout_logprobs_diff_mean", "logprobs_diff_mean", "same", "mean abs(d)", "proposed to verl"),
        key("rollout_corr/kl", "k1", "same", "mean(q - p)"),
        key(
            "rollout_corr/k3_kl", "k3", "same", "mean(exp d - d - 1)", "as exp(d) - 1 - d, which is below 0 for small d"
        ),
        key(
            "rollout_corr/training_ppl",
            "ppl_trainer",
            "same",
            "mean over rows of exp(-mean p_r)",
            "rows without a token count as 1",
        ),
        key(
            "rollout_corr/training_log_ppl",
            "log_ppl_trainer",
            "same",
            "mean over rows of -mean p_r",
            "rows without a token count as 0",
        ),
        key(
            "rollout_corr/rollout_ppl",
            "ppl_rollout",
            "same",
            "mean over rows of exp(-mean q_r)",
            "rows without a token count as 1",
        ),
        key(
            "rollout_corr/rollout_log_ppl",
            "log_ppl_rollout",
            "same",
            "mean over rows of -mean q_r",
            "rows without a token count as 0",
        ),
        key(
            "rollout_corr/log_ppl_diff",
            "log_ppl_diff_mean",
            "same",
            "mean over rows of mean(q_r - p_r)",
            "rows without a token count as 0",
        ),
        key(
            "rollout_corr/log_ppl_abs_diff",
            "log_ppl_diff_abs_mean",
            "same",
            "mean over rows of abs(mean(q_r - p_r))",
            "rows without a token count as 0",
        ),
        key(
            "rollout_corr/log_ppl_diff_max",
            "log_ppl_diff_max",
            "same",
            "max over rows of mean(q_r - p_r)",
            "at least 0 if a row has no token",
        ),
        key(
            "rollout_corr/log_ppl_diff_min",
            "log_ppl_diff_min",
            "same",
            "min over rows of mean(q_r - p_r)",
            "at most 0 if a row has no token",
        ),
        key("rollout_corr/ppl_ratio", "ppl_ratio", "same", "mean over rows of exp(mean(q_r - p_r))"),
        key(
            "rollout_corr/chi2_token",
            "chi2_token",
            "clamped",
            "mean exp(2 clip(d, ±20)) - 1",
            "nothing above e^40 can be seen",
        ),
        key(
            "rollout_corr/chi2_seq",
            "chi2_seq",
            "clamped",
            "mean over rows of exp(2 clip(sum d_r, ±20)) - 1",
            "the product; ms-swift means the geometric mean by this name",
        ),
        key(
            "rollout_corr/rollout_is_mean",
            "correction.ratio_truncated_mean",
            "same",
            "mean of the truncated weights (token level)",
            "at sequence level weighted by tokens",
        ),
        key(
            "rollout_corr/rollout_is_max",
            "correction.ratio_truncated_max",
            "same",
            "max of the truncated weights (token level)",
            "at sequence level of the untruncated ones",
        ),
        key(
            "rollout_corr/rollout_is_min",
            "correction.ratio_truncated_min",
            "same",
            "min of the truncated weights (token level)",
            "at sequence level of the untruncated ones",
        ),
        key(
            "rollout_corr/rollout_is_std",
            "correction.ratio_truncated_std",
            "other",
            "sqrt(E[w^2] - E[w]^2) in float32, ddof 0",
            "0 for a small spread",
        ),
        key(
            "rollout_corr/rollout_is_eff_sample_size",
            "correction.ess_fraction_truncated",
            "other",
            "1/mean((w/(mean w + 1e-8))^2)",
            "34 for equal weights of e^-20; divides by zero if all are 0",
        ),
        key(
            "rollout_corr/rollout_is_ratio_fraction_high",
            "correction.truncated_high_fraction",
            "same",
            "share of w above the cap",
        ),
        key(
            "rollout_corr/rollout_is_ratio_fraction_low",
            "correction.truncated_low_fraction",
            "same",
            "share of w below 1/cap or the lower bound",
            "the lower bound is 1/cap where none is given",
        ),
        key(
            "rollout_corr/rollout_is_seq_mean",
            "correction.ratio_truncated_mean",
            "row_mean",
            "mean over rows of the row's mean weight",
            "a row without a token has weight 0",
        ),
    ),
)
