"""What a guard records: a fixed, versioned set of cases, measured by the rules that know the exact answer.

The special cases of those rules, numbers of a real rollout, and rows of 32,000 and 151,936 columns made in integers.
A change of the set is a new `CASE_SET`: files of another one are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from numerics.formats import FORMATS
from numerics.strategies.cases import Logits, LogitsCase, Mixed, PairCase, PairRow
from numerics.suite.property import Domain, Property
from numerics.tools.guard.real import PAIRS, TOP

__all__ = ["ACCURACY", "CASE_SET", "cases"]

CASE_SET = 1

#: contract -> the rules that hold its results to the exact ones; each gives numbers and how far off they are
ACCURACY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "token_logprobs": ("LP-01",),
        "entropy": ("EN-01",),
        "mismatch": ("MM-01", "MM-02"),
        "divergence": ("DV-01", "DV-02", "DV-03"),
        "correction": ("CR-01", "CR-04"),
        "full_divergence": ("FV-01", "FV-02"),
        "ulp_distance": ("UD-01",),
    }
)
_WIDTHS = (32_000, 151_936)
_ROWS, _COLUMNS = 64, 33


def cases(rule: Property, domain: Domain) -> Iterator[tuple[str, Any]]:
    """``(name, case)`` of one rule in a fixed order."""
    fmt = FORMATS[domain.dtype]
    for i, case in enumerate(rule.special(domain)):
        yield f"special {i:03}", case
    if rule.contract in ("token_logprobs", "entropy"):
        top = tuple(Logits(tuple(fmt.round(v) for v in values), 3) for values in TOP)
        yield "real rows", LogitsCase(top, fmt.name)
        drawn = Mixed(_ROWS * _COLUMNS).values().reshape(_ROWS, _COLUMNS)
        rows = tuple(Logits(tuple(fmt.round(float(v)) for v in row), i % _COLUMNS, 0.7) for i, row in enumerate(drawn))
        yield f"{_ROWS} rows", LogitsCase(rows, fmt.name)
        if "float" in domain.temperature_forms:
            yield f"{_ROWS} rows, T = 0.7", LogitsCase(rows, fmt.name, temperature="float")
        # what is left beside a nearly certain token is subnormal in float32: lost where it is flushed to zero
        yield "subnormals", LogitsCase(tuple(Logits((0.0, low)) for low in (-88.0, -95.0, -102.0)), fmt.name)
        for width in _WIDTHS:
            # the token asked for: nearly certain, as probable as some others, and out of reach
            wide = tuple(Logits((value,), 0) for value in (14.0, -0.5, -40.0))
            yield f"V = {width:,}", LogitsCase(wide, fmt.name, tail=Mixed(width - 1, seed=width))
    if rule.contract in ("mismatch", "divergence", "correction"):
        pairs = tuple(PairRow(tuple(fmt.round(v) for v in q), p, (True,) * len(q)) for q, p in PAIRS)
        options = {"correction": (("rule", "truncate"), ("level", "token"), ("upper", 2.0))}
        yield "real pairs", PairCase(pairs, rollout_dtype=fmt.name, options=options.get(rule.contract, ()))
