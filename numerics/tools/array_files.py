"""The two kinds of files that arrays are read from: numpy's npz and safetensors. Nothing is ever unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch

__all__ = ["SUFFIXES", "ArrayInfo", "Arrays", "InputError", "opened"]

SUFFIXES = (".npz", ".safetensors")


class InputError(ValueError):
    """A reference or a file that cannot be used; the message names it, says what is wrong and the usual fix."""


@dataclass(frozen=True, kw_only=True)
class ArrayInfo:
    """What a file says about one of its arrays, without reading it. ``dtype`` is a name such as "bfloat16"."""

    key: str
    shape: tuple[int, ...]
    dtype: str


class Arrays(Protocol):
    """An open file of named arrays."""

    def list_keys(self) -> list[str]:
        """The keys, in the file's order."""

    def info(self, key: str) -> ArrayInfo:
        """Shape and dtype of one array, which is not read."""

    def tensor(self, key: str) -> torch.Tensor:
        """One array, in its own dtype (unsigned integers beyond 8 bits as int64). `InputError` if torch has none."""

    def close(self) -> None:
        """Close the file."""


@contextmanager
def opened(file: str) -> Iterator[Arrays]:
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
        arrays: Arrays = _Npz(path) if path.suffix.lower() == ".npz" else _Safetensors(path)
        try:
            yield arrays
        finally:
            arrays.close()
    except InputError:
        raise
    except PermissionError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    except (
        # what zipfile and numpy.lib.format raise on damaged bytes; the last two for shapes that no file could hold
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        ValueError,
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

    def list_keys(self) -> list[str]:
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
        return torch.from_numpy(np.require(array, dtype=array.dtype.newbyteorder("="), requirements=["C", "W"]))

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
        raise InputError(
            f"{source} has dtype {dtype}; log-probs are floating, masks and lengths bool, integer or floating"
        )


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
                f"{path}: the package safetensors is missing: pip install 'rollout-numerics[safetensors]'"
            ) from error
        self._path, self._error = path, SafetensorError
        try:
            self._file: Any = safe_open(str(path), framework="pt")
        except SafetensorError as error:
            raise InputError(
                f"{path} is no safetensors file, or it is damaged or truncated; write or copy it again ({error})"
            ) from error

    def close(self) -> None:
        self._file.__exit__(None, None, None)

    def list_keys(self) -> list[str]:
        return list(self._file.keys())

    def info(self, key: str) -> ArrayInfo:
        part = self._file.get_slice(key)
        dtype = part.get_dtype()
        return ArrayInfo(key=key, shape=tuple(part.get_shape()), dtype=_SAFETENSORS_NAMES.get(dtype, dtype))

    def tensor(self, key: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._file.get_tensor(key)
        except self._error as error:  # a dtype that torch lacks
            raise InputError(f"{self._path}:{key} cannot be read: {error}") from error
        unsigned = tensor.dtype in (torch.uint16, torch.uint32, torch.uint64)
        return tensor.to(torch.int64) if unsigned else tensor
