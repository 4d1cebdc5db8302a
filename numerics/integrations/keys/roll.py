"""Metric keys of ROLL."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="roll",
    title="ROLL",
    source="roll/utils/train_infer_corrections.py at 8eb27cc2 (2026-08-19)",
    keys=(
        key(
            "actor/train_infer_diff_token_mean",
            "probs_signed_mean",
            "same",
            "mean(P - Q), signed",
            "its name suggests a distance",
        ),
        key(
            "actor/train_infer_ratio_token_mean",
            "ratio_mean",
            "diluted",
            "mean w, with w = 1 at masked places",
            "4.0 for one valid token among four places",
        ),
        key(
            "actor/train_infer_ratio_sequence_mean",
            "seq_ratio_mean",
            "diluted",
            "mean exp(sum d_r) spread over places",
            "NaN where the ratio overflows beside a pad",
        ),
        key(
            "actor/train_infer_ratio_geometric_mean",
            "seq_ratio_geometric_mean",
            "diluted",
            "mean exp(mean d_r) spread over places",
        ),
        key(
            "actor/is_weight_clipfrac",
            "correction.truncated_high_fraction",
            "diluted",
            "share of places above the cap",
            "masked places count",
        ),
        key(
            "actor/train_infer_token_ratio_mask_mean",
            "correction.kept_fraction",
            "diluted",
            "sum of the mask over all places / valid tokens",
            "4.0 (1.0)",
        ),
    ),
)
