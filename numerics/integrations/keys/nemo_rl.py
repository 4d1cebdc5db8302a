"""Metric keys of NeMo-RL."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="nemo_rl",
    title="NeMo-RL",
    repository="NVIDIA-NeMo/RL",
    commit="7ea279abf",
    date="2026-08-22",
    logged="each micro-batch divides by the global count, then a sum: exact; max and min of finite values. Logged "
    "under train/",
    keys=(
        *at(
            "nemo_rl/algorithms/loss/loss_functions.py::ClippedPGLossFn.__call__",
            key(
                "token_mult_prob_error",
                "mult_prob_error",
                "same",
                "mean exp abs(d)",
                "a NaN at a masked place reaches it: the mask multiplies",
            ),
            key(
                "gen_kl_error",
                "k3",
                "same",
                "mean(exp d - 1 - d) with the default reference_policy_kl_type k3",
                "so written it is below 0 for small d; k1 or k2 with the other types",
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
                "mean over both sides x of exp(x - m) - (x - m) - 1, m = ln((P + Q)/2)",
                "KL(m, x) in place of KL(x, m), and not of samples of m: 9.3 for one token, above ln 2",
            ),
            key(
                "sampling_importance_ratio",
                "ratio_mean",
                "post_clip",
                "mean of w after truncation, if one is set",
                "a ratio that overflows counts as 0; at sequence level exp(sum d_r) times the batch size",
                rules=("truncate/token", "zero/token"),
            ),
            key(
                "is_oob_ratio",
                "correction.kept_fraction",
                "complement",
                "icepop: share of tokens outside the bounds",
                "tis: share above the upper or below the lower bound, with overflow as 0: 1 at d = 88, 0 at d = 89; "
                "seq-mask-tis: share of rows with exp(mean d_r) outside",
                rules=("zero/token",),
            ),
            key(
                "approx_entropy",
                "",
                "none",
                "mean of -w p, p and w of the current policy",
                "an entropy of the trainer by importance sampling",
            ),
            key("probs_ratio", "", "none", "mean ratio of the current to the previous policy: not of the rollout"),
        ),
        *at(
            "nemo_rl/algorithms/grpo.py::compute_and_apply_seq_logprob_error_masking",
            key("max_seq_mult_prob_error", "seq_mult_prob_error_max", "same", "max over rows of mean exp abs(d_r)"),
            key("mean_seq_mult_prob_error", "seq_mult_prob_error_mean", "same", "mean over rows of mean exp abs(d_r)"),
            key("min_seq_mult_prob_error", "seq_mult_prob_error_min", "same", "min over rows of mean exp abs(d_r)"),
            key(
                "max_seq_mult_prob_error_after_mask",
                "seq_mult_prob_error_max",
                "partial",
                "max over the rows at or below the threshold",
            ),
            key(
                "mean_seq_mult_prob_error_after_mask",
                "seq_mult_prob_error_mean",
                "partial",
                "mean over the rows at or below the threshold",
            ),
            key(
                "min_seq_mult_prob_error_after_mask",
                "seq_mult_prob_error_min",
                "partial",
                "min over the rows at or below the threshold",
            ),
            key("num_masked_seqs", "", "none", "rows above the threshold"),
            key("masked_correct_pct", "", "none", "share of these with reward 1"),
        ),
    ),
)
