"""verl's rollout correction: importance weights and rejections under its names and keys, by our rules.

A key keeps the meaning it has in verl - level, bounds, degrees of freedom - and loses its errors: rows without a token
are no rows, nothing is clamped at exp(20), a weight or statistic that is NaN is dropped and counted, the effective
sample size does not divide by zero. The numbers in brackets are statements of ``docs/semantics.md``.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from numerics.formats import narrow
from numerics.functional import correction
from numerics.integrations.verl.offpolicy import compute_offpolicy_metrics
from numerics.reference.moments import Moments
from numerics.reference.pairs import CastPair, cast_pair
from numerics.reference.sums import exact_sums
from numerics.reference.terms import k3_term
from numerics.reference.weights import WeightSums

__all__ = [
    "REJECTIONS",
    "compute_rollout_correction_and_rejection_mask",
    "compute_rollout_correction_weights",
    "compute_rollout_rejection_mask",
    "rejections_of_sides",
    "weights_of_sides",
]

#: verl's rejection -> (level, statistic) of the rule "reject"
REJECTIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "token_k1": ("token", "k1"),
        "token_k2": ("token", "k2"),
        "token_k3": ("token", "k3"),
        "seq_sum_k1": ("row_sum", "k1"),
        "seq_sum_k2": ("row_sum", "k2"),
        "seq_sum_k3": ("row_sum", "k3"),
        "seq_mean_k1": ("row_mean", "k1"),
        "seq_mean_k2": ("row_mean", "k2"),
        "seq_mean_k3": ("row_mean", "k3"),
        "seq_max_k2": ("row_max", "k2"),
        "seq_max_k3": ("row_max", "k3"),
    }
)


@dataclass(frozen=True, kw_only=True)
class _Rejection:
    """One option of ``rollout_rs`` with its bounds in nats; only k1 has a lower one."""

    name: str
    level: str
    statistic: str
    lower: float
    upper: float


def compute_rollout_correction_weights(
    log_ratio: torch.Tensor,
    response_mask: torch.Tensor,
    rollout_is: str = "token",
    rollout_is_threshold: str | float = 2.0,
    rollout_is_batch_normalize: bool = False,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Importance weights from log ratios: a drop-in for verl's function of this name.

    log_ratio: [B, R], floating, nats, trainer minus rollout. response_mask: [B, R], 0/1. rollout_is: "token" or
    "sequence" (the product). rollout_is_threshold: a number or its text is the cap of rule "truncate" [S4.2];
    ``"lower_upper"`` are the bounds of rule "zero" [S4.3]. rollout_is_batch_normalize: divide by the mean over units
    [S4.9], over all ranks where ``torch.distributed`` is initialised.

    Returns float32 weights [B, R] without gradient, 0 at masked places, and ``rollout_is_*`` figures (ratios and
    shares, no unit) without a prefix: mean, std (ddof 0) and ``eff_sample_size`` of the applied weights over valid
    tokens; max and min of the applied weights (token) or of the raw ratios (sequence);
    ``ratio_fraction_high``/``_low``: shares of units whose raw ratio is above the upper, below the lower bound (1/upper
    where there is none); ``seq_*``: of the row means, over rows with a token; ``ratio_{mean,min,max}`` and
    ``ratio_ess``: raw, before anything is cut, ours; ``undefined_count``: units without a ratio, ours. With no valid
    token the figures are NaN and the weights 0.

    `ValueError` for an unknown level, a bad threshold, unequal shapes or a mask that is not 0/1; `TypeError` for a
    threshold that is neither number nor text.
    """
    return weights_of_sides(
        torch.zeros_like(log_ratio),
        log_ratio,
        response_mask,
        level=rollout_is,
        threshold=rollout_is_threshold,
        normalize=rollout_is_batch_normalize,
    )


def compute_rollout_rejection_mask(
    log_ratio: torch.Tensor,
    response_mask: torch.Tensor,
    rollout_rs: str = "token_k1",
    rollout_rs_threshold: str | float | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The mask without rejected tokens: a drop-in for verl's function of this name.

    log_ratio, response_mask: as in `compute_rollout_correction_weights`. rollout_rs: names in `REJECTIONS`, separated
    by commas; a token stays if all of them keep it. rollout_rs_threshold: one threshold for all or one each, separated
    by commas: nats for k2 and k3; for k1 = -log w verl's ``"lower_upper"`` (or ``"upper"``, lower = 1/upper), whose
    logarithms bound k1, so that they bound 1/w and not w.

    Returns the mask in the dtype of ``response_mask``, and figures without a prefix: ``rollout_rs_<option>_*`` of the
    statistic in nats (mean and std, ddof 0, over tokens; the rest over units; ``seq_*`` over rows with a token) and
    shares of tokens and rows that lose something. A unit whose statistic is NaN is not kept [S4.6].

    `ValueError` for an unknown option, a missing or bad threshold, unequal shapes or a mask that is not 0/1.
    """
    return rejections_of_sides(torch.zeros_like(log_ratio), log_ratio, response_mask, rollout_rs, rollout_rs_threshold)


def compute_rollout_correction_and_rejection_mask(
    old_log_prob: torch.Tensor,
    rollout_log_prob: torch.Tensor,
    response_mask: torch.Tensor,
    rollout_is: str | None = None,
    rollout_is_threshold: str | float | None = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: str | float | None = None,
) -> tuple[Any, torch.Tensor, dict[str, float]]:
    """Weights, mask and figures at once: a drop-in for verl's function of this name. Needs verl only for the weights.

    Returns a ``DataProto`` with ``rollout_is_weights`` (None without ``rollout_is``), the mask, and every figure under
    ``rollout_corr/``: those of `compute_rollout_correction_weights`, `compute_rollout_rejection_mask` and
    `numerics.integrations.verl.compute_offpolicy_metrics`. Both sides are cast once to float32 and subtracted in
    float64. Errors as there; all masked gives zeros and NaN instead of a ValueError.
    """
    figures: dict[str, float] = {}
    weights = None
    if rollout_is is not None and rollout_is_threshold is not None:
        tensor, of_weights = weights_of_sides(
            rollout_log_prob,
            old_log_prob,
            response_mask,
            level=rollout_is,
            threshold=rollout_is_threshold,
            normalize=rollout_is_batch_normalize,
        )
        figures |= of_weights
        protocol = importlib.import_module("verl.protocol")
        weights = protocol.DataProto.from_dict(tensors={"rollout_is_weights": tensor})
    mask = response_mask.clone()
    if rollout_rs is not None:
        mask, of_rejections = rejections_of_sides(
            rollout_log_prob, old_log_prob, response_mask, rollout_rs, rollout_rs_threshold
        )
        figures |= of_rejections
    figures |= compute_offpolicy_metrics(old_log_prob, rollout_log_prob, response_mask)
    return weights, mask, {f"rollout_corr/{key}": value for key, value in figures.items()}


def weights_of_sides(
    rollout: torch.Tensor,
    trainer: torch.Tensor,
    mask: torch.Tensor,
    *,
    level: str,
    threshold: str | float,
    normalize: bool,
) -> tuple[torch.Tensor, dict[str, float]]:
    """What `compute_rollout_correction_weights` returns, of both sides: they are cast first and subtracted then."""
    if level not in ("token", "sequence"):
        raise ValueError(f"rollout_is is {level!r}; it must be 'token' or 'sequence'")
    lower, upper = _is_bounds(threshold)
    rule = "truncate" if lower is None else "zero"
    diagnostics = correction(rollout, trainer, mask, rule=rule, level=level, lower=lower, upper=upper).diagnostics
    pair = cast_pair(rollout, trainer, mask, compare_dtype=torch.float32)
    of_rows = torch.exp(_over_rows(pair.d, pair, mean=False))
    raw = torch.exp(pair.d) if level == "token" else of_rows
    units = _bounded(raw, lower, upper)
    spread = slice(None) if level == "token" else pair.rows
    applied = units[spread]
    moments = _moments(applied)
    ends = moments if level == "token" else _moments(raw)
    raw_rows = _over_rows(raw, pair, mean=True) if level == "token" else of_rows
    floor = 1 / upper if lower is None else lower
    figures = {
        "mean": moments.mean,
        "max": ends.maximum,
        "min": ends.minimum,
        "std": moments.std(ddof=0),
        "eff_sample_size": WeightSums.of(torch.log(applied)).ess_fraction(),
        "ratio_fraction_high": _share(raw > upper),
        "ratio_fraction_low": _share(raw < floor),
        **_row_figures(_over_rows(applied, pair, mean=True), deviation_from=1.0),
        "seq_fraction_high": _share(raw_rows > upper),
        "seq_fraction_low": _share(raw_rows < floor),
        "ratio_mean": diagnostics.ratio_mean,
        "ratio_min": diagnostics.ratio_min,
        "ratio_max": diagnostics.ratio_max,
        "ratio_ess": diagnostics.ess_fraction,
        "undefined_count": diagnostics.undefined_count,
    }
    if lower is not None:
        figures["oob_ratio"] = _share(((raw < lower) | (raw > upper))[spread])
    factor = _mean_over_ranks(units) if normalize else 1.0
    if normalize:
        figures["batch_norm_factor"] = factor
    weights = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    weights[mask == 1] = narrow(applied / factor, torch.float32)
    return weights, {f"rollout_is_{name}": value for name, value in figures.items()}


def _bounded(raw: torch.Tensor, lower: float | None, upper: float) -> torch.Tensor:
    """The weights of raw ratios: capped, or 0 outside the bounds; 0 for NaN."""
    if lower is None:
        return torch.where(torch.isnan(raw), 0.0, raw.clamp(max=upper))
    return torch.where((raw >= lower) & (raw <= upper), raw, 0.0)


def rejections_of_sides(
    rollout: torch.Tensor,
    trainer: torch.Tensor,
    mask: torch.Tensor,
    options: str,
    threshold: str | float | None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """What `compute_rollout_rejection_mask` returns, of both sides."""
    pair = cast_pair(rollout, trainer, mask, compare_dtype=torch.float32)
    valid = mask == 1
    keep = valid
    out: dict[str, float] = {}
    for option in _options(options, threshold):
        kept = _kept(rollout, trainer, mask, option)
        keep = keep & kept
        figures = _statistic_figures(pair, option) | _lost(valid, kept, pair)
        out |= {f"rollout_rs_{option.name}_{name}": value for name, value in figures.items()}
    out |= {f"rollout_rs_{name}": value for name, value in _lost(valid, keep, pair).items()}
    return torch.where(keep, mask, torch.zeros_like(mask)), out


def _kept(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor, option: _Rejection) -> torch.Tensor:
    """The valid tokens that one option keeps, bool [B, R]."""
    rule = {"rule": "reject", "level": option.level, "statistic": option.statistic}
    kept = correction(rollout, trainer, mask, threshold=option.upper, **rule).mask
    if option.statistic == "k1":  # k1 >= lower is -k1 <= -lower, and -k1 is k1 of the sides exchanged
        kept = kept & correction(trainer, rollout, mask, threshold=-option.lower, **rule).mask
    return kept


def _statistic_figures(pair: CastPair, option: _Rejection) -> dict[str, float]:
    d = pair.d
    tokens = {"k1": -d, "k2": d * d / 2, "k3": k3_term(d)}[option.statistic]
    rows = _over_rows(tokens, pair, mean=option.level != "row_sum")
    if option.level == "row_max":
        rows = _row_maxima(tokens, pair)
    units = tokens if option.level == "token" else rows
    per_token = _moments(tokens if option.level == "token" else rows[pair.rows])
    ends = _moments(units)
    return {
        "mean": per_token.mean,
        "max": ends.maximum,
        "min": ends.minimum,
        "fraction_high": _share(units > option.upper),
        "fraction_low": _share(units < option.lower),
        "std": per_token.std(ddof=0),
        **_row_figures(rows, deviation_from=0.0),
        "seq_fraction_high": _share(rows > option.upper),
        "seq_fraction_low": _share(rows < option.lower),
    }


def _row_figures(rows: torch.Tensor, *, deviation_from: float) -> dict[str, float]:
    moments = _moments(rows)
    return {
        "seq_mean": moments.mean,
        "seq_std": moments.std(),
        "seq_max": moments.maximum,
        "seq_min": moments.minimum,
        "seq_max_deviation": _moments((rows - deviation_from).abs()).maximum,
    }


def _lost(valid: torch.Tensor, kept: torch.Tensor, pair: CastPair) -> dict[str, float]:
    """Shares of valid tokens that are dropped, and of rows with a token that lose one."""
    dropped = ~kept[valid]
    losing = torch.zeros_like(pair.row_lengths).index_add(0, pair.rows, dropped.to(torch.int64)) > 0
    return {"masked_fraction": _share(dropped), "seq_masked_fraction": _share(losing)}


def _over_rows(x: torch.Tensor, pair: CastPair, *, mean: bool) -> torch.Tensor:
    """The sum or mean of x over each row, exact sums rounded once, float64 [B]."""
    lengths = pair.row_lengths.tolist()
    sums = exact_sums(x[None], pair.rows, len(lengths))[0]
    found = [s.over(n if mean else 1) for s, n in zip(sums, lengths, strict=True)]
    return torch.tensor(found, dtype=torch.float64, device=x.device)


def _row_maxima(x: torch.Tensor, pair: CastPair) -> torch.Tensor:
    parts = torch.split(x[torch.argsort(pair.rows, stable=True)], pair.row_lengths.tolist())
    return torch.stack([part.amax() for part in parts]) if pair.row_lengths.numel() else x.new_zeros(0)


def _moments(x: torch.Tensor) -> Moments:
    return Moments.of(x[None])[0]


def _share(hit: torch.Tensor) -> float:
    return int(hit.sum()) / hit.numel() if hit.numel() else math.nan


def _mean_over_ranks(units: torch.Tensor) -> float:
    """The mean of the units of all ranks (of this process without torch.distributed); 1 where it is not positive."""
    pair = torch.stack([units.sum(), torch.tensor(float(units.numel()), dtype=torch.float64, device=units.device)])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(pair)
    total, count = pair.tolist()
    return total / count if total > 0 else 1.0


def _is_bounds(threshold: str | float) -> tuple[float | None, float]:
    """(lower, upper) of ``rollout_is_threshold``; lower is None for a cap alone."""
    numbers = _numbers("rollout_is_threshold", _text("rollout_is_threshold", threshold))
    lower, upper = (None, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    if lower is not None and lower > upper:
        raise ValueError(f"rollout_is_threshold is {threshold!r}; the lower bound must be at most the upper")
    return lower, upper


def _options(options: str, threshold: str | float | None) -> list[_Rejection]:
    """``rollout_rs`` with its thresholds."""
    names = list(dict.fromkeys(x.strip() for x in options.split(",") if x.strip())) if isinstance(options, str) else []
    if not names:
        raise ValueError(f"rollout_rs is {options!r}; it must name one or more of {', '.join(REJECTIONS)}")
    for name in names:
        if name not in REJECTIONS:
            raise ValueError(f"rollout_rs has {name!r}; the options are {', '.join(REJECTIONS)}")
    if threshold is None:
        raise ValueError("rollout_rs needs rollout_rs_threshold")
    texts = [x.strip() for x in _text("rollout_rs_threshold", threshold).split(",") if x.strip()]
    if len(texts) not in (1, len(names)):
        raise ValueError(f"rollout_rs_threshold {threshold!r} has {len(texts)} thresholds for {len(names)} options")
    return [
        _option(name, text) for name, text in zip(names, texts * (len(names) if len(texts) == 1 else 1), strict=True)
    ]


def _option(name: str, text: str) -> _Rejection:
    level, statistic = REJECTIONS[name]
    numbers = _numbers(f"rollout_rs_threshold of {name}", text)
    if statistic != "k1":
        if len(numbers) != 1:
            raise ValueError(f"rollout_rs_threshold of {name} is {text!r}; it takes one upper bound, in nats")
        return _Rejection(name=name, level=level, statistic=statistic, lower=-math.inf, upper=numbers[0])
    lower, upper = numbers if len(numbers) == 2 else (1 / numbers[0], numbers[0])
    if lower > upper:
        raise ValueError(f"rollout_rs_threshold of {name} is {text!r}; the lower bound must be at most the upper")
    return _Rejection(name=name, level=level, statistic=statistic, lower=math.log(lower), upper=math.log(upper))


def _text(what: str, threshold: Any) -> str:
    """A threshold as text; a boolean is none, though Python takes True for 1."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float | str):
        kind = "a boolean" if isinstance(threshold, bool) else type(threshold).__name__
        raise TypeError(f"{what} must be a number or text, not {kind}")
    return str(threshold)


def _numbers(what: str, text: str) -> list[float]:
    """One or two positive numbers, separated by an underscore (which Python's float would take as a digit mark)."""
    parts = text.strip().split("_")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2 or not all(0 < x < math.inf for x in numbers):
        raise ValueError(f"{what} is {text!r}; it must be a positive number or two of them, 'lower_upper'")
    return numbers
