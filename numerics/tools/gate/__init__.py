"""The gate: passes only where no token differs, and never because nothing was compared."""

from numerics.tools.gate.full import FullVerdict, gate_full
from numerics.tools.gate.judge import assert_no_mismatch, judge
from numerics.tools.gate.loop import Gate
from numerics.tools.gate.verdict import Declared, GateFailure, Rules, Verdict

__all__ = [
    "Declared",
    "FullVerdict",
    "Gate",
    "GateFailure",
    "Rules",
    "Verdict",
    "assert_no_mismatch",
    "gate_full",
    "judge",
]
