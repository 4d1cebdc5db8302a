"""Faults of ``entropy``."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import torch

from numerics import reference
from numerics.suite.builtin import builtin
from numerics.suite.faults.fault import Fault, enter
from numerics.suite.faults.logprobs import rubbish
from numerics.suite.faults.tensors import scaled, up
from numerics.suite.implementation import Algorithm, Implementation

__all__ = ["CONTROL", "FAULTS", "FORCED"]

Tensor = torch.Tensor

CONTROL: Implementation = builtin("reference", "entropy")
FAULTS: dict[str, Fault] = {}
_LOOSE = Algorithm()
_plant = partial(enter, FAULTS, CONTROL)

careful = reference.entropy


@_plant("EN-02", algorithm=_LOOSE, source="https://github.com/huggingface/trl/issues/7221")
def entropy_zero_times_inf(logits: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """-sum exp(lp) lp: NaN as soon as a logit is -inf."""
    logprobs = torch.log_softmax(scaled(logits, temperature), -1)
    return -(logprobs.exp() * logprobs).sum(-1)


@_plant("EN-01", algorithm=Algorithm(formula="shifted"), source="verl, slime: lse - sum p x; frameworks.md 56")
def entropy_unshifted(logits: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """lse - sum p x, declared as shifted: two large numbers cancel."""
    y = scaled(logits, temperature)
    probs = torch.softmax(y, -1)
    return torch.logsumexp(y, -1) - torch.where(probs > 0, probs * y, torch.zeros_like(y)).sum(-1)


@_plant("EN-01", algorithm=_LOOSE, source="the usual guard against log(0)")
def entropy_with_epsilon(logits: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """-sum p log(p + 1e-5)."""
    probs = torch.softmax(scaled(logits, temperature), -1)
    return -(probs * torch.log(probs + 1e-5)).sum(-1)


@_plant("EN-01", algorithm=_LOOSE, source="bits instead of nats")
def entropy_in_bits(logits: Tensor, **options: Any) -> Tensor:
    """log2."""
    return careful(logits, **options) / math.log(2)


@_plant("EN-01", algorithm=_LOOSE, source="entropy of the raw distribution beside tempered log-probs")
def entropy_ignores_temperature(logits: Tensor, *, temperature: Any = 1.0, **options: Any) -> Tensor:
    """T is dropped."""
    return careful(logits, **options)


@_plant("EN-03", algorithm=_LOOSE, source="nan_to_num before logging")
def entropy_nan_to_num(logits: Tensor, **options: Any) -> Tensor:
    """A row that is no distribution gets entropy 0."""
    return torch.nan_to_num(careful(logits, **options))


@_plant("EN-04", dtype="bfloat16", algorithm=_LOOSE, source="frameworks.md 51")
def entropy_temperature_in_bf16(logits: Tensor, *, temperature: Any = 1.0, **options: Any) -> Tensor:
    """T rounded to the logits' dtype."""
    t = torch.as_tensor(temperature, dtype=torch.float64).to(logits.dtype).double()
    return careful(logits, temperature=t, **options)


@_plant("EN-05", dtype="bfloat16", algorithm=_LOOSE, source="entropy in the logits' dtype")
def entropy_bf16_output(logits: Tensor, **options: Any) -> Tensor:
    """Two to three digits."""
    return careful(logits, **options).to(logits.dtype)


@_plant("EN-06", algorithm=_LOOSE, source="verl#6280")
def entropy_depends_on_batch(logits: Tensor, **options: Any) -> Tensor:
    """One ulp off from the third row on."""
    value = careful(logits, **options)
    late = torch.arange(value.numel()).reshape(value.shape) >= 2
    return torch.where(late & torch.isfinite(value), up(value), value)


@_plant("EN-07", algorithm=_LOOSE, source="NeMo-RL, TRL div_; the entropy after it sees z/T")
def entropy_divides_in_place(logits: Tensor, **options: Any) -> Tensor:
    """The caller's logits are overwritten."""
    out = careful(logits, **options)
    logits.mul_(0.5)
    return out


@_plant("EN-08", algorithm=_LOOSE, source="log_softmax rounding on certain rows")
def entropy_of_certainty(logits: Tensor, **options: Any) -> Tensor:
    """A certain row gets 1e-8 instead of 0: within the bound, but not what 0 * log 0 = 0 says."""
    value = careful(logits, **options)
    return torch.where(value == 0, torch.full_like(value, 1e-8), value)


_CALLS = itertools.count()


@_plant("EN-09", algorithm=_LOOSE, source="atomics in a reduction")
def entropy_another_order_each_time(logits: Tensor, **options: Any) -> Tensor:
    """Every other call is one ulp off."""
    value = careful(logits, **options)
    return torch.where(torch.isfinite(value), up(value), value) if next(_CALLS) % 2 else value


FORCED = Implementation(
    rubbish, contract="entropy", name="forced_failure", capabilities=CONTROL.capabilities, algorithm=CONTROL.algorithm
)
