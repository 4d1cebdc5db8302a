"""Aggregating logged metrics over micro-batches, ranks and steps: a declared reducer for each key, nothing guessed.

Trainers keep metrics in plain dicts and guess from the key how to reduce it: a substring "max", "sum" or "count". Here
every key has its reducer, an unknown key is an error, NaN is never lost by order, and sums are exact, so that any order
and any split gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from numerics.reference.moments import Extremes
from numerics.reference.state import CELLS, State, merged
from numerics.reference.sums import NOTHING, UNIT, ExactSum

__all__ = ["REDUCERS", "MetricsAggregator"]

#: what a key may be reduced by
REDUCERS: Mapping[str, str] = MappingProxyType(
    {
        "sum": "the sum of all values, such as of counts",
        "mean": "the mean of all values, each weighing by the tokens it stands for",
        "max": "the largest value; NaN wins",
        "min": "the smallest value; NaN wins",
        "last": "the value of the latest step; two values of one step must agree",
    }
)


@dataclass(frozen=True, kw_only=True)
class Latest:
    """The values of the latest step: their ends, and how many were NaN. Which of them came first does not show."""

    step: int = 0
    low: float = math.inf  #: -0 is below +0
    high: float = -math.inf
    nans: int = 0
    seen: int = 0  #: values of this step

    def merge(self, other: Latest) -> Latest:
        """The later of both; of one step, both."""
        if not (self.seen and other.seen and self.step == other.step):
            return max(self, other, key=lambda x: (x.seen > 0, x.step))
        return Latest(
            step=self.step,
            low=min(self.low, other.low, key=_ordered),
            high=max(self.high, other.high, key=_ordered),
            nans=self.nans + other.nans,
            seen=self.seen + other.seen,
        )

    def value(self, key: str) -> float:
        """The one value of the step; `ValueError` if there are several."""
        if self.nans == self.seen:
            return math.nan
        ends = [self.low] if _ordered(self.low) == _ordered(self.high) else [self.low, self.high]
        found = [*ends, math.nan] if self.nans else ends
        if len(found) > 1:
            raise ValueError(
                f"{key!r} has the values {', '.join(map(repr, found))} at step {self.step}; a metric reduced by 'last' "
                "must be equal on all ranks: declare mean, max, min or sum"
            )
        return self.low


def _ordered(x: float) -> tuple[float, float]:
    return x, math.copysign(1.0, x)


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """A weighted sum, the sum of its weights, and how many values were no integers."""

    weight: int = 0
    count: int = 0
    fractions: int = 0
    total: ExactSum = NOTHING

    def merge(self, other: Weighted) -> Weighted:
        """Both together."""
        return Weighted(
            weight=self.weight + other.weight,
            count=self.count + other.count,
            fractions=self.fractions + other.fractions,
            total=self.total.merge(other.total),
        )


CELLS.update({"Latest": Latest, "Weighted": Weighted})
_EMPTY: Mapping[str, Any] = {
    "sum": Weighted(),
    "mean": Weighted(),
    "max": (0, Extremes()),
    "min": (0, Extremes()),
    "last": Latest(),
}


class MetricsAggregator(State):
    """Metrics by key, reduced as declared.

    reducers: key -> a name in `REDUCERS`. `add`, `merge` and `reduce` may come in any order and any split; the figures
    are the same bits. Memory is one cell a key, however many steps.
    """

    kind = "metrics_aggregator"

    def __init__(self, *, reducers: Mapping[str, str]) -> None:
        for key, reducer in reducers.items():
            if reducer not in REDUCERS:
                raise ValueError(f"reducer of {key!r} is {reducer!r}; it must be one of {', '.join(REDUCERS)}")
        super().__init__(
            options={"reducers": dict(reducers)}, totals={key: _EMPTY[how] for key, how in reducers.items()}
        )

    def add(self, metrics: Mapping[str, float], *, weight: int = 1, step: int = 0) -> MetricsAggregator:
        """Add the metrics of one micro-batch, rank or step; returns this aggregator.

        metrics: key -> Python or 0-d number. weight: the tokens that they stand for; means of weight 0 count for
        nothing. step: what "last" goes by. `KeyError` for a key that is not declared, with near ones; nothing is added
        then. `TypeError` for what is no number, `ValueError` for a negative weight or step.
        """
        for name, number in (("weight", weight), ("step", step)):
            if isinstance(number, bool) or not isinstance(number, int):
                raise TypeError(f"{name} must be an int, got {type(number).__name__}")
            if number < 0:
                raise ValueError(f"{name} is {number}; it must be 0 or more")
        reducers = self.options["reducers"]
        new = dict(self.totals)
        for key, value in metrics.items():
            if key not in reducers:
                near = get_close_matches(str(key), list(reducers), n=3)
                hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
                raise KeyError(f"no reducer is declared for {key!r}{hint} (declared: {', '.join(reducers)})")
            new[key] = merged(new[key], _cell(reducers[key], _number(key, value), weight, step))
        self.totals = new
        return self

    def compute(self) -> dict[str, float]:
        """The figure of every key that was added, in the order of declaration; sums of integers are ints.

        `ValueError` if a key reduced by "last" has two values at its latest step.
        """
        out: dict[str, float] = {}
        for key, how in self.options["reducers"].items():
            cell = self.totals[key]
            if how == "last":
                if cell.seen:
                    out[key] = cell.value(key)
            elif how in ("max", "min"):
                if cell[0]:
                    out[key] = cell[1].high if how == "max" else cell[1].low
            elif cell.count:
                whole = how == "sum" and not cell.fractions and cell.total.finite
                out[key] = cell.total.units >> UNIT if whole else cell.total.over(1 if how == "sum" else cell.weight)
        return out


def _cell(how: str, value: float, weight: int, step: int) -> Any:
    if how == "last":
        if math.isnan(value):
            return Latest(step=step, nans=1, seen=1)
        return Latest(step=step, low=float(value), high=float(value), seen=1)
    if how in ("max", "min"):
        return 1, Extremes(low=float(value), high=float(value))
    times = 1 if how == "sum" else weight
    return Weighted(weight=weight, count=1, fractions=int(not isinstance(value, int)), total=_times(value, times))


def _times(value: float, times: int) -> ExactSum:
    """``times`` copies of a number, exactly."""
    if math.isfinite(value):
        numerator, denominator = value.as_integer_ratio()
        return ExactSum(units=(numerator * times << UNIT) // denominator)
    some = int(times > 0)
    return ExactSum(plus=some * (value == math.inf), minus=some * (value == -math.inf), nans=some * math.isnan(value))


def _number(key: str, value: Any) -> float:
    found = value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise TypeError(f"{key!r} is a {type(value).__name__}; a metric must be a number or a 0-d tensor")
    return found
