"""Metric keys of rLLM."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="rllm",
    title="rLLM",
    repository="rllm-org/rllm",
    commit="9beb6e0f",
    date="2026-08-15",
    logged="one pass over the rows that have a token; without any, no key. Its verl path logs verl's keys",
    keys=at(
        "rllm/trainer/fireworks/fireworks_policy_trainer.py::FireworksPolicyTrainer._compute_offpolicy_metrics",
        key("offpolicy/kl", "k1", "same", "mean(q - p)"),
        key("offpolicy/k3_kl", "k3", "same", "mean(exp d - d - 1)", "so written it is below 0 for small d"),
        key("offpolicy/logprob_abs_diff/mean", "logprobs_diff_mean", "same", "mean abs(d)"),
        key("offpolicy/logprob_abs_diff/max", "logprobs_diff_max", "same", "max abs(d)"),
        key("offpolicy/logprob_abs_diff/min", "", "none", "min abs(d)"),
        key("offpolicy/prob_abs_diff/mean", "probs_diff_mean", "same", "mean abs(P - Q)"),
        key("offpolicy/prob_abs_diff/max", "probs_diff_max", "same", "max abs(P - Q)"),
        key("offpolicy/prob_abs_diff/min", "", "none", "min abs(P - Q)"),
        key(
            "offpolicy/prob_pearson_corr", "probs_pearson", "same", "Pearson of P and Q", "absent if a side is constant"
        ),
        key("offpolicy/training_ppl", "ppl_trainer", "same", "mean over rows of exp(-mean p_r)"),
        key("offpolicy/training_log_ppl", "log_ppl_trainer", "same", "mean over rows of -mean p_r"),
        key("offpolicy/rollout_ppl", "ppl_rollout", "same", "mean over rows of exp(-mean q_r)"),
        key("offpolicy/rollout_log_ppl", "log_ppl_rollout", "same", "mean over rows of -mean q_r"),
        key("offpolicy/log_ppl_diff", "log_ppl_diff_mean", "same", "mean over rows of mean(q_r - p_r)"),
        key("offpolicy/log_ppl_abs_diff", "log_ppl_diff_abs_mean", "same", "mean over rows of abs(mean(q_r - p_r))"),
        key("offpolicy/log_ppl_diff_max", "log_ppl_diff_max", "same", "max over rows of mean(q_r - p_r)"),
        key("offpolicy/log_ppl_diff_min", "log_ppl_diff_min", "same", "min over rows of mean(q_r - p_r)"),
        key("offpolicy/ppl_ratio", "ppl_ratio", "same", "mean over rows of exp(mean(q_r - p_r))"),
        key("offpolicy/ratio/mean", "ratio_mean", "clamped", "mean exp clip(d, ±20)"),
        key("offpolicy/ratio/min", "ratio_min", "clamped", "min exp clip(d, ±20)"),
        key("offpolicy/ratio/max", "ratio_max", "clamped", "max exp clip(d, ±20)"),
        key("offpolicy/chi2_token", "chi2_token", "clamped", "mean exp(2 clip(d, ±20)) - 1"),
        key("offpolicy/chi2_seq", "chi2_seq", "clamped", "mean over rows of exp(2 clip(sum d_r, ±20)) - 1"),
    ),
)
