"""How far apart two policies are, estimated from tokens that the rollout policy sampled.

Per token ``d = p - q`` (trainer minus rollout) and ``w = exp(d)``; every figure is a mean, an extreme or a ratio of
sums of the terms in `_TOKEN_TERMS` and `_row_terms`. The sums are exact, so a figure does not depend on how the tokens
were split or ordered. Which divergence each estimates, and when it is biased, is in ``docs/divergence.md``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from numerics.formats import format_of
from numerics.reference.interval import clustered_interval
from numerics.reference.moments import Extremes, Moments
from numerics.reference.pairs import CastPair, cast_pair, check_compare_dtype
from numerics.reference.state import State, merged
from numerics.reference.sums import ExactSum, exact_products, exact_sums
from numerics.reference.terms import jsd_term, k3_term, weighted_difference
from numerics.reference.weights import WeightSums

__all__ = ["Divergence", "DivergenceState", "divergence"]


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Divergences over N valid tokens (``valid_count``) in B rows that have one (``row_count``).

    With N = 0 ``valid`` is 0, every count is 0 and every other figure NaN. ``d = p - q`` of the cast pair, trainer
    minus rollout; ``w = exp d``; ``d_r``, ``n_r`` belong to row r. Natural logarithms.
    """

    valid: int  #: 1 if N > 0, else 0
    valid_count: int  #: N, tokens
    row_count: int  #: B, rows with a valid token
    nonfinite_count: int  #: tokens at which p or q is NaN or infinite
    narrowed_count: int  #: values (0 to 2 a token) that the cast to compare_dtype changed
    ratio_overflow_count: int  #: tokens with a finite d whose exp overflows float64 (d > 709.78)
    signed_mean: float  #: mean d, nats
    probs_signed_mean: float  #: mean of exp p - exp q
    k1: float  #: mean of -d: KL(rollout || trainer), nats, unbiased
    k2: float  #: mean of d^2 / 2, nats, biased by design
    k3: float  #: mean of exp d - 1 - d: KL(rollout || trainer), nats, never negative
    kl_trainer_rollout: float  #: mean of w d: KL(trainer || rollout), nats
    jsd: float  #: mean of (w d - (1 + w) ln((1 + w) / 2)) / 2: Jensen-Shannon divergence, nats
    mult_prob_error: float  #: mean of exp abs(d)
    normalization_gap: float  #: mean of exp d - 1: 0 in expectation if both sides are normalised on one support
    normalization_gap_se: float  #: its standard error, clustered by row
    normalization_gap_low: float  #: lower end of its 95 % interval (Student t, B - 1 degrees of freedom)
    normalization_gap_high: float  #: upper end
    ratio_mean: float  #: mean w
    ratio_min: float  #: min w
    ratio_max: float  #: max w
    ratio_std: float  #: standard deviation of w, ddof 1
    ess_fraction: float  #: (sum w)^2 / (N sum w^2), effective sample size over N, in [1/N, 1]
    chi2_token: float  #: mean of exp(2 d) - 1
    log1p_chi2_token: float  #: ln(mean exp(2 d)) = ln(1 + chi2_token), finite where chi2_token overflows
    fraction_above: float  #: share of tokens with not (abs(d) <= epsilon)
    sampling_entropy: float  #: mean of -q: entropy of the rollout policy, nats
    ppl_rollout_token: float  #: exp(mean of -q)
    ppl_trainer_token: float  #: exp(mean of -p)
    seq_ratio_mean: float  #: mean over rows of exp(sum d_r)
    seq_ratio_min: float  #: min over rows of exp(sum d_r)
    seq_ratio_max: float  #: max over rows of exp(sum d_r)
    seq_ratio_geometric_mean: float  #: mean over rows of exp(mean d_r)
    seq_ratio_geometric_min: float  #: min over rows of exp(mean d_r)
    seq_ratio_geometric_max: float  #: max over rows of exp(mean d_r)
    chi2_seq: float  #: mean over rows of exp(2 sum d_r) - 1
    log1p_chi2_seq: float  #: ln(mean over rows of exp(2 sum d_r))
    chi2_seq_geometric: float  #: mean over rows of exp(2 mean d_r) - 1; no divergence
    log1p_chi2_seq_geometric: float  #: ln(mean over rows of exp(2 mean d_r))
    ppl_rollout: float  #: mean over rows of exp(-mean q_r)
    ppl_trainer: float  #: mean over rows of exp(-mean p_r)
    log_ppl_rollout: float  #: mean over rows of -mean q_r, nats
    log_ppl_trainer: float  #: mean over rows of -mean p_r, nats
    ppl_ratio: float  #: mean over rows of exp(mean(q_r - p_r))
    log_ppl_diff_mean: float  #: mean over rows of mean(q_r - p_r), nats
    log_ppl_diff_abs_mean: float  #: mean over rows of its absolute value
    log_ppl_diff_max: float  #: max over rows
    log_ppl_diff_min: float  #: min over rows
    seq_mult_prob_error_mean: float  #: mean over rows of mean exp abs(d_r)
    seq_mult_prob_error_max: float  #: max over rows
    seq_mult_prob_error_min: float  #: min over rows
    epsilon: float  #: the limit of fraction_above, nats
    compare_dtype: str  #: the format of the cast

    def as_dict(self) -> dict[str, Any]:
        """The fields as a plain dict, in order."""
        return dataclasses.asdict(self)


#: term of one token -> its value in float64; the figure is its mean
_TOKEN_TERMS: Mapping[str, Callable[[CastPair], torch.Tensor]] = MappingProxyType(
    {
        "signed_mean": lambda t: t.d,
        "probs_signed_mean": lambda t: torch.exp(t.wide_p) - torch.exp(t.wide_q),
        "k2": lambda t: t.d * t.d / 2,
        "k3": lambda t: k3_term(t.d),
        "kl_trainer_rollout": lambda t: weighted_difference(t.d),
        "jsd": lambda t: jsd_term(t.d),
        "mult_prob_error": lambda t: torch.exp(t.d.abs()),
        "normalization_gap": lambda t: torch.expm1(t.d),
        "chi2_token": lambda t: torch.expm1(2 * t.d),
        "log_ppl_rollout_token": lambda t: -t.wide_q,
        "log_ppl_trainer_token": lambda t: -t.wide_p,
    }
)
#: figures of rows: `_row_terms` gives the value of each row
_ROW_TERMS = (
    "seq_ratio",
    "seq_ratio_geometric",
    "chi2_seq",
    "chi2_seq_geometric",
    "ppl_rollout",
    "ppl_trainer",
    "log_ppl_rollout",
    "log_ppl_trainer",
    "ppl_ratio",
    "log_ppl_diff",
    "log_ppl_diff_abs",
    "seq_mult_prob_error",
)
#: rows at a time: bounds the memory of their exact sums
_ROWS = 4096


class DivergenceState(State):
    """What has been seen so far; `update` and `merge` return the state, `compute` the figures.

    epsilon: the limit of ``fraction_above``, nats. Any split of the same rows into updates, merges and ranks gives the
    same figures, bit for bit; figures that are not of rows may be split anywhere.
    """

    kind = "divergence"

    def __init__(self, *, compare_dtype: torch.dtype = torch.float32, epsilon: float = 1e-6) -> None:
        check_compare_dtype(compare_dtype)
        super().__init__(
            options={"compare_dtype": compare_dtype, "epsilon": _checked_epsilon(epsilon)},
            totals={
                "row_count": 0,
                "nonfinite_count": 0,
                "narrowed_count": 0,
                "ratio_overflow_count": 0,
                "above_count": 0,
                "tokens": dict.fromkeys(_TOKEN_TERMS, ExactSum()),
                "ratio": Moments(),
                "weights": WeightSums(),
                "rows": dict.fromkeys(_ROW_TERMS, ExactSum()),
                "row_extremes": dict.fromkeys(_ROW_TERMS, Extremes()),
                "seq_weights": WeightSums(),
                "seq_weights_geometric": WeightSums(),
                "gap": (ExactSum(),) * 4,
            },
        )

    def update(
        self,
        rollout: torch.Tensor,
        trainer: torch.Tensor,
        mask: torch.Tensor | None = None,
        *,
        row_ids: torch.Tensor | None = None,
    ) -> DivergenceState:
        """Add tokens: tensors of one shape and device; see `numerics.reference.pairs.cast_pair` for the errors.

        Rows are the last axis, or what ``row_ids`` says (packed input): integers of the same shape, equal for the
        tokens of one row. A row must come whole, in one update.
        """
        compare_dtype = self.options["compare_dtype"]
        return self.add(cast_pair(rollout, trainer, mask, compare_dtype=compare_dtype, row_ids=row_ids))

    def add(self, pair: CastPair) -> DivergenceState:
        """Add tokens that are cast already."""
        d, w = pair.d, torch.exp(pair.d)
        terms = torch.stack([term(pair) for term in _TOKEN_TERMS.values()])
        rows, gap = _row_totals(pair)
        new = {
            "row_count": pair.row_lengths.numel(),
            "nonfinite_count": pair.nonfinite_count,
            "narrowed_count": pair.narrowed_count,
            "ratio_overflow_count": int((torch.isfinite(d) & torch.isinf(w)).sum()),
            "above_count": int((~(d.abs() <= self.options["epsilon"])).sum()),
            "tokens": {name: total for name, [total] in zip(_TOKEN_TERMS, exact_sums(terms), strict=True)},
            "ratio": Moments.of(w[None])[0],
            "weights": WeightSums.of(d),
            "gap": gap,
            **rows,
        }
        self.totals = merged(self.totals, new)
        return self

    def compute(self) -> Divergence:
        """The figures of everything seen so far."""
        totals, ratio, weights = self.totals, self.totals["ratio"], self.totals["weights"]
        n, rows = ratio.count, totals["row_count"]
        token = {name: total.over(n) for name, total in totals["tokens"].items()}
        row = {name: total.over(rows) for name, total in totals["rows"].items()}
        low = {name: x.low if rows else math.nan for name, x in totals["row_extremes"].items()}
        high = {name: x.high if rows else math.nan for name, x in totals["row_extremes"].items()}
        se, gap_low, gap_high = clustered_interval(*totals["gap"], rows=rows, tokens=n)
        return Divergence(
            valid=int(n > 0),
            valid_count=n,
            row_count=rows,
            nonfinite_count=totals["nonfinite_count"],
            narrowed_count=totals["narrowed_count"],
            ratio_overflow_count=totals["ratio_overflow_count"],
            signed_mean=token["signed_mean"],
            probs_signed_mean=token["probs_signed_mean"],
            k1=0.0 - token["signed_mean"],
            k2=token["k2"],
            k3=token["k3"],
            kl_trainer_rollout=token["kl_trainer_rollout"],
            jsd=token["jsd"],
            mult_prob_error=token["mult_prob_error"],
            normalization_gap=token["normalization_gap"],
            normalization_gap_se=se,
            normalization_gap_low=gap_low,
            normalization_gap_high=gap_high,
            ratio_mean=ratio.mean,
            ratio_min=ratio.minimum,
            ratio_max=ratio.maximum,
            ratio_std=ratio.std(),
            ess_fraction=weights.ess_fraction(),
            chi2_token=token["chi2_token"],
            log1p_chi2_token=weights.log_mean_square(),
            fraction_above=totals["above_count"] / n if n else math.nan,
            sampling_entropy=token["log_ppl_rollout_token"],
            ppl_rollout_token=_exp(token["log_ppl_rollout_token"]),
            ppl_trainer_token=_exp(token["log_ppl_trainer_token"]),
            seq_ratio_mean=row["seq_ratio"],
            seq_ratio_min=low["seq_ratio"],
            seq_ratio_max=high["seq_ratio"],
            seq_ratio_geometric_mean=row["seq_ratio_geometric"],
            seq_ratio_geometric_min=low["seq_ratio_geometric"],
            seq_ratio_geometric_max=high["seq_ratio_geometric"],
            chi2_seq=row["chi2_seq"],
            log1p_chi2_seq=totals["seq_weights"].log_mean_square(),
            chi2_seq_geometric=row["chi2_seq_geometric"],
            log1p_chi2_seq_geometric=totals["seq_weights_geometric"].log_mean_square(),
            ppl_rollout=row["ppl_rollout"],
            ppl_trainer=row["ppl_trainer"],
            log_ppl_rollout=row["log_ppl_rollout"],
            log_ppl_trainer=row["log_ppl_trainer"],
            ppl_ratio=row["ppl_ratio"],
            log_ppl_diff_mean=row["log_ppl_diff"],
            log_ppl_diff_abs_mean=row["log_ppl_diff_abs"],
            log_ppl_diff_max=high["log_ppl_diff"],
            log_ppl_diff_min=low["log_ppl_diff"],
            seq_mult_prob_error_mean=row["seq_mult_prob_error"],
            seq_mult_prob_error_max=high["seq_mult_prob_error"],
            seq_mult_prob_error_min=low["seq_mult_prob_error"],
            epsilon=self.options["epsilon"],
            compare_dtype=format_of(self.options["compare_dtype"]).name,
        )


def divergence(
    rollout: torch.Tensor,
    trainer: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    row_ids: torch.Tensor | None = None,
    compare_dtype: torch.dtype = torch.float32,
    epsilon: float = 1e-6,
) -> Divergence:
    """The divergences of two log-prob tensors of one shape; see `Divergence` for the fields.

    `DivergenceState.update` says what the arguments are and which errors they raise.
    """
    state = DivergenceState(compare_dtype=compare_dtype, epsilon=epsilon)
    return state.update(rollout, trainer, mask, row_ids=row_ids).compute()


def _row_totals(pair: CastPair) -> tuple[dict[str, Any], tuple[ExactSum, ...]]:
    """The totals of the rows, and of the four sums behind the interval of the normalisation gap."""
    sums = _row_sums(pair)
    lengths = pair.row_lengths.to(torch.float64)
    by_name = _row_terms(sums)
    values = torch.stack([by_name[name] for name in _ROW_TERMS])
    extremes = [Extremes()] * len(_ROW_TERMS)
    if lengths.numel():
        ends = zip(values.amin(-1).tolist(), values.amax(-1).tolist(), strict=True)
        extremes = [Extremes(low=low, high=high) for low, high in ends]
    rows = {
        "rows": {name: total for name, [total] in zip(_ROW_TERMS, exact_sums(values), strict=True)},
        "row_extremes": dict(zip(_ROW_TERMS, extremes, strict=True)),
        "seq_weights": WeightSums.of(sums["d"]),
        "seq_weights_geometric": WeightSums.of(sums["d_mean"]),
    }
    gap = sums["gap"]
    products = exact_products(torch.stack([gap, gap, lengths]), torch.stack([gap, lengths, lengths]))
    return rows, (exact_sums(gap[None])[0][0], *products)


def _row_sums(pair: CastPair) -> dict[str, torch.Tensor]:
    """Sums and means over each row's tokens, float64 [B]: exact sums, each rounded once."""
    lists = torch.stack([pair.wide_p, pair.wide_q, pair.d, torch.expm1(pair.d), torch.exp(pair.d.abs())])
    lengths = pair.row_lengths.tolist()
    found: list[list[float]] = [[] for _ in range(6)]
    for first in range(0, len(lengths), _ROWS):
        some = lengths[first : first + _ROWS]
        here = (pair.rows >= first) & (pair.rows < first + len(some))
        p, q, d, gap, error = exact_sums(lists[:, here], pair.rows[here] - first, len(some))
        ones = [1] * len(some)
        for out, sums, over in zip(found, (p, q, d, d, gap, error), (some, some, ones, some, ones, some), strict=True):
            out += [s.over(n) for s, n in zip(sums, over, strict=True)]
    names = ("p_mean", "q_mean", "d", "d_mean", "gap", "error_mean")
    device = pair.rows.device
    return {name: torch.tensor(x, dtype=torch.float64, device=device) for name, x in zip(names, found, strict=True)}


def _row_terms(sums: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The figure of each row, by name."""
    total, mean = sums["d"], sums["d_mean"]
    difference = 0.0 - mean  # mean of q - p
    return {
        "seq_ratio": torch.exp(total),
        "seq_ratio_geometric": torch.exp(mean),
        "chi2_seq": torch.expm1(2 * total),
        "chi2_seq_geometric": torch.expm1(2 * mean),
        "ppl_rollout": torch.exp(-sums["q_mean"]),
        "ppl_trainer": torch.exp(-sums["p_mean"]),
        "log_ppl_rollout": -sums["q_mean"],
        "log_ppl_trainer": -sums["p_mean"],
        "ppl_ratio": torch.exp(difference),
        "log_ppl_diff": difference,
        "log_ppl_diff_abs": mean.abs(),
        "seq_mult_prob_error": sums["error_mean"],
    }


def _exp(x: float) -> float:
    return math.inf if x > 709.782712893384 else math.exp(x)


def _checked_epsilon(epsilon: float) -> float:
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float):
        raise TypeError(f"epsilon must be a number of nats, got {type(epsilon).__name__}")
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon!r}; it must be finite and at least 0 nats")
    return float(epsilon)
