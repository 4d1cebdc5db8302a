"""The implementations that the suite brings along, each with what it honestly declares."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from numerics import formats, functional, reference
from numerics.suite.implementation import Algorithm, Implementation

__all__ = ["BUILTIN", "builtin"]

_FLOAT64 = Algorithm(formula="shifted", accumulate="float64", exp_ulps=1.0)
_EVERYTHING = frozenset(
    {
        "autograd",
        "batch_invariant",
        "checks_arguments",
        "ieee_counts",
        "nonfinite_gradients",
        "overflow_safe",
        "per_token_temperature",
        "run_to_run",
        "zero_times_inf",
    }
)


def _scaled(logits: torch.Tensor, temperature: float | torch.Tensor) -> torch.Tensor:
    """Float32 (float64) logits divided by a temperature of that dtype, materialised as a tensor."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    t = torch.as_tensor(temperature, dtype=torch.float64 if wide.dtype == torch.float64 else None)
    t = t.to(wide.dtype).to(wide.device)
    return wide / (t[..., None] if t.ndim else t)


def cpu_token_logprobs(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The CPU kernels, through the public function."""
    return functional.token_logprobs(logits, token_ids, temperature=temperature, mask=mask, backend="cpu")


def cpu_token_logprobs_pair(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The pair of the CPU kernels."""
    return functional.token_logprobs_pair(logits, token_ids, temperature=temperature, mask=mask, backend="cpu")


def cpu_entropy(
    logits: torch.Tensor, *, temperature: float | torch.Tensor = 1.0, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """The entropy of the CPU kernels."""
    return functional.entropy(logits, temperature=temperature, mask=mask, backend="cpu")


def torch_log_softmax(
    logits: torch.Tensor, token_ids: torch.Tensor, *, temperature: float | torch.Tensor = 1.0
) -> torch.Tensor:
    """``torch.log_softmax`` in float32 and gather: what careful eager code does."""
    return torch.log_softmax(_scaled(logits, temperature), dim=-1).gather(-1, token_ids[..., None])[..., 0]


def torch_logsumexp(
    logits: torch.Tensor, token_ids: torch.Tensor, *, temperature: float | torch.Tensor = 1.0
) -> torch.Tensor:
    """``x_i - torch.logsumexp(x)``: the common form that never makes a second [N, V] tensor."""
    scaled = _scaled(logits, temperature)
    return scaled.gather(-1, token_ids[..., None])[..., 0] - torch.logsumexp(scaled, dim=-1)


def torch_entropy(logits: torch.Tensor, *, temperature: float | torch.Tensor = 1.0) -> torch.Tensor:
    """``logsumexp(x) - sum softmax(x) x``, the form most frameworks use (NaN when a logit is -inf)."""
    scaled = _scaled(logits, temperature)
    return torch.logsumexp(scaled, dim=-1) - (torch.softmax(scaled, dim=-1) * scaled).sum(-1)


def torch_mismatch(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
    """Mask selection and plain float32 torch statistics: what a framework would write with care."""
    keep = mask.bool()
    q, p = rollout[keep].float(), trainer[keep].float()
    if p.numel() == 0:
        nothing: dict[str, Any] = {"valid": 0, "valid_count": 0, "logprobs_mismatch_count": 0}
        return nothing | dict.fromkeys(_FIGURES, float("nan"))
    d = torch.where(p == q, torch.zeros_like(p), (p - q).abs())
    probs_q, probs_p = q.exp(), p.exp()
    e = (probs_p - probs_q).abs()
    one = p.numel() == 1
    constant = probs_q.min() == probs_q.max() or probs_p.min() == probs_p.max()
    return {
        "valid": 1,
        "valid_count": p.numel(),
        "logprobs_mismatch_count": int((p != q).sum()),
        "logprobs_diff_max": d.max(),
        "logprobs_diff_mean": d.mean(),
        "logprobs_diff_std": float("nan") if one else d.std(),
        "probs_diff_max": e.max(),
        "probs_diff_mean": e.mean(),
        "probs_diff_std": float("nan") if one else e.std(),
        "probs_pearson": float("nan") if one or constant else torch.corrcoef(torch.stack([probs_q, probs_p]))[0, 1],
    }


def torch_divergence(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
    """Mask selection, float32 and ``torch.expm1``: what a framework would write with care."""
    keep = mask.bool()
    q, p = rollout[keep].float(), trainer[keep].float()
    d = p - q
    n = p.numel()
    w = d.exp()
    k3 = torch.where(torch.isinf(d), torch.full_like(d, torch.inf), torch.expm1(d) - d)
    tokens = {
        "signed_mean": d,
        "k1": -d,
        "k2": 0.5 * d * d,
        "k3": k3,
        "kl_trainer_rollout": torch.where(d == -torch.inf, torch.zeros_like(d), w * d),
        "mult_prob_error": d.abs().exp(),
        "normalization_gap": torch.expm1(d),
        "ratio_mean": w,
        "chi2_token": torch.expm1(2 * d),
        "sampling_entropy": -q,
    }
    lines = zip(*(x.flatten(0, -2) if x.ndim > 1 else x[None] for x in (rollout, trainer, keep)), strict=True)
    rows = [(qr[kr].float(), pr[kr].float()) for qr, pr, kr in lines if kr.any()]
    out: dict[str, Any] = {"valid": int(n > 0), "valid_count": n, "row_count": len(rows)}
    if not n:
        names = (*tokens, "ratio_min", "ratio_max", "ratio_std", "ess_fraction", *_ROW_FIGURES)
        return out | dict.fromkeys(names, float("nan"))
    out |= {name: x.mean() for name, x in tokens.items()}
    out |= {"ratio_min": w.min(), "ratio_max": w.max(), "ratio_std": w.std() if n > 1 else float("nan")}
    out["ess_fraction"] = (
        torch.zeros(()) if (w == 0).all() else (w.sum() / n) ** 2 / ((w * w).sum() / n)  # NaN for an infinite weight
    )
    p_means, q_means = torch.stack([p.mean() for _, p in rows]), torch.stack([q.mean() for q, _ in rows])
    sums = torch.stack([(p - q).sum() for q, p in rows])
    return out | {
        "seq_ratio_mean": sums.exp().mean(),
        "ppl_trainer": (-p_means).exp().mean(),
        "ppl_rollout": (-q_means).exp().mean(),
        "log_ppl_diff_mean": torch.stack([(q - p).mean() for q, p in rows]).mean(),
    }


_ROW_FIGURES = ("seq_ratio_mean", "ppl_trainer", "ppl_rollout", "log_ppl_diff_mean")


def torch_correction(
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
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Importance weights in float32 torch over ``torch.where``: token and sequence truncation, zeroing, rejection."""
    keep = mask.bool()
    d = torch.where(keep, trainer.detach().float() - rollout.float(), torch.zeros((), device=trainer.device))
    counts = keep.sum(-1, keepdim=True).clamp(min=1)
    if rule in ("truncate", "zero"):
        log_ratio = {
            "token": d,
            "sequence": d.sum(-1, keepdim=True).expand_as(d),
            "sequence_geometric": (d.sum(-1, keepdim=True) / counts).expand_as(d),
        }[level]
        w = log_ratio.exp()
        kept = keep & ~torch.isnan(w)
        if rule == "zero":
            assert lower is not None
            assert upper is not None
            kept &= (w >= lower) & (w <= upper)
        else:
            w = w.clamp(min=lower, max=upper)
        return torch.where(kept, w, torch.zeros_like(w)), kept, {"kept_fraction": _share(kept, keep)}
    assert threshold is not None
    if rule == "veto":
        fine = ~((d.exp() < threshold) | torch.isnan(d))
        kept = keep & (fine | ~keep).all(-1, keepdim=True)
        return kept.float(), kept, {"kept_fraction": _share(kept, keep)}
    k = {"k1": -d, "k2": 0.5 * d * d, "k3": torch.where(torch.isinf(d), d.abs(), torch.expm1(d) - d)}[str(statistic)]
    k = torch.where(keep, k, torch.zeros_like(k))
    per_row = {
        "token": k,
        "row_sum": k.sum(-1, keepdim=True),
        "row_mean": k.sum(-1, keepdim=True) / counts,
        "row_max": torch.where(keep, k, torch.full_like(k, -torch.inf)).amax(-1, keepdim=True)
        if k.numel()
        else k.sum(-1, keepdim=True),
    }[level]
    kept = keep & (per_row <= threshold)
    return kept.float(), kept, {"kept_fraction": _share(kept, keep)}


def torch_full_divergence(
    rollout_logits: torch.Tensor, trainer_logits: torch.Tensor, mask: torch.Tensor, *, overlap_k: int = 10
) -> dict[str, Any]:
    """``torch.log_softmax`` of both sides in float32, and the definitions as they stand."""
    keep, k = mask.bool(), min(overlap_k, rollout_logits.shape[-1])
    lq, lp = (torch.log_softmax(x.float(), dim=-1) for x in (rollout_logits, trainer_logits))
    q, p = lq.exp(), lp.exp()
    zero = torch.zeros((), device=lq.device)
    m = (p + q) / 2
    apart = torch.where(lq == lp, zero, lq - lp)
    best = [
        torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :k] for x in (rollout_logits, trainer_logits)
    ]
    lost = torch.isnan(lq).any(-1) | torch.isnan(lp).any(-1)
    rows = {
        "tv": (p - q).abs().sum(-1) / 2,
        "kl_rollout_trainer": _expected(q, apart).sum(-1),
        "kl_trainer_rollout": _expected(p, -apart).sum(-1),
        "jsd": torch.stack([torch.where(x > 0, x * (lx - m.log()), zero).sum(-1) for x, lx in ((p, lp), (q, lq))]).mean(
            0
        ),
        "top_k_overlap": (best[0][..., :, None] == best[1][..., None, :]).any(-1).float().mean(-1),
        "logprob_gap": apart.abs().amax(-1),
    }
    rows = {n: torch.where(lost, torch.full_like(x, torch.nan), x) for n, x in rows.items()}
    rows = {n: torch.where(keep, x, zero) for n, x in rows.items()}
    n = int(keep.sum())
    out: dict[str, Any] = {"valid": int(n > 0), "valid_count": n, "rows": rows}
    for name, x in rows.items():
        out[f"{name}_mean"] = x[keep].mean() if n else float("nan")
        out[f"{name}_max"] = x[keep].max() if n else float("nan")
    return out


def _expected(q: torch.Tensor, log_ratio: torch.Tensor) -> torch.Tensor:
    """Q ln(Q/P); inf where P is without the token, also if Q underflows."""
    return torch.where(torch.isposinf(log_ratio), log_ratio, torch.where(q > 0, q * log_ratio, torch.zeros_like(q)))


def _share(kept: torch.Tensor, of: torch.Tensor) -> float:
    return int(kept.sum()) / int(of.sum()) if of.any() else float("nan")


_FIGURES = (
    "logprobs_diff_max",
    "logprobs_diff_mean",
    "logprobs_diff_std",
    "probs_diff_max",
    "probs_diff_mean",
    "probs_diff_std",
    "probs_pearson",
)

_KERNELS = frozenset(
    {
        "batch_invariant",
        "checks_arguments",
        "overflow_safe",
        "per_token_temperature",
        "portable_bits",
        "run_to_run",
    }
)
#: exp: 1.32 ulps (tests/test_kernels.py); log: float64, rounded once
_FLOAT32 = Algorithm(formula="shifted", accumulate="compute", exp_ulps=1.5, log_ulps=1.0)
_EAGER = frozenset({"autograd", "per_token_temperature", "run_to_run"})

BUILTIN: Mapping[str, tuple[Implementation, ...]] = MappingProxyType(
    {
        "cpu": tuple(
            Implementation(
                fn,
                contract=contract,
                name="cpu",
                dtypes=("float32", "bfloat16", "float16"),
                devices=("cpu",),
                capabilities=_KERNELS | more,
                algorithm=_FLOAT32,
                pair=pair,
            )
            for contract, fn, pair, more in (
                ("token_logprobs", cpu_token_logprobs, cpu_token_logprobs_pair, frozenset[str]()),
                ("entropy", cpu_entropy, None, frozenset({"zero_times_inf"})),
            )
        ),
        "reference": (
            Implementation(
                reference.token_logprobs,
                contract="token_logprobs",
                name="reference",
                capabilities=_EVERYTHING - {"zero_times_inf", "ieee_counts"},
                algorithm=_FLOAT64,
                pair=reference.token_logprobs_pair,
            ),
            Implementation(
                reference.entropy,
                contract="entropy",
                name="reference",
                capabilities=_EVERYTHING - {"ieee_counts", "nonfinite_gradients"},
                algorithm=_FLOAT64,
            ),
            Implementation(
                reference.mismatch,
                contract="mismatch",
                name="reference",
                capabilities=frozenset({"checks_arguments", "exact_merge", "ieee_counts", "run_to_run"}),
                algorithm=_FLOAT64,
                state=reference.MismatchState,
            ),
            Implementation(
                reference.divergence,
                contract="divergence",
                name="reference",
                capabilities=frozenset(
                    {"checks_arguments", "exact_merge", "log_space", "run_to_run", "small_differences"}
                ),
                algorithm=_FLOAT64,
                state=reference.DivergenceState,
            ),
            Implementation(
                reference.correction,
                contract="correction",
                name="reference",
                capabilities=frozenset(
                    {"autograd", "checks_arguments", "exact_merge", "log_space", "run_to_run", "small_differences"}
                ),
                algorithm=_FLOAT64,
                state=reference.CorrectionState,
            ),
            Implementation(
                reference.full_divergence,
                contract="full_divergence",
                name="reference",
                capabilities=frozenset(
                    {"batch_invariant", "checks_arguments", "overflow_safe", "run_to_run", "small_differences"}
                ),
                algorithm=_FLOAT64,
            ),
            Implementation(
                formats.ulp_distance,
                contract="ulp_distance",
                name="reference",
                capabilities=frozenset({"checks_arguments", "ieee_counts", "run_to_run"}),
            ),
        ),
        "torch": (
            Implementation(
                torch_log_softmax,
                contract="token_logprobs",
                name="torch",
                capabilities=_EAGER | {"batch_invariant"},
                algorithm=Algorithm(formula="shifted"),
            ),
            Implementation(torch_entropy, contract="entropy", name="torch", capabilities=_EAGER),
            Implementation(torch_mismatch, contract="mismatch", name="torch", capabilities=frozenset({"run_to_run"})),
            Implementation(
                torch_divergence, contract="divergence", name="torch", capabilities=frozenset({"run_to_run"})
            ),
            Implementation(
                torch_full_divergence,
                contract="full_divergence",
                name="torch",
                capabilities=frozenset({"run_to_run"}),
                algorithm=Algorithm(formula="shifted"),
            ),
            Implementation(
                torch_correction, contract="correction", name="torch", capabilities=frozenset({"run_to_run"})
            ),
        ),
        "torch-logsumexp": (
            Implementation(
                torch_logsumexp,
                contract="token_logprobs",
                name="torch-logsumexp",
                capabilities=_EAGER,
                expected_failures={
                    "LP-21": "gives -inf (x - inf) beside a +inf logit, where the row is no distribution; "
                    "https://docs.pytorch.org/docs/stable/generated/torch.logsumexp.html"
                },
            ),
        ),
    }
)


def builtin(name: str, contract: str) -> Implementation:
    """The implementation of a contract among those of a name."""
    (found,) = (implementation for implementation in BUILTIN[name] if implementation.contract == contract)
    return found
