"""Metric keys of tinker-cookbook."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="tinker_cookbook",
    title="tinker-cookbook",
    source="tinker_cookbook/rl/metrics.py at 9dfcc3a2 (2026-08-19)",
    keys=(
        key("optim/kl_sample_train_v1", "k1", "same", "mean(q - p)", "an all-masked batch raises"),
        key("optim/kl_sample_train_v2", "k2", "same", "mean d^2 / 2"),
        key("optim/entropy", "sampling_entropy", "same", "mean of -q"),
    ),
)
