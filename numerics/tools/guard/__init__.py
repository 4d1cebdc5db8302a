"""The regression guard: bits and errors of an implementation, recorded and compared."""

from numerics.tools.guard.checking import STATUSES, Report, check
from numerics.tools.guard.files import Guard, read, write
from numerics.tools.guard.recording import record

__all__ = ["STATUSES", "Guard", "Report", "check", "read", "record", "write"]
