"""numerics: the reference, the property suite and the gate for train-rollout log-prob consistency.

Names load on first use, so that ``import numerics`` costs nothing and pulls in neither torch, nor Hypothesis, nor
pytest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from numerics import formats, integrations, reference, strategies, suite, tools
    from numerics.formats import ulp_distance
    from numerics.functional import (
        correction,
        divergence,
        entropy,
        full_divergence,
        mismatch,
        token_logprobs,
        token_logprobs_pair,
    )
    from numerics.integrations.keys import to_keys
    from numerics.pytest_plugin import parametrize_with_checks
    from numerics.reference.aggregate import MetricsAggregator
    from numerics.reference.correction import Correction, CorrectionState, Diagnostics
    from numerics.reference.divergence import Divergence, DivergenceState
    from numerics.reference.full import FullDivergence
    from numerics.reference.metrics import MetricState
    from numerics.reference.mismatch import Mismatch, MismatchState
    from numerics.suite.implementation import Algorithm, Implementation
    from numerics.suite.runner import check

__all__ = [
    "Algorithm",
    "Correction",
    "CorrectionState",
    "Diagnostics",
    "Divergence",
    "DivergenceState",
    "FullDivergence",
    "Implementation",
    "MetricState",
    "MetricsAggregator",
    "Mismatch",
    "MismatchState",
    "__version__",
    "check",
    "correction",
    "divergence",
    "entropy",
    "formats",
    "full_divergence",
    "integrations",
    "mismatch",
    "parametrize_with_checks",
    "reference",
    "strategies",
    "suite",
    "to_keys",
    "token_logprobs",
    "token_logprobs_pair",
    "tools",
    "ulp_distance",
]

#: where each public name lives; a module is its own home
_HOMES = {
    "Algorithm": "numerics.suite.implementation",
    "Correction": "numerics.reference.correction",
    "CorrectionState": "numerics.reference.correction",
    "Diagnostics": "numerics.reference.correction",
    "Divergence": "numerics.reference.divergence",
    "DivergenceState": "numerics.reference.divergence",
    "FullDivergence": "numerics.reference.full",
    "Implementation": "numerics.suite.implementation",
    "MetricState": "numerics.reference.metrics",
    "MetricsAggregator": "numerics.reference.aggregate",
    "Mismatch": "numerics.reference.mismatch",
    "MismatchState": "numerics.reference.mismatch",
    "check": "numerics.suite.runner",
    "correction": "numerics.functional",
    "divergence": "numerics.functional",
    "entropy": "numerics.functional",
    "full_divergence": "numerics.functional",
    "mismatch": "numerics.functional",
    "parametrize_with_checks": "numerics.pytest_plugin",
    "to_keys": "numerics.integrations.keys",
    "token_logprobs": "numerics.functional",
    "token_logprobs_pair": "numerics.functional",
    "ulp_distance": "numerics.formats",
}
_MODULES = ("formats", "integrations", "reference", "strategies", "suite", "tools")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"numerics.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'numerics' has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return list(__all__)
