"""Metric keys of Tunix."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="tunix",
    title="Tunix",
    repository="google/tunix",
    commit="c7d8950f",
    date="2026-08-21",
    logged="token means of a batch, then a mean over batches that weighs them alike, of Pearson too; max and min over "
    "batches. A missing q is filled with 0. grpo_learner.py has the same code again",
    keys=(
        *at(
            "tunix/rl/agentic/agentic_grpo_learner.py::_sampler_trainer_agreement",
            key("sampler_trainer/logp_diff_mean", "logprobs_diff_mean", "same", "mean abs(d)", "0 if N = 0"),
            key("sampler_trainer/logp_diff_max", "logprobs_diff_max", "same", "max abs(d)", "0 if N = 0"),
            key("sampler_trainer/prob_diff_mean", "probs_diff_mean", "same", "mean abs(P - Q)", "0 if N = 0"),
            key("sampler_trainer/prob_diff_max", "probs_diff_max", "same", "max abs(P - Q)", "0 if N = 0"),
            key(
                "sampler_trainer/probs_pearson_corr",
                "probs_pearson",
                "same",
                "Pearson of P and Q",
                "0 for a constant side; too small where the product of the variances is below 1e-12",
            ),
            key(
                "sampler_is/weight_max",
                "correction.ratio_truncated_max",
                "same",
                "max over tokens of min(w, C)",
                rules=("truncate/token",),
            ),
            key(
                "sampler_is/frac_clipped_at_threshold",
                "correction.truncated_high_fraction",
                "same",
                "share of w above C",
                rules=("truncate/token",),
            ),
        ),
        *at(
            "tunix/rl/algo_core.py::grpo_loss_fn",
            key(
                "sampler_is/weight_mean",
                "correction.ratio_truncated_mean",
                "same",
                "mean over tokens of min(w, C)",
                "1 where no correction is set",
                rules=("truncate/token",),
            ),
            key(
                "sampler_is/weight_min",
                "correction.ratio_truncated_min",
                "same",
                "min over tokens of min(w, C); e^-20 at least",
                "1 where no correction is set",
                rules=("truncate/token",),
            ),
        ),
    ),
)
