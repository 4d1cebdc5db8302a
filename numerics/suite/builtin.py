"""The implementations that the suite brings along, each with what it honestly declares."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from numerics import formats, reference
from numerics.suite.implementation import Algorithm, Implementation

__all__ = ["BUILTIN"]

_FLOAT64 = Algorithm(formula="shifted", accumulate="float64", exp_ulps=1.0)
_EVERYTHING = frozenset(
    {
        "autograd",
        "batch_invariant",
        "checks_arguments",
        "ieee_counts",
        "nonfinite_gradients",
        "overflow_safe",
        "per_token_temperature",
        "run_to_run",
        "zero_times_inf",
    }
)


def _scaled(logits: torch.Tensor, temperature: float | torch.Tensor) -> torch.Tensor:
    """Float32 (float64) logits divided by a temperature of that dtype, materialised as a tensor."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    t = torch.as_tensor(temperature, dtype=torch.float64 if wide.dtype == torch.float64 else None)
    t = t.to(wide.dtype).to(wide.device)
    return wide / (t[..., None] if t.ndim else t)


def torch_log_softmax(
    logits: torch.Tensor, token_ids: torch.Tensor, *, temperature: float | torch.Tensor = 1.0
) -> torch.Tensor:
    """``torch.log_softmax`` in float32 and gather: what careful eager code does."""
    return torch.log_softmax(_scaled(logits, temperature), dim=-1).gather(-1, token_ids[..., None])[..., 0]


def torch_logsumexp(
    logits: torch.Tensor, token_ids: torch.Tensor, *, temperature: float | torch.Tensor = 1.0
) -> torch.Tensor:
    """``x_i - torch.logsumexp(x)``: the common form that never makes a second [N, V] tensor."""
    scaled = _scaled(logits, temperature)
    return scaled.gather(-1, token_ids[..., None])[..., 0] - torch.logsumexp(scaled, dim=-1)


def torch_entropy(logits: torch.Tensor, *, temperature: float | torch.Tensor = 1.0) -> torch.Tensor:
    """``logsumexp(x) - sum softmax(x) x``, the form most frameworks use (NaN when a logit is -inf)."""
    scaled = _scaled(logits, temperature)
    return torch.logsumexp(scaled, dim=-1) - (torch.softmax(scaled, dim=-1) * scaled).sum(-1)


def torch_mismatch(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
    """Mask selection and plain float32 torch statistics: what a framework would write with care."""
    keep = mask.bool()
    q, p = rollout[keep].float(), trainer[keep].float()
    if p.numel() == 0:
        nothing: dict[str, Any] = {"valid": 0, "valid_count": 0, "logprobs_mismatch_count": 0}
        return nothing | dict.fromkeys(_FIGURES, float("nan"))
    d = torch.where(p == q, torch.zeros_like(p), (p - q).abs())
    probs_q, probs_p = q.exp(), p.exp()
    e = (probs_p - probs_q).abs()
    one = p.numel() == 1
    constant = probs_q.min() == probs_q.max() or probs_p.min() == probs_p.max()
    return {
        "valid": 1,
        "valid_count": p.numel(),
        "logprobs_mismatch_count": int((p != q).sum()),
        "logprobs_diff_max": d.max(),
        "logprobs_diff_mean": d.mean(),
        "logprobs_diff_std": float("nan") if one else d.std(),
        "probs_diff_max": e.max(),
        "probs_diff_mean": e.mean(),
        "probs_diff_std": float("nan") if one else e.std(),
        "probs_pearson": float("nan") if one or constant else torch.corrcoef(torch.stack([probs_q, probs_p]))[0, 1],
    }


_FIGURES = (
    "logprobs_diff_max",
    "logprobs_diff_mean",
    "logprobs_diff_std",
    "probs_diff_max",
    "probs_diff_mean",
    "probs_diff_std",
    "probs_pearson",
)

_EAGER = frozenset({"autograd", "per_token_temperature", "run_to_run"})

BUILTIN: Mapping[str, tuple[Implementation, ...]] = MappingProxyType(
    {
        "reference": (
            Implementation(
                reference.token_logprobs,
                contract="token_logprobs",
                name="reference",
                capabilities=_EVERYTHING - {"zero_times_inf", "ieee_counts"},
                algorithm=_FLOAT64,
                pair=reference.token_logprobs_pair,
            ),
            Implementation(
                reference.entropy,
                contract="entropy",
                name="reference",
                capabilities=_EVERYTHING - {"ieee_counts", "nonfinite_gradients"},
                algorithm=_FLOAT64,
            ),
            Implementation(
                reference.mismatch,
                contract="mismatch",
                name="reference",
                capabilities=frozenset({"checks_arguments", "ieee_counts", "run_to_run"}),
                algorithm=_FLOAT64,
                state=reference.MismatchState,
            ),
            Implementation(
                formats.ulp_distance,
                contract="ulp_distance",
                name="reference",
                capabilities=frozenset({"checks_arguments", "ieee_counts", "run_to_run"}),
            ),
        ),
        "torch": (
            Implementation(
                torch_log_softmax,
                contract="token_logprobs",
                name="torch",
                capabilities=_EAGER | {"batch_invariant"},
                algorithm=Algorithm(formula="shifted"),
            ),
            Implementation(torch_entropy, contract="entropy", name="torch", capabilities=_EAGER),
            Implementation(torch_mismatch, contract="mismatch", name="torch", capabilities=frozenset({"run_to_run"})),
        ),
        "torch-logsumexp": (
            Implementation(
                torch_logsumexp,
                contract="token_logprobs",
                name="torch-logsumexp",
                capabilities=_EAGER,
                expected_failures={
                    "LP-21": "gives -inf (x - inf) beside a +inf logit, where the row is no distribution; "
                    "https://docs.pytorch.org/docs/stable/generated/torch.logsumexp.html"
                },
            ),
        ),
    }
)
