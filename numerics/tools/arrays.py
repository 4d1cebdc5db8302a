"""Arrays of npz and safetensors files, named as ``FILE:KEY``, or as ``FILE`` where a well-known key is found.

Nothing is unpickled, and only the asked array is read. Whatever is wrong with a reference or its file becomes an
`InputError` that names the file, the key and the usual fix.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import torch

from numerics.formats import FORMATS
from numerics.tools.array_files import SUFFIXES, ArrayInfo, InputError, opened

__all__ = [
    "WELL_KNOWN",
    "ArrayInfo",
    "InputError",
    "NamedArray",
    "Role",
    "WellKnown",
    "list_arrays",
    "read_array",
    "split_reference",
    "well_known",
]

Role = Literal["rollout", "trainer", "mask", "lengths", "token_ids"]


@dataclass(frozen=True, kw_only=True)
class WellKnown:
    """A key (or a pattern of `fnmatch`) that a framework gives to one of the five roles."""

    name: str
    role: Role
    origin: str


def _known(role: Role, **origins: str) -> tuple[WellKnown, ...]:
    return tuple(WellKnown(name=name, role=role, origin=origin) for name, origin in origins.items())


#: Names as the frameworks write them; a file without a key in its reference is searched for those of the role.
WELL_KNOWN: tuple[WellKnown, ...] = (
    *_known(
        "rollout",
        rollout_log_probs="verl, slime, OpenRLHF",
        rollout_logprobs="SkyRL",
        sampling_per_token_logps="TRL",
        generation_logprobs="NeMo-RL",
        inference_logprobs="prime-rl",
        rollout_lp="recorded pairs",
    ),
    *_known(
        "trainer",
        log_probs_for_metrics="verl, unscaled",
        old_log_probs="verl",
        old_per_token_logps="TRL",
        prev_logprobs="NeMo-RL",
        trainer_logprobs="prime-rl",
        action_log_probs="SkyRL, OpenRLHF",
        log_probs="slime",
    ),
    WellKnown(name="lp__*", role="trainer", origin="recorded pairs"),
    *_known(
        "mask",
        response_mask="verl, SkyRL",
        completion_mask="TRL",
        loss_mask="prime-rl, SkyRL",
        loss_masks="slime",
        token_loss_mask="NeMo-RL",
    ),
    *_known("lengths", response_lengths="slime", rlen="recorded pairs"),
    *_known("token_ids", responses="verl", completion_ids="TRL", resp_ids="recorded pairs"),
)

_LABEL: dict[Role, str] = {
    "rollout": "rollout log-probs",
    "trainer": "trainer log-probs",
    "mask": "mask",
    "lengths": "lengths",
    "token_ids": "token ids",
}
_SHOWN = 20  #: keys that a message lists at most


@dataclass(frozen=True, kw_only=True)
class NamedArray:
    """An array that was read: the file as given, the key, and ``origin``, the framework if the key was found by name.

    ``tensor`` is on the CPU and has the file's shape and dtype; unsigned integers beyond 8 bits come as int64, and
    ``dtype`` says what the file holds.
    """

    file: str
    key: str
    dtype: str
    tensor: torch.Tensor
    origin: str | None = None

    @property
    def source(self) -> str:
        """``FILE:KEY``."""
        return f"{self.file}:{self.key}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(self.tensor.shape)


def split_reference(reference: str) -> tuple[str, str | None]:
    """``(file, key)`` of ``FILE`` (key None) or ``FILE:KEY``; both may contain colons.

    An existing file is taken whole; else the last colon counts whose left side exists or ends in .npz/.safetensors.
    """
    if Path(reference).is_file():
        return reference, None
    end = len(reference)
    while (end := reference.rfind(":", 0, end)) >= 0:
        file = reference[:end]
        if file.lower().endswith(SUFFIXES) or Path(file).is_file():
            return file, reference[end + 1 :]
    return reference, None


def list_arrays(file: str) -> tuple[ArrayInfo, ...]:
    """Keys, shapes and dtypes of ``file``, in its order. `InputError` if it cannot be read."""
    with opened(file) as arrays:
        return tuple(arrays.info(key) for key in arrays.list_keys())


def read_array(reference: str, role: Role) -> NamedArray:
    """The array that ``reference`` names; without a key, the only one with a well-known name of ``role``.

    `InputError` for a file that is missing, damaged or of another kind, for a missing key or several candidates, and
    for a dtype that ``role`` cannot use: log-probs are floating, lengths integer, masks bool, integer or floating.
    """
    file, key = split_reference(reference)
    origin = None
    with opened(file) as arrays:
        keys = arrays.list_keys()
        if key is None:
            key, origin = _found(keys, role, file)
        elif key not in keys:
            raise InputError(_missing(keys, key, file))
        array = NamedArray(file=file, key=key, dtype=arrays.info(key).dtype, tensor=arrays.tensor(key), origin=origin)
    _check_dtype(array, role)
    return array


def well_known(keys: Collection[str], role: Role) -> dict[str, WellKnown]:
    """Those of ``keys`` that are well-known names of ``role``; `old_log_probs` yields to `log_probs_for_metrics`."""
    found = {key: known for known in WELL_KNOWN if known.role == role for key in keys if fnmatchcase(key, known.name)}
    if "log_probs_for_metrics" in found:  # verl trains on old_log_probs and compares the unscaled ones
        found.pop("old_log_probs", None)
    return found


def _found(keys: Sequence[str], role: Role, file: str) -> tuple[str, str]:
    found = well_known(keys, role)
    if len(found) == 1:
        ((key, known),) = found.items()
        return key, known.origin
    if found:
        raise InputError(
            f"{file}: several arrays may be the {_LABEL[role]}: {', '.join(found)}; name one, such as "
            f"{file}:{next(iter(found))}"
        )
    names = [known.name for known in WELL_KNOWN if known.role == role]
    similar = [key for key in keys if any(key.endswith(name) for name in names)]
    raise InputError(
        f"{file}: no array has a well-known name of {_LABEL[role]} ({', '.join(names)}); name one as {file}:KEY. "
        + (f"Similar: {_joined(similar)}" if similar else _contents(keys))
    )


def _missing(keys: Sequence[str], key: str, file: str) -> str:
    near = get_close_matches(key, keys, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    return f"{file} has no array {key!r}{hint} {_contents(keys)}"


def _contents(keys: Sequence[str]) -> str:
    return f"It holds: {_joined(keys)}" if keys else "It holds no arrays"


def _joined(keys: Sequence[str]) -> str:
    rest = len(keys) - _SHOWN
    return ", ".join(keys[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _check_dtype(array: NamedArray, role: Role) -> None:
    dtype = array.tensor.dtype
    floating = str(dtype).removeprefix("torch.") in FORMATS
    integer = not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool
    if role in ("rollout", "trainer"):
        usable, wanted = floating, f"log-probs must be floating: {', '.join(FORMATS)}"
    elif role == "lengths":
        usable, wanted = integer, "lengths must be integers, the number of valid tokens of each row"
    elif role == "token_ids":
        usable, wanted = integer, "token ids must be integers"
    else:
        usable, wanted = floating or integer or dtype == torch.bool, "a mask must be bool, integer or floating, all 0/1"
    if not usable:
        raise InputError(f"{array.source} has dtype {array.dtype}; {wanted}. Is it the right key?")
