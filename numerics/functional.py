"""The public functions: one signature each, computed by the backend that is asked for.

``backend="auto"`` takes the best one that exists for the input; today that is the float64 reference, the only one.
"""

from __future__ import annotations

from typing import Any

import torch

from numerics import reference
from numerics.reference.correction import Correction
from numerics.reference.divergence import Divergence
from numerics.reference.full import FullDivergence
from numerics.reference.mismatch import Mismatch

__all__ = [
    "correction",
    "divergence",
    "entropy",
    "full_divergence",
    "mismatch",
    "token_logprobs",
    "token_logprobs_pair",
]

_BACKENDS = {"auto": reference, "reference": reference}


def _backend(name: str) -> Any:
    if name not in _BACKENDS:
        raise ValueError(f"backend is {name!r}; it must be one of {', '.join(_BACKENDS)}")
    return _BACKENDS[name]


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
    result: torch.Tensor = _backend(backend).token_logprobs(
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
    result: tuple[torch.Tensor, torch.Tensor] = _backend(backend).token_logprobs_pair(
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
    result: torch.Tensor = _backend(backend).entropy(logits, temperature=temperature, mask=mask, **cuts)
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
    result: Mismatch = _backend(backend).mismatch(rollout, trainer, mask, compare_dtype=compare_dtype, ddof=ddof)
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
    result: Divergence = _backend(backend).divergence(
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
    result: Correction = _backend(backend).correction(rollout, trainer, mask, rule=rule, level=level, **options)
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
    result: FullDivergence = _backend(backend).full_divergence(rollout_logits, trainer_logits, mask, **options)
    return result
