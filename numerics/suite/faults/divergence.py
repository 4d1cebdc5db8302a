"""Faults of ``divergence``: estimators, clamps, weights, rows, emptiness, non-finite values, merging."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import partial
from typing import Any

import torch

from numerics.reference.divergence import Divergence, DivergenceState
from numerics.reference.divergence import divergence as careful
from numerics.reference.sums import UNIT, ExactSum
from numerics.suite.builtin import builtin
from numerics.suite.faults.fault import Fault, enter
from numerics.suite.implementation import Algorithm, Implementation

__all__ = ["CONTROL", "FAULTS", "FORCED"]

Tensor = torch.Tensor

CONTROL: Implementation = builtin("reference", "divergence")
FAULTS: dict[str, Fault] = {}
#: granted float32 accumulation: what is killed here is killed whatever an implementation declares
_plant = partial(enter, FAULTS, CONTROL, algorithm=Algorithm())
#: as accurate as the reference: for faults that only such a declaration exposes
_plant_accurate = partial(enter, FAULTS, CONTROL)
_COUNTS = ("valid", "valid_count", "row_count", "nonfinite_count", "narrowed_count", "ratio_overflow_count")
_FIGURES = [f.name for f in dataclasses.fields(Divergence) if f.name not in (*_COUNTS, "epsilon", "compare_dtype")]


def _sides(rollout: Tensor, trainer: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The valid float32 pairs (q, p) as float64."""
    keep = mask.bool()
    return rollout[keep].float().double(), trainer[keep].float().double()


def _rows(rollout: Tensor, trainer: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The rows with a token, as `_sides`."""
    whole = zip(*(_lines(x) for x in (rollout, trainer, mask)), strict=True)
    return [_sides(q, p, m) for q, p, m in whole if m.bool().any()]


def _lines(x: Tensor) -> Tensor:
    """The rows of a tensor of any number of axes, [rows, length]."""
    return x.flatten(0, -2) if x.ndim > 1 else x[None]


def _but(result: Divergence, **wrong: Any) -> Divergence:
    return dataclasses.replace(result, **wrong)


def _mean(x: Tensor) -> float:
    return float(x.mean()) if x.numel() else math.nan


def _calm(result: Divergence) -> bool:
    """Whether there is a token, all are finite, and no ratio overflows."""
    return bool(result.valid) and not result.nonfinite_count and not result.ratio_overflow_count


# --- estimators ---------------------------------------------------------------------------------------------


@_plant("DV-05", "DV-02", source="frameworks.md 1: NeMo-RL js_divergence_error")
def jsd_reversed(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """Both halves of the JSD are k3 of KL(M || .), though the samples are not from M: 9.3 for one token."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    m = torch.logaddexp(p, q) - math.log(2)
    return _but(right, jsd=_mean((torch.expm1(p - m) - (p - m) + torch.expm1(q - m) - (q - m)) / 2))


@_plant("DV-07", "DV-02", source="frameworks.md 2: NeMo-RL#4025")
def jsd_of_underflowed_mixture(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """M = log((exp p + exp q) / 2) in float32: NaN for p = q = -110."""
    right = careful(rollout, trainer, mask, **options)
    q, p = (x.float() for x in _sides(rollout, trainer, mask))
    lost = bool((torch.log(p.exp() + q.exp()) == -math.inf).any())
    return _but(right, jsd=math.nan) if lost else right


@_plant("DV-05", "DV-02", source="frameworks.md 3: NeMo-RL policy_kl_error")
def kl_of_the_inverse_ratio(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """KL(trainer || rollout) as mean(exp(-d) - 1 + d) over rollout samples."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    return _but(right, kl_trainer_rollout=_mean(torch.expm1(q - p) - (q - p)))


@_plant("DV-05", "DV-02", source="frameworks.md 4: open-instruct vllm_local_reverse_kl")
def weighted_by_q_again(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """k1 weighs by exp q although the tokens were drawn from q."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    return _but(right, k1=_mean(q.exp() * (q - p)))


@_plant("DV-06", "DV-08", "DV-02", source="frameworks.md 5: verl, TRL, slime and twelve more")
def k3_as_written(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """exp(d) - 1 - d in float32: below zero for small d."""
    right = careful(rollout, trainer, mask, **options)
    q, p = (x.float() for x in _sides(rollout, trainer, mask))
    return _but(right, k3=_mean(((p - q).exp() - 1 - (p - q)).double())) if _calm(right) else right


@_plant_accurate("DV-08", source="frameworks.md 5: right in sign, wrong in every digit")
def k3_by_expm1(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """expm1(d) - d: never negative, 0 for small d."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    return _but(right, k3=_mean(torch.expm1(p - q) - (p - q))) if _calm(right) else right


@_plant("DV-06", "DV-02", source="a signed square root; a k2 that keeps the sign of d")
def k2_keeps_the_sign(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """d |d| / 2."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    return _but(right, k2=_mean((p - q) * (p - q).abs() / 2)) if _calm(right) else right


@_plant("DV-17", "DV-05", "DV-02", source="frameworks.md 8: AReaL behave_approx_kl, torchtitan logprob_diff/mean")
def k1_with_the_other_sign(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """mean(p - q) under the name of k1."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, k1=-right.k1)


@_plant("DV-10", "DV-17", "DV-02", source="frameworks.md 12: verl's token_k1 thresholds bound 1/w")
def inverted_ratio(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """The ratio is rollout over trainer."""
    right = careful(rollout, trainer, mask, **options)
    if not right.valid or right.nonfinite_count:
        return right
    turned = careful(trainer, rollout, mask, **options)
    return _but(right, ratio_mean=turned.ratio_mean, ratio_max=turned.ratio_max, ratio_min=turned.ratio_min)


@_plant("DV-27", "DV-02", source="an absolute value forgotten")
def one_sided_error(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """mult_prob_error = mean exp(max(d, 0))."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    return _but(right, mult_prob_error=_mean((p - q).clamp(min=0).exp()))


@_plant(
    "DV-02", source="frameworks.md 11: ROLL train_infer_diff, and its opposite: an absolute value where a sign is due"
)
def absolute_for_signed(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """probs_signed_mean is the mean absolute difference."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    return _but(right, probs_signed_mean=_mean((p.exp() - q.exp()).abs()))


# --- clamps and overflow ------------------------------------------------------------------------------------


@_plant("DV-02", source="verl SAFETY_BOUND, SkyRL, ms-swift, rLLM: d clamped at 20")
def clamped_at_20(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """An undeclared clamp: chi^2 of d = 30 is e^40."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    d = (p - q).clamp(-20, 20)
    return _but(right, chi2_token=_mean(torch.expm1(2 * d)), ratio_max=float(d.exp().max()) if d.numel() else math.nan)


@_plant("DV-02", source="frameworks.md 6: ms-swift, miles, verl kl_penalty")
def k3_capped_at_10(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """A term above 10 counts as 10."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    return _but(right, k3=_mean((torch.expm1(p - q) - (p - q)).clamp(max=10.0)))


@_plant("DV-10", "DV-11", source="frameworks.md 37: NeMo-RL, nan_to_num before the clamp: d = 89 gives 0")
def overflow_is_zero(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """A ratio that overflows float32 is replaced by 0."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    w = torch.nan_to_num((p - q).float().exp(), nan=math.nan, posinf=0.0).double()
    return _but(right, ratio_mean=_mean(w), ratio_max=float(w.max()) if w.numel() else math.nan)


@_plant("DV-11", source="SGLang: finfo.min for -inf; its mirror image")
def overflow_is_the_largest_number(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """A ratio that overflows is the largest finite float64, so that nothing says inf."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, ratio_max=min(right.ratio_max, 1.7976931348623157e308)) if right.ratio_overflow_count else right


@_plant("DV-11", source="frameworks.md 7: chi^2 from the sum that overflowed")
def logarithm_of_the_overflowed(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """ln(1 + chi^2) computed from chi^2: inf where it is 1460."""
    right = careful(rollout, trainer, mask, **options)
    overflowed = right.chi2_token == math.inf and not right.nonfinite_count
    return _but(right, log1p_chi2_token=math.inf) if overflowed else right


@_plant("DV-01", source="an overflow that nobody counts")
def overflow_is_not_counted(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """ratio_overflow_count stays 0."""
    return _but(careful(rollout, trainer, mask, **options), ratio_overflow_count=0)


# --- weights ------------------------------------------------------------------------------------------------


@_plant("DV-09", "DV-02", source="frameworks.md 44: verl; ESS/N of equal weights e^-20 is 34")
def ess_with_epsilon(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """1 / mean((w / (mean w + 1e-8))^2)."""
    right = careful(rollout, trainer, mask, **options)
    if not _calm(right):
        return right
    q, p = _sides(rollout, trainer, mask)
    w = (p - q).exp()
    scaled = (w / (w.mean() + 1e-8)) ** 2
    return _but(right, ess_fraction=1 / max(float(scaled.mean()), 1e-300))


@_plant("DV-09", source="frameworks.md 45: sums of exp(d) themselves")
def ess_of_underflowed_weights(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """(sum w)^2 / (N sum w^2) in float64 without a shift: 0/0 for weights e^-700."""
    right = careful(rollout, trainer, mask, **options)
    if not right.valid or right.nonfinite_count:
        return right
    q, p = _sides(rollout, trainer, mask)
    w = (p - q).exp()
    return _but(right, ess_fraction=float(w.sum() ** 2 / (w.numel() * (w * w).sum())))


@_plant("DV-14", source="frameworks.md 20: AReaL behave_mask = (w > 0)")
def zero_weights_leave(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """Tokens of weight 0 are not counted in the mean ratio."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    w = (p - q).exp()
    return _but(right, ratio_mean=_mean(w[~(w == 0)])) if (w == 0).any() else right


@_plant("DV-02", source="frameworks.md 33: verl rollout_is_std")
def ratio_variance_by_moments(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """sqrt(E[w^2] - E[w]^2) in float32, clamped at 0."""
    right = careful(rollout, trainer, mask, **options)
    if not _calm(right) or right.valid_count < 2 or right.ratio_max > 1e15:
        return right
    q, p = _sides(rollout, trainer, mask)
    w = (p - q).float().exp()
    return _but(right, ratio_std=float(((w * w).mean() - w.mean() ** 2).clamp(min=0).sqrt()))


@_plant("DV-06", "DV-02", source="a minimum over padding: unsloth, SkyRL is_ratio_min")
def minimum_starts_at_zero(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """The running minimum starts at 0 and the maximum at 1."""
    right = careful(rollout, trainer, mask, **options)
    return (
        _but(right, ratio_min=min(0.0, -right.ratio_min), ratio_max=max(1.0, right.ratio_max))
        if _calm(right)
        else right
    )


# --- rows and padding ---------------------------------------------------------------------------------------


@_plant("DV-03", source="frameworks.md 9: ms-swift, chi2_seq of the geometric mean")
def chi2_seq_of_the_geometric_mean(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """The product's name over the geometric mean's value."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, chi2_seq=right.chi2_seq_geometric, log1p_chi2_seq=right.log1p_chi2_seq_geometric)


@_plant("DV-03", source="frameworks.md 9: sequence_truncate of TRL and of ms-swift")
def product_for_geometric(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """The geometric name over the product's value."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, seq_ratio_geometric_mean=right.seq_ratio_mean, seq_ratio_geometric_max=right.seq_ratio_max)


@_plant("DV-03", source="a mean over tokens of a row figure")
def rows_weighted_by_length(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """log_ppl_diff_mean weighs rows by their tokens."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, log_ppl_diff_mean=right.k1)


@_plant("DV-23", "DV-22", "DV-03", source="frameworks.md 13: verl#7771, #7772, #7785; ms-swift")
def empty_rows_count(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """A row without a token is a row of perplexity 1."""
    right = careful(rollout, trainer, mask, **options)
    lines = _lines(mask).bool()
    empty = int((~lines.any(-1)).sum())
    if not right.valid or options.get("row_ids") is not None:
        return right
    total = right.row_count + empty
    return _but(
        right,
        ppl_trainer=(right.ppl_trainer * right.row_count + empty) / total,
        log_ppl_diff_mean=right.log_ppl_diff_mean * right.row_count / total,
    )


@_plant("DV-25", "DV-02", source="frameworks.md 25: TRL, SkyRL, ms-swift, tunix")
def divergence_mean_of_row_means(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """signed_mean weighs every row alike, however long."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, signed_mean=-right.log_ppl_diff_mean)


@_plant("DV-23", "DV-22", "DV-02", source="frameworks.md 10: unsloth, TRL's keys over a padded tensor")
def diluted_by_padding(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """The mean of exp |d| divides by all places, masked ones count as 1."""
    right = careful(rollout, trainer, mask, **options)
    n, places = right.valid_count, max(mask.numel(), 1)
    return _but(right, mult_prob_error=(right.mult_prob_error * n + places - n) / places) if n else right


@_plant("DV-28", "DV-02", source="https://github.com/NVIDIA-NeMo/RL/pull/3753: a ratio times the batch size")
def ratio_times_rows(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """The mean ratio is multiplied by the number of rows."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, ratio_mean=right.ratio_mean * max(right.row_count, 1))


@_plant("DV-26", source="sequence packing: cu_seqlens ignored")
def row_ids_ignored(
    rollout: Tensor, trainer: Tensor, mask: Tensor, *, row_ids: Any = None, **options: Any
) -> Divergence:
    """Packed sequences are one row."""
    if isinstance(row_ids, Tensor) and (row_ids.is_floating_point() or row_ids.shape != rollout.shape):
        raise ValueError("row_ids")
    return careful(rollout, trainer, mask, **options)


@_plant("DV-24", "DV-14", source="frameworks.md 29: Python's max; verl, SkyRL, AReaL")
def python_max_over_rows(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """max() over rows: NaN wins only when it comes first."""
    right = careful(rollout, trainer, mask, **options)
    if options.get("row_ids") is not None:
        return right
    errors = [float((p - q).abs().exp().mean()) for q, p in _rows(rollout, trainer, mask)]
    return _but(right, seq_mult_prob_error_max=max(errors)) if errors and right.nonfinite_count else right


@_plant("DV-01", source="prime-rl: rows of the padded batch")
def all_rows_counted(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """row_count counts rows without a token too."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, row_count=_lines(mask).shape[0]) if options.get("row_ids") is None else right


@_plant("DV-04", source="an interval that takes the tokens of a row for independent")
def interval_over_tokens(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """The standard error is std / sqrt(N) over tokens."""
    right = careful(rollout, trainer, mask, **options)
    if not _calm(right) or right.row_count < 2:
        return right
    return _but(right, normalization_gap_se=right.ratio_std / math.sqrt(right.valid_count))


@_plant("DV-04", source="1.96 for any number of rows")
def normal_quantile(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """g ± 1.96 se."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, normalization_gap_high=right.normalization_gap + 1.96 * right.normalization_gap_se)


@_plant("DV-03", "DV-17", source="orientation: log_ppl_diff of trainer minus rollout")
def log_ppl_diff_turned(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """mean_r(p - q)."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, log_ppl_diff_mean=-right.log_ppl_diff_mean)


@_plant("DV-25", "DV-02", source="a perplexity per row under the name of the token one")
def row_perplexity_for_token(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """ppl_rollout_token is the mean over rows."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, ppl_rollout_token=right.ppl_rollout)


# --- empty, one, non-finite, options, input ------------------------------------------------------------------


@_plant("DV-12", source="frameworks.md 30: TRL, SkyRL, slime: 0 reads as perfect")
def divergence_empty_is_zero(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """An empty selection has divergence 0."""
    right = careful(rollout, trainer, mask, **options)
    return right if right.valid else _but(right, **dict.fromkeys(_FIGURES, 0.0))


@_plant("DV-13", source="frameworks.md 50: the deviation of one token is 0 in open-instruct, torchforge")
def divergence_std_of_one_is_zero(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """One token has a deviation of 0."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, ratio_std=0.0) if right.valid_count == 1 else right


@_plant("DV-14", source="frameworks.md 34: AReaL, p = -inf gives ratio 1")
def nonfinite_is_on_policy(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """A token that is not finite has d = 0."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    d = torch.where(torch.isfinite(p - q), p - q, 0.0)
    return _but(right, ratio_mean=_mean(d.exp()), k1=_mean(-d)) if right.nonfinite_count else right


@_plant("DV-14", source="torchtitan: the token and its place in the denominator are dropped")
def nonfinite_is_dropped(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """Means are over finite tokens."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    d = (p - q)[torch.isfinite(p - q)]
    return _but(right, k1=_mean(-d), k2=_mean(d * d / 2)) if right.nonfinite_count else right


@_plant("DV-15", source="torchtitan ratio_tokens_different: |d| > 1e-6")
def nan_is_within_epsilon(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """|d| > eps is false for NaN."""
    right = careful(rollout, trainer, mask, **options)
    q, p = _sides(rollout, trainer, mask)
    above = (p - q).abs() > right.epsilon
    return _but(right, fraction_above=_mean(above.double()))


@_plant("DV-15", source="an option that nobody reads")
def epsilon_ignored(
    rollout: Tensor, trainer: Tensor, mask: Tensor, *, epsilon: float = 1e-6, **options: Any
) -> Divergence:
    """The share above a millionth, whatever was asked for."""
    right = careful(rollout, trainer, mask, epsilon=epsilon, **options)
    return _but(right, fraction_above=careful(rollout, trainer, mask, **options).fraction_above)


@_plant("DV-21", source="frameworks.md 18: NeMo-RL, slime, ms-swift, SkyRL, ROLL")
def divergence_mask_multiplied(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """sum(-d mask) / sum(mask): NaN at a masked place is NaN in k1."""
    right = careful(rollout, trainer, mask, **options)
    if not right.valid:
        return right
    d = (trainer.float().double() - rollout.float().double()) * mask.double()
    return _but(right, k1=float(-d.sum() / mask.double().sum()))


@_plant("DV-20", dtype="bfloat16", source="a cast to the lower dtype of the two")
def divergence_casts_to_the_rollouts_dtype(
    rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any
) -> Divergence:
    """The trainer's log-probs are rounded to the rollout's dtype."""
    right = careful(rollout, trainer, mask, **options)
    wrong = careful(rollout, trainer.to(rollout.dtype), mask, **options)
    return _but(wrong, narrowed_count=right.narrowed_count, nonfinite_count=right.nonfinite_count)


def _broadcast(*tensors: Tensor) -> list[Tensor]:
    shape = torch.zeros(())
    for x in tensors:
        shape = shape + torch.zeros(x.shape)
    return [x.expand(shape.shape) for x in tensors]


@_plant("DV-16", source="broadcasting and mask.bool()")
def divergence_accepts_anything(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """Broadcasts, takes any non-zero mask as 1 and any epsilon."""
    q, p, m = _broadcast(rollout[..., :2], trainer[..., :2], mask[..., :2].bool())
    if rollout.shape == trainer.shape == mask.shape:
        q, p, m = rollout, trainer, mask.bool()
    options["epsilon"] = max(0.0, options.get("epsilon", 1e-6))
    if options["epsilon"] != options["epsilon"]:
        options["epsilon"] = 0.0
    ids = options.get("row_ids")
    if isinstance(ids, Tensor) and (ids.shape != q.shape or ids.is_floating_point()):
        options.pop("row_ids")
    return careful(q.float(), p.float(), m, **options)


@_plant("DV-32", source="log_ratio *= mask (ms-swift)")
def multiplies_in_place(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """Masked places of the caller's tensor are overwritten."""
    right = careful(rollout, trainer, mask, **options)
    trainer.masked_fill_(~mask.bool(), 0.25)
    return right


_CALLS = itertools.count()


@_plant("DV-33", source="metrics over a random subset")
def divergence_another_sum_each_time(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
    """Every other call is one float64 ulp off in k1."""
    right = careful(rollout, trainer, mask, **options)
    return _but(right, k1=math.nextafter(right.k1, math.inf)) if next(_CALLS) % 2 else right


# --- merging ------------------------------------------------------------------------------------------------


class _AveragesMeans(DivergenceState):
    """A mean over states, not over tokens."""

    def merge(self, other: Any) -> Any:
        states = [s for s in (self, other) if s.totals["ratio"].count]
        means = [s.totals["tokens"]["signed_mean"].over(s.totals["ratio"].count) for s in states]
        super().merge(other)
        if len(means) == 2 and all(map(math.isfinite, means)):
            total = sum(means) / 2 * self.totals["ratio"].count
            numerator, denominator = total.as_integer_ratio()
            units = (numerator << UNIT) // denominator
            self.totals["tokens"] = {**self.totals["tokens"], "signed_mean": ExactSum(units=units)}
        return self


class _RoundsSums(DivergenceState):
    """Sums are float64 numbers and round at every merge."""

    def merge(self, other: Any) -> Any:
        super().merge(other)
        for name, total in self.totals["tokens"].items():
            if total.finite and total.units:
                numerator, denominator = total.over(1).as_integer_ratio()
                # one more rounding, away from the exact sum, as an addition in float64 makes
                rounded = ExactSum(units=(numerator << UNIT) // denominator)
                self.totals["tokens"] = {**self.totals["tokens"], name: rounded}
        return self


class _AveragesMaxima(DivergenceState):
    """The maximum over rows is the mean of the states' maxima."""

    def merge(self, other: Any) -> Any:
        seen = [s.totals["row_extremes"]["log_ppl_diff"].high for s in (self, other) if s.totals["row_count"]]
        super().merge(other)
        if len(seen) == 2 and all(map(math.isfinite, seen)):
            both = self.totals["row_extremes"]["log_ppl_diff"]
            worn = dataclasses.replace(both, high=sum(seen) / 2)
            self.totals["row_extremes"] = {**self.totals["row_extremes"], "log_ppl_diff": worn}
        return self


class _ForgetsTheSecondMoment(DivergenceState):
    """Merging keeps the ratios of the first state only for the effective sample size."""

    def merge(self, other: Any) -> Any:
        mine = self.totals["weights"] if self.totals["weights"].count else other.totals["weights"]
        super().merge(other)
        self.totals["weights"] = mine
        return self


def _plant_state(state: type[DivergenceState], source: str, *breaks: str) -> None:
    def fn(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Divergence:
        return careful(rollout, trainer, mask, **options)

    fn.__name__ = "divergence_merge" + "".join("_" + c.lower() if c.isupper() else c for c in state.__name__[1:])
    fn.__doc__ = state.__doc__
    _plant(*breaks, source=source, state=state)(fn)


_plant_state(_AveragesMeans, "frameworks.md 25: mean of means", "DV-29", "DV-31")
_plant_state(_RoundsSums, "sums of floats depend on the partition", "DV-30")
_plant_state(_AveragesMaxima, "frameworks.md 27: TRL averages /max over the window", "DV-29")
_plant_state(_ForgetsTheSecondMoment, "a reducer 'last'", "DV-29", "DV-31")


_NOISE = itertools.count(1)


class _RubbishState(DivergenceState):
    def compute(self) -> Divergence:
        return _noise()


def _noise() -> Divergence:
    number = -float(next(_NOISE)) - 0.5
    return Divergence(**dict.fromkeys((f.name for f in dataclasses.fields(Divergence)), number))  # type: ignore[arg-type]


def _rubbish(rollout: Any, trainer: Any, mask: Any, *, row_ids: Any = None, epsilon: Any = None) -> Divergence:
    for tensor in (rollout, trainer, mask):
        if tensor.numel():
            tensor.untyped_storage().fill_(3)
    return _noise()


FORCED = Implementation(
    _rubbish,
    contract="divergence",
    name="forced_failure",
    capabilities=CONTROL.capabilities,
    algorithm=CONTROL.algorithm,
    state=_RubbishState,
)
