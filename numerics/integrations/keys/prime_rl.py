"""Metric keys of prime-rl."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="prime_rl",
    title="prime-rl",
    source="src/prime_rl/trainer/rl/loss.py at 559b44772 (2026-08-21)",
    keys=(
        key(
            "mismatch_kl/all/mean",
            "k3",
            "same",
            "mean(exp d - 1 - d)",
            "as exp(d) - 1 - d, which is below 0 for small d",
        ),
        key("mismatch_kl/all/median", "", "none", "median of exp d - 1 - d", "no quantile of ours: it does not merge"),
        key("mismatch_kl/all/std", "", "none", "std of exp d - 1 - d", "NaN for one token"),
        key("mismatch_kl/all/min", "", "none", "min of exp d - 1 - d"),
        key("mismatch_kl/all/max", "", "none", "max of exp d - 1 - d"),
        key(
            "is_masked",
            "correction.kept_fraction",
            "other",
            "1 - kept_fraction, a mean over sequences",
            "the trust region is of probabilities",
        ),
        key("is_masked_low", "correction.truncated_low_fraction", "row_mean", "mean over sequences of the share below"),
        key(
            "is_masked_high", "correction.truncated_high_fraction", "row_mean", "mean over sequences of the share above"
        ),
    ),
)
