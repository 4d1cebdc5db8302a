"""What one token contributes to a divergence, as functions of d = p - q (trainer minus rollout), in float64.

The textbook forms cancel: ``exp(d) - 1 - d`` is negative for d = 4e-7 in float32, and wrong in every digit for small d
in any format. The forms here keep their relative accuracy over the whole range of d (``docs/bounds.md``).
"""

from __future__ import annotations

import math

import torch

__all__ = ["jsd_term", "k3_term", "weighted_difference"]

#: below it the series for exp(d) - 1 - d = d^2/2 (1 + d/3 (1 + d/4 (...))); its 14 terms leave 2^-56 of the value
_SERIES = 0.5


def k3_term(d: torch.Tensor) -> torch.Tensor:
    """exp(d) - 1 - d >= 0, the k3 estimate of KL(rollout || trainer); inf for either infinity."""
    series = torch.ones_like(d)
    for k in range(16, 2, -1):
        series = 1.0 + d / k * series
    direct = torch.where(torch.isinf(d), math.inf, torch.expm1(d) - d)
    return torch.where(d.abs() < _SERIES, d * d / 2 * series, direct)


def weighted_difference(d: torch.Tensor) -> torch.Tensor:
    """w d with w = exp(d), whose mean estimates KL(trainer || rollout); 0 for -inf."""
    return torch.where(d == -math.inf, 0.0, torch.exp(d) * d)


def jsd_term(d: torch.Tensor) -> torch.Tensor:
    """(w d - (1 + w) ln((1 + w)/2)) / 2 >= 0 with w = exp(d); ln(2)/2 for -inf, inf for +inf.

    The term f of d > 0 is exp(d) f(-d), so that only x = -|d| is computed: near 0 with ln((1 + e^x)/2) - x/2
    = ln cosh(x/2) = log1p(2 sinh^2(x/4)), elsewhere as it stands, with nothing left that cancels.
    """
    x = -d.abs()
    w = torch.exp(x)
    # 2 sinh^2(x/4) = expm1(x/2)^2 / (2 e^(x/2)); torch.sinh itself gives other bits at the end of a tensor
    cosh_minus_1 = torch.expm1(x / 2) ** 2 / (2 * torch.exp(x / 2))
    near = torch.expm1(x) * (x / 2) - (1 + w) * torch.log1p(cosh_minus_1)
    far = torch.where(w > 0, w * x, 0.0) + (1 + w) * (math.log(2) - torch.log1p(w))
    half = torch.where(x > -1.0, near, far) / 2
    return torch.where(d > 0, torch.exp(d) * half, half)
