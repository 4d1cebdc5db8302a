"""Faults of ``mismatch``: masks, casts, counts, moments, emptiness, order, merging."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import partial
from typing import Any

import torch

from numerics.formats import FORMATS
from numerics.reference.mismatch import Mismatch, MismatchState
from numerics.reference.mismatch import mismatch as careful
from numerics.reference.sums import ExactSum
from numerics.suite.builtin import builtin
from numerics.suite.faults.fault import Fault, enter
from numerics.suite.implementation import Algorithm, Implementation

__all__ = ["CONTROL", "FAULTS", "FORCED"]

Tensor = torch.Tensor

CONTROL: Implementation = builtin("reference", "mismatch")
FAULTS: dict[str, Fault] = {}
#: granted float32 accumulation: what is killed here is killed whatever an implementation declares
_LOOSE = Algorithm()
_plant = partial(enter, FAULTS, CONTROL, algorithm=_LOOSE)
_FIGURES = [f.name for f in dataclasses.fields(Mismatch) if f.name.startswith(("logprobs_d", "probs_", "logprobs_p"))]


def _pairs(rollout: Tensor, trainer: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The valid float32 pairs (q, p) as float64."""
    keep = mask.bool()
    return rollout[keep].float().double(), trainer[keep].float().double()


def _but(result: Mismatch, **wrong: Any) -> Mismatch:
    return dataclasses.replace(result, **wrong)


# --- masks --------------------------------------------------------------------------------------------------


@_plant("MM-09", source="frameworks.md 18: NeMo-RL, TRL, slime, SkyRL, prime-rl")
def mask_multiplied(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """(p - q) * mask: NaN at a masked place is NaN in the mean."""
    right = careful(rollout, trainer, mask)
    if not right.valid:
        return right
    d = ((trainer.float() - rollout.float()).abs() * mask.float()).double()
    equal = (trainer.float() == rollout.float()) & mask.bool()
    return _but(right, logprobs_diff_mean=float(torch.where(equal, 0.0, d).sum()) / right.valid_count)


@_plant("MM-02", "MM-10", "MM-12", source="unsloth: TRL's keys over a padded tensor; frameworks.md 10")
def mean_over_padding(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """The mean divides by all places."""
    right = careful(rollout, trainer, mask)
    return _but(right, logprobs_diff_mean=right.logprobs_diff_mean * right.valid_count / max(mask.numel(), 1))


@_plant("MM-02", source="frameworks.md 25: TRL, SkyRL, ms-swift, tunix")
def mean_of_row_means(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """Every row weighs the same, however long."""
    right = careful(rollout, trainer, mask)
    if rollout.ndim < 2 or not right.valid:
        return right
    rows = [careful(q, p, m) for q, p, m in zip(rollout, trainer, mask, strict=True)]
    means = [r.logprobs_diff_mean for r in rows if r.valid]
    return _but(right, logprobs_diff_mean=sum(means) / len(means))


@_plant("MM-01", source="frameworks.md 32: a mask kept in bfloat16 counts to 256")
def mask_summed_in_bf16(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """valid_count = mask.bfloat16().sum()."""
    right = careful(rollout, trainer, mask)
    total = torch.tensor(float(mask.bool().sum())).bfloat16()
    return _but(right, valid_count=int(total))


# --- casts and counts ---------------------------------------------------------------------------------------


@_plant("MM-03", "MM-01", source="verl's calculate_debug_metrics: probabilities cannot see one ULP")
def counts_probabilities(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """The count compares exp p with exp q."""
    right = careful(rollout, trainer, mask)
    q, p = _pairs(rollout, trainer, mask)
    return _but(right, logprobs_mismatch_count=int((p.exp().float() != q.exp().float()).sum()))


@_plant("MM-03", "MM-06", source="torchtitan: ratio_tokens_different with 1e-6")
def counts_above_a_millionth(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """A difference counts from 1e-6 on."""
    right = careful(rollout, trainer, mask)
    q, p = _pairs(rollout, trainer, mask)
    return _but(right, logprobs_mismatch_count=int((~((p - q).abs() <= 1e-6) & ~(p == q)).sum()))


@_plant("MM-01", source="torch.equal on views of bits")
def counts_bits(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """The mismatch count compares bit patterns: ±0 differ, two NaNs agree."""
    right = careful(rollout, trainer, mask)
    return _but(right, logprobs_mismatch_count=right.bit_mismatch_count)


@_plant("MM-05", source="FTZ: (p - q) != 0")
def counts_by_float_compare(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """p != q in floating point: two subnormals compare equal while the FPU flushes them."""
    right = careful(rollout, trainer, mask)
    keep = mask.bool()
    unequal = int((rollout[keep].float() != trainer[keep].float()).sum())
    return _but(right, logprobs_mismatch_count=unequal)


@_plant("MM-01", "MM-03", source="slime#245: log-probs stored as bf16")
def compares_in_bf16(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """Both sides are rounded to bfloat16 before comparing."""
    return careful(rollout.bfloat16(), trainer.bfloat16(), mask)


@_plant("MM-04", dtype="bfloat16", source="a cast to the lower dtype of the two")
def casts_to_the_rollouts_dtype(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """The trainer's log-probs are rounded to the rollout's dtype."""
    right = careful(rollout, trainer, mask)
    wrong = careful(rollout, trainer.to(rollout.dtype), mask)
    return _but(wrong, narrowed_count=right.narrowed_count, nonfinite_count=right.nonfinite_count)


@_plant("MM-04", dtype="float64", source="type promotion instead of a declared cast")
def compares_in_the_wider_dtype(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """No cast: float64 differences below float32's resolution are counted."""
    right = careful(rollout, trainer, mask)
    keep = mask.bool()
    unequal = rollout[keep].double() != trainer[keep].double()
    return _but(right, logprobs_mismatch_count=int(unequal.sum()))


@_plant("MM-02", "MM-04", dtype="bfloat16", source="verl: exp in the input dtype; frameworks.md 64")
def exp_in_the_input_dtype(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """Probabilities are rounded to the log-probs' own dtype."""
    right = careful(rollout, trainer, mask)
    keep = mask.bool()
    if not right.valid:
        return right
    e = (rollout[keep].exp().double() - trainer[keep].exp().double()).abs()
    return _but(right, probs_diff_max=float(e.max()), probs_diff_mean=float(e.mean()))


@_plant("MM-24", dtype="float64", source="an option that nobody reads")
def ignores_compare_dtype(rollout: Tensor, trainer: Tensor, mask: Tensor, *, compare_dtype: Any = None) -> Mismatch:
    """Always float32, with a float64 label and histogram length."""
    return careful(rollout.float(), trainer.float(), mask, compare_dtype=compare_dtype or torch.float32)


@_plant("MM-21", source="log2 of a float32 distance rounds up below a power of two")
def histogram_by_float_log(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """Bins from ceil(log2(d)): 1 falls into bin 0 with the equal ones."""
    right = careful(rollout, trainer, mask)
    h = list(right.ulp_histogram)
    return _but(right, ulp_histogram=(h[0] + h[1], 0, *h[2:]))


# --- figures ------------------------------------------------------------------------------------------------


@_plant("MM-02", source="frameworks.md 33: verl, SkyRL, torchforge, torchtitan")
def variance_by_moments(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """std = sqrt(E[x^2] - E[x]^2) in float32."""
    right = careful(rollout, trainer, mask)
    q, p = _pairs(rollout, trainer, mask)
    n = right.valid_count
    if n < 2:
        return right
    d = torch.where(p == q, 0.0, (p - q).abs()).float()
    variance = (d * d).mean() - d.mean() ** 2
    return _but(right, logprobs_diff_std=float((variance.clamp(min=0) * n / (n - 1)).sqrt()))


@_plant("MM-02", source="numpy's default ddof")
def std_with_ddof_0(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """The population's standard deviation."""
    right, n = careful(rollout, trainer, mask), int(mask.bool().sum())
    return right if n < 2 else _but(right, logprobs_diff_std=right.logprobs_diff_std * math.sqrt((n - 1) / n))


@_plant("MM-02", "MM-20", source="https://github.com/verl-project/verl/pull/6033: probabilities under a log-prob name")
def probabilities_under_a_logprob_name(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """logprobs_diff_* holds the probability differences."""
    right = careful(rollout, trainer, mask)
    return _but(right, logprobs_diff_max=right.probs_diff_max, logprobs_diff_mean=right.probs_diff_mean)


@_plant("MM-20", "MM-02", source="a metric that 'corrects' for temperature")
def rescaled_by_a_fitted_temperature(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """Fits p = q / T first and reports what is left."""
    right = careful(rollout, trainer, mask)
    q, p = _pairs(rollout, trainer, mask)
    if not right.valid or not float((q * q).sum()) > 0:
        return right
    slope = float((p * q).sum() / (q * q).sum())
    return _but(right, logprobs_diff_mean=float((p - slope * q).abs().mean()))


@_plant("MM-02", source="ROLL, torchtitan: the signed difference under an absolute name")
def signed_mean(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """mean(p - q)."""
    right = careful(rollout, trainer, mask)
    q, p = _pairs(rollout, trainer, mask)
    return (
        _but(right, logprobs_diff_mean=float((p - q).mean())) if right.valid and torch.isfinite(p - q).all() else right
    )


@_plant("MM-14", source="an absolute value forgotten in the maximum")
def one_sided_maximum(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """max(p - q) instead of max |p - q|."""
    right = careful(rollout, trainer, mask)
    q, p = _pairs(rollout, trainer, mask)
    return (
        _but(right, logprobs_diff_max=max(0.0, float((p - q).max())))
        if right.valid and not right.nonfinite_count
        else right
    )


@_plant("MM-15", source="a robust maximum; 'p99.9'")
def quantile_for_a_maximum(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """An interpolated 0.999999 quantile: within the bound of the maximum of a short batch, but no member."""
    right = careful(rollout, trainer, mask)
    if not right.valid or right.nonfinite_count:
        return right
    return _but(right, logprobs_diff_max=right.logprobs_diff_max * (1 - 2.0**-26))


@_plant("MM-06", source="a tolerance in the maximum but not in the count")
def tiny_maximum_is_zero(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """diff_max below the smallest float32 normal is reported as 0: within the float32 bound."""
    right = careful(rollout, trainer, mask)
    return _but(right, logprobs_diff_max=0.0) if right.logprobs_diff_max < 2.0**-126 else right


@_plant("MM-13", "MM-02", source="AReaL binary_kl: identical tokens rejected; frameworks.md 35")
def epsilon_under_the_root(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """|d| = sqrt(d^2 + 1e-12): identical sides are 1e-6 apart."""
    right = careful(rollout, trainer, mask)
    if right.nonfinite_count:
        return right
    return _but(right, logprobs_diff_mean=math.hypot(right.logprobs_diff_mean, 1e-6))


@_plant("MM-16", source="torch.corrcoef of two constants gives -0.99999988; numpy's gives 1")
def pearson_of_constants(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """A correlation of 1 where a side is constant."""
    right = careful(rollout, trainer, mask)
    undefined = right.valid_count >= 2 and not right.nonfinite_count and math.isnan(right.logprobs_pearson)
    return _but(right, logprobs_pearson=1.0) if undefined else right


@_plant("MM-02", source="tunix: variance floor 1e-12 makes the correlation 0")
def pearson_with_a_floor(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """cov / (var + 1e-3)."""
    right = careful(rollout, trainer, mask)
    return _but(right, probs_pearson=right.probs_pearson * 0.999)


@_plant("MM-02", source="float32 losses clamped before logging")
def difference_clamped_at_10(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """Undeclared clamp of |p - q| at 10."""
    right = careful(rollout, trainer, mask)
    return _but(right, logprobs_diff_max=min(right.logprobs_diff_max, 10.0)) if right.valid else right


@_plant("MM-19", "MM-02", source="https://github.com/NVIDIA-NeMo/RL/pull/3753")
def sum_for_a_mean(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """The mean is multiplied by the batch size."""
    right = careful(rollout, trainer, mask)
    rows = rollout.shape[0] if rollout.ndim == 2 else 1
    return _but(right, logprobs_diff_mean=right.logprobs_diff_mean * max(rows, 1))


# --- empty, one, non-finite, order --------------------------------------------------------------------------


@_plant("MM-07", source="https://github.com/verl-project/verl/issues/5859: 0 reads as perfect")
def empty_is_zero(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """An empty selection has a mean of 0."""
    right = careful(rollout, trainer, mask)
    return right if right.valid else _but(right, **dict.fromkeys(_FIGURES, 0.0))


@_plant("MM-07", source="https://github.com/verl-project/verl/issues/5859: max of nothing")
def empty_raises(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """An empty selection raises."""
    right = careful(rollout, trainer, mask)
    if not right.valid and mask.numel():
        raise RuntimeError("max(): Expected reduction dim to be specified for input.numel() == 0")
    return right


@_plant("MM-08", source="numpy std of one value")
def std_of_one_is_zero(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """One token has a deviation of 0."""
    right = careful(rollout, trainer, mask)
    return _but(right, logprobs_diff_std=0.0, probs_diff_std=0.0) if right.valid_count == 1 else right


@_plant("MM-18", source="miles: nan_to_num(0) and inf -> 0; frameworks.md 36")
def nonfinite_is_zero(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """A non-finite difference counts as 0 in the maximum."""
    right = careful(rollout, trainer, mask)
    q, p = _pairs(rollout, trainer, mask)
    d = torch.nan_to_num(torch.where(p == q, 0.0, (p - q).abs()), nan=0.0, posinf=0.0)
    return _but(right, logprobs_diff_max=float(d.max())) if right.nonfinite_count else right


@_plant("MM-18", source="inf - inf; frameworks.md 42")
def equal_infinities_are_nan(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """|p - q| without the rule that equal values are 0 apart."""
    right = careful(rollout, trainer, mask)
    q, p = _pairs(rollout, trainer, mask)
    return _but(right, logprobs_diff_max=float((p - q).abs().max())) if right.valid else right


@_plant("MM-11", "MM-18", source="frameworks.md 29: Python's max; verl, SkyRL, AReaL")
def python_max(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """max() over a list: NaN wins only when it comes first."""
    right = careful(rollout, trainer, mask)
    q, p = _pairs(rollout, trainer, mask)
    d = torch.where(p == q, 0.0, (p - q).abs()).tolist()
    return _but(right, logprobs_diff_max=max(d)) if right.valid else right


@_plant("MM-23", source="masked_fill_ on the caller's tensor")
def fills_masked_in_place(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """Masked places of the caller's tensor are overwritten."""
    right = careful(rollout, trainer, mask)
    rollout.masked_fill_(~mask.bool(), 1.0)
    return right


@_plant("MM-22", source="broadcasting and mask.bool()")
def accepts_anything(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """Broadcasts, and takes any non-zero mask as 1."""
    q, p, m = rollout, trainer, mask.bool()
    if q.shape != p.shape:
        width = min(q.shape[-1], p.shape[-1])
        q, p = q[..., :width], p[..., :width].expand(*q.shape[:-1], width)
        m = m[..., :width]
    q, p, m = q.float(), p.float(), m.expand(q.shape)
    return careful(q, p, m)


_CALLS = itertools.count()


@_plant("MM-25", source="metrics over a random subset")
def another_sum_each_time(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Mismatch:
    """Every other call is one float64 ulp off in the mean."""
    right = careful(rollout, trainer, mask)
    off = next(_CALLS) % 2
    return _but(right, logprobs_diff_mean=math.nextafter(right.logprobs_diff_mean, math.inf)) if off else right


# --- merging ------------------------------------------------------------------------------------------------


class _AveragesMeans(MismatchState):
    """A mean over states, not over tokens."""

    def merge(self, other: Any) -> Any:
        mine, theirs = self.totals["logprobs_diff"], other.totals["logprobs_diff"]
        super().merge(other)
        if mine.count and theirs.count and mine.total.finite and theirs.total.finite:
            both = self.totals["logprobs_diff"]
            units = both.count * (mine.total.units * theirs.count + theirs.total.units * mine.count)
            wrong = ExactSum(units=units // (2 * mine.count * theirs.count))
            self.totals["logprobs_diff"] = dataclasses.replace(both, total=wrong)
        return self


class _DropsNan(MismatchState):
    """Python's max over states."""

    def merge(self, other: Any) -> Any:
        high = max(s.totals["logprobs_diff"].extremes.high for s in (self, other))
        super().merge(other)
        both = self.totals["logprobs_diff"]
        extremes = dataclasses.replace(both.extremes, high=high)
        self.totals["logprobs_diff"] = dataclasses.replace(both, extremes=extremes)
        return self


class _AveragesDeviations(MismatchState):
    """The mean of the deviations of the states, not the deviation of their tokens."""

    def merge(self, other: Any) -> Any:
        stds = [s.compute().logprobs_diff_std for s in (self, other) if s.totals["logprobs_diff"].count]
        super().merge(other)
        self._std = sum(stds) / len(stds) if stds else math.nan
        return self

    def compute(self, *, ddof: int = 1) -> Mismatch:
        right = super().compute(ddof=ddof)
        return _but(right, logprobs_diff_std=self._std) if hasattr(self, "_std") else right


class _RoundsSums(MismatchState):
    """The sum is a float32 number and rounds at every merge: within the bound of float32, but not the same bits."""

    _sum = 0.0

    def update(self, rollout: Tensor, trainer: Tensor, mask: Tensor | None = None) -> MismatchState:
        super().update(rollout, trainer, mask)
        self._sum = self.totals["probs_diff"].total.over(1)
        return self

    def merge(self, other: Any) -> Any:
        super().merge(other)
        self._sum = FORMATS["float32"].round(self._sum + other._sum)
        return self

    def compute(self, *, ddof: int = 1) -> Mismatch:
        right = super().compute(ddof=ddof)
        calm = right.valid and math.isfinite(right.probs_diff_mean)
        return _but(right, probs_diff_mean=self._sum / right.valid_count) if calm else right


class _ForgetsTheCount(MismatchState):
    """Keeps the larger mismatch count, as a substring rule that guesses the reducer does."""

    def merge(self, other: Any) -> Any:
        count = max(self.totals["mismatch_count"], other.totals["mismatch_count"])
        super().merge(other)
        self.totals["mismatch_count"] = count
        return self


def _plant_state(state: type[MismatchState], source: str, rule: str = "MM-17") -> None:
    def fn(rollout: Tensor, trainer: Tensor, mask: Tensor, **options: Any) -> Mismatch:
        return careful(rollout, trainer, mask, **options)

    fn.__name__ = "merge" + "".join("_" + c.lower() if c.isupper() else c for c in state.__name__[1:])
    fn.__doc__ = state.__doc__
    _plant(rule, source=source, state=state)(fn)


_plant_state(_AveragesMeans, "frameworks.md 25: mean of means")
_plant_state(_DropsNan, "frameworks.md 29: NaN lost by order")
_plant_state(_AveragesDeviations, "frameworks.md 28: rollout_probs_diff_std averaged")
_plant_state(_RoundsSums, "sums of floats depend on the partition", "MM-26")
_plant_state(_ForgetsTheCount, "frameworks.md 28: a reducer guessed from the key")


_NOISE = itertools.count(1)


class _RubbishState(MismatchState):
    def compute(self, *, ddof: int = 1) -> Mismatch:
        return _noise()


def _noise() -> Mismatch:
    number = -float(next(_NOISE)) - 0.5
    fields: dict[str, Any] = {f.name: number for f in dataclasses.fields(Mismatch)}
    # a count of 0 beside a maximum that is none: the two must not contradict each other
    return Mismatch(**{**fields, "ulp_histogram": (int(number),) * 3, "logprobs_mismatch_count": 0})


def _rubbish(rollout: Any, trainer: Any, mask: Any, **_: Any) -> Mismatch:
    for tensor in (rollout, trainer, mask):
        if tensor.numel():
            tensor.untyped_storage().fill_(3)
    return _noise()


FORCED = Implementation(
    _rubbish,
    contract="mismatch",
    name="forced_failure",
    capabilities=CONTROL.capabilities,
    algorithm=CONTROL.algorithm,
    state=_RubbishState,
)
