"""Batches in the shape that frameworks pass around."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from numerics.strategies.pairs import MASK_PATTERNS, pair_cases
from numerics.strategies.scalars import check_choice

__all__ = ["verl_batches"]


@st.composite
def verl_batches(
    draw: st.DrawFn, *, dtype: str = "float32", mask_key: str = "response_mask", metrics_key: bool = True
) -> dict[str, torch.Tensor]:
    """A batch as verl's trainer holds it: right-padded responses of one width, [B, R].

    Keys ``rollout_log_probs``, ``old_log_probs``, ``responses``, the mask under ``mask_key`` ("response_mask" [B, R] or
    "attention_mask" [B, prompt + R]), and, if ``metrics_key``, ``log_probs_for_metrics`` for some batches.
    """
    check_choice("mask_key", (mask_key,), ("response_mask", "attention_mask"))
    case = draw(
        pair_cases(dtype=dtype, trainer_dtypes=(dtype,), patterns=[p for p in MASK_PATTERNS if p != "left_padded"])
    ).replace(packed=False, pad_left=False, mask="int64")
    tensors = case.tensors("cpu")
    batch = {
        "rollout_log_probs": tensors["rollout"].contiguous(),
        "old_log_probs": tensors["trainer"].contiguous(),
        "responses": torch.zeros(tensors["rollout"].shape, dtype=torch.int64),
    }
    if mask_key == "attention_mask":
        prompt = draw(st.integers(1, 4), label="prompt length")
        ones = torch.ones(tensors["mask"].shape[0], prompt, dtype=torch.int64)
        batch["attention_mask"] = torch.cat([ones, tensors["mask"]], dim=1)
    else:
        batch["response_mask"] = tensors["mask"]
    if metrics_key and draw(st.booleans(), label="log_probs_for_metrics"):
        batch["log_probs_for_metrics"] = batch["old_log_probs"]
        batch["old_log_probs"] = batch["old_log_probs"] * 2
    return batch
