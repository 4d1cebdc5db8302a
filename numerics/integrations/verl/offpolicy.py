"""verl's ``compute_offpolicy_metrics``: a drop-in, and both functions as implementations of ``divergence``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from numerics.functional import divergence
from numerics.suite.implementation import Algorithm, Implementation

__all__ = ["OFFPOLICY_KEYS", "compute_offpolicy_metrics", "offpolicy_drop_in", "offpolicy_metrics"]

#: our field -> verl's key, without its prefix ``rollout_corr/``; the last seven are ours
OFFPOLICY_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "ppl_trainer": "training_ppl",
        "log_ppl_trainer": "training_log_ppl",
        "k1": "kl",
        "k3": "k3_kl",
        "ppl_rollout": "rollout_ppl",
        "log_ppl_rollout": "rollout_log_ppl",
        "log_ppl_diff_mean": "log_ppl_diff",
        "log_ppl_diff_abs_mean": "log_ppl_abs_diff",
        "log_ppl_diff_max": "log_ppl_diff_max",
        "log_ppl_diff_min": "log_ppl_diff_min",
        "ppl_ratio": "ppl_ratio",
        "chi2_token": "chi2_token",
        "chi2_seq": "chi2_seq",
        "log1p_chi2_token": "log1p_chi2_token",
        "log1p_chi2_seq": "log1p_chi2_seq",
        "ess_fraction": "ess_fraction",
        "normalization_gap": "normalization_gap",
        "valid_count": "valid_count",
        "row_count": "row_count",
        "nonfinite_count": "nonfinite_count",
    }
)
_OF_THE_TRAINER = ("ppl_trainer", "log_ppl_trainer")


def compute_offpolicy_metrics(
    old_log_prob: torch.Tensor, rollout_log_prob: torch.Tensor | None, response_mask: torch.Tensor
) -> dict[str, float]:
    """Off-policy figures under verl's keys: a drop-in for verl's function of this name.

    old_log_prob, rollout_log_prob: [B, R], floating, nats: the trainer's and the rollout engine's log-probs; the latter
    may be None, which leaves the two perplexities of the trainer. response_mask: [B, R], 0/1.

    Other than verl's: rows without a valid token are no rows (S3.2); k3 does not cancel (S3.4); nothing is clamped, a
    chi^2 that overflows is inf and ``log1p_chi2_*`` beside it finite (S3.5); both sides are cast once to float32; all
    masked gives NaN instead of an AssertionError (S3.60). Numbers: ``docs/semantics.md``. `ValueError` for unequal
    shapes or a mask that is not 0/1, `TypeError` for log-probs that are not floating.
    """
    given = old_log_prob if rollout_log_prob is None else rollout_log_prob
    figures = divergence(given, old_log_prob, response_mask)
    names = _OF_THE_TRAINER if rollout_log_prob is None else OFFPOLICY_KEYS
    return {OFFPOLICY_KEYS[field]: getattr(figures, field) for field in names}


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x[None] if x.ndim == 1 else x


def _fields(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {field: metrics[key] for field, key in OFFPOLICY_KEYS.items() if key in metrics}


def verl_offpolicy_metrics(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
    """verl's own function on these tensors; nothing is repaired on the way."""
    try:
        helper = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
    except ImportError as error:
        raise ImportError(f"cannot import verl ({error}); see tests/verl_optional/README.md") from error
    found = helper.compute_offpolicy_metrics
    return _fields(getattr(found, "verls_own", found)(_rows(trainer), _rows(rollout), _rows(mask)))


def numerics_offpolicy_metrics(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
    """Our drop-in, called as verl's function is."""
    return _fields(compute_offpolicy_metrics(_rows(trainer), _rows(rollout), _rows(mask)))


#: verl's own function
offpolicy_metrics = Implementation(
    verl_offpolicy_metrics,
    contract="divergence",
    name="verl-offpolicy",
    algorithm=Algorithm(),
    capabilities=frozenset({"run_to_run"}),
)
#: ours, called as verl's is
offpolicy_drop_in = Implementation(
    numerics_offpolicy_metrics,
    contract="divergence",
    name="verl-offpolicy-drop-in",
    algorithm=Algorithm(formula="shifted", accumulate="float64", exp_ulps=1.0),
    capabilities=frozenset({"log_space", "run_to_run", "small_differences"}),
)
