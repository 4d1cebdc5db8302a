"""Corrections for training off-policy: importance weights and rejections, each rule with one name and one formula.

Per token ``w = exp(d)``, ``d = p - q`` (trainer minus rollout) of the cast pair. A rule works on *units*: tokens, or
rows that have a valid token. What it gives - weights, and which tokens are kept - has the shape of the input. Raw
statistics are taken before anything is truncated.

==========  ==============================================  =========================================================
rule        unit ratio w_u at each level                    weight and keeping
==========  ==============================================  =========================================================
truncate    "token" w; "sequence" exp(sum d_r);             min(max(w_u, lower), upper); keeps all (TIS)
            "sequence_geometric" exp(mean d_r)
zero        as truncate                                     w_u if lower <= w_u <= upper, else 0 and not kept (IcePop)
reject      statistic k1 = -d, k2 = d^2/2 or k3 =           1 if the statistic <= threshold, else 0 and not kept; nats
            exp d - 1 - d: "token", or "row_sum",
            "row_mean", "row_max" over a row
veto        "row_min": min w over a row                     1 if it is >= threshold, else 0 and the row is not kept
==========  ==============================================  =========================================================

A unit whose ratio or statistic is NaN gets weight 0 and is not kept, under every rule.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from numerics.formats import narrow
from numerics.reference.moments import Moments
from numerics.reference.pairs import CastPair, cast_pair, check_compare_dtype
from numerics.reference.state import State, merged
from numerics.reference.sums import exact_sums
from numerics.reference.terms import k3_term
from numerics.reference.weights import WeightSums

__all__ = ["LEVELS", "STATISTICS", "Correction", "CorrectionState", "Diagnostics", "Rule", "correction"]

#: rule -> its levels
LEVELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "truncate": ("token", "sequence", "sequence_geometric"),
        "zero": ("token", "sequence", "sequence_geometric"),
        "reject": ("token", "row_sum", "row_mean", "row_max"),
        "veto": ("row_min",),
    }
)
#: what "reject" may look at
STATISTICS = ("k1", "k2", "k3")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule with its level and bounds, checked.

    truncate needs ``upper`` (``lower`` may be given: a floor, declared); zero needs ``lower`` and ``upper``; both are
    ratios w. reject needs ``statistic`` and ``threshold`` (nats); veto needs ``threshold``, a ratio. What a rule does
    not use must be None. `ValueError` for an unknown name, with the known ones, for a missing or superfluous bound,
    for bounds out of order, negative or not finite.
    """

    rule: str
    level: str
    lower: float | None = None
    upper: float | None = None
    statistic: str | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        _known("rule", self.rule, tuple(LEVELS))
        _known(f"level of rule {self.rule!r}", self.level, LEVELS[self.rule])
        needed, allowed = {
            "truncate": ({"upper"}, {"lower", "upper"}),
            "zero": ({"lower", "upper"}, {"lower", "upper"}),
            "reject": ({"statistic", "threshold"}, {"statistic", "threshold"}),
            "veto": ({"threshold"}, {"threshold"}),
        }[self.rule]
        for name in ("lower", "upper", "statistic", "threshold"):
            value = getattr(self, name)
            if value is None and name in needed:
                raise ValueError(f"rule {self.rule!r} needs {name}")
            if value is not None and name not in allowed:
                raise ValueError(f"rule {self.rule!r} does not use {name}, but {name} is {value!r}; leave it out")
        if self.statistic is not None:
            _known("statistic", self.statistic, STATISTICS)
        for name in ("lower", "upper", "threshold"):
            self._check_number(name, getattr(self, name))
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise ValueError(f"lower is {self.lower!r} and upper is {self.upper!r}; lower must not exceed upper")

    def _check_number(self, name: str, value: Any) -> None:
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number, got {type(value).__name__}")
        signed = self.rule == "reject" and self.statistic == "k1"  # k1 = -d may be negative
        if not abs(value) <= sys.float_info.max or (value < 0 and not signed):
            raise ValueError(f"{name} is {value!r}; it must be finite" + ("" if signed else " and not negative"))
        if name == "upper" and value == 0:
            raise ValueError("upper is 0; a cap of 0 leaves no weight at all")

    def as_options(self) -> dict[str, Any]:
        """The fields as a plain dict."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """What a rule did to N valid tokens in B rows; units are tokens at level "token", else rows.

    With N = 0 ``valid`` is 0, every count is 0 and every other figure NaN.
    """

    valid: int  #: 1 if N > 0, else 0
    valid_count: int  #: N, tokens
    row_count: int  #: B, rows with a valid token
    unit_count: int  #: units: N or B
    nonfinite_count: int  #: tokens at which p or q is NaN or infinite
    undefined_count: int  #: units whose ratio or statistic is NaN: weight 0, not kept
    ratio_mean: float  #: mean raw ratio over units (of tokens for reject and veto), before truncation
    ratio_min: float  #: min raw ratio
    ratio_max: float  #: max raw ratio
    ratio_std: float  #: standard deviation of the raw ratio, ddof 1
    ratio_truncated_mean: float  #: mean weight over the same units, before any normalisation
    ratio_truncated_min: float  #: min weight
    ratio_truncated_max: float  #: max weight
    ratio_truncated_std: float  #: standard deviation of the weight, ddof 1
    truncated_low_fraction: float  #: share of units with ratio < lower; for veto, of rows below the threshold
    truncated_high_fraction: float  #: share of units with ratio > upper; for reject, with statistic > threshold
    statistic_mean: float  #: mean of the rejection statistic over units; NaN for other rules
    statistic_min: float  #: min of it
    statistic_max: float  #: max of it
    ess_fraction: float  #: effective sample size over unit count, of the raw ratios
    ess_fraction_truncated: float  #: the same, of the weights
    kept_fraction: float  #: share of valid tokens that are kept
    kept_row_fraction: float  #: share of rows with a kept token

    def as_dict(self) -> dict[str, Any]:
        """The fields as a plain dict, in order."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class Correction:
    """Weights, kept tokens and diagnostics of one rule on one batch.

    weights: compare_dtype, the shape of the input, 0 at masked places and where not kept; without gradient unless
    ``differentiable``. mask: bool, the valid tokens that are kept. normaliser: the mean weight that they were divided
    by, 1 without ``normalize``.
    """

    weights: torch.Tensor
    mask: torch.Tensor
    diagnostics: Diagnostics
    normaliser: float


@dataclass(frozen=True, kw_only=True)
class _Applied:
    """A rule on the valid tokens: 1-D float64 and bool tensors over units, and the unit of each token."""

    ratio: torch.Tensor  #: raw, over units (tokens for reject and veto)
    log_ratio: torch.Tensor  #: its logarithm
    statistic: torch.Tensor  #: over units, what reject compares
    weight: torch.Tensor  #: over the units of ``ratio``
    keep: torch.Tensor  #: over tokens
    low: torch.Tensor  #: units below
    high: torch.Tensor  #: units above
    undefined: torch.Tensor  #: units without a number
    per_token: torch.Tensor  #: weight of each token
    sums: torch.Tensor  #: the log ratio of each token's unit, for the gradient


class CorrectionState(State):
    """Diagnostics of one rule over many batches; `update` and `merge` return the state, `compute` the figures.

    rule: a `Rule`, or its fields by name. Any split of the same rows into updates, merges and ranks gives the same
    figures, bit for bit.
    """

    kind = "correction"

    def __init__(self, *, compare_dtype: torch.dtype = torch.float32, **rule: Any) -> None:
        check_compare_dtype(compare_dtype)
        self.rule = Rule(**rule)
        largest = torch.finfo(compare_dtype).max
        if self.rule.upper is not None and self.rule.upper > largest:
            raise ValueError(
                f"upper is {self.rule.upper!r}, beyond {largest:.3g}, the largest weight in {compare_dtype}"
            )
        super().__init__(
            options={"compare_dtype": compare_dtype, **self.rule.as_options()},
            totals={
                "valid_count": 0,
                "row_count": 0,
                "unit_count": 0,
                "nonfinite_count": 0,
                "undefined_count": 0,
                "low_count": 0,
                "high_count": 0,
                "kept_count": 0,
                "kept_row_count": 0,
                "ratio": Moments(),
                "truncated": Moments(),
                "statistic": Moments(),
                "weights": WeightSums(),
                "truncated_weights": WeightSums(),
            },
        )

    def update(
        self,
        rollout: torch.Tensor,
        trainer: torch.Tensor,
        mask: torch.Tensor | None = None,
        *,
        row_ids: torch.Tensor | None = None,
    ) -> CorrectionState:
        """Add tokens: tensors of one shape and device; see `numerics.reference.pairs.cast_pair` for the errors."""
        compare_dtype = self.options["compare_dtype"]
        return self.add(cast_pair(rollout, trainer, mask, compare_dtype=compare_dtype, row_ids=row_ids))

    def add(self, pair: CastPair, applied: _Applied | None = None) -> CorrectionState:
        """Add tokens that are cast already."""
        a = applied or _apply(pair, self.rule)
        kept_rows = torch.zeros_like(pair.row_lengths).index_add(0, pair.rows, a.keep.to(torch.int64))
        reject = self.rule.rule == "reject"
        new = {
            "valid_count": pair.rows.numel(),
            "row_count": pair.row_lengths.numel(),
            "unit_count": a.undefined.numel(),
            "nonfinite_count": pair.nonfinite_count,
            "undefined_count": int(a.undefined.sum()),
            "low_count": int(a.low.sum()),
            "high_count": int(a.high.sum()),
            "kept_count": int(a.keep.sum()),
            "kept_row_count": int((kept_rows > 0).sum()),
            "ratio": Moments.of(a.ratio[None])[0],
            "truncated": Moments.of(a.weight[None])[0],
            "statistic": Moments.of(a.statistic[None])[0] if reject else Moments(),
            "weights": WeightSums.of(a.log_ratio),
            "truncated_weights": WeightSums.of(torch.log(a.weight)),
        }
        self.totals = merged(self.totals, new)
        return self

    def compute(self) -> Diagnostics:
        """The figures of everything seen so far."""
        totals = self.totals
        ratio, weight, statistic = totals["ratio"], totals["truncated"], totals["statistic"]
        n, rows, units = totals["valid_count"], totals["row_count"], totals["unit_count"]
        return Diagnostics(
            valid=int(n > 0),
            valid_count=n,
            row_count=rows,
            unit_count=units,
            nonfinite_count=totals["nonfinite_count"],
            undefined_count=totals["undefined_count"],
            ratio_mean=ratio.mean,
            ratio_min=ratio.minimum,
            ratio_max=ratio.maximum,
            ratio_std=ratio.std(),
            ratio_truncated_mean=weight.mean,
            ratio_truncated_min=weight.minimum,
            ratio_truncated_max=weight.maximum,
            ratio_truncated_std=weight.std(),
            truncated_low_fraction=_share(totals["low_count"], units),
            truncated_high_fraction=_share(totals["high_count"], units),
            statistic_mean=statistic.mean,
            statistic_min=statistic.minimum,
            statistic_max=statistic.maximum,
            ess_fraction=totals["weights"].ess_fraction(),
            ess_fraction_truncated=totals["truncated_weights"].ess_fraction(),
            kept_fraction=_share(totals["kept_count"], n),
            kept_row_fraction=_share(totals["kept_row_count"], rows),
        )


def correction(
    rollout: torch.Tensor,
    trainer: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    rule: str,
    level: str,
    lower: float | None = None,
    upper: float | None = None,
    statistic: str | None = None,
    threshold: float | None = None,
    normalize: bool = False,
    differentiable: bool = False,
    row_ids: torch.Tensor | None = None,
    compare_dtype: torch.dtype = torch.float32,
) -> Correction:
    """Importance weights or rejections for a batch; the rules are in this module's docstring, the errors in `Rule`.

    rollout, trainer, mask, row_ids: as `numerics.divergence` takes them. normalize: divide the weights by their mean
    over units (an all-zero batch stays 0). differentiable: let the weights carry the gradient of the trainer's
    log-probs: dw/dd = w where nothing was cut, 0 at a cut or masked place, and none through the normaliser.
    """
    state = CorrectionState(
        compare_dtype=compare_dtype,
        rule=rule,
        level=level,
        lower=lower,
        upper=upper,
        statistic=statistic,
        threshold=threshold,
    )
    pair = cast_pair(rollout, trainer, mask, compare_dtype=compare_dtype, row_ids=row_ids)
    applied = _apply(pair, state.rule)
    diagnostics = state.add(pair, applied).compute()
    mean = diagnostics.ratio_truncated_mean
    normaliser = mean if normalize and mean > 0 else 1.0
    valid = torch.ones_like(rollout, dtype=torch.bool) if mask is None else mask == 1
    weights = torch.zeros(rollout.shape, dtype=compare_dtype, device=rollout.device)
    weights[valid] = narrow(applied.per_token / normaliser, compare_dtype)
    kept = torch.zeros_like(valid)
    kept[valid] = applied.keep
    if differentiable:
        weights = _with_gradient(weights, trainer, valid, pair, applied, state.rule)
    return Correction(weights=weights, mask=kept, diagnostics=diagnostics, normaliser=normaliser)


def _apply(pair: CastPair, rule: Rule) -> _Applied:
    d = pair.d
    if rule.rule in ("truncate", "zero"):
        log_ratio = d if rule.level == "token" else _row_figures(d, pair, rule.level == "sequence_geometric")
        return _bounded(log_ratio, torch.exp(log_ratio), pair, rule)
    token_ratio = torch.exp(d)
    if rule.rule == "veto":
        statistic = _row_extreme(token_ratio, pair, "amin")
        low, high = statistic < _number(rule.threshold), torch.zeros_like(statistic, dtype=torch.bool)
    else:
        statistic = {"k1": -d, "k2": d * d / 2, "k3": k3_term(d)}[str(rule.statistic)]
        if rule.level == "row_max":
            statistic = _row_extreme(statistic, pair, "amax")
        elif rule.level != "token":
            statistic = _row_figures(statistic, pair, rule.level == "row_mean")
        low, high = torch.zeros_like(statistic, dtype=torch.bool), statistic > _number(rule.threshold)
    undefined = torch.isnan(statistic)
    unit_keep = ~(low | high | undefined)
    keep = unit_keep if rule.level == "token" else unit_keep[pair.rows]
    weight = keep.to(torch.float64)
    return _Applied(
        ratio=token_ratio,
        log_ratio=d,
        statistic=statistic,
        weight=weight,
        keep=keep,
        low=low,
        high=high,
        undefined=undefined,
        per_token=weight,
        sums=d,
    )


def _bounded(log_ratio: torch.Tensor, ratio: torch.Tensor, pair: CastPair, rule: Rule) -> _Applied:
    """Truncation and zeroing."""
    undefined = torch.isnan(ratio)
    low = torch.zeros_like(undefined) if rule.lower is None else ratio < rule.lower
    high = ratio > _number(rule.upper)
    if rule.rule == "truncate":
        weight = ratio.clamp(min=rule.lower or 0.0, max=_number(rule.upper))
        unit_keep = ~undefined
    else:
        unit_keep = ~(low | high | undefined)
        weight = ratio
    weight = torch.where(unit_keep, weight, 0.0)
    spread = slice(None) if rule.level == "token" else pair.rows
    return _Applied(
        ratio=ratio,
        log_ratio=log_ratio,
        statistic=ratio,
        weight=weight,
        keep=unit_keep[spread],
        low=low,
        high=high,
        undefined=undefined,
        per_token=weight[spread],
        sums=log_ratio[spread],
    )


def _row_figures(x: torch.Tensor, pair: CastPair, mean: bool) -> torch.Tensor:
    """The sum or the mean of x over each row, an exact sum rounded once, float64 [B]."""
    lengths = pair.row_lengths.tolist()
    sums = exact_sums(x[None], pair.rows, len(lengths))[0]
    figures = [s.over(n if mean else 1) for s, n in zip(sums, lengths, strict=True)]
    return torch.tensor(figures, dtype=torch.float64, device=x.device)


def _row_extreme(x: torch.Tensor, pair: CastPair, reduce: str) -> torch.Tensor:
    """The minimum ("amin") or maximum ("amax") of x over each row, NaN winning, float64 [B]."""
    start = torch.full(pair.row_lengths.shape, math.inf if reduce == "amin" else -math.inf, device=x.device).double()
    found = start.scatter_reduce(0, pair.rows, torch.nan_to_num(x, nan=0.0, posinf=math.inf, neginf=-math.inf), reduce)
    nans = torch.zeros_like(pair.row_lengths).index_add(0, pair.rows, torch.isnan(x).to(torch.int64))
    return torch.where(nans > 0, math.nan, found)


def _with_gradient(
    weights: torch.Tensor,
    trainer: torch.Tensor,
    valid: torch.Tensor,
    pair: CastPair,
    applied: _Applied,
    rule: Rule,
) -> torch.Tensor:
    """The same weights with the gradient d weight / d trainer: the weight itself where the rule did not cut."""
    if rule.rule not in ("truncate", "zero"):
        return weights
    free = applied.keep & ~(applied.low | applied.high)[slice(None) if rule.level == "token" else pair.rows]
    passing = trainer[valid][free].to(torch.float64)  # selected, so that no masked or cut place meets the gradient
    # 0, with the gradient 1; an infinite log-prob, whose weight is 0, must not leave inf - inf
    carrier = torch.where(torch.isfinite(passing.detach()), passing - passing.detach(), 0.0)
    if rule.level != "token":  # in float64: bfloat16 gradients of a row's tokens would stop growing at 256
        rows = pair.rows[free]
        totals = torch.zeros(pair.row_lengths.shape, dtype=torch.float64, device=trainer.device)
        summed = totals.index_add(0, rows, carrier)
        if rule.level == "sequence_geometric":
            summed = summed / pair.row_lengths
        carrier = summed[rows]
    chosen = valid.clone()
    chosen[valid] = free
    slope = weights[chosen]
    change = slope * carrier.to(weights.dtype)  # 0, with the slope as its gradient
    return weights.index_put((chosen,), slope + change)


def _number(x: float | None) -> float:
    assert x is not None  # the rule has checked it
    return x


def _share(count: int, of: int) -> float:
    return count / of if of else math.nan


def _known(what: str, value: Any, names: tuple[str, ...]) -> None:
    if value not in names:
        raise ValueError(f"{what} is {value!r}; it must be one of {', '.join(names)}")
