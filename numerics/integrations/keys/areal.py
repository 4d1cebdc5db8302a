"""Metric keys of AReaL."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="areal",
    title="AReaL",
    source="areal/trainer/ppo/actor.py and areal/utils/functional/functional.py at cbff54d64 (2026-08-22)",
    keys=(
        key("behave_approx_kl", "k1", "negated", "mean d", "verl, OpenRLHF and slime mean minus this by a KL"),
        key(
            "behave_imp_weight/avg",
            "ratio_mean",
            "other",
            "mean w over tokens with w > 0",
            "a weight that underflows leaves the denominator",
        ),
        key("behave_imp_weight/min", "ratio_min", "same", "min w", "dropped if infinite"),
        key("behave_imp_weight/max", "ratio_max", "same", "max w", "dropped if infinite"),
        key("rs_filtered_fraction", "correction.kept_fraction", "other", "1 - kept_fraction"),
        key("masked_token_ratio", "", "none", "share of tokens that the loss mask excludes"),
    ),
)
