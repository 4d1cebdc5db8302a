"""The public functions: one signature each, computed by the backend that is asked for.

``backend="auto"`` is the float64 reference, unless the environment variable ``NUMERICS_BACKEND`` names another one. No
backend is ever taken in place of another: what one cannot do is an error.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

from numerics import reference
from numerics.reference.correction import Correction
from numerics.reference.divergence import Divergence
from numerics.reference.full import FullDivergence
from numerics.reference.mismatch import Mismatch

__all__ = [
    "backends",
    "correction",
    "divergence",
    "entropy",
    "full_divergence",
    "mismatch",
    "token_logprobs",
    "token_logprobs_pair",
]

_ENVIRONMENT = "NUMERICS_BACKEND"
_KERNELS = {"cpu": "numerics.kernels.cpu"}
_OF_KERNELS = ("token_logprobs", "token_logprobs_pair", "entropy")


def backends() -> dict[str, str]:
    """Every backend by name: "available", or why it is not. Importing the kernels is part of finding out."""
    return {"reference": "available", **{name: _state(module) for name, module in _KERNELS.items()}}


def _state(module: str) -> str:
    try:
        importlib.import_module(module)
    except ImportError as error:
        return f"missing: {error}; pip install 'rollout-numerics[kernels]'"
    return "available"


def _backend(name: str, function: str, keywords: dict[str, Any]) -> Any:
    """The function of that name of a backend. `ValueError` where there is none, or it lacks one of the keywords."""
    chosen = os.environ.get(_ENVIRONMENT, "reference") if name == "auto" else name
    where = f"{_ENVIRONMENT} is" if name == "auto" else "backend is"
    known = ("reference", *_KERNELS)
    if chosen not in known:
        raise ValueError(f"{where} {chosen!r}; it must be one of auto, {', '.join(known)}")
    if chosen == "reference" or (name == "auto" and function not in _OF_KERNELS):
        return getattr(reference, function)
    if function not in _OF_KERNELS:
        raise ValueError(f"{where} {chosen!r}, which has no {function}; use backend='reference'")
    if keywords:
        named = ", ".join(keywords)
        raise ValueError(f"{where} {chosen!r}, whose {function} takes no {named}; use backend='reference'")
    try:
        return getattr(importlib.import_module(_KERNELS[chosen]), function)
    except ImportError as error:
        raise ValueError(f"{where} {chosen!r}, but {error}: pip install 'rollout-numerics[kernels]'") from error


def token_logprobs(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    mask: torch.Tensor | None = None,
    backend: str = "auto",
    **cuts: Any,
) -> torch.Tensor:
    """Log-probs of ``token_ids`` under softmax(logits / temperature); see `numerics.reference.token_logprobs`."""
    result: torch.Tensor = _backend(backend, "token_logprobs", cuts)(
        logits, token_ids, temperature=temperature, mask=mask, **cuts
    )
    return result


def token_logprobs_pair(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    mask: torch.Tensor | None = None,
    backend: str = "auto",
    **cuts: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(raw, processed)`` log-probs of one set of logits; see `numerics.reference.token_logprobs_pair`."""
    result: tuple[torch.Tensor, torch.Tensor] = _backend(backend, "token_logprobs_pair", cuts)(
        logits, token_ids, temperature=temperature, mask=mask, **cuts
    )
    return result


def entropy(
    logits: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    mask: torch.Tensor | None = None,
    backend: str = "auto",
    **cuts: Any,
) -> torch.Tensor:
    """Entropy of softmax(logits / temperature); see `numerics.reference.entropy`."""
    result: torch.Tensor = _backend(backend, "entropy", cuts)(logits, temperature=temperature, mask=mask, **cuts)
    return result


def mismatch(
    rollout: torch.Tensor,
    trainer: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    compare_dtype: torch.dtype = torch.float32,
    ddof: int = 1,
    backend: str = "auto",
) -> Mismatch:
    """The mismatch of two log-prob tensors; see `numerics.reference.mismatch`."""
    result: Mismatch = _backend(backend, "mismatch", {})(rollout, trainer, mask, compare_dtype=compare_dtype, ddof=ddof)
    return result


def divergence(
    rollout: torch.Tensor,
    trainer: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    row_ids: torch.Tensor | None = None,
    compare_dtype: torch.dtype = torch.float32,
    epsilon: float = 1e-6,
    backend: str = "auto",
) -> Divergence:
    """The divergences of two log-prob tensors; see `numerics.reference.divergence`."""
    result: Divergence = _backend(backend, "divergence", {})(
        rollout, trainer, mask, row_ids=row_ids, compare_dtype=compare_dtype, epsilon=epsilon
    )
    return result


def correction(
    rollout: torch.Tensor,
    trainer: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    rule: str,
    level: str,
    backend: str = "auto",
    **options: Any,
) -> Correction:
    """Importance weights or rejections of a batch; see `numerics.reference.correction`."""
    result: Correction = _backend(backend, "correction", {})(rollout, trainer, mask, rule=rule, level=level, **options)
    return result


def full_divergence(
    rollout_logits: torch.Tensor,
    trainer_logits: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    backend: str = "auto",
    **options: Any,
) -> FullDivergence:
    """Whole distributions of two logits tensors compared; see `numerics.reference.full_divergence`."""
    result: FullDivergence = _backend(backend, "full_divergence", {})(rollout_logits, trainer_logits, mask, **options)
    return result
