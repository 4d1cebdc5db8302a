"""verl's ``calculate_debug_metrics``: a drop-in, and both functions as implementations of ``mismatch``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch

from numerics.functional import mismatch
from numerics.suite.implementation import Algorithm, Implementation

__all__ = [
    "KEYS",
    "calculate_debug_metrics",
    "debug_metrics",
    "drop_in",
    "numerics_debug_metrics",
    "verl_debug_metrics",
]

#: our field -> the key it is logged under: verl's five, the three proposed to verl, and further ones of ours
KEYS: Mapping[str, str] = MappingProxyType(
    {
        "valid": "training/rollout_probs_diff_valid",
        "probs_diff_max": "training/rollout_probs_diff_max",
        "probs_diff_mean": "training/rollout_probs_diff_mean",
        "probs_diff_std": "training/rollout_probs_diff_std",
        "probs_pearson": "training/rollout_actor_probs_pearson_corr",
        "logprobs_mismatch_count": "training/rollout_logprobs_mismatch_count",
        "logprobs_diff_max": "training/rollout_logprobs_diff_max",
        "logprobs_diff_mean": "training/rollout_logprobs_diff_mean",
        "logprobs_diff_std": "training/rollout_logprobs_diff_std",
        "logprobs_pearson": "training/rollout_actor_logprobs_pearson_corr",
        "valid_count": "training/rollout_logprobs_valid_count",
        "nonfinite_count": "training/rollout_logprobs_nonfinite_count",
        "bit_mismatch_count": "training/rollout_logprobs_bit_mismatch_count",
    }
)

#: the trainer's side, the preferred key first: unscaled by the temperature, then what training uses
_TRAINER = ("log_probs_for_metrics", "old_log_probs")

_READ = ("rollout_log_probs", *_TRAINER, "response_mask", "attention_mask", "responses")

_INSTALL = """cannot import verl ({error}); `debug_metrics` checks verl's own function, so verl must be installed:
  pip install torch==2.13.0 numpy packaging ray tensordict omegaconf transformers codetiming orjson
  pip install --no-deps verl==0.9.1"""


def calculate_debug_metrics(batch: Any) -> dict[str, float]:
    """How far rollout and trainer log-probs are apart: a drop-in for verl's function of this name.

    batch: a mapping of tensors, a ``TensorDict``, or an object that has one as ``.batch`` (verl's ``DataProto``). Other
    keys than these are left alone; a key whose value is None counts as absent.

    =========================  ==================================================================================
    ``rollout_log_probs``      [B, R], float64/32/16 or bfloat16: the rollout engine's log-probs, nats
    ``log_probs_for_metrics``  [B, R], floating, nats: the trainer's log-probs, unscaled by the temperature; else
    ``old_log_probs``          [B, R], floating, nats: the trainer's log-probs as training uses them
    ``response_mask``          [B, R], bool, int or float, 0/1: 1 = valid; else
    ``attention_mask``         [B, P + R], 0/1, whose last ``responses.size(1)`` columns are the mask; else all valid
    ``responses``              [B, R], any dtype; needed with ``attention_mask`` only, and only its width is read
    =========================  ==================================================================================

    Both sides are cast once to float32; every figure is a function of that pair, computed in float64 (verl computes in
    the input dtype). Masks select: what stands at masked places changes nothing.

    Returns Python numbers under the keys of `KEYS`: ``..._logprobs_diff_*`` in nats, ``..._probs_diff_*`` and Pearsons
    without a unit, counts of tokens as ints. With no valid token ``..._valid`` and all counts are 0 and everything else
    NaN; with one token standard deviations and Pearsons are NaN; a Pearson is NaN too where one side is constant. A
    NaN or infinity at a valid place is not hidden: it shows in the figures and in ``..._nonfinite_count``.

    verl's aggregators read the key: ``max`` in it takes the maximum over steps, everything else here is averaged
    (``..._valid`` keeps the last), so that a count over several steps reads as the mean count per step.

    Errors: `KeyError` that names every missing key and what was found; `TypeError` for a batch that is none of the
    above, or for log-probs that are not floating; `ValueError` for unequal shapes or devices, or a mask that is
    not 0/1 (verl broadcasts, warns or takes anything non-zero for 1).

    Source: ``verl/utils/debug/metrics.py``; ``docs/semantics.md``, section 2.
    """
    figures = mismatch(*_sides(batch))
    return {key: getattr(figures, field) for field, key in KEYS.items()}


def _sides(batch: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The rollout's log-probs, the trainer's, and the mask (None: all valid) of a batch."""
    tensors, found = _read(batch)
    missing = [] if "rollout_log_probs" in tensors else ["'rollout_log_probs'"]
    trainer = [tensors[name] for name in _TRAINER if name in tensors]
    if not trainer:
        missing.append(" or ".join(map(repr, _TRAINER)))
    by_attention = "response_mask" not in tensors and "attention_mask" in tensors
    if by_attention and "responses" not in tensors:
        missing.append("'responses' (its width says which columns of 'attention_mask' count; or give 'response_mask')")
    if missing:
        raise KeyError(f"the batch lacks {', and '.join(missing)}; found: {', '.join(map(repr, found)) or 'nothing'}")
    if not by_attention:
        return tensors["rollout_log_probs"], trainer[0], tensors.get("response_mask")
    mask, width = tensors["attention_mask"], tensors["responses"].size(1)
    # not [-width:], which selects every column where width is 0
    return tensors["rollout_log_probs"], trainer[0], mask[..., max(mask.shape[-1] - width, 0) :]


def _read(batch: Any) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """The tensors that we read, by name, from a mapping, a TensorDict or a DataProto; and all names there are."""
    inner = batch if isinstance(batch, Mapping) else getattr(batch, "batch", batch)
    if inner is None and batch is not None:  # a DataProto without tensors
        return {}, []
    if not (hasattr(inner, "keys") and hasattr(inner, "__getitem__")):
        raise TypeError(
            f"batch is a {type(batch).__name__}; it must be a mapping of tensors, a TensorDict, or have one as .batch"
        )
    found = list(inner.keys())
    return {name: inner[name] for name in _READ if name in found and inner[name] is not None}, found


@lru_cache(maxsize=1)
def _verl() -> tuple[Callable[[Any], Mapping[str, Any]], Callable[..., Any]]:
    """verl's ``calculate_debug_metrics`` and ``DataProto.from_dict``; `ImportError` that says how to install it."""
    try:
        metrics = importlib.import_module("verl.utils.debug.metrics")
        protocol = importlib.import_module("verl.protocol")
    except ImportError as error:
        raise ImportError(_INSTALL.format(error=error)) from error
    found = metrics.calculate_debug_metrics
    return getattr(found, "verls_own", found), protocol.DataProto.from_dict


def _batch(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """The arguments of the ``mismatch`` contract under verl's keys; a 1-D tensor becomes one row [1, n]."""
    tensors = {"rollout_log_probs": rollout, "old_log_probs": trainer, "response_mask": mask}
    rows = {name: x[None] if x.ndim == 1 else x for name, x in tensors.items()}
    shape = rows["rollout_log_probs"].shape
    return rows | {"responses": torch.zeros(shape, dtype=torch.int64, device=rollout.device)}


def _fields(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Logged metrics under our field names, those that there are."""
    return {field: metrics[key] for field, key in KEYS.items() if key in metrics}


def verl_debug_metrics(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
    """verl's own ``calculate_debug_metrics`` on a ``DataProto`` of these tensors; nothing is repaired on the way."""
    calculate, from_dict = _verl()
    return _fields(calculate(from_dict(tensors=_batch(rollout, trainer, mask))))


def numerics_debug_metrics(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
    """Our `calculate_debug_metrics` on a batch of these tensors."""
    return _fields(calculate_debug_metrics(_batch(rollout, trainer, mask)))


#: verl's own function; it computes in the dtype of its inputs, so "compute" flatters it for bfloat16 and float16
debug_metrics = Implementation(
    verl_debug_metrics,
    contract="mismatch",
    name="verl",
    algorithm=Algorithm(),
    capabilities=frozenset({"run_to_run"}),
)

#: ours, called as verl's is
drop_in = Implementation(
    numerics_debug_metrics,
    contract="mismatch",
    name="verl-drop-in",
    algorithm=Algorithm(formula="shifted", accumulate="float64", exp_ulps=1.0),
    capabilities=frozenset({"run_to_run"}),
)
