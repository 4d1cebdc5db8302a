"""verl's V1 ``MetricsAggregator``: a drop-in that reduces by declaration instead of by substring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from numerics.integrations.verl.debug import KEYS
from numerics.integrations.verl.offpolicy import OFFPOLICY_KEYS
from numerics.reference import aggregate

__all__ = ["VERL_REDUCERS", "MetricsAggregator"]

_DEBUG = {
    field: "max" if field.endswith("_max") else "sum" if field.endswith("_count") else "mean" for field in KEYS
} | {"valid": "max"}
_OFFPOLICY = {
    field: "max" if field.endswith("_max") else "min" if field.endswith("_min") else "mean" for field in OFFPOLICY_KEYS
} | {"nonfinite_count": "sum"}

#: verl's key -> reducer; a key that ends in ``/*`` declares every key below it
VERL_REDUCERS: Mapping[str, str] = MappingProxyType(
    {
        **{KEYS[field]: reducer for field, reducer in _DEBUG.items()},
        **{f"rollout_corr/{OFFPOLICY_KEYS[field]}": reducer for field, reducer in _OFFPOLICY.items()},
        **{
            f"rollout_corr/rollout_is_{name}": reducer
            for name, reducer in (
                ("mean", "mean"),
                ("max", "max"),
                ("min", "min"),
                ("std", "mean"),
                ("eff_sample_size", "mean"),
                ("ratio_fraction_high", "mean"),
                ("ratio_fraction_low", "mean"),
                ("seq_mean", "mean"),
                ("seq_std", "mean"),
                ("seq_max", "max"),
                ("seq_min", "min"),
                ("seq_max_deviation", "max"),
                ("seq_fraction_high", "mean"),
                ("seq_fraction_low", "mean"),
            )
        },
        "training/global_step": "last",
        "training/epoch": "last",
        "training/off_policy/evicted_samples": "sum",
        "validation/off_policy/evicted_samples": "sum",
        "training/filter_groups/evicted_samples": "sum",
        "validation/filter_groups/evicted_samples": "sum",
        "training/filter_groups/discarded_surplus_samples": "sum",
        "validation/filter_groups/discarded_surplus_samples": "sum",
        "training/rollout_failure/evicted_samples": "sum",
        "validation/rollout_failure/evicted_samples": "sum",
        "actor/lr": "last",
        "critic/lr": "last",
        "actor/entropy": "mean",
        "actor/pg_loss": "mean",
        "actor/kl_loss": "mean",
        "actor/pg_clipfrac": "mean",
        "actor/pg_clipfrac_lower": "mean",
        "actor/ppo_kl": "mean",
        "actor/grad_norm": "mean",
        "global_seqlen/min": "min",
        "global_seqlen/max": "max",
        "global_seqlen/mean": "mean",
        "timing_s/*": "sum",
        "timing_per_token_ms/*": "sum",
    }
)


class MetricsAggregator:
    """Takes what verl's V1 aggregator takes, and gives figures that no order or split changes.

    reducers: key (or ``prefix/*``) -> reducer, see `numerics.reference.aggregate.REDUCERS`. unknown: what a key is
    reduced by that nobody declared: None raises `KeyError` that names near declared ones; a function of the key
    decides (`install` passes verl's own rule, and `undeclared` lists the keys that it was asked for).
    """

    def __init__(
        self,
        *,
        reducers: Mapping[str, str] = VERL_REDUCERS,
        unknown: Callable[[str], str] | None = None,
    ) -> None:
        self._exact = {key: how for key, how in reducers.items() if not key.endswith("/*")}
        self._below = {key[:-1]: how for key, how in reducers.items() if key.endswith("/*")}
        self._unknown = unknown
        self._parts: dict[str, aggregate.MetricsAggregator] = {}
        self._counters: dict[str, Counter[Any]] = {}
        self.undeclared: list[str] = []
        self.step_count = 0

    def add_step_metrics(self, metrics: Mapping[str, Any], sample_count: int = 0) -> None:
        """Record one iteration's metrics; ``sample_count`` is what its means weigh.

        As in verl, booleans and what is neither a number nor a tensor of one element are passed over, dictionaries are
        counters that add up, and means weigh alike if no iteration has a weight.
        """
        self.step_count += 1
        for key, value in metrics.items():
            if isinstance(value, Mapping):
                self._counters.setdefault(key, Counter()).update(value)
                continue
            number = value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value
            if isinstance(value, torch.Tensor):
                number = value.item() if value.numel() == 1 else None
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            part = self._parts.get(key)
            if part is None:
                part = self._parts[key] = aggregate.MetricsAggregator(
                    reducers={key: self._reducer(key), "unweighted": "mean"}
                )
            part.add({key: number}, weight=int(sample_count), step=self.step_count)
            part.add({"unweighted": number})

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

    def _reducer(self, key: str) -> str:
        if key in self._exact:
            return self._exact[key]
        for prefix, how in self._below.items():
            if key.startswith(prefix):
                return how
        if self._unknown is None:
            # the aggregator of declared keys says it best
            aggregate.MetricsAggregator(reducers=self._exact).add({key: 0.0})
        assert self._unknown is not None
        self.undeclared.append(key)
        return self._unknown(key)
