"""Metric keys of NeMo-RL."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="nemo_rl",
    title="NeMo-RL",
    source="nemo_rl/algorithms/loss/loss_functions.py and nemo_rl/algorithms/utils.py at 7ea279abf (2026-08-22)",
    keys=(
        key(
            "token_mult_prob_error",
            "mult_prob_error",
            "same",
            "mean exp abs(d)",
            "masked NaN reaches it: the mask multiplies",
        ),
        key(
            "gen_kl_error",
            "k3",
            "same",
            "mean(exp d - 1 - d) with kl_type k3",
            "as exp(d) - 1 - d, which is below 0 for small d; kl_type of the reference penalty selects the formula",
        ),
        key(
            "policy_kl_error",
            "kl_trainer_rollout",
            "other",
            "mean(exp(-d) - 1 + d) over rollout samples",
            "1.267 where KL(trainer, rollout) is 0.368",
        ),
        key(
            "js_divergence_error",
            "jsd",
            "other",
            "half of k3 towards the mixture M and of k3 of q towards M",
            "reversed: 9.3 for one token, above ln 2",
        ),
        key(
            "sampling_importance_ratio",
            "ratio_mean",
            "post_clip",
            "mean of w after truncation",
            "times the batch size in sequence-level mode",
        ),
        key(
            "is_oob_ratio",
            "correction.truncated_high_fraction",
            "other",
            "share of w outside the bounds after overflow was set to 0",
            "1 at d = 88, 0 at d = 89",
        ),
        key("max_seq_mult_prob_error", "seq_mult_prob_error_max", "same", "max over sequences of mean exp abs(d_r)"),
        key("mean_seq_mult_prob_error", "seq_mult_prob_error_mean", "same", "mean over sequences of mean exp abs(d_r)"),
        key("min_seq_mult_prob_error", "seq_mult_prob_error_min", "same", "min over sequences of mean exp abs(d_r)"),
    ),
)
