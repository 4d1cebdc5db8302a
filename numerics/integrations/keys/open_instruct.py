"""Metric keys of open-instruct."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

_LAST = "grpo_fast logs the last sample of each rank only; the OLMo-core trainer a mean over samples of sample figures"

FRAMEWORK = Framework(
    name="open_instruct",
    title="open-instruct",
    repository="allenai/open-instruct",
    commit="e6c3044aa",
    date="2026-08-20",
    logged="val/: sample means weighted by tokens on a rank; over ranks weighted by tokens, but rho_weight and "
    "rho_clipfrac alike. debug/: see the notes",
    keys=(
        *at(
            "open_instruct/grpo_utils.py::compute_vllm_local_debug_metrics",
            key(
                "debug/vllm_vs_local_logprob_diff_mean",
                "logprobs_diff_mean",
                "partial",
                "mean abs(d) of a sample",
                _LAST,
            ),
            key(
                "debug/vllm_vs_local_logprob_diff_max", "logprobs_diff_max", "partial", "max abs(d) of a sample", _LAST
            ),
            key(
                "debug/vllm_vs_local_logprob_diff_std",
                "logprobs_diff_std",
                "partial",
                "std of abs(d) of a sample, ddof 1; 0 for one token",
                _LAST,
            ),
            key(
                "debug/vllm_local_reverse_kl",
                "k1",
                "other",
                "mean(exp q (q - p)) of a sample",
                "weighs by q twice: 0.255 where KL is 0.511; a NaN of q counts as 1",
            ),
        ),
        *at(
            "open_instruct/grpo_utils.py::compute_rho_correction",
            key(
                "val/rho_weight",
                "ratio_mean",
                "post_clip",
                "mean of the weight: exp clip(d, ±10) cut at the bounds, 0 for a dropped token",
                "by default cut at 2",
            ),
            key(
                "val/rho_clipfrac",
                "correction.truncated_high_fraction",
                "other",
                "share of ratios that the cut changed, below plus above",
                "NaN counts as changed",
            ),
            key(
                "val/rho_drop_frac",
                "correction.kept_fraction",
                "complement",
                "share of tokens whose ratio lies outside the mask's bounds",
                "NaN counts as inside; with rho_mask_tv_divergence of another quantity, abs(w - 1)",
                rules=("zero/token", "zero/sequence_geometric"),
            ),
            key(
                "val/rho_drop_low_frac",
                "correction.truncated_low_fraction",
                "same",
                "share of tokens whose ratio is below the mask's lower bound",
                rules=("zero/token",),
            ),
            key(
                "val/rho_drop_high_frac",
                "correction.truncated_high_fraction",
                "same",
                "share of tokens whose ratio is above the mask's upper bound",
                rules=("zero/token",),
            ),
            key("val/rho_hist", "", "none", "histogram of exp clip(d, ±10)", "ours is of ULPs: ulp_histogram"),
            key("val/ratio", "", "none", "mean ratio of the current to the old policy"),
        ),
    ),
)
