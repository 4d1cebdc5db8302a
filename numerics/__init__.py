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
        backends,
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
    from numerics.tools.gate.full import FullVerdict, gate_full
    from numerics.tools.gate.judge import assert_no_mismatch
    from numerics.tools.gate.loop import Gate
    from numerics.tools.gate.verdict import Declared, GateFailure, Verdict

__all__ = [
    "Algorithm",
    "Correction",
    "CorrectionState",
    "Declared",
    "Diagnostics",
    "Divergence",
    "DivergenceState",
    "FullDivergence",
    "FullVerdict",
    "Gate",
    "GateFailure",
    "Implementation",
    "MetricState",
    "MetricsAggregator",
    "Mismatch",
    "MismatchState",
    "Verdict",
    "__version__",
    "assert_no_mismatch",
    "backends",
    "check",
    "correction",
    "divergence",
    "entropy",
    "formats",
    "full_divergence",
    "gate_full",
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
    "Declared": "numerics.tools.gate.verdict",
    "Diagnostics": "numerics.reference.correction",
    "Divergence": "numerics.reference.divergence",
    "DivergenceState": "numerics.reference.divergence",
    "FullDivergence": "numerics.reference.full",
    "FullVerdict": "numerics.tools.gate.full",
    "Gate": "numerics.tools.gate.loop",
    "GateFailure": "numerics.tools.gate.verdict",
    "Implementation": "numerics.suite.implementation",
    "MetricState": "numerics.reference.metrics",
    "MetricsAggregator": "numerics.reference.aggregate",
    "Mismatch": "numerics.reference.mismatch",
    "MismatchState": "numerics.reference.mismatch",
    "Verdict": "numerics.tools.gate.verdict",
    "assert_no_mismatch": "numerics.tools.gate.judge",
    "backends": "numerics.functional",
    "check": "numerics.suite.runner",
    "correction": "numerics.functional",
    "divergence": "numerics.functional",
    "entropy": "numerics.functional",
    "full_divergence": "numerics.functional",
    "gate_full": "numerics.tools.gate.full",
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
