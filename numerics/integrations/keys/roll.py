"""Metric keys of ROLL."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="roll",
    title="ROLL",
    repository="alibaba/ROLL",
    commit="8eb27cc2",
    date="2026-08-19",
    logged="micro-batches divide by the global count, then a sum (the tag @sum, which the logged name loses); rows "
    "without a token do not count",
    keys=at(
        "roll/utils/train_infer_corrections.py::compute_train_infer_correction",
        key(
            "actor/train_infer_diff_token_mean",
            "probs_signed_mean",
            "row_mean",
            "mean over rows of mean(P_r - Q_r), signed",
            "its name suggests a distance",
        ),
        key(
            "actor/train_infer_diff_geometric_mean",
            "probs_signed_mean",
            "row_mean",
            "mean over rows of mean(P_r - Q_r), signed",
            "the figure of the token key once more; nothing geometric",
        ),
        key("actor/train_infer_diff_sequence_mean", "", "none", "mean over rows of sum(P_r - Q_r)"),
        key("actor/train_infer_diff_segment_mean", "", "none", "as the token key, by means over runs of the mask"),
        key("actor/train_infer_ratio_token_mean", "ratio_mean", "row_mean", "mean over rows of mean w_r"),
        key(
            "actor/train_infer_ratio_geometric_mean",
            "seq_ratio_geometric_mean",
            "same",
            "mean over rows of exp(mean d_r)",
        ),
        key(
            "actor/train_infer_ratio_sequence_mean",
            "seq_ratio_mean",
            "same",
            "mean over rows of exp(sum d_r)",
            "NaN where a row's ratio overflows and the row has a pad",
        ),
        key(
            "actor/train_infer_ratio_segment_mean",
            "",
            "none",
            "mean over rows of the mean over tokens of exp(mean d of the token's run of the mask)",
        ),
        key(
            "actor/is_weight_clipfrac",
            "correction.truncated_high_fraction",
            "diluted",
            "places with a ratio above the cap, masked ones too / valid tokens",
        ),
        key(
            "actor/train_infer_{level}_ratio_mask_mean",
            "correction.kept_fraction",
            "diluted",
            "places that a filter keeps, masked ones too / valid tokens",
            "4 for one valid token beside three pads",
        ),
        key(
            "actor/train_infer_{level}_diff_mask_mean",
            "",
            "none",
            "the same of a filter on P - Q, padding included",
        ),
        key(
            "actor/train_infer_final_mask_mean",
            "correction.kept_fraction",
            "same",
            "share of tokens that all filters keep",
            "a plain mean over micro-batches",
            rules=("zero/token", "zero/sequence", "zero/sequence_geometric"),
        ),
    ),
)
