"""Metric keys of slime."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, Key, at, key

__all__ = ["FRAMEWORK", "mis_keys"]


def mis_keys() -> tuple[Key, ...]:
    """Keys of the train-inference mismatch helper, which miles has too.

    Every figure is spread over the tokens of its row, so that the default mean over rows of row means keeps a row's
    figure and makes a row mean of a token's.
    """
    return (
        key("mis_kl", "k1", "row_mean", "mean over rows of mean(q_r - p_r)"),
        key(
            "mis_k3_kl",
            "k3",
            "row_mean",
            "mean over rows of mean(exp d_r - d_r - 1)",
            "so written it is below 0 for small d",
        ),
        key("mis_training_ppl", "ppl_trainer", "same", "mean over rows of exp(-mean p_r)"),
        key("mis_training_log_ppl", "log_ppl_trainer", "same", "mean over rows of -mean p_r"),
        key("mis_rollout_ppl", "ppl_rollout", "same", "mean over rows of exp(-mean q_r)"),
        key("mis_rollout_log_ppl", "log_ppl_rollout", "same", "mean over rows of -mean q_r"),
        key("mis_log_ppl_diff", "log_ppl_diff_mean", "same", "mean over rows of mean(q_r - p_r)"),
        key("mis_log_ppl_abs_diff", "log_ppl_diff_abs_mean", "same", "mean over rows of abs(mean(q_r - p_r))"),
        key("mis_ppl_ratio", "ppl_ratio", "same", "mean over rows of exp(mean(q_r - p_r))"),
        key("mis_chi2_token", "chi2_token", "row_mean", "mean over rows of mean exp(2 clip(d_r, ±20)) - 1"),
        key("mis_chi2_seq", "chi2_seq", "clamped", "mean over rows of exp(2 clip(sum d_r, ±20)) - 1"),
        key(
            "mis_tis_weight_before_bound",
            "ratio_mean",
            "row_mean",
            "mean over rows of mean exp clip(d_r, ±20)",
            "at sequence levels a mean over rows of exp of the clamped row figure",
        ),
        key(
            "mis_tis_weight_after_bound",
            "correction.ratio_truncated_mean",
            "row_mean",
            "mean over rows of the row's mean weight",
            "with tis_mode mask the weights are not cut, only the mask is",
        ),
        key(
            "mis_tis_truncate_fraction",
            "correction.truncated_high_fraction",
            "row_mean",
            "mean over rows of the share of w above the cap",
        ),
        key(
            "mis_tis_{clip,mask}_fraction_low",
            "correction.truncated_low_fraction",
            "row_mean",
            "mean over rows of the share of w below the lower bound, 1/upper where none is given",
        ),
        key(
            "mis_tis_{clip,mask}_fraction_high",
            "correction.truncated_high_fraction",
            "row_mean",
            "mean over rows of the share of w above the upper bound",
        ),
        key(
            "mis_rs_mask_fraction_{low,high}",
            "correction.truncated_high_fraction",
            "row_mean",
            "mean over rows of the shares of w below and above the bounds of the rejection",
        ),
        key(
            "mis_rs_catastrophic_token_fraction",
            "",
            "none",
            "mean over rows of the share of w below the veto threshold",
        ),
        key(
            "mis_rs_catastrophic_seq_fraction",
            "correction.truncated_low_fraction",
            "same",
            "share of rows with a w below the veto threshold",
            rules=("veto/row_min",),
        ),
        key(
            "mis_is_ratio_mean_after_tis_rs",
            "correction.ratio_truncated_mean",
            "row_mean",
            "mean over rows of the row's mean weight",
        ),
        key(
            "mis_batch_norm_factor",
            "",
            "none",
            "the mean weight of the micro-batch, over tokens or over rows",
            "averaged over micro-batches by rows",
        ),
        key(
            "mis_is_ratio_mean_final",
            "correction.ratio_truncated_mean",
            "row_mean",
            "mean over rows of the row's mean weight, after normalisation if that is set",
        ),
        key("mis_is_ratio_min_final", "", "none", "mean over rows of the row's min weight: no minimum"),
        key("mis_is_ratio_max_final", "", "none", "mean over rows of the row's max weight: no maximum"),
    )


FRAMEWORK = Framework(
    name="slime",
    title="slime",
    repository="THUDM/slime",
    commit="624b824a8",
    date="2026-08-21",
    logged="by default a mean over rollouts of masked sum / mask total, which with one sample a rollout is a mean over "
    "rows of row means (a row without a token as 0); with calculate_per_token_loss a mean over tokens. Logged "
    "under train/",
    keys=(
        *at(
            "slime/backends/megatron_utils/loss.py::policy_loss_function",
            key(
                "train_rollout_logprob_abs_diff",
                "logprobs_diff_mean",
                "row_mean",
                "mean over rows of mean abs(d_r)",
                "p is of the current policy with use_rollout_logprobs, else of the old one; tokens that a rejection "
                "masks count as 0",
            ),
            key("ois", "", "none", "mean over rows of the mean ratio of the current to the old policy"),
            key("ppo_kl", "", "none", "mean over rows of the mean of the old minus the current log-prob"),
        ),
        *at(
            "slime/backends/megatron_utils/loss.py::vanilla_tis_function, icepop_function",
            key(
                "tis",
                "ratio_mean",
                "row_mean",
                "mean over rows of mean w_r, before truncation",
                "the raw ratio, for all that its name says",
            ),
            key("tis_abs", "", "none", "mean over rows of mean abs(w_r - 1)"),
            key(
                "tis_clipfrac",
                "correction.truncated_high_fraction",
                "other",
                "mean over rows of the share of weights that the bounds changed, below plus above",
                "NaN counts as changed",
            ),
        ),
        *at("examples/train_infer_mismatch_helper/mis.py::compute_mis_weights, add_ppl_metrics", *mis_keys()),
    ),
)
