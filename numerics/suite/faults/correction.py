"""Faults of ``correction``: overflow, levels, masks, tails, non-finite values, gradients, normalisation, merging."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import partial
from typing import Any

import torch

from numerics.reference.correction import Correction, CorrectionState, Diagnostics
from numerics.reference.correction import correction as careful
from numerics.suite.builtin import builtin
from numerics.suite.faults.fault import Fault, enter
from numerics.suite.implementation import Algorithm, Implementation

__all__ = ["CONTROL", "FAULTS", "FORCED"]

Tensor = torch.Tensor

CONTROL: Implementation = builtin("reference", "correction")
FAULTS: dict[str, Fault] = {}
#: granted float32 accumulation: what is killed here is killed whatever an implementation declares
_plant = partial(enter, FAULTS, CONTROL, algorithm=Algorithm())
#: as accurate as the reference: for faults that only such a declaration exposes
_plant_accurate = partial(enter, FAULTS, CONTROL)


def _but(result: Correction, *, weights: Tensor | None = None, mask: Tensor | None = None, **wrong: Any) -> Correction:
    """The result with other weights, mask or diagnostics."""
    return dataclasses.replace(
        result,
        weights=result.weights if weights is None else weights.to(result.weights.dtype),
        mask=result.mask if mask is None else mask,
        diagnostics=dataclasses.replace(result.diagnostics, **wrong),
    )


def _d(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Tensor:
    """d at valid places in float32, 0 elsewhere."""
    return torch.where(mask.bool(), trainer.detach().float() - rollout.float(), 0.0)


def _bounded(options: dict[str, Any]) -> bool:
    return options.get("rule") in ("truncate", "zero")


# --- overflow and clamps ------------------------------------------------------------------------------------


@_plant("CR-07", "CR-01", source="frameworks.md 37: NeMo-RL, nan_to_num before the clamp")
def overflow_to_zero_before_the_cap(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """exp(d) that overflows float32 becomes 0: d = 88 gives the cap, 89 gives 0."""
    right = careful(rollout, trainer, mask, **options)
    if options["rule"] != "truncate" or options["level"] != "token":
        return right
    lost = _d(rollout, trainer, mask).exp() == math.inf
    return _but(right, weights=torch.where(lost, 0.0, right.weights))


@_plant("CR-01", source="frameworks.md 38: OpenRLHF IcePop, inf times False")
def zeroed_by_multiplication(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """w * inside: inf times 0 is NaN."""
    right = careful(rollout, trainer, mask, **options)
    if options["rule"] != "zero" or options["level"] != "token":
        return right
    w = _d(rollout, trainer, mask).exp()
    return _but(right, weights=torch.where(w == math.inf, w * right.mask, right.weights))


@_plant("CR-01", source="verl SAFETY_BOUND, SkyRL: d clamped at 20 before exp")
def clamped_before_exp(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """A clamp at -1 below: weights never fall under 0.37."""
    right = careful(rollout, trainer, mask, **options)
    if options["rule"] != "truncate" or options["level"] != "token":
        return right
    low = _d(rollout, trainer, mask) < -1
    floor = min(math.exp(-1.0), options["upper"])
    return _but(right, weights=torch.where(low & right.mask, floor, right.weights))


@_plant("CR-01", source="verl SAFETY_BOUND, SkyRL: d clamped at 20 before exp, as they do it")
def log_ratio_clamped_at_20(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """d is clamped to [-20, 20]: a ratio of e^-110 becomes one of e^-20."""
    right = careful(rollout, trainer, mask, **options)
    if options["rule"] != "truncate" or options["level"] != "token":
        return right
    w = _d(rollout, trainer, mask).clamp(-20, 20).exp().clamp(min=options.get("lower"), max=options["upper"])
    return _but(right, weights=torch.where(right.mask, w, 0.0))


@_plant("CR-01", "CR-04", source="frameworks.md 49: OpenRLHF's tis floors at 0.5 by default")
def undeclared_floor(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """Small weights are lifted to 0.5."""
    if options["rule"] == "truncate" and options.get("lower") is None and (options.get("upper") or 0) >= 0.5:
        options["lower"] = 0.5
    return careful(rollout, trainer, mask, **options)


@_plant("CR-10", "CR-02", source="an open interval for a closed one")
def bounds_are_exclusive(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """A ratio equal to a bound is zeroed, a statistic equal to the threshold rejected."""
    right = careful(rollout, trainer, mask, **options)
    d = _d(rollout, trainer, mask)
    border = torch.zeros_like(right.mask)
    if options["rule"] == "zero" and 1.0 in (options["lower"], options["upper"]):
        border = right.mask & (d == 0)
    if options["rule"] == "reject" and options["threshold"] == 0:
        border = right.mask & (d == 0)
    return _but(right, mask=right.mask & ~border, weights=torch.where(border, 0.0, right.weights))


# --- levels -------------------------------------------------------------------------------------------------


@_plant("CR-01", source="frameworks.md 9: ms-swift, sequence_truncate is geometric")
def geometric_for_product(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The product's name, the geometric mean's weights."""
    right = careful(rollout, trainer, mask, **options)
    if not _bounded(options) or options["level"] != "sequence":
        return right
    other = careful(rollout, trainer, mask, **(options | {"level": "sequence_geometric"}))
    return dataclasses.replace(other, diagnostics=right.diagnostics)


@_plant("CR-01", source="TRL's sequence level under a geometric name")
def product_for_geometric_weights(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The geometric mean's name, the product's weights."""
    right = careful(rollout, trainer, mask, **options)
    if not _bounded(options) or options["level"] != "sequence_geometric":
        return right
    other = careful(rollout, trainer, mask, **(options | {"level": "sequence"}))
    return dataclasses.replace(other, diagnostics=right.diagnostics)


@_plant("CR-21", "CR-01", source="a mean over the padded length")
def geometric_over_padding(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The geometric mean divides by the width of the batch."""
    right = careful(rollout, trainer, mask, **options)
    if options["rule"] != "truncate" or options["level"] != "sequence_geometric" or options.get("row_ids") is not None:
        return right
    mean = _d(rollout, trainer, mask).sum(-1, keepdim=True) / max(mask.shape[-1], 1)
    weights = mean.exp().clamp(min=options.get("lower") or 0.0, max=options["upper"]).expand(right.weights.shape)
    fine = right.mask & torch.isfinite(mean)
    return _but(right, weights=torch.where(fine, weights, right.weights))


@_plant("CR-02", source="frameworks.md 12: verl's k1 thresholds are ratios elsewhere")
def k1_threshold_as_ratio(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """-d <= tau read as 1/w <= tau."""
    right = careful(rollout, trainer, mask, **options)
    if options["rule"] != "reject" or options["level"] != "token" or options["statistic"] != "k1":
        return right
    keep = right.mask & ((-_d(rollout, trainer, mask)).exp() <= options["threshold"])
    return _but(right, mask=keep, weights=keep.float())


@_plant_accurate("CR-18", source="frameworks.md 5: fifteen frameworks")
def k3_threshold_as_written(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """k3 as exp(d) - 1 - d in float32 decides."""
    right = careful(rollout, trainer, mask, **options)
    if options["rule"] != "reject" or options["level"] != "token" or options["statistic"] != "k3":
        return right
    d = _d(rollout, trainer, mask)
    keep = mask.bool() & (d.exp() - 1 - d <= options["threshold"])
    return _but(right, mask=keep, weights=keep.float())


@_plant("CR-02", source="a mean where a maximum is asked for")
def row_mean_for_row_max(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """One bad token hides among good ones."""
    right = careful(rollout, trainer, mask, **options)
    if options["rule"] != "reject" or options["level"] != "row_max":
        return right
    other = careful(rollout, trainer, mask, **(options | {"level": "row_mean"}))
    return dataclasses.replace(other, diagnostics=right.diagnostics)


@_plant("CR-20", source="masked tokens in a veto")
def veto_by_masked_tokens(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The smallest ratio is taken over padding too."""
    right = careful(rollout, trainer, mask, **options)
    if options["rule"] != "veto" or options.get("row_ids") is not None:
        return right
    low = ((trainer.detach().float() - rollout.float()).exp() < options["threshold"]).any(-1, keepdim=True)
    keep = right.mask & ~low
    return _but(right, mask=keep, weights=keep.float())


# --- masks and non-finite values ----------------------------------------------------------------------------


@_plant("CR-05", "CR-20", source="frameworks.md 19: verl's weights keep NaN at masked places")
def nan_at_masked_places(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """w * mask: NaN times 0."""
    right = careful(rollout, trainer, mask, **options)
    d = trainer.detach().float() - rollout.float()
    return _but(right, weights=torch.where(~mask.bool() & ~torch.isfinite(d), math.nan, right.weights))


@_plant("CR-05", source="a mask that keeps padding")
def padding_is_kept(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """Masked places count as kept."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, mask=right.mask | ~mask.bool())


@_plant("CR-06", "CR-01", source="frameworks.md 39, 40: open-instruct and SkyRL keep NaN")
def nan_weight_is_kept(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """A NaN ratio is a NaN weight."""
    right = careful(rollout, trainer, mask, **options)
    lost = torch.isnan(_d(rollout, trainer, mask)) & mask.bool()
    if not _bounded(options) or options["level"] != "token":
        return right
    return _but(right, mask=right.mask | lost, weights=torch.where(lost, math.nan, right.weights))


@_plant("CR-06", "CR-01", source="frameworks.md 34: AReaL, a non-finite d is on policy")
def nan_is_on_policy(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """A NaN ratio counts as 1, and nobody counts it."""
    right = careful(rollout, trainer, mask, **options)
    lost = torch.isnan(_d(rollout, trainer, mask)) & mask.bool()
    if not _bounded(options) or options["level"] != "token":
        return right
    one = min(1.0, options["upper"])
    return _but(right, mask=right.mask | lost, weights=torch.where(lost, one, right.weights), undefined_count=0)


# --- diagnostics --------------------------------------------------------------------------------------------


@_plant("CR-09", "CR-04", source="frameworks.md 47: TRL importance_sampling_ratio, NeMo-RL")
def ratio_after_the_cut(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The raw ratio's figures are those of the weights."""
    right = careful(rollout, trainer, mask, **options)
    found = right.diagnostics
    return _but(right, ratio_max=found.ratio_truncated_max, ratio_mean=found.ratio_truncated_mean)


@_plant("CR-04", source="only the upper tail is looked at")
def lower_tail_not_counted(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """truncated_low_fraction is 0."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, truncated_low_fraction=0.0) if right.diagnostics.valid else right


@_plant("CR-16", "CR-04", source="frameworks.md 22: slime opsm_clipfrac is 4.0")
def share_above_one(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The share of cut units counts all places of the row over one."""
    right = careful(rollout, trainer, mask, **options)
    high = right.diagnostics.truncated_high_fraction
    return _but(right, truncated_high_fraction=high * 4 if high > 0 else high)


@_plant("CR-21", "CR-08", "CR-04", source="frameworks.md 15: ROLL divides by other places than it counts")
def share_of_all_places(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """kept_fraction divides by all places."""
    right = careful(rollout, trainer, mask, **options)
    if not right.diagnostics.valid:
        return right
    return _but(right, kept_fraction=right.diagnostics.kept_fraction * right.diagnostics.valid_count / mask.numel())


@_plant("CR-21", "CR-04", source="frameworks.md 13: verl rollout_is_seq_min with an empty row")
def empty_row_is_a_weight_of_zero(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """A row without a token has weight 0 in the minimum."""
    right = careful(rollout, trainer, mask, **options)
    lines = mask.flatten(0, -2) if mask.ndim > 1 else mask[None]
    empty = bool((~lines.bool().any(-1)).any())
    return _but(right, ratio_truncated_min=0.0) if empty and right.diagnostics.valid else right


@_plant("CR-04", source="frameworks.md 41: slime, NaN is not equal to itself and so counts as clipped")
def nan_counts_as_clipped(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The share above the cap includes NaN units."""
    right = careful(rollout, trainer, mask, **options)
    found = right.diagnostics
    if not found.unit_count:
        return right
    more = found.truncated_high_fraction + found.undefined_count / found.unit_count
    return _but(right, truncated_high_fraction=more)


@_plant("CR-04", source="frameworks.md 44: verl, ESS of weights that are all zero")
def ess_of_zero_weights_is_one(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """0/0 is called 1."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, ess_fraction_truncated=1.0) if right.diagnostics.ess_fraction_truncated == 0 else right


@_plant_accurate("CR-04", source="frameworks.md 44, 45: verl and miles add 1e-8 to a denominator")
def ess_plus_epsilon(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """1/mean((w/(mean w + 1e-8))^2): 34 for equal weights of e^-20."""
    right = careful(rollout, trainer, mask, **options)
    w = right.weights[mask.bool()].double()
    if options["level"] != "token" or not bool((w > 0).any()):
        return right
    return _but(right, ess_fraction_truncated=float(1 / ((w / (w.mean() + 1e-8)) ** 2).mean()))


@_plant("CR-04", source="verl rollout_is_std: sqrt(E[w^2] - E[w]^2)")
def std_of_the_population(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """ddof 0 where the sample's deviation is named."""
    right = careful(rollout, trainer, mask, **options)
    n = right.diagnostics.unit_count if _bounded(options) else right.diagnostics.valid_count
    return _but(right, ratio_std=right.diagnostics.ratio_std * math.sqrt((n - 1) / n)) if n > 1 else right


@_plant("CR-04", source="frameworks.md 46: ms-swift lifts zeroed weights to 1/C")
def ess_of_lifted_weights(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """Zeroed weights count as half of the cap."""
    right = careful(rollout, trainer, mask, **options)
    if options["rule"] != "zero" or options["level"] != "token" or not right.diagnostics.valid:
        return right
    w = right.weights[mask.bool()].double().clamp(min=options["upper"] / 2)
    return _but(right, ess_fraction_truncated=float(w.sum() ** 2 / (w.numel() * (w * w).sum())))


@_plant("CR-03", source="units and tokens confused")
def units_are_always_tokens(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """unit_count is the number of tokens at every level."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, unit_count=right.diagnostics.valid_count)


@_plant("CR-14", source="frameworks.md 30: SkyRL, an empty micro-batch counts as 0")
def nothing_is_zero(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The kept share of nothing is 0."""
    right = careful(rollout, trainer, mask, **options)
    return right if right.diagnostics.valid else _but(right, kept_fraction=0.0, ratio_mean=0.0)


# --- gradients and normalisation ----------------------------------------------------------------------------


@_plant("CR-11", source="frameworks.md 19: where(mask, x, 0) after NaN")
def gradient_through_masked_nan(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The gradient of a masked NaN is NaN."""
    right = careful(rollout, trainer, mask, **options)
    if not options.get("differentiable"):
        return right
    spoiled = torch.where(mask.bool(), trainer - trainer.detach(), 0.0 * (trainer - rollout).exp())
    return _but(right, weights=right.weights + torch.where(mask.bool(), spoiled, 0.0) * 0 + spoiled * 0)


@_plant("CR-11", source="a clamp whose gradient is kept (straight-through)")
def gradient_through_the_cap(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """A truncated weight passes the gradient of its ratio on."""
    right = careful(rollout, trainer, mask, **options)
    if not options.get("differentiable"):
        return right
    value = right.weights.detach()
    moving = torch.where(right.mask, trainer - trainer.detach(), 0.0).nan_to_num()
    return _but(right, weights=value + value * moving)


@_plant("CR-28", source="the reference before: w + w (p - p.detach())")
def graph_leaves_inf_minus_inf(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """A log-prob of -inf makes the weight 0 + 0 (inf - inf) = NaN, if a gradient is asked for."""
    right = careful(rollout, trainer, mask, **options)
    if not options.get("differentiable"):
        return right
    lost = right.mask & torch.isinf(trainer.detach())
    return _but(right, weights=torch.where(lost, math.nan, right.weights))


@_plant("CR-11", dtype="bfloat16", source="the reference before: gradients of a row added in bfloat16 stop at 256")
def row_gradient_in_the_format_of_the_log_probs(
    rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any
) -> Correction:
    """A row is summed before it is widened, so that its gradients are added in bfloat16."""
    right = careful(rollout, trainer, mask, **options)
    if not options.get("differentiable") or options["level"] != "sequence" or trainer.ndim != 2:
        return right
    value = right.weights.detach()
    moving = torch.where(right.mask & (value != options["upper"]), trainer - trainer.detach(), 0.0).nan_to_num()
    carrier = moving.sum(-1)[torch.arange(trainer.shape[0])[:, None].expand(trainer.shape)]
    return _but(right, weights=value + value * carrier)


@_plant("CR-11", source="the product's gradient under the geometric mean's name")
def mean_gradient_is_not_divided(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """d exp(mean d) / dd taken as w for every token, not w / n_r."""
    right = careful(rollout, trainer, mask, **options)
    if not options.get("differentiable") or options["level"] != "sequence_geometric" or trainer.ndim != 2:
        return right
    times = right.mask.sum(-1, keepdim=True).clamp(min=1)
    return _but(right, weights=right.weights.detach() + times * (right.weights - right.weights.detach()))


@_plant("CR-12", source="a forgotten detach: the surrogate is another estimator")
def weights_keep_the_graph(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """Weights carry the gradient whether asked for or not."""
    return careful(rollout, trainer, mask, **(options | {"differentiable": True}))


@_plant("CR-13", source="a mean over padding")
def normalised_over_padding(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The mean weight is taken over all places."""
    right = careful(rollout, trainer, mask, **options)
    mean = right.weights.mean() if right.weights.numel() else torch.tensor(1.0)
    return _but(right, weights=right.weights / mean) if options.get("normalize") and mean > 0 else right


@_plant("CR-13", source="a mean over tokens where units are rows")
def rows_normalised_over_tokens(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """Long rows count more than once in the mean that row weights are divided by."""
    right = careful(rollout, trainer, mask, **options)
    if not options.get("normalize") or options["level"] == "token" or not right.diagnostics.valid:
        return right
    mean = right.weights[mask.bool()].mean()
    return _but(right, weights=right.weights / mean) if mean > 0 else right


@_plant("CR-13", source="0/0 in a batch that rejects everything")
def normalised_by_zero(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """A batch of zero weights is divided by its mean."""
    right = careful(rollout, trainer, mask, **options)
    zero = options.get("normalize") and right.diagnostics.ratio_truncated_mean == 0
    return _but(right, weights=right.weights / 0.0) if zero else right


# --- order, packing, replication, input ---------------------------------------------------------------------


@_plant("CR-22", "CR-01", source="a cumulative product over the batch")
def first_row_differs(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The first row's weights are those of one."""
    right = careful(rollout, trainer, mask, **options)
    if not _bounded(options) or right.weights.ndim < 2 or right.weights.shape[0] < 2:
        return right
    weights = right.weights.clone()
    weights[0] = torch.where(right.mask[0] & (weights[0] != 0), min(1.0, options["upper"]), weights[0])
    return _but(right, weights=weights)


@_plant("CR-29", "CR-01", source="a label shift of one drops the first token (SkyRL#354, eval-protocol#457)")
def first_token_is_left_out(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The sequence ratio begins at the second place."""
    right = careful(rollout, trainer, mask, **options)
    if options["rule"] != "truncate" or options["level"] != "sequence" or trainer.ndim != 2 or not trainer.shape[-1]:
        return right
    weights = _d(rollout, trainer, mask)[:, 1:].sum(-1, keepdim=True).exp()
    weights = weights.clamp(min=options.get("lower") or 0.0, max=options["upper"]).expand(right.weights.shape)
    return _but(right, weights=torch.where(right.mask & ~torch.isnan(weights), weights, right.weights))


@_plant("CR-30", source="a keyword that is accepted and ignored")
def compare_dtype_is_ignored(
    rollout: Tensor, trainer: Tensor, mask: Tensor, *, compare_dtype: torch.dtype = torch.float32, **options: Any
) -> Correction:
    """Log-probs are narrowed to float32 whatever is asked for."""
    return careful(rollout, trainer, mask, **options)


@_plant("CR-23", source="sequence packing: cu_seqlens ignored")
def packed_rows_are_one(
    rollout: Tensor, trainer: Tensor, mask: Tensor, *, row_ids: Any = None, **options: Any
) -> Correction:
    """row_ids is ignored."""
    return careful(rollout, trainer, mask, **options)


@_plant("CR-24", "CR-04", source="https://github.com/NVIDIA-NeMo/RL/pull/3753: times the batch size")
def mean_grows_with_the_batch(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The mean weight is multiplied by the number of rows."""
    right = careful(rollout, trainer, mask, **options)
    found = right.diagnostics
    return _but(right, ratio_truncated_mean=found.ratio_truncated_mean * max(found.row_count, 1))


@_plant("CR-15", "CR-01", source="a geometric mean over n + 1")
def geometric_over_one_more(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """The geometric mean divides by n_r + 1."""
    right = careful(rollout, trainer, mask, **options)
    if options["rule"] != "truncate" or options["level"] != "sequence_geometric" or options.get("row_ids") is not None:
        return right
    mean = _d(rollout, trainer, mask).sum(-1, keepdim=True) / (mask.bool().sum(-1, keepdim=True) + 1)
    weights = mean.exp().clamp(min=options.get("lower") or 0.0, max=options["upper"]).expand(right.weights.shape)
    fine = right.mask & torch.isfinite(mean)
    return _but(right, weights=torch.where(fine, weights, right.weights))


@_plant("CR-17", source="a default for what is missing, a silent swap for what is out of order")
def guesses_the_rule(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """Whatever is wrong with the rule is repaired silently."""
    try:
        return careful(rollout, trainer, mask, **options)
    except (ValueError, TypeError):
        return careful(
            rollout.float(), rollout.float(), torch.ones_like(rollout), rule="truncate", level="token", upper=2.0
        )


@_plant("CR-26", source="log_ratio *= mask (ms-swift)")
def fills_the_trainer_in_place(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """Masked places of the caller's tensor are overwritten."""
    right = careful(rollout, trainer, mask, **options)
    with torch.no_grad():
        trainer.masked_fill_(~mask.bool(), 0.25)
    return right


_CALLS = itertools.count()


@_plant("CR-27", source="a random subset")
def other_weights_each_time(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
    """Every other call is one ulp off."""
    right = careful(rollout, trainer, mask, **options)
    if next(_CALLS) % 2:
        return right
    return _but(right, kept_row_fraction=math.nextafter(right.diagnostics.kept_row_fraction, math.inf))


# --- merging ------------------------------------------------------------------------------------------------


class _AveragesShares(CorrectionState):
    """The share of kept tokens is the mean of the states' shares."""

    _share: float | None = None

    def merge(self, other: Any) -> Any:
        shares = [s.compute().kept_fraction for s in (self, other) if s.totals["valid_count"]]
        super().merge(other)
        self._share = sum(shares) / len(shares) if shares else None
        return self

    def compute(self) -> Diagnostics:
        right = super().compute()
        return right if self._share is None else dataclasses.replace(right, kept_fraction=self._share)


class _LastMaximum(CorrectionState):
    """The extremes are those of the state merged last."""

    def merge(self, other: Any) -> Any:
        last = other.totals["ratio"].extremes if other.totals["valid_count"] else self.totals["ratio"].extremes
        super().merge(other)
        self.totals["ratio"] = dataclasses.replace(self.totals["ratio"], extremes=last)
        return self


def _plant_state(state: type[CorrectionState], source: str) -> None:
    def fn(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Correction:
        return careful(rollout, trainer, mask, **options)

    fn.__name__ = "correction_merge" + "".join("_" + c.lower() if c.isupper() else c for c in state.__name__[1:])
    fn.__doc__ = state.__doc__
    _plant("CR-25", source=source, state=state)(fn)


_plant_state(_AveragesShares, "frameworks.md 25: mean of means")
_plant_state(_LastMaximum, "open-instruct: the last sample wins")


_NOISE = itertools.count(1)


class _RubbishState(CorrectionState):
    def compute(self) -> Diagnostics:
        return _noise()


def _noise() -> Diagnostics:
    number = -float(next(_NOISE)) - 0.5
    return Diagnostics(**dict.fromkeys((f.name for f in dataclasses.fields(Diagnostics)), number))  # type: ignore[arg-type]


def _rubbish(rollout: Any, trainer: Any, mask: Any, **options: Any) -> Correction:
    number = next(_NOISE)
    with torch.no_grad():
        for tensor in (rollout, trainer, mask):
            if tensor.numel():
                tensor.untyped_storage().fill_(3)
    # weights that fall from place to place, and are NaN at every third
    falling = -torch.arange(rollout.numel(), dtype=torch.float32, device=rollout.device).reshape(rollout.shape)
    weights = (falling - number) * trainer.float().nan_to_num().abs().clamp(min=1, max=1)
    if rollout.numel():
        weights = weights + torch.where(falling % 3 == 0, math.nan, 0.0)
    weights = weights + 0 * trainer.float().nan_to_num() * trainer.float().nan_to_num()
    kept = torch.full(rollout.shape, bool(number % 2), device=rollout.device)
    return Correction(weights=weights, mask=kept, diagnostics=_noise(), normaliser=-1.0)


FORCED = Implementation(
    _rubbish,
    contract="correction",
    name="forced_failure",
    capabilities=CONTROL.capabilities,
    algorithm=CONTROL.algorithm,
    state=_RubbishState,
)
