"""Metric keys of tinker-cookbook."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="tinker_cookbook",
    title="tinker-cookbook",
    repository="thinking-machines-lab/tinker-cookbook",
    commit="9dfcc3a2",
    date="2026-08-19",
    logged="all tokens of a step in one mean; with several substeps p is of several optimizer steps",
    keys=(
        *at(
            "tinker_cookbook/rl/metrics.py::compute_kl_sample_train",
            key("optim/kl_sample_train_v1", "k1", "same", "mean(q - p)", "an all-masked batch raises"),
            key("optim/kl_sample_train_v2", "k2", "same", "mean d^2 / 2"),
            key("optim/entropy", "sampling_entropy", "same", "mean of -q"),
        ),
        *at(
            "tinker_cookbook/rl/metrics.py::compute_post_kl",
            key("kl_pre_post_v1", "", "none", "mean of q before minus q after the update: not of the trainer"),
            key("kl_pre_post_v2", "", "none", "half its mean square"),
        ),
    ),
)
