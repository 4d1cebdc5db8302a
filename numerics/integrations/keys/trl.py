"""Metric keys of TRL."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

_RULES = ("truncate/token", "truncate/sequence", "zero/token", "zero/sequence")

FRAMEWORK = Framework(
    name="trl",
    title="TRL",
    repository="huggingface/trl",
    commit="f2cd57710",
    date="2026-07-24",
    logged="per rank, then a mean (or max, min) over ranks that weighs them alike; then a mean over the logging "
    "window, of max and min too, that drops NaN",
    keys=at(
        "trl/trainer/grpo_trainer.py::GRPOTrainer._generate_and_score_completions",
        key(
            "sampling/sampling_logp_difference/mean",
            "logprobs_diff_mean",
            "same",
            "mean abs(d) over a rank's tokens",
            "0 from a rank without tokens",
        ),
        key("sampling/sampling_logp_difference/max", "logprobs_diff_max", "same", "max abs(d) over all ranks"),
        key(
            "sampling/importance_sampling_ratio/mean",
            "ratio_mean",
            "post_clip",
            "mean over tokens or rows of min(w_u, C), or of w_u set to 0 outside the bounds",
            "default: exp(sum d_r), set to 0 above 3; 0 from a rank without tokens",
            rules=_RULES,
        ),
        key(
            "sampling/importance_sampling_ratio/min",
            "ratio_min",
            "post_clip",
            "min over tokens or rows of the weight after truncation",
            "0 from a rank without tokens",
            rules=_RULES,
        ),
        key(
            "sampling/importance_sampling_ratio/max",
            "ratio_max",
            "post_clip",
            "max over tokens or rows of the weight after truncation",
            "cannot exceed the cap",
            rules=_RULES,
        ),
    ),
)
