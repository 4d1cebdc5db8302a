"""How each of verl's keys is reduced over steps, and what its mean weighs by. Declared, never read off the name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from numerics.integrations.verl.correction import REJECTIONS
from numerics.integrations.verl.debug import KEYS
from numerics.integrations.verl.offpolicy import OFFPOLICY_KEYS

__all__ = ["VERL_REDUCERS", "VERL_WEIGHTS"]

#: field of a mismatch -> reducer, where it is not the mean
_DEBUG = {
    "valid": "max",
    "valid_count": "sum",
    "nonfinite_count": "sum",
    "bit_mismatch_count": "sum",
    "logprobs_mismatch_count": "sum",
    "logprobs_diff_max": "max",
    "probs_diff_max": "max",
}

#: field of a divergence -> reducer, where it is not the mean
_OFFPOLICY = {
    "log_ppl_diff_max": "max",
    "log_ppl_diff_min": "min",
    "valid_count": "sum",
    "row_count": "sum",
    "nonfinite_count": "sum",
}

#: figures of rows, whose means weigh by rows
_ROW_FIGURES = (
    "training_ppl",
    "training_log_ppl",
    "rollout_ppl",
    "rollout_log_ppl",
    "log_ppl_diff",
    "log_ppl_abs_diff",
    "ppl_ratio",
    "chi2_seq",
    "log1p_chi2_seq",
)

#: figures of the row means of weights and of rejection statistics
_SEQ = {
    "seq_mean": "mean",
    "seq_std": "mean",
    "seq_max": "max",
    "seq_min": "min",
    "seq_max_deviation": "max",
    "seq_fraction_high": "mean",
    "seq_fraction_low": "mean",
}

_IS = {
    "mean": "mean",
    "max": "max",
    "min": "min",
    "std": "mean",
    "eff_sample_size": "mean",
    "ratio_fraction_high": "mean",
    "ratio_fraction_low": "mean",
    "oob_ratio": "mean",
    "batch_norm_factor": "mean",
    "ratio_mean": "mean",
    "ratio_min": "min",
    "ratio_max": "max",
    "ratio_ess": "mean",
    "undefined_count": "sum",
    **_SEQ,
}

_RS = {
    "mean": "mean",
    "max": "max",
    "min": "min",
    "std": "mean",
    "fraction_high": "mean",
    "fraction_low": "mean",
    "masked_fraction": "mean",
    "seq_masked_fraction": "mean",
    **_SEQ,
}

#: keys of the trainer that have nothing to do with log-probs
_TRAINER = {
    "training/global_step": "last",
    "training/epoch": "last",
    "actor/lr": "last",
    "critic/lr": "last",
    "actor/entropy": "mean",
    "actor/entropy_loss": "mean",
    "actor/pg_loss": "mean",
    "actor/kl_loss": "mean",
    "actor/kl_coef": "mean",
    "actor/pg_clipfrac": "mean",
    "actor/pg_clipfrac_lower": "mean",
    "actor/ppo_kl": "mean",
    "actor/grad_norm": "mean",
    "critic/grad_norm": "mean",
    "critic/vf_loss": "mean",
    "critic/vf_clipfrac": "mean",
    "critic/vpred_mean": "mean",
    "global_seqlen/min": "min",
    "global_seqlen/max": "max",
    "global_seqlen/minmax_diff": "max",
    "global_seqlen/mean": "mean",
    "global_seqlen/balanced_min": "min",
    "global_seqlen/balanced_max": "max",
    "timing_s/*": "sum",
    "timing_per_token_ms/*": "sum",
}

_SAMPLES = (
    "off_policy/evicted_samples",
    "filter_groups/evicted_samples",
    "filter_groups/discarded_surplus_samples",
    "rollout_failure/evicted_samples",
)


def _reducers() -> Iterator[tuple[str, str]]:
    for field, key in KEYS.items():
        yield key, _DEBUG.get(field, "mean")
    for field, key in OFFPOLICY_KEYS.items():
        yield f"rollout_corr/{key}", _OFFPOLICY.get(field, "mean")
    for name, how in _IS.items():
        yield f"rollout_corr/rollout_is_{name}", how
    for option in REJECTIONS:
        for name, how in _RS.items():
            yield f"rollout_corr/rollout_rs_{option}_{name}", how
    yield "rollout_corr/rollout_rs_masked_fraction", "mean"
    yield "rollout_corr/rollout_rs_seq_masked_fraction", "mean"
    for name in _SAMPLES:
        yield f"training/{name}", "sum"
        yield f"validation/{name}", "sum"
    for how in ("mean", "max", "min"):
        yield f"training/off_policy/evicted_samples_staleness/{how}", how
        yield f"validation/off_policy/evicted_samples_staleness/{how}", how
        yield f"training/off_policy/trajectory_staleness/{how}", how
    yield from _TRAINER.items()


def _weights() -> Iterator[tuple[str, str]]:
    for key in KEYS.values():
        yield key, KEYS["valid_count"]
    tokens, rows = "rollout_corr/valid_count", "rollout_corr/row_count"
    for key in OFFPOLICY_KEYS.values():
        yield f"rollout_corr/{key}", rows if key in _ROW_FIGURES else tokens
    for name in _IS:
        yield f"rollout_corr/rollout_is_{name}", rows if name in _SEQ else tokens
    for option in REJECTIONS:
        for name in _RS:
            of_rows = name in _SEQ or name == "seq_masked_fraction"
            yield f"rollout_corr/rollout_rs_{option}_{name}", rows if of_rows else tokens
    yield "rollout_corr/rollout_rs_masked_fraction", tokens
    yield "rollout_corr/rollout_rs_seq_masked_fraction", rows
    for where in ("training", "validation"):
        evicted = f"{where}/off_policy/evicted_samples"
        yield f"{evicted}_staleness/mean", evicted


#: verl's key -> reducer; a key that ends in ``/*`` declares every key below it
VERL_REDUCERS: Mapping[str, str] = MappingProxyType(dict(_reducers()))

#: verl's key -> the key, logged in the same step, that its mean weighs by; without it the number of samples
VERL_WEIGHTS: Mapping[str, str] = MappingProxyType(dict(_weights()))
