"""Metric keys of miles."""

from __future__ import annotations

from numerics.integrations.keys.slime import mis_keys
from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

_HUB = "miles/backends/training_utils/loss_hub"

FRAMEWORK = Framework(
    name="miles",
    title="miles",
    repository="radixark/miles",
    commit="31f1ca961",
    date="2026-08-21",
    logged="as slime: by default a mean over rollouts of masked sum / mask total, with calculate_per_token_loss a mean "
    "over tokens. Logged under train/",
    keys=(
        *at(
            f"{_HUB}/losses.py::policy_loss_function",
            key(
                "train_rollout_logprob_abs_diff",
                "logprobs_diff_mean",
                "row_mean",
                "mean over rows of mean abs(d_r), with NaN and infinities as 0",
                "a token of probability 0 on one side counts as equal; with use_rollout_logprobs p is q and it is 0",
            ),
            key(
                "train_rollout_kl",
                "k3",
                "clamped",
                "mean over rows of mean min(exp d - 1 - d, 10), d clamped at ±20, NaN as 0",
                "KL(rollout, trainer) for all that its name says; 0 with use_rollout_logprobs",
            ),
            key("ois", "", "none", "mean over rows of the mean ratio of the current to the old policy"),
            key("ppo_kl", "", "none", "mean over rows of the mean of the old minus the current log-prob"),
        ),
        *at(
            f"{_HUB}/math_utils.py::compute_ess_ratio_contribution",
            key(
                "ess_ratio",
                "ess_fraction",
                "other",
                "mean over rows of (sum v)^2/(n max(sum v^2, 1e-8)), v the ratio of the current to the old policy",
                "of the rollout only with use_rollout_logprobs; 0.015 for equal weights of e^-12",
            ),
        ),
        *at(
            f"{_HUB}/corrections.py::vanilla_tis_function, icepop_function",
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
        *at("examples/infra_features/train_infer_mismatch_helper/mis.py::compute_mis_weights", *mis_keys()),
    ),
)
