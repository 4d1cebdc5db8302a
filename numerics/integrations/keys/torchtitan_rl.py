"""Metric keys of torchtitan RL."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="torchtitan_rl",
    title="torchtitan RL",
    source="torchtitan/experiments/rl/losses/dapo.py at b5bcd76c6 (2026-08-21)",
    keys=(
        key(
            "bit_wise/logprob_diff/mean",
            "k1",
            "negated",
            "mean d, signed",
            "non-finite q leaves the mask and the denominator",
        ),
        key("bit_wise/logprob_diff/max", "logprobs_diff_max", "same", "max abs(d)", "non-finite q is left out"),
        key(
            "bit_wise/ratio_tokens_different/mean",
            "fraction_above",
            "same",
            "share of tokens with abs(d) > 1e-6",
            "NaN does not count",
        ),
        key("loss/ratio_mean", "ratio_mean", "same", "mean w"),
        key(
            "loss/ratio_clipped_frac", "correction.truncated_high_fraction", "same", "share of ratios that were clipped"
        ),
        key(
            "trainer/entropy/mean",
            "",
            "none",
            "entropy of the trainer's full distribution",
            "ours needs the logits: numerics.entropy",
        ),
    ),
)
