"""Faults of ``ulp_distance``."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch

from numerics import formats
from numerics.suite.builtin import builtin
from numerics.suite.faults.fault import Fault, enter
from numerics.suite.implementation import Implementation

__all__ = ["CONTROL", "FAULTS", "FORCED"]

Tensor = torch.Tensor
Distance = tuple[Tensor, Tensor]

CONTROL: Implementation = builtin("reference", "ulp_distance")
FAULTS: dict[str, Fault] = {}
_plant = partial(enter, FAULTS, CONTROL)

careful = formats.ulp_distance


@_plant("UD-01", source="https://github.com/numpy/numpy/pull/15598")
def ulps_sign_magnitude(a: Tensor, b: Tensor) -> Distance:
    """Subtracts sign-magnitude bit patterns as they are: wrong across zero."""
    right, defined = careful(a, b)
    across = (torch.signbit(a) != torch.signbit(b)) & defined
    return torch.where(across, right ^ 1, right), defined


@_plant("UD-01", source="int32 arithmetic on ordinals")
def ulps_in_int32(a: Tensor, b: Tensor) -> Distance:
    """The distance wraps at 2^31."""
    right, defined = careful(a, b)
    return right.to(torch.int32).to(torch.int64), defined


@_plant("UD-01", source="numpy's nulp_diff: 1077936128 for (nan, 1)")
def ulps_of_nan(a: Tensor, b: Tensor) -> Distance:
    """NaN has a distance."""
    right, defined = careful(a, b)
    return right, torch.ones_like(defined)


@_plant("UD-01", source="bit patterns without merging the zeros")
def ulps_two_zeros(a: Tensor, b: Tensor) -> Distance:
    """+0 and -0 are one step apart."""
    right, defined = careful(a, b)
    return right + ((a == 0) & (b == 0) & (torch.signbit(a) != torch.signbit(b))), defined


@_plant("UD-02", source="|a - b| / ulp(a)")
def ulps_relative_to_a(a: Tensor, b: Tensor) -> Distance:
    """Measured in ulps of the first argument."""
    right, defined = careful(a, b)
    steps = ((a.double() - b.double()).abs() / formats.ulp(a).double()).round()
    sound = defined & torch.isfinite(a) & torch.isfinite(b) & (steps < 1e15)
    return torch.where(sound, torch.nan_to_num(steps).to(torch.int64), right), defined


@_plant("UD-03", source="distance through a float32 quotient")
def ulps_in_float(a: Tensor, b: Tensor) -> Distance:
    """Distances above 2^24 are rounded to float32."""
    right, defined = careful(a, b)
    return right.to(torch.float32).to(torch.int64), defined


@_plant("UD-04", source="float compares under FTZ")
def ulps_by_float_compare(a: Tensor, b: Tensor) -> Distance:
    """a == b gives 0: two subnormals compare equal while the FPU flushes them."""
    right, defined = careful(a, b)
    return torch.where(a == b, torch.zeros_like(right), right), defined


@_plant("UD-05", source="silent promotion")
def ulps_of_two_formats(a: Tensor, b: Tensor) -> Distance:
    """Different dtypes are promoted, and then they are not what was asked about."""
    wider = torch.promote_types(a.dtype, b.dtype)
    if a.is_floating_point() != b.is_floating_point() or a.shape != b.shape:
        return careful(a, b)
    return careful(
        a.to(wider if wider.is_floating_point else torch.float32),
        b.to(wider if wider.is_floating_point else torch.float32),
    )


@_plant("UD-06", source="view + in-place sign fix")
def ulps_in_place(a: Tensor, b: Tensor) -> Distance:
    """The sign is fixed in the caller's memory."""
    right = careful(a, b)
    a.abs_()
    return right


_NOISE = itertools.count(10)


def _rubbish(a: Any, b: Any, **_: Any) -> Distance:
    if a.numel():
        a.untyped_storage().fill_(3)
    number = next(_NOISE)
    return torch.full(a.shape, number**2, dtype=torch.int64), torch.ones(a.shape, dtype=torch.bool)


FORCED = Implementation(_rubbish, contract="ulp_distance", name="forced_failure", capabilities=CONTROL.capabilities)
