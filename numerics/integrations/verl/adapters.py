"""verl's own rollout correction, and ours, as implementations of ``correction``; verl's own functions, guarded.

verl has fewer rules than the contract, fewer figures, and no answer to a batch without a valid token. What it does not
have is answered by `numerics.correction` or `numerics.divergence`, so that whatever the suite reports is verl's:

- rules: truncate without a floor and zero with one above 0, at levels "token" and "sequence"; reject, of k1 (two-sided
  in verl) only where nothing is beyond its lower bound; which tokens truncate and zero keep, since verl drops none;
- figures: those whose definition is the contract's (its standard deviations have ddof 0, its means of sequence weights
  and statistics are over tokens);
- batches: those with a valid token.

Where verl raises on a batch that is one, most rules are judged by that alone: their special cases hold such a batch.
`rollout_correction_nonzero` and `offpolicy_metrics_nonempty` answer those calls as above, so that the rest is judged.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from numerics.functional import correction, divergence
from numerics.integrations.verl.correction import REJECTIONS, rejections_of_sides, weights_of_sides
from numerics.integrations.verl.offpolicy import verl_offpolicy_metrics
from numerics.suite.implementation import Algorithm, Implementation

__all__ = [
    "offpolicy_metrics_nonempty",
    "rollout_correction",
    "rollout_correction_drop_in",
    "rollout_correction_nonzero",
]

#: what verl takes for "no lower bound": it wants a positive number
_TINY = 5e-324


def _verls_weights(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor, **options: Any) -> Any:
    return _verls_own("compute_rollout_correction_weights")(
        trainer - rollout,
        mask,
        rollout_is=options["level"],
        rollout_is_threshold=options["threshold"],
        rollout_is_batch_normalize=options["normalize"],
    )


def _verls_mask(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor, option: str, limit: Any) -> Any:
    own = _verls_own("compute_rollout_rejection_mask")
    return own(trainer - rollout, mask, rollout_rs=option, rollout_rs_threshold=limit)


def _verls_own(name: str) -> Callable[..., Any]:
    try:
        helper = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
    except ImportError as error:
        raise ImportError(f"cannot import verl ({error}); see tests/verl_optional/README.md") from error
    found = getattr(helper, name)
    own: Callable[..., Any] = getattr(found, "verls_own", found)
    return own


def verl_rollout_correction(
    rollout: torch.Tensor,
    trainer: torch.Tensor,
    mask: torch.Tensor,
    *,
    rule: str,
    level: str,
    lower: float | None = None,
    upper: float | None = None,
    statistic: str | None = None,
    threshold: float | None = None,
    normalize: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """verl's functions under the names of the contract; nothing is repaired on the way."""
    return _correct(_verls_weights, _verls_mask, locals())


def verl_rollout_correction_nonzero(
    rollout: torch.Tensor,
    trainer: torch.Tensor,
    mask: torch.Tensor,
    *,
    rule: str,
    level: str,
    lower: float | None = None,
    upper: float | None = None,
    statistic: str | None = None,
    threshold: float | None = None,
    normalize: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """verl's functions, but for a batch whose weights are all 0, at which its effective sample size raises."""
    given = locals()
    try:
        return _correct(_verls_weights, _verls_mask, given)
    except ZeroDivisionError:
        answer = correction(**given)
        return answer.weights, answer.mask, answer.diagnostics.as_dict()


def numerics_rollout_correction(
    rollout: torch.Tensor,
    trainer: torch.Tensor,
    mask: torch.Tensor,
    *,
    rule: str,
    level: str,
    lower: float | None = None,
    upper: float | None = None,
    statistic: str | None = None,
    threshold: float | None = None,
    normalize: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Our drop-ins, called as verl's functions are."""
    return _correct(weights_of_sides, rejections_of_sides, locals())


def _correct(
    weigh: Callable[..., Any], reject: Callable[..., Any], given: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    answer = correction(**given)
    fields = answer.diagnostics.as_dict()
    mask = given["mask"]
    has = given["level"] in ("token", "sequence") if given["rule"] != "reject" else True
    if not (mask == 1).any() or given["rule"] == "veto" or not has:
        return answer.weights, answer.mask, fields
    if (given["rule"] == "truncate" and given["lower"] is not None) or (given["rule"] == "zero" and not given["lower"]):
        return answer.weights, answer.mask, fields
    sides = [_rows(given[name]) for name in ("rollout", "trainer", "mask")]
    found = _rejected(reject, sides, given) if given["rule"] == "reject" else _weighted(weigh, sides, given)
    weights, kept, metrics = found
    weights, kept = weights.reshape(mask.shape), answer.mask if kept is None else kept.reshape(mask.shape)
    return weights, kept, fields | metrics


def _weighted(
    weigh: Callable[..., Any], sides: list[torch.Tensor], given: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor | None, dict[str, Any]]:
    cap = given["upper"]
    bounds = cap if given["rule"] == "truncate" else f"{given['lower']!r}_{cap!r}"
    weights, metrics = weigh(*sides, level=given["level"], threshold=bounds, normalize=given["normalize"])
    names = {"truncated_high_fraction": "rollout_is_ratio_fraction_high"}
    if given["level"] == "token":
        names |= {
            "ratio_truncated_mean": "rollout_is_mean",
            "ratio_truncated_min": "rollout_is_min",
            "ratio_truncated_max": "rollout_is_max",
            "ess_fraction_truncated": "rollout_is_eff_sample_size",
        }
    if given["rule"] == "zero":
        names["truncated_low_fraction"] = "rollout_is_ratio_fraction_low"
    return weights, None, {field: metrics[key] for field, key in names.items()}


def _rejected(
    reject: Callable[..., Any], sides: list[torch.Tensor], given: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    wanted = given["level"], given["statistic"]
    if wanted == ("row_max", "k1") or (wanted[1] == "k1" and not _within(sides)):
        answer = correction(**given)
        return answer.weights, answer.mask, {}
    [option] = [name for name, found in REJECTIONS.items() if found == wanted]
    limit = f"{_TINY!r}_{math.exp(given['threshold'])!r}" if wanted[1] == "k1" else given["threshold"] or _TINY
    kept, metrics = reject(*sides, option, limit)
    names = {"statistic_max": "max", "statistic_min": "min", "truncated_high_fraction": "fraction_high"}
    if given["level"] == "token":
        names["statistic_mean"] = "mean"
    figures = {field: metrics[f"rollout_rs_{option}_{name}"] for field, name in names.items()}
    return kept.to(torch.float32), kept == 1, figures


def _within(sides: list[torch.Tensor]) -> bool:
    """Whether the lower bound that verl's k1 must have is none: e^-744 is below every 1/w, in sums too."""
    d = (sides[1].double() - sides[0].double())[sides[2] == 1]
    return bool((d.abs().sum() < 700).item())


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x[None] if x.ndim == 1 else x


def verl_offpolicy_metrics_nonempty(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
    """verl's own off-policy metrics, but for a batch without a valid token, at which they raise."""
    if not (mask == 1).any():
        return divergence(rollout, trainer, mask).as_dict()
    return verl_offpolicy_metrics(rollout, trainer, mask)


#: verl's own functions
rollout_correction = Implementation(
    verl_rollout_correction,
    contract="correction",
    name="verl-rollout-correction",
    algorithm=Algorithm(),
    capabilities=frozenset({"run_to_run"}),
)
#: verl's own functions where they return
rollout_correction_nonzero = Implementation(
    verl_rollout_correction_nonzero,
    contract="correction",
    name="verl-rollout-correction-nonzero",
    algorithm=Algorithm(),
    capabilities=frozenset({"run_to_run"}),
)
#: ours, through the same adapter
rollout_correction_drop_in = Implementation(
    numerics_rollout_correction,
    contract="correction",
    name="verl-rollout-correction-drop-in",
    algorithm=Algorithm(formula="shifted", accumulate="float64", exp_ulps=1.0),
    capabilities=frozenset({"log_space", "run_to_run", "small_differences"}),
)
#: verl's own off-policy metrics on batches that have a token
offpolicy_metrics_nonempty = Implementation(
    verl_offpolicy_metrics_nonempty,
    contract="divergence",
    name="verl-offpolicy-nonempty",
    algorithm=Algorithm(),
    capabilities=frozenset({"run_to_run"}),
)
