"""Metric keys of OpenRLHF."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="openrlhf",
    title="OpenRLHF",
    source="openrlhf/models/loss.py and openrlhf/models/utils.py at 3c3be623 (2026-08-13)",
    keys=(
        key(
            "vllm_kl",
            "k1",
            "same",
            "mean(q - p)",
            "only in the ppo loss; NaN for an all-masked batch and for masked NaN",
        ),
    ),
)
