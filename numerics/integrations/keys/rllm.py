"""Metric keys of rLLM."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="rllm",
    title="rLLM",
    source="rllm/trainer/fireworks/fireworks_policy_trainer.py at 9beb6e0f (2026-08-15)",
    keys=(
        key("offpolicy/logprob_abs_diff/mean", "logprobs_diff_mean", "same", "mean abs(d)"),
        key("offpolicy/logprob_abs_diff/max", "logprobs_diff_max", "same", "max abs(d)"),
        key("offpolicy/logprob_abs_diff/min", "", "none", "min abs(d)"),
        key("offpolicy/prob_abs_diff/mean", "probs_diff_mean", "same", "mean abs(P - Q)"),
        key("offpolicy/prob_abs_diff/max", "probs_diff_max", "same", "max abs(P - Q)"),
        key(
            "offpolicy/prob_pearson_corr",
            "probs_pearson",
            "same",
            "Pearson of P and Q",
            "absent if a side has variance 0",
        ),
        key("offpolicy/kl", "k1", "same", "mean(q - p)"),
        key("offpolicy/k3_kl", "k3", "same", "mean(exp d - 1 - d)", "as exp(d) - 1 - d, which is below 0 for small d"),
        key("offpolicy/ratio/mean", "ratio_mean", "clamped", "mean w, d clamped at 20"),
        key("offpolicy/ratio/min", "ratio_min", "clamped", "min w, d clamped at 20"),
        key("offpolicy/ratio/max", "ratio_max", "clamped", "max w, d clamped at 20"),
    ),
)
