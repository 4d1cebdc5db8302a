"""Metric keys of torchtitan RL."""

from __future__ import annotations

from numerics.integrations.keys.table import Framework, at, key

__all__ = ["FRAMEWORK"]

FRAMEWORK = Framework(
    name="torchtitan_rl",
    title="torchtitan RL",
    repository="pytorch/torchtitan",
    commit="b5bcd76c6",
    date="2026-08-21",
    logged="each micro-batch divides by the global count, then a sum: exact; max for /max. Tokens with a non-finite q "
    "leave the mask and the count; p is of the current policy",
    keys=at(
        "torchtitan/experiments/rl/losses/dapo.py::DAPOLoss.__call__",
        key("bit_wise/logprob_diff/mean", "k1", "negated", "mean d, signed", "its name suggests a distance"),
        key("bit_wise/logprob_diff/max", "logprobs_diff_max", "same", "max abs(d)"),
        key(
            "bit_wise/ratio_tokens_different/mean",
            "fraction_above",
            "same",
            "share of tokens with abs(d) > 1e-6",
            "a NaN of the trainer does not count",
            needs=(("epsilon", 1e-6),),
        ),
        key("loss/ratio_mean", "ratio_mean", "clamped", "mean exp clip(d, ±10)"),
        key(
            "loss/ratio_clipped_frac",
            "correction.truncated_high_fraction",
            "other",
            "share of w below 1 - low plus share above 1 + high",
            "the clip of the loss, not of a correction",
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
