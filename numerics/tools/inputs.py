"""A pair of log-prob arrays and the tokens of it that count, read from files by name."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from numerics.tools.arrays import InputError, NamedArray, read_array
from numerics.tools.compare_hints import first_place

__all__ = ["Pair", "check_shape", "read_pair", "read_valid"]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two arrays of one shape, and where tokens are valid (bool, that shape)."""

    rollout: NamedArray
    trainer: NamedArray
    mask: NamedArray | None
    lengths: NamedArray | None
    valid: torch.Tensor

    @property
    def selected(self) -> bool:
        """Whether a mask or lengths say which tokens count; otherwise all do."""
        return self.mask is not None or self.lengths is not None


def read_pair(rollout: str, trainer: str, *, mask: str | None = None, lengths: str | None = None) -> Pair:
    """Two arrays of log-probs (nats), each named as ``FILE:KEY``, or as ``FILE`` with a well-known key.

    mask: 0/1 of the same shape (bool, integer or floating). lengths: valid tokens of each row, shape
    ``rollout.shape[:-1]`` (for one row also ``[1]``), rows padded on the right: ``mask[i, j] = j < lengths[i]``. At
    most one of the two; without either all tokens are valid. `InputError` for whatever cannot be read or does not fit.
    """
    _one_of(mask, lengths)
    q, p = read_array(rollout, "rollout"), read_array(trainer, "trainer")
    check_shape(p, "trainer", q)
    selection, counts, valid = read_valid(q, mask=mask, lengths=lengths)
    return Pair(rollout=q, trainer=p, mask=selection, lengths=counts, valid=valid)


def read_valid(
    like: NamedArray, *, mask: str | None, lengths: str | None
) -> tuple[NamedArray | None, NamedArray | None, torch.Tensor]:
    """The mask, the lengths, and the valid places that they say, bool of the shape of ``like``; as in `read_pair`."""
    _one_of(mask, lengths)
    selection = read_array(mask, "mask") if mask is not None else None
    counts = read_array(lengths, "lengths") if lengths is not None else None
    return selection, counts, _valid(selection, counts, like)


def _one_of(mask: str | None, lengths: str | None) -> None:
    if mask is not None and lengths is not None:
        raise InputError("both mask and lengths are given; give the one that marks the response tokens")


def check_shape(array: NamedArray, role: str, rollout: NamedArray) -> None:
    """`InputError` unless ``array`` has the shape of the rollout's."""
    if array.shape != rollout.shape:
        raise InputError(
            f"shapes are unequal: {role} {array.source} has {array.shape}, rollout {rollout.source} has "
            f"{rollout.shape}; nothing is broadcast or shifted: cut both to the same response tokens"
        )


def _valid(mask: NamedArray | None, lengths: NamedArray | None, rollout: NamedArray) -> torch.Tensor:
    """The valid places as bool, in the shape of ``rollout``."""
    if lengths is not None:
        return _valid_of_lengths(lengths, rollout)
    if mask is None:
        return torch.ones(rollout.shape, dtype=torch.bool)
    check_shape(mask, "mask", rollout)
    wrong = ~((mask.tensor == 0) | (mask.tensor == 1))
    if wrong.any():
        place = first_place(wrong)
        raise InputError(
            f"mask {mask.source} holds {mask.tensor[place].item()!r} at {list(place)}; only 0 and 1 are allowed: it "
            "selects tokens, it does not weigh them"
        )
    return mask.tensor == 1


def _valid_of_lengths(lengths: NamedArray, rollout: NamedArray) -> torch.Tensor:
    shape = rollout.shape
    if not shape:
        raise InputError(f"lengths {lengths.source}: rollout {rollout.source} is a single number and has no rows")
    tensor = lengths.tensor.to(torch.int64)
    if len(shape) == 1 and tensor.shape == (1,):
        tensor = tensor[0]
    if tensor.shape != shape[:-1]:
        raise InputError(
            f"lengths {lengths.source} has shape {lengths.shape}, but rollout {rollout.source} has shape {shape}: one "
            f"length for each row, shape {shape[:-1] or (1,)}, is needed"
        )
    outside = (tensor < 0) | (tensor > shape[-1])
    if outside.any():
        place = first_place(outside)
        raise InputError(
            f"lengths {lengths.source} holds {int(tensor[place])} at {list(place)}, outside 0..{shape[-1]}, the width "
            f"of {rollout.source}; lengths count response tokens, without the prompt"
        )
    return torch.arange(shape[-1]) < tensor[..., None]
