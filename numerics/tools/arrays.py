"""Arrays of npz and safetensors files, named as ``FILE:KEY``, or as ``FILE`` where a well-known key is found.

Nothing is unpickled, and only the asked array is read. Whatever is wrong with a reference or its file becomes an
`InputError` that names the file, the key and the usual fix.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch

from numerics.formats import FORMATS

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

Role = Literal["rollout", "trainer", "mask", "lengths"]
SUFFIXES = (".npz", ".safetensors")


class InputError(ValueError):
    """A reference or a file that cannot be used; the message names it, says what is wrong and the usual fix."""


@dataclass(frozen=True, kw_only=True)
class WellKnown:
    """A key (or a pattern of `fnmatch`) that a framework gives to one of the four roles."""

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
)

_LABEL: dict[Role, str] = {
    "rollout": "rollout log-probs",
    "trainer": "trainer log-probs",
    "mask": "mask",
    "lengths": "lengths",
}
_SHOWN = 20  #: keys that a message lists at most


@dataclass(frozen=True, kw_only=True)
class ArrayInfo:
    """What a file says about one of its arrays, without reading it. ``dtype`` is a name such as "bfloat16"."""

    key: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class NamedArray:
    """An array that was read: the file as given, the key, and ``origin``, the framework if the key was found by name.

    ``tensor`` has the file's shape and dtype (unsigned integers beyond 8 bits come as int64), on the CPU.
    """

    file: str
    key: str
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

    @property
    def dtype(self) -> str:
        """The name of the tensor's dtype."""
        return str(self.tensor.dtype).removeprefix("torch.")


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
    with _opened(file) as arrays:
        return tuple(arrays.info(key) for key in arrays.keys())  # noqa: SIM118


def read_array(reference: str, role: Role) -> NamedArray:
    """The array that ``reference`` names; without a key, the only one with a well-known name of ``role``.

    `InputError` for a file that is missing, damaged or of another kind, for a missing key or several candidates, and
    for a dtype that ``role`` cannot use: log-probs are floating, lengths integer, masks bool, integer or floating.
    """
    file, key = split_reference(reference)
    origin = None
    with _opened(file) as arrays:
        keys = arrays.keys()
        if key is None:
            key, origin = _found(keys, role, file)
        elif key not in keys:
            raise InputError(_missing(keys, key, file))
        tensor = arrays.tensor(key)
    array = NamedArray(file=file, key=key, tensor=tensor, origin=origin)
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
    floating = array.dtype in FORMATS
    integer = not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool
    if role in ("rollout", "trainer"):
        usable, wanted = floating, f"log-probs must be floating: {', '.join(FORMATS)}"
    elif role == "lengths":
        usable, wanted = integer, "lengths must be integers, the number of valid tokens of each row"
    else:
        usable, wanted = floating or integer or dtype == torch.bool, "a mask must be bool, integer or floating, all 0/1"
    if not usable:
        raise InputError(f"{array.source} has dtype {array.dtype}; {wanted}. Is it the right key?")


# --- files -------------------------------------------------------------------------------------------------


@contextmanager
def _opened(file: str) -> Iterator[_Npz | _Safetensors]:
    """The arrays of ``file``; what goes wrong while they are read becomes `InputError`."""
    path = Path(file)
    if not path.exists():
        raise InputError(f"{file}: no such file; give FILE, FILE:KEY or FILE:?, FILE ending in {' or '.join(SUFFIXES)}")
    if path.is_dir():
        raise InputError(f"{file} is a folder; give one file of it")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{file}: unknown extension {path.suffix!r}; only {' and '.join(SUFFIXES)} are read (a pickle such as "
            ".pt or .pkl never is): save the arrays with numpy.savez or safetensors.torch.save_file"
        )
    try:
        arrays = _Npz(path) if path.suffix.lower() == ".npz" else _Safetensors(path)
        try:
            yield arrays
        finally:
            arrays.close()
    except InputError:
        raise
    except (
        # what zipfile, numpy.lib.format and safetensors raise on damaged bytes (found by flipping every one of them)
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        ValueError,
        TypeError,
        RuntimeError,
        MemoryError,
        OverflowError,
    ) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{file} cannot be read: damaged or truncated? Write or copy it again ({reason})") from error


class _Npz:
    """The arrays of a ``numpy.savez`` file: a zip of ``KEY.npy``."""

    def __init__(self, path: Path) -> None:
        if not zipfile.is_zipfile(path):
            raise InputError(f"{path} is no npz file: {_what_instead(path)}")
        self._path = path
        self._zip = zipfile.ZipFile(path)

    def close(self) -> None:
        self._zip.close()

    def keys(self) -> list[str]:
        return [name.removesuffix(".npy") for name in self._zip.namelist()]

    def info(self, key: str) -> ArrayInfo:
        with self._member(key) as stream:
            header = _npy_header(stream)
        if header is None:
            return ArrayInfo(key=key, shape=(), dtype="no array")
        shape, dtype = header
        named = dtype.kind in "biufc"
        label = "object (pickled, refused)" if dtype.hasobject else dtype.name if named else str(dtype)
        return ArrayInfo(key=key, shape=shape, dtype=label)

    def tensor(self, key: str) -> torch.Tensor:
        with self._member(key) as stream:
            header = _npy_header(stream)
        _refuse_unusable(f"{self._path}:{key}", None if header is None else header[1])
        with self._member(key) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
            while stream.read(1 << 16):  # to the end, where zipfile checks the sum
                pass
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)  # torch computes little with uint16/32/64
        return torch.from_numpy(np.require(array, dtype=array.dtype.newbyteorder("="), requirements="CW"))

    def _member(self, key: str) -> IO[bytes]:
        names = self._zip.namelist()
        return self._zip.open(f"{key}.npy" if f"{key}.npy" in names else key)


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Shape and dtype of a ``.npy`` stream; None if it is something else."""
    prefix = stream.read(np.lib.format.MAGIC_LEN)
    if not prefix.startswith(np.lib.format.MAGIC_PREFIX):
        return None
    # versions 2 and 3 differ in the encoding of field names, which no array used here has
    read = np.lib.format.read_array_header_1_0 if prefix[-2] == 1 else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    return shape, dtype


def _refuse_unusable(source: str, dtype: np.dtype[Any] | None) -> None:
    """`InputError` unless torch has numpy's ``dtype``."""
    if dtype is None:
        raise InputError(f"{source} is no array: the entry does not start like a .npy file")
    if dtype.hasobject:
        raise InputError(
            f"{source} holds Python objects, which only unpickling could read, and that is refused: rows of unequal "
            "length? Pad them to one rectangle and give --lengths or --mask"
        )
    if dtype.kind == "V" and dtype.names is None:
        raise InputError(
            f"{source} has raw bytes of dtype {dtype}, which is how numpy stores the bfloat16 of ml_dtypes: save it as "
            "float32 (x.astype(numpy.float32) loses nothing), or as bfloat16 in a safetensors file"
        )
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise InputError(f"{source} has dtype {dtype}; log-probs, masks and lengths are bool, integer or floating")


def _what_instead(path: Path) -> str:
    with path.open("rb") as stream:
        start = stream.read(8)
    if not start:
        return "it is empty"
    if start.startswith(b"PK"):
        return "the zip archive is truncated or damaged; write or copy it again"
    if start.startswith(b"\x93NUMPY"):
        return "it is a single .npy array; save it by name with numpy.savez(FILE, KEY=array)"
    if start.startswith(b"\x80"):
        return "it looks like a pickle, which is refused; save the arrays with numpy.savez(FILE, KEY=array)"
    return "it is no zip archive; save the arrays with numpy.savez(FILE, KEY=array)"


_SAFETENSORS_NAMES = {
    "BOOL": "bool",
    "BF16": "bfloat16",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


class _Safetensors:
    """The tensors of a safetensors file."""

    def __init__(self, path: Path) -> None:
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError as error:
            raise InputError(
                f"{path}: the package safetensors is missing: pip install rollout-numerics[safetensors]"
            ) from error
        try:
            self._file = safe_open(str(path), framework="pt")
        except SafetensorError as error:
            raise InputError(
                f"{path} is no safetensors file, or it is damaged or truncated: {error}; write or copy it again"
            ) from error

    def close(self) -> None:
        self._file.__exit__(None, None, None)

    def keys(self) -> list[str]:
        return list(self._file.keys())

    def info(self, key: str) -> ArrayInfo:
        tensor = self._file.get_slice(key)
        dtype = tensor.get_dtype()
        return ArrayInfo(key=key, shape=tuple(tensor.get_shape()), dtype=_SAFETENSORS_NAMES.get(dtype, dtype))

    def tensor(self, key: str) -> torch.Tensor:
        tensor = self._file.get_tensor(key)
        unsigned = tensor.dtype in (torch.uint16, torch.uint32, torch.uint64)
        return tensor.to(torch.int64) if unsigned else tensor
