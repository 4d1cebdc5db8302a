"""Metric keys of AReaL."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="areal",
    title="AReaL",
    repository="areal-project/AReaL",
    commit="cbff54d64",
    date="2026-08-22",
    logged="avg, min and max over the tokens of all micro-batches and ranks, weighted by tokens, an infinite result "
    "left out; scalars by a plain mean. Logged under ppo_actor/update/",
    keys=(
        *at(
            "areal/utils/functional/functional.py::ppo_actor_loss_fn, apply_rejection_sampling",
            key(
                "behave_approx_kl/avg",
                "k1",
                "partial",
                "mean d over kept tokens with a weight above 0",
                "the other sign than verl, OpenRLHF and slime give a KL; only with rejection_sampling, whose default "
                "action leaves rejected tokens out",
            ),
            key(
                "behave_imp_weight/avg",
                "ratio_mean",
                "partial",
                "mean over kept tokens of w, or with action clamp of w between the bounds",
                "at sequence level exp(mean d_r); d that is not finite counts as 0, so w = 1; a weight that underflows "
                "leaves the count",
            ),
            key("behave_imp_weight/min", "ratio_min", "partial", "min over the same"),
            key("behave_imp_weight/max", "ratio_max", "partial", "max over the same", "cannot exceed the upper bound"),
            key(
                "rs_filtered_fraction",
                "correction.kept_fraction",
                "complement",
                "share of tokens that are rejected",
                "with action clamp the share of weights that changed; a plain mean over micro-batches",
                rules=("zero/token", "zero/sequence_geometric"),
            ),
            key(
                "behave_filtered_ratio/avg",
                "correction.kept_fraction",
                "complement",
                "share of tokens that are rejected or have a weight of 0",
                rules=("zero/token", "zero/sequence_geometric"),
            ),
            key("importance_weight/avg", "", "none", "mean ratio of the current to the proximal policy"),
            key("approx_kl/avg", "", "none", "mean of the current minus the proximal log-prob"),
            key("masked_token_ratio", "", "none", "share of places that the loss mask excludes, padding included"),
        ),
        *at(
            "areal/trainer/ppo/actor.py::grpo_loss_fn",
            key(
                "logp_diff/avg",
                "k1",
                "same",
                "mean(q - p), p of the current policy",
                "without the decoupled loss a recomputed log-prob takes the place of q",
            ),
            key("logp_abs_diff/avg", "logprobs_diff_mean", "same", "mean abs(d), p of the current policy"),
            key("logp_abs_diff/max", "logprobs_diff_max", "same", "max abs(d), p of the current policy"),
            key("logp_abs_diff/min", "", "none", "min abs(d)"),
        ),
        *at(
            "areal/trainer/ppo/actor.py::_log_version_staleness_stats",
            key(
                "version_stats/sample_staleness_{proximal,theta}_{avg,max,min}",
                "",
                "none",
                "versions between the policy that wrote a token and the one that trains",
            ),
        ),
    ),
)
