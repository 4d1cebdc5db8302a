"""Metric keys of Unsloth: TRL's names, of other quantities."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="unsloth",
    title="Unsloth",
    repository="unslothai/unsloth-zoo",
    commit="ce232d6c",
    date="2026-08-20",
    logged="as TRL: mean (or max, min) over ranks, then a mean over the logging window; written by unslothai/unsloth "
    "at 015bdef0d, unsloth/models/rl_replacements.py",
    keys=at(
        "unsloth_zoo/rl_replacements.py::grpo_compute_loss",
        key(
            "sampling/sampling_logp_difference/mean",
            "logprobs_diff_mean",
            "diluted",
            "sum of abs(d) over valid places / all places",
            "0.5 for abs(d) = 1 at two tokens beside two pads",
        ),
        key(
            "sampling/sampling_logp_difference/max",
            "logprobs_diff_max",
            "same",
            "max of abs(d) times mask",
            "a NaN at a masked place reaches it: the mask multiplies",
        ),
        key(
            "sampling/importance_sampling_ratio/mean",
            "ratio_mean",
            "diluted",
            "sum over valid places of the weight after truncation / all places",
        ),
        key(
            "sampling/importance_sampling_ratio/min",
            "ratio_min",
            "diluted",
            "min over all places of the weight after truncation times mask",
            "0 with any padding",
        ),
        key(
            "sampling/importance_sampling_ratio/max",
            "ratio_max",
            "post_clip",
            "max over all places of the weight after truncation times mask",
            rules=("truncate/token", "truncate/sequence", "zero/token", "zero/sequence"),
        ),
    ),
)
