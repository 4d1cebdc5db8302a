"""Cases of ``full_divergence``: rows of two logits vectors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from numerics.formats import FORMATS, Format
from numerics.strategies.cases import Case
from numerics.strategies.scalars import check_choice, check_format

__all__ = ["ROW_KINDS", "FullCase", "FullRow", "full_cases"]

#: how the trainer's logits differ from the rollout's
ROW_KINDS: Mapping[str, str] = {
    "identical": "the same logits",
    "ulps": "one logit is 1 to 3 ULPs off",
    "close": "every logit is off by at most 2^-7",
    "offset": "one constant added to all logits, exactly",
    "scaled": "every logit doubled, as a temperature of 1/2 does",
    "unrelated": "two draws",
    "certain": "one token far above the others, which are much or little apart",
    "far": "gaps of hundreds, where probabilities underflow",
    "removed_by_rollout": "some logits of the rollout are -inf",
    "removed_by_trainer": "some logits of the trainer are -inf",
    "removed_by_both": "the same logits are -inf on both sides",
    "no_distribution": "NaN, +inf or only -inf on a side",
}
FINITE_ROWS = tuple(kind for kind in ROW_KINDS if kind != "no_distribution")


@dataclass(frozen=True)
class FullRow:
    """One row: the rollout's and the trainer's logits, and whether the mask keeps it."""

    rollout: tuple[float, ...]
    trainer: tuple[float, ...]
    valid: bool = True


@dataclass(frozen=True, eq=False)
class FullCase(Case):
    """Rows as one call of a ``full_divergence`` implementation. mask: "bool", "int64" or "float32"."""

    rows: tuple[FullRow, ...]
    rollout_dtype: str = "float32"
    trainer_dtype: str = "float32"
    mask: str = "bool"
    options: tuple[tuple[str, Any], ...] = ()

    def replace(self, **changes: Any) -> FullCase:
        """A copy with other fields."""
        return dataclasses.replace(self, **changes)

    def only(self, *indices: int) -> FullCase:
        """The case of these rows, in this order."""
        return self.replace(rows=tuple(self.rows[i] for i in indices))

    @property
    def size(self) -> int:
        """How many rows."""
        return len(self.rows)

    @property
    def width(self) -> int:
        """The vocabulary size V."""
        return len(self.rows[0].rollout) if self.rows else 1

    @property
    def option(self) -> dict[str, Any]:
        """The further keywords as a dict."""
        return dict(self.options)

    def tensors(self, device: str) -> dict[str, torch.Tensor]:
        """Fresh tensors ``rollout_logits``, ``trainer_logits`` [n, V] and ``mask`` [n]."""
        out = {}
        for side, dtype in (("rollout", self.rollout_dtype), ("trainer", self.trainer_dtype)):
            values = torch.tensor([list(getattr(row, side)) for row in self.rows], dtype=torch.float64)
            out[f"{side}_logits"] = values.reshape(self.size, self.width).to(device, FORMATS[dtype].dtype)
        valid = torch.tensor([row.valid for row in self.rows], dtype=torch.bool)
        return out | {"mask": valid.to(device, getattr(torch, self.mask))}

    def keywords(self) -> dict[str, Any]:
        """``options``."""
        return self.option


@st.composite
def _row(draw: st.DrawFn, width: int, q: Format, p: Format, kinds: tuple[str, ...]) -> FullRow:
    kind = draw(st.sampled_from(kinds))
    grid = q if q.precision <= p.precision else p
    far = kind == "far" or (kind.startswith("removed") and draw(st.booleans()))
    step = 8.0 if far else 2.0**-4
    base = [grid.round(draw(st.integers(-128, 128)) * step) for _ in range(width)]
    other = list(base)
    place = draw(st.integers(0, width - 1))
    if kind == "ulps":
        other[place] = grid.from_ordinal(grid.ordinal(base[place]) + draw(st.sampled_from([-3, -1, 1, 2])))
    elif kind == "close":
        other = [x + draw(st.integers(-8, 8)) * 2.0**-10 for x in base]
    elif kind == "offset":
        other = [x + 4.0 for x in base]
    elif kind == "scaled":
        other = [2 * x for x in base]
    elif kind in ("unrelated", "far", "removed_by_rollout", "removed_by_trainer"):
        other = [draw(st.integers(-128, 128)) * step for _ in range(width)]
    elif kind == "certain":
        other = [x + draw(st.integers(-16, 16)) * draw(st.sampled_from([0.0, 0.25])) for x in base]
        other[place] = base[place] = draw(st.sampled_from([24.0, 48.0, 60.0]))
    if kind.startswith("removed") and width > 1:
        gone = [i != place and draw(st.booleans()) for i in range(width)]
        if kind != "removed_by_trainer":
            base = [-math.inf if g else x for g, x in zip(gone, base, strict=True)]
        if kind != "removed_by_rollout":
            other = [-math.inf if g else x for g, x in zip(gone, other, strict=True)]
    if kind == "no_distribution":
        broken = base if draw(st.booleans()) else other
        what = draw(st.sampled_from([math.nan, math.inf, None]))
        broken[:] = [-math.inf] * width if what is None else [*broken[:place], what, *broken[place + 1 :]]
    if draw(st.booleans()):
        base, other = other, base
    valid = draw(st.integers(0, 3)) > 0
    return FullRow(tuple(q.round(x) for x in base), tuple(p.round(x) for x in other), valid)


@st.composite
def full_cases(
    draw: st.DrawFn,
    *,
    dtype: str = "float32",
    trainer_dtypes: Collection[str] = tuple(FORMATS),
    kinds: Collection[str] = FINITE_ROWS,
    max_rows: int = 4,
    max_width: int = 6,
    temperatures: Collection[float] = (),
) -> FullCase:
    """Cases of ``full_divergence``: the rollout in ``dtype``, the trainer in one of ``trainer_dtypes``.

    With ``temperatures`` one of them is given as a keyword.
    """
    check_choice("kinds", kinds, ROW_KINDS)
    q, p = check_format("dtype", dtype), FORMATS[draw(st.sampled_from([dtype, *trainer_dtypes]))]
    width = draw(st.integers(1, max_width))
    rows = draw(st.lists(_row(width, q, p, tuple(kinds)), min_size=1, max_size=max_rows))
    mask = draw(st.sampled_from(["bool", "int64", "float32"]))
    options = (("temperature", draw(st.sampled_from(sorted(temperatures)))),) if temperatures else ()
    return FullCase(tuple(rows), q.name, p.name, mask, options)
