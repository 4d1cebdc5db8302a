"""The readable definition of every quantity, in float64; the same signatures as the public functions."""

from numerics.formats import ulp_distance
from numerics.reference.aggregate import REDUCERS, MetricsAggregator
from numerics.reference.correction import Correction, CorrectionState, Diagnostics, correction
from numerics.reference.cuts import removed_by_cuts
from numerics.reference.divergence import Divergence, DivergenceState, divergence
from numerics.reference.full import FullDivergence, full_divergence
from numerics.reference.logprobs import entropy, token_logprobs, token_logprobs_pair
from numerics.reference.metrics import MetricState
from numerics.reference.mismatch import Mismatch, MismatchState, mismatch

__all__ = [
    "REDUCERS",
    "Correction",
    "CorrectionState",
    "Diagnostics",
    "Divergence",
    "DivergenceState",
    "FullDivergence",
    "MetricState",
    "MetricsAggregator",
    "Mismatch",
    "MismatchState",
    "correction",
    "divergence",
    "entropy",
    "full_divergence",
    "mismatch",
    "removed_by_cuts",
    "token_logprobs",
    "token_logprobs_pair",
    "ulp_distance",
]
