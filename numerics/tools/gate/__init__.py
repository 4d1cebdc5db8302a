"""The gate: passes only where no token differs, and never because nothing was compared."""

from numerics.tools.gate.judge import assert_no_mismatch, judge
from numerics.tools.gate.verdict import Declared, GateFailure, Rules, Verdict

__all__ = ["Declared", "GateFailure", "Rules", "Verdict", "assert_no_mismatch", "judge"]
