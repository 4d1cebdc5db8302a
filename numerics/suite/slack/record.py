"""What is kept of the errors that were measured."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from numerics.formats import FORMATS

__all__ = ["Slack", "rounded"]

Array = npt.NDArray[np.float64]


def rounded(x: Array, dtype: str) -> Array:
    """The nearest numbers of ``dtype``."""
    return torch.from_numpy(x).to(FORMATS[dtype].dtype).to(torch.float64).numpy()


@dataclass(kw_only=True)
class Slack:
    """What one implementation's rows (or figures of pairs) came to."""

    contract: str
    implementation: str
    dtype: str
    rows: int = 0
    float64: int = 0
    extended: int = 0
    exact: int = 0
    undecided: int = 0
    over: int = 0
    largest: float = 0.0
    seconds: float = 0.0
    worst: str = ""
    figures: dict[str, float] = dataclasses.field(default_factory=dict)  #: the largest error / bound of each figure
    ratios: list[Array] = dataclasses.field(default_factory=list, repr=False)

    @property
    def median(self) -> float:
        """The median error / bound."""
        return float(np.median(np.concatenate(self.ratios))) if self.ratios else math.nan

    def record(self, ratios: Array, case: Any, row: Any = lambda case, k: case) -> None:
        """Enter error / bound of every element of ``case``; ``row(case, k)`` is the case of its element k alone."""
        self.ratios.append(ratios)
        self.over += int((ratios > 1).sum())
        if ratios.size and ratios.max() > self.largest:
            self.largest, k = float(ratios.max()), int(ratios.argmax())
            if self.largest > 1:
                self.worst = repr(row(case, k))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        hidden = ("ratios",)
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in hidden}
        return {**plain, "median": self.median, "rows_per_second": self.rows / self.seconds if self.seconds else 0.0}
