"""The cases that strategies draw: frozen dataclasses whose repr is the code that rebuilds them.

A case is a list of row specifications that become **one** call on tensors, so that a strategy can delete rows while
shrinking, a bad row can be run again alone, and a device sees one launch. (Paste a repr after
``from math import inf, nan`` and ``from numerics.strategies.cases import *``.)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from numerics.formats import FORMATS

__all__ = ["LAYOUTS", "Case", "Logits", "LogitsCase", "Mixed", "PairCase", "PairRow", "Tail", "UlpCase"]

Array = npt.NDArray[np.float64]

#: how the rows of a case lie in memory; "expanded" has stride 0 and repeats the first row
LAYOUTS = ("contiguous", "batched", "transposed", "sliced", "offset", "expanded")


@dataclass(frozen=True)
class Logits:
    """One row of logits, the token asked for, its temperature, and whether the mask keeps it."""

    values: tuple[float, ...]
    token: int = 0
    temperature: float = 1.0
    valid: bool = True


@dataclass(frozen=True)
class Tail:
    """``count`` further columns for every row: numpy's Philox(seed), uniform on [low, high], rounded to the dtype."""

    count: int
    seed: int = 0
    low: float = -8.0
    high: float = 0.0

    def values(self) -> Array:
        """The columns before they are rounded, [count]."""
        return np.random.Generator(np.random.Philox(self.seed)).uniform(self.low, self.high, self.count)


@dataclass(frozen=True)
class Mixed:
    """``count`` further columns, the same with every version of everything: SplitMix64 of ``seed``, in integers.

    The top 20 bits u of the i-th output give -16 + u / 2^16; rounded to the dtype.
    """

    count: int
    seed: int = 0

    def values(self) -> Array:
        """The columns before they are rounded, [count]: multiples of 2^-16 in [-16, 0)."""
        with np.errstate(over="ignore"):
            x = np.uint64(self.seed) + np.arange(1, self.count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
        out: Array = (x >> np.uint64(44)).astype(np.float64) / 65536.0 - 16.0
        return out


class Case:
    """Cases are equal iff their reprs are: NaN equals NaN, and +0 and -0 are two cases."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and repr(other) == repr(self)

    def __hash__(self) -> int:
        return hash(repr(self))


@dataclass(frozen=True, eq=False)
class LogitsCase(Case):
    """Rows of logits as one call of a ``token_logprobs`` or ``entropy`` implementation.

    dtype:        of the logits.
    temperature:  how T is passed: "absent" (the keyword is left out), "float", "zero_dim" (both take the first
                  row's), "per_token".
    mask:         how the mask is passed: "absent" (all rows valid), "bool", "int64" or "float32".
    cuts:         further keywords as pairs, such as (("top_k", 3),).
    tail:         more columns, for wide vocabularies.
    pair:         call the implementation's ``pair`` form.
    backward:     also run the backward pass of the sum.
    """

    rows: tuple[Logits, ...]
    dtype: str = "float32"
    temperature: str = "absent"
    mask: str = "absent"
    layout: str = "contiguous"
    cuts: tuple[tuple[str, Any], ...] = ()
    tail: Tail | Mixed | None = None
    pair: bool = False
    backward: bool = False

    def replace(self, **changes: Any) -> LogitsCase:
        """A copy with other fields."""
        return dataclasses.replace(self, **changes)

    def map_rows(self, change: Callable[[Logits], Logits]) -> LogitsCase:
        """A copy with every row changed."""
        return self.replace(rows=tuple(change(row) for row in self.rows))

    def only(self, *indices: int) -> LogitsCase:
        """The case of these rows, in this order."""
        return self.replace(rows=tuple(self.rows[i] for i in indices))

    @property
    def size(self) -> int:
        """How many rows."""
        return len(self.rows)

    @property
    def width(self) -> int:
        """The vocabulary size V."""
        return (len(self.rows[0].values) if self.rows else 0) + (self.tail.count if self.tail else 0)

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Which rows the mask keeps, [n]."""
        if self.mask == "absent":
            return np.ones(self.size, dtype=bool)
        return np.array([row.valid for row in self.rows], dtype=bool)

    @property
    def temperatures(self) -> Array:
        """The temperature of every row, [n]."""
        if self.temperature == "absent":
            return np.ones(self.size)
        if self.temperature == "per_token":
            return np.array([row.temperature for row in self.rows], dtype=np.float64)
        return np.full(self.size, self.rows[0].temperature if self.rows else 1.0)

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """The token ids, [n]."""
        return np.array([row.token for row in self.rows], dtype=np.int64)

    @property
    def values(self) -> Array:
        """The logits as exact float64 numbers, [n, V]."""
        return _values(self)

    def tensors(self, device: str) -> dict[str, torch.Tensor]:
        """Fresh tensors: ``logits`` [n, V] (or the layout's shape), ``token_ids``, and temperature, mask if passed."""
        out = {  # copies: what an implementation does in place must not reach the cached values
            "logits": torch.from_numpy(self.values).to(FORMATS[self.dtype].dtype, copy=True),
            "token_ids": torch.from_numpy(self.tokens),
        }
        if self.temperature == "zero_dim":
            out["temperature"] = torch.tensor(self.temperatures[0] if self.size else 1.0, dtype=torch.float64)
        elif self.temperature == "per_token":
            out["temperature"] = torch.from_numpy(self.temperatures)
        if self.mask != "absent":
            out["mask"] = torch.from_numpy(self.valid).to(getattr(torch, self.mask))
        if self.layout == "batched":
            out = {k: v if k == "logits" or v.ndim == 0 else v[None] for k, v in out.items()}
        out = {k: v.to(device) for k, v in out.items()}
        return out | {"logits": _lay_out(out["logits"], self.layout)}  # on the device: a copy would lose the strides

    def keywords(self) -> dict[str, Any]:
        """The keywords that are no tensors."""
        named = dict(self.cuts)
        if self.temperature == "float":
            named["temperature"] = float(self.temperatures[0]) if self.size else 1.0
        return named


@lru_cache(maxsize=256)
def _values(case: LogitsCase) -> Array:
    rows = [case.rows[0]] * case.size if case.layout == "expanded" else case.rows
    width = len(case.rows[0].values) if case.rows else 0
    head = np.array([row.values for row in rows], dtype=np.float64).reshape(case.size, width)
    if case.tail is None:
        return head
    rounded = torch.from_numpy(case.tail.values()).to(FORMATS[case.dtype].dtype).to(torch.float64).numpy()
    wide = np.broadcast_to(rounded, (case.size, case.tail.count))
    return np.ascontiguousarray(np.concatenate([head, wide], axis=1))  # concatenate may choose column order


def _lay_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers with another shape or other strides."""
    if layout == "contiguous":
        return x
    if layout == "batched":
        return x[None]
    if layout == "expanded":
        return x[:1].expand(x.shape)
    if layout == "transposed":
        return x.t().contiguous().t()
    if layout == "sliced":
        wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1] + 1), math.nan)
        wide[..., 1::2] = x
        return wide[..., 1::2]
    if layout == "offset":
        store = x.new_full((x.numel() + 3,), math.nan)
        store[3:] = x.flatten()
        return store[3:].view(x.shape)
    raise ValueError(f"layout is {layout!r}; it must be one of {LAYOUTS}")


@dataclass(frozen=True)
class PairRow:
    """One sequence of log-prob pairs; ``valid`` is its mask."""

    rollout: tuple[float, ...]
    trainer: tuple[float, ...]
    valid: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class PairCase(Case):
    """Rollout and trainer log-probs as one call of a ``mismatch``, ``divergence`` or ``correction`` implementation.

    Rows may be ragged: they are padded to the longest with ``padding`` at masked places, on the right or the left.
    mask: "bool", "int64" or "float32". packed: pass everything as one 1-D row; row_ids: with the ``row_ids`` of its
    rows. options: further keywords as pairs, such as (("rule", "truncate"), ("level", "token"), ("upper", 2.0)).
    flush_to_zero: switch the CPU's flush-to-zero on around the implementation's call. backward: also run the backward
    pass of the sum, towards the trainer's log-probs.
    """

    rows: tuple[PairRow, ...]
    rollout_dtype: str = "float32"
    trainer_dtype: str = "float32"
    compare_dtype: str = "float32"
    mask: str = "bool"
    padding: float = 0.0
    pad_left: bool = False
    layout: str = "contiguous"
    packed: bool = False
    row_ids: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    flush_to_zero: bool = False
    backward: bool = False

    def replace(self, **changes: Any) -> PairCase:
        """A copy with other fields."""
        return dataclasses.replace(self, **changes)

    def only(self, *indices: int) -> PairCase:
        """The case of these rows, in this order."""
        return self.replace(rows=tuple(self.rows[i] for i in indices))

    @property
    def size(self) -> int:
        """How many rows."""
        return len(self.rows)

    @property
    def tokens(self) -> tuple[tuple[float, float], ...]:
        """The (rollout, trainer) pairs that the mask keeps, in order."""
        return tuple(
            (q, p)
            for row in self.rows
            for q, p, valid in zip(row.rollout, row.trainer, row.valid, strict=True)
            if valid
        )

    @property
    def row_tokens(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        """The tokens of each row that has one, as the implementation sees rows: packed without row_ids is one row."""
        rows = (self,) if self.packed and not self.row_ids else tuple(self.only(i) for i in range(self.size))
        return tuple(row.tokens for row in rows if row.tokens)

    @property
    def option(self) -> dict[str, Any]:
        """The further keywords as a dict."""
        return dict(self.options)

    def arrays(self) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
        """Rollout, trainer and mask, [n, L] (or [n * L] when packed)."""
        length = max((len(row.rollout) for row in self.rows), default=0)
        rollout = np.full((self.size, length), self.padding)
        trainer = np.full((self.size, length), self.padding)
        valid = np.zeros((self.size, length), dtype=bool)
        for i, row in enumerate(self.rows):
            here = slice(length - len(row.rollout), length) if self.pad_left else slice(0, len(row.rollout))
            rollout[i, here], trainer[i, here], valid[i, here] = row.rollout, row.trainer, row.valid
        if self.packed:
            return rollout.reshape(-1), trainer.reshape(-1), valid.reshape(-1)
        return rollout, trainer, valid

    def tensors(self, device: str) -> dict[str, torch.Tensor]:
        """Fresh tensors ``rollout``, ``trainer`` and ``mask``."""
        rollout, trainer, valid = self.arrays()
        layout = "contiguous" if self.packed or self.layout == "batched" else self.layout
        out = {
            "rollout": _lay_out(torch.from_numpy(rollout).to(device, FORMATS[self.rollout_dtype].dtype), layout),
            "trainer": _lay_out(torch.from_numpy(trainer).to(device, FORMATS[self.trainer_dtype].dtype), layout),
            "mask": torch.from_numpy(valid).to(device, getattr(torch, self.mask)),
        }
        if self.row_ids:
            places = np.repeat(np.arange(self.size), valid.size // max(self.size, 1))
            out["row_ids"] = torch.from_numpy(places.reshape(valid.shape)).to(device)
        return out

    def keywords(self) -> dict[str, Any]:
        """``options``, and ``compare_dtype`` where it is not the default float32."""
        compare = {} if self.compare_dtype == "float32" else {"compare_dtype": FORMATS[self.compare_dtype].dtype}
        return {**self.option, **compare}


@dataclass(frozen=True, eq=False)
class UlpCase(Case):
    """Two lists of numbers of one format, as one call of an ``ulp_distance`` implementation."""

    a: tuple[float, ...]
    b: tuple[float, ...]
    dtype: str = "float32"
    layout: str = "contiguous"
    flush_to_zero: bool = False

    def replace(self, **changes: Any) -> UlpCase:
        """A copy with other fields."""
        return dataclasses.replace(self, **changes)

    def only(self, *indices: int) -> UlpCase:
        """The case of these places, in this order."""
        return self.replace(a=tuple(self.a[i] for i in indices), b=tuple(self.b[i] for i in indices))

    @property
    def size(self) -> int:
        """How many pairs."""
        return len(self.a)

    def tensors(self, device: str) -> dict[str, torch.Tensor]:
        """Fresh tensors ``a`` and ``b``."""
        dtype = FORMATS[self.dtype].dtype
        return {
            name: _lay_out(torch.tensor(list(x), dtype=torch.float64).to(device, dtype), self.layout)
            for name, x in (("a", self.a), ("b", self.b))
        }

    def keywords(self) -> dict[str, Any]:
        """None."""
        return {}
