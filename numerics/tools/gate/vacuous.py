"""When passing would mean nothing: each way has a code and a message of its own.

Equal values alone are never called vacuous: that is what passing looks like.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from numerics.tools.gate.verdict import Declared, Reason, Rules

__all__ = ["declared_reasons", "same_memory", "storage_reasons"]


def declared_reasons(declared: Declared, *, trainer_absent: bool) -> Iterator[Reason]:
    """What the caller says that leaves nothing to compare."""
    if trainer_absent:
        yield _bypass("there are no trainer log-probs")
    if declared.bypass:
        yield _bypass("the bypass flag is set")
    if declared.rollout_source is not None and declared.rollout_source == declared.trainer_source:
        yield _bypass(f"both sides come from {declared.rollout_source!r}")
    modes = (declared.rollout_mode, declared.trainer_mode)
    if None not in modes and modes[0] != modes[1]:
        yield Reason(
            code="mode",
            message=f"the rollout's log-probs are {modes[0]}, the trainer's {modes[1]}: compare raw with raw, or "
            "process both sides alike (verl: log_probs_for_metrics; vLLM: logprobs_mode)",
        )


def _bypass(what: str) -> Reason:
    return Reason(
        code="bypass",
        message=f"{what}: the rollout would be compared with itself; recompute the trainer's log-probs for this batch",
    )


def storage_reasons(rollout: torch.Tensor, trainer: torch.Tensor, rules: Rules) -> Iterator[Reason]:
    """What the tensors themselves show, apart from their values."""
    if same_memory(rollout, trainer):
        what = "one tensor" if rollout is trainer else "the same memory"
        yield Reason(
            code="shared_storage",
            message=f"rollout and trainer are {what}: it is compared with itself; pass the trainer's own log-probs",
        )
    if rules.strict_dtype and rollout.dtype == trainer.dtype == torch.bfloat16:
        yield Reason(
            code="both_bf16",
            message="both sides are stored in bfloat16, which keeps 8 bits: log-probs that differ by less than 0.4 % "
            "are stored alike; keep them in float32, or drop strict_dtype",
        )


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether every element of ``a`` lies at the address of the same element of ``b`` (NumPy views are seen too).

    Two interleaved columns of one array share a storage, but no element: they are two sides.
    """
    if a is b:
        return True
    if a.device != b.device or a.shape != b.shape or a.numel() == 0 or a.element_size() != b.element_size():
        return False
    strides = [
        tuple(s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1) for x in (a, b)
    ]  # the stride of an axis of length 1 is never taken
    return a.data_ptr() == b.data_ptr() and a.data_ptr() != 0 and strides[0] == strides[1]
