"""Metric keys of OpenRLHF."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="openrlhf",
    title="OpenRLHF",
    repository="OpenRLHF/OpenRLHF",
    commit="3c3be623",
    date="2026-08-13",
    logged="a mean over micro-batches, ranks and steps weighted by tokens",
    keys=at(
        "openrlhf/models/loss.py::PolicyLoss.forward",
        key(
            "vllm_kl",
            "k1",
            "same",
            "mean(q - p)",
            "only in the ppo loss with a vLLM correction; NaN for an all-masked batch and for NaN at a masked place",
        ),
        key("ppo_kl", "", "none", "mean of the old minus the current log-prob: not of the rollout"),
    ),
)
