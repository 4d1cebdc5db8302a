"""Metric keys of prime-rl."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="prime_rl",
    title="prime-rl",
    repository="PrimeIntellect-ai/prime-rl",
    commit="559b44772",
    date="2026-08-21",
    logged="mismatch_kl: all tokens of micro-batches and ranks gathered, then mean, median, std, min, max. The others: "
    "one mean of each sequence, then the same five; W&B gets mean and max",
    keys=(
        *at(
            "src/prime_rl/trainer/rl/train.py::train",
            key(
                "mismatch_kl/all/mean",
                "k3",
                "same",
                "mean(exp d - 1 - d), p of the current policy",
                "so written it is below 0 for small d",
            ),
            key(
                "mismatch_kl/all/median",
                "",
                "none",
                "median of exp d - 1 - d",
                "no quantile of ours: it does not merge",
            ),
            key("mismatch_kl/all/std", "", "none", "std of exp d - 1 - d, ddof 1", "NaN for one token"),
            key("mismatch_kl/all/min", "", "none", "min of exp d - 1 - d"),
            key("mismatch_kl/all/max", "", "none", "max of exp d - 1 - d"),
            key("mismatch_kl/{env}/mean", "k3", "partial", "the same over the tokens of one environment"),
            key("kl_ent_ratio/mean", "", "none", "mismatch_kl/all/mean / mean entropy"),
        ),
        *at(
            "src/prime_rl/trainer/rl/loss.py::default_loss_fn",
            key(
                "masked_mismatch_kl/mean",
                "k3",
                "partial",
                "mean over sequences of mean(exp d - 1 - d) over the tokens outside the trust region",
                "0 from a sequence without such a token",
            ),
            key(
                "unmasked_mismatch_kl/mean",
                "k3",
                "partial",
                "mean over sequences of mean(exp d - 1 - d) over the tokens inside the trust region",
                "0 from a sequence without such a token",
            ),
            key(
                "is_masked/mean",
                "",
                "none",
                "mean over sequences of the share of tokens outside the trust region",
                "a region of probabilities, P - Q, on the side that the advantage pushes to; no rule of ours",
            ),
            key(
                "is_masked_low/mean",
                "",
                "none",
                "mean over sequences of the share with P - Q below the lower limit and a negative advantage",
            ),
            key(
                "is_masked_high/mean",
                "",
                "none",
                "mean over sequences of the share with P - Q above the upper limit and a positive advantage",
            ),
        ),
    ),
)
