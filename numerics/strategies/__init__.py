"""Hypothesis strategies for log-prob numerics: logits, temperatures, masks, log-prob pairs, layouts, batches, cases.

They draw the quantities that condition the problem - the gap to the maximum, near ties, the distance in ULPs, the mask
pattern - on the dtype's own grid. Names are plural, arguments keyword-only with defaults; a bad argument raises
`hypothesis.errors.InvalidArgument` that names it.
"""

from numerics.strategies.batches import verl_batches
from numerics.strategies.cases import LogitsCase, PairCase, UlpCase
from numerics.strategies.logits import REGIMES, layouts, logits, logits_cases, temperatures
from numerics.strategies.pairs import PAIR_KINDS, logprob_pairs, masks, pair_cases, pair_rows
from numerics.strategies.scalars import dtypes, floats_of
from numerics.strategies.ulps import ulp_cases

__all__ = [
    "PAIR_KINDS",
    "REGIMES",
    "LogitsCase",
    "PairCase",
    "UlpCase",
    "dtypes",
    "floats_of",
    "layouts",
    "logits",
    "logits_cases",
    "logprob_pairs",
    "masks",
    "pair_cases",
    "pair_rows",
    "temperatures",
    "ulp_cases",
    "verl_batches",
]
