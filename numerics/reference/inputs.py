"""What every reference function asks of its arguments, with the errors it raises.

One rule each: shapes and devices are equal (no broadcasting), a mask holds only 0/1 and selects, a temperature is
finite and positive after one rounding. Every message names the argument, its value and the usual fix.
"""

from __future__ import annotations

import math
import sys

import torch

from numerics.formats import FORMATS

__all__ = [
    "check_alike",
    "check_floating",
    "check_token_ids",
    "compute_dtype",
    "valid_places",
    "valid_temperatures",
]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64 logits, float32 for all others: the dtype of temperature, division and output."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_floating(name: str, x: torch.Tensor) -> None:
    """`TypeError` unless ``x`` is a float64/32/16 or bfloat16 tensor."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}; wrap it with torch.as_tensor")
    if str(x.dtype).removeprefix("torch.") not in FORMATS:
        raise TypeError(f"{name} has dtype {x.dtype}; it must be floating: {', '.join(FORMATS)}")


def check_alike(name_a: str, a: torch.Tensor, name_b: str, b: torch.Tensor) -> None:
    """`ValueError` unless the two tensors have one shape and one device."""
    if a.shape != b.shape:
        raise ValueError(
            f"{name_a} has shape {tuple(a.shape)} but {name_b} has shape {tuple(b.shape)}; "
            "shapes must be equal, nothing is broadcast"
        )
    if a.device != b.device:
        raise ValueError(f"{name_a} is on {a.device} but {name_b} is on {b.device}; move both to one device")


def valid_places(mask: torch.Tensor | None, like: torch.Tensor, name: str) -> torch.Tensor:
    """``mask`` as bool (True = valid), all True for None.

    ``mask`` has the shape and device of ``like`` (called ``name`` in messages) and holds only 0 and 1, as bool,
    int or float; otherwise `ValueError` that names the first offending value.
    """
    if mask is None:
        return torch.ones_like(like, dtype=torch.bool)
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"mask must be a torch.Tensor or None, got {type(mask).__name__}")
    check_alike("mask", mask, name, like)
    if mask.dtype == torch.bool:
        return mask
    wrong = ~((mask == 0) | (mask == 1))
    if wrong.any():
        value = mask[wrong].flatten()[0].item()
        raise ValueError(
            f"mask holds {value!r}; only 0 and 1 (bool, int or float) are allowed: a mask selects tokens, "
            "it does not weigh them"
        )
    return mask == 1


def check_token_ids(token_ids: torch.Tensor, valid: torch.Tensor, vocabulary: int) -> None:
    """`TypeError` unless ids are integers, `IndexError` for an id outside [0, vocabulary) at a valid place."""
    given = token_ids
    if token_ids.dtype in (torch.uint16, torch.uint32, torch.uint64):
        token_ids = token_ids.to(torch.int64)  # torch compares none of these; a uint64 beyond int64 turns negative
    if token_ids.dtype == torch.bool or token_ids.is_floating_point() or token_ids.is_complex():
        raise TypeError(f"token_ids has dtype {token_ids.dtype}; it must be an integer dtype such as torch.int64")
    outside = valid & ((token_ids < 0) | (token_ids >= vocabulary))
    if outside.any():
        place = tuple(int(i) for i in outside.nonzero()[0])
        value = int(given[place].item())
        raise IndexError(
            f"token_ids[{', '.join(map(str, place))}] is {value}, outside [0, {vocabulary}); "
            "mask the place if it is padding (-100 is an ignore label only under a mask)"
        )


def valid_temperatures(temperature: float | torch.Tensor, valid: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The temperature of every valid place, 1-D, rounded once to ``dtype``.

    ``temperature`` is a number, a 0-d tensor, or has the shape of ``valid``. `ValueError` unless every valid
    one is finite and > 0 after the rounding. Masked places may hold anything.
    """
    if isinstance(temperature, torch.Tensor):
        if temperature.ndim == 0:
            values = temperature.to(valid.device).expand(valid.shape)[valid]
        else:
            check_alike("temperature", temperature, "token_ids", valid)
            values = temperature[valid]
        if values.is_complex():
            raise TypeError(f"temperature has dtype {temperature.dtype}; it must be real")
        if not values.is_floating_point():
            values = values.to(torch.float64)
    elif isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise TypeError(f"temperature must be a number or a tensor, got {type(temperature).__name__}")
    elif isinstance(temperature, int) and abs(temperature) > sys.float_info.max:
        bits = temperature.bit_length()
        raise ValueError(f"temperature is an integer of {bits} bits; it must be finite and > 0 as a float")
    else:
        values = torch.full((int(valid.sum()),), float(temperature), dtype=torch.float64, device=valid.device)
    rounded = values.detach().to(dtype)
    wrong = ~(torch.isfinite(rounded) & (rounded > 0))
    if wrong.any():
        value = float(values[wrong][0])
        hint = "greedy sampling has no temperature: score it at temperature 1" if value == 0 else "check its source"
        if value > 0 and math.isfinite(value):
            hint = f"it leaves the range of {str(dtype).removeprefix('torch.')} when rounded"
        raise ValueError(f"temperature is {value!r}; it must be finite and > 0 ({hint})")
    return rounded
