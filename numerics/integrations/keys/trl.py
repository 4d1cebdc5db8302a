"""Metric keys of TRL."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="trl",
    title="TRL",
    source="trl/trainer/grpo_trainer.py at f2cd57710 (2026-07-24)",
    keys=(
        key(
            "sampling/sampling_logp_difference/mean",
            "logprobs_diff_mean",
            "same",
            "mean abs(d) over a rank's tokens",
            "then a mean over ranks and steps that weighs them alike",
        ),
        key(
            "sampling/sampling_logp_difference/max",
            "logprobs_diff_max",
            "same",
            "max abs(d) over all ranks",
            "then averaged over the logging window, NaN dropped",
        ),
        key(
            "sampling/importance_sampling_ratio/mean",
            "ratio_mean",
            "post_clip",
            "mean min(w, C), or of w set to 0 above C",
        ),
        key(
            "sampling/importance_sampling_ratio/min",
            "ratio_min",
            "post_clip",
            "min of the weight after truncation",
            "0 from a rank without tokens",
        ),
        key(
            "sampling/importance_sampling_ratio/max",
            "ratio_max",
            "post_clip",
            "max of the weight after truncation",
            "cannot exceed the cap",
        ),
    ),
)
