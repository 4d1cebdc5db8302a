"""Bits of arithmetic that faults share."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["pick", "scaled", "softly", "up"]

Tensor = torch.Tensor


def scaled(logits: Tensor, temperature: Any = 1.0) -> Tensor:
    """Float32 (float64) logits over the temperature, without checks."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    t = torch.as_tensor(temperature, dtype=torch.float64, device=wide.device).to(wide.dtype)
    return wide / (t[..., None] if t.ndim else t)


def pick(table: Tensor, token_ids: Tensor) -> Tensor:
    """The entries of the chosen tokens."""
    return table.gather(-1, token_ids[..., None].long())[..., 0]


def softly(right: Tensor, wrong: Tensor, where: Tensor) -> Tensor:
    """``right``, and ``wrong`` where asked for."""
    return torch.where(where, wrong.to(right.dtype), right)


def up(x: Tensor) -> Tensor:
    """One ulp nearer to zero."""
    return torch.nextafter(x, torch.zeros_like(x))
