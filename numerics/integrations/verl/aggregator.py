"""verl's V1 ``MetricsAggregator`` and its ``reduce_metrics``: drop-ins that reduce by declaration, not by substring."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from numerics.integrations.verl.reducers import VERL_REDUCERS, VERL_WEIGHTS
from numerics.reference import aggregate

__all__ = ["MetricsAggregator", "reduce_metrics"]


class _Declared:
    """Key -> reducer, exact keys and ``prefix/*``; what to do about a key that is in neither."""

    def __init__(self, reducers: Mapping[str, str], unknown: Callable[[str], str] | None) -> None:
        self.exact = {key: how for key, how in reducers.items() if not key.endswith("/*")}
        self.below = {key[:-1]: how for key, how in reducers.items() if key.endswith("/*")}
        self.unknown = unknown
        self.asked: list[str] = []

    def __getitem__(self, key: str) -> str:
        if key in self.exact:
            return self.exact[key]
        for prefix, how in self.below.items():
            if key.startswith(prefix):
                return how
        if self.unknown is None:
            # the aggregator of declared keys says it best
            aggregate.MetricsAggregator(reducers=self.exact).add({key: 0.0})
        assert self.unknown is not None
        self.asked.append(key)
        return self.unknown(key)


class MetricsAggregator:
    """Takes what verl's V1 aggregator takes, and gives figures that no order or split changes.

    reducers: key (or ``prefix/*``) -> reducer, see `numerics.reference.aggregate.REDUCERS`. weights: key -> the key of
    the same step that its mean weighs by, tokens or rows; without one means weigh by samples. unknown: what a key is
    reduced by that nobody declared: None raises `KeyError` that names near declared ones; a function of the key
    decides (`install` passes verl's own rule, and `undeclared` lists the keys that it was asked for).

    A mean is that of everything; an averaged standard deviation or correlation is just that (S5.1: `MetricState` has
    the real one). Memory is one cell a key.
    """

    def __init__(
        self,
        *,
        reducers: Mapping[str, str] = VERL_REDUCERS,
        weights: Mapping[str, str] = VERL_WEIGHTS,
        unknown: Callable[[str], str] | None = None,
    ) -> None:
        self._declared = _Declared(reducers, unknown)
        self._weights = weights
        self.reset()

    def reset(self) -> None:
        """Forget every step."""
        self._parts: dict[str, aggregate.MetricsAggregator] = {}
        self._counters: dict[str, Counter[Any]] = {}
        self._declared.asked.clear()
        self.step_count = 0

    @property
    def undeclared(self) -> list[str]:
        """Keys that ``unknown`` was asked for."""
        return list(self._declared.asked)

    def add_step_metrics(self, metrics: Mapping[str, Any], sample_count: int = 0) -> None:
        """Record one iteration's metrics; ``sample_count`` is what a mean weighs that has no weight of its own.

        As in verl, booleans and what is neither a number nor a tensor of one element are passed over, and means weigh
        alike if no iteration has a weight. Dictionaries of numbers are counters that add up.
        """
        self.step_count += 1
        for key, value in metrics.items():
            if isinstance(value, Mapping):
                if all(_number(x) is not None for x in value.values()):
                    self._counters.setdefault(key, Counter()).update({k: _number(x) for k, x in value.items()})
                continue
            number = _number(value)
            if number is None:
                continue
            part = self._parts.get(key)
            if part is None:
                part = self._parts[key] = aggregate.MetricsAggregator(
                    reducers={key: self._declared[key], "unweighted": "mean"}
                )
            part.add({key: number}, weight=self._weight(key, metrics, sample_count), step=self.step_count)
            part.add({"unweighted": number})

    def _weight(self, key: str, metrics: Mapping[str, Any], sample_count: int) -> int:
        by = self._weights.get(key)
        weight = None if by is None else _number(metrics.get(by))
        return int(sample_count if weight is None else weight)

    def get_aggregated_metrics(self) -> dict[str, Any]:
        """The figure of every key that was recorded."""
        out: dict[str, Any] = {}
        for key, part in self._parts.items():
            found = part.compute()
            weightless = part.options["reducers"][key] == "mean" and part.totals[key].weight == 0
            out[key] = found["unweighted"] if weightless else found[key]
        ends = ("global_seqlen/minmax_diff", "global_seqlen/max", "global_seqlen/min")
        if all(key in out for key in ends):
            out[ends[0]] = out[ends[1]] - out[ends[2]]  # a difference of aggregates, not an aggregate of differences
        return out | {key: dict(counter) for key, counter in self._counters.items() if counter}


def reduce_metrics(
    metrics: Mapping[str, Any],
    *,
    reducers: Mapping[str, str] = VERL_REDUCERS,
    unknown: Callable[[str], str] | None = None,
) -> dict[str, Any]:
    """Each list of values reduced as declared: a drop-in for verl's function of this name.

    metrics: key -> numbers (a list, an array, one number), or verl's ``Metric``, which knows itself how to aggregate.
    Returns a new dictionary; verl changes the one it is given. All values of a mean weigh alike, since there are no
    weights here. An empty list gives 0 for "sum", else NaN. unknown and `KeyError`: as in `MetricsAggregator`.
    `TypeError` for a value that is no number.
    """
    declared = _Declared(reducers, unknown)
    return {
        key: value.aggregate() if callable(getattr(value, "aggregate", None)) else _reduced(key, value, declared)
        for key, value in metrics.items()
    }


def _reduced(key: str, values: Any, declared: _Declared) -> float:
    how = declared[key]
    part = aggregate.MetricsAggregator(reducers={key: how})
    for step, value in enumerate(_flat(values)):
        number = _number(value)
        if number is None:
            raise TypeError(f"{key!r} holds a {type(value).__name__}; a metric is a list of numbers")
        part.add({key: number}, step=step)
    return part.compute().get(key, 0 if how == "sum" else math.nan)


def _flat(values: Any) -> Iterator[Any]:
    if isinstance(values, torch.Tensor | np.ndarray):
        yield from values.reshape(-1).tolist()
    elif isinstance(values, Sequence) and not isinstance(values, str):
        for value in values:
            yield from _flat(value)
    else:
        yield values


def _number(value: Any) -> float | int | None:
    """A Python number; None for anything else, for booleans, and for tensors of more or fewer elements than one."""
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else None
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
