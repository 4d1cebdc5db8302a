"""Planted faults: deliberately wrong implementations, one idea each, that the suite must kill.

They are the evidence that the suite sees what it claims to see: every fault is killed by the properties it names, the
control - the correct code they are made from - by none, and a forced failure by all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from numerics.suite.faults import correction, divergence, entropy, full, logprobs, mismatch, processed, ulp_distance
from numerics.suite.faults.fault import Fault
from numerics.suite.runner import Check, Finding

__all__ = ["CONTROLS", "FAULTS", "FORCED", "Fault", "nearest"]

_ROOMS = (logprobs, entropy, mismatch, divergence, correction, full, ulp_distance)

_ALL = [fault for room in (*_ROOMS, processed) for fault in room.FAULTS.values()]
#: every fault by id
FAULTS: Mapping[str, Fault] = MappingProxyType({fault.id: fault for fault in _ALL})
if len(FAULTS) != len(_ALL):
    raise ValueError("two faults share an id")
#: the correct code, by contract: killed by nothing
CONTROLS = MappingProxyType({room.CONTROL.contract: room.CONTROL for room in _ROOMS})
#: rubbish, by contract: killed by everything
FORCED = MappingProxyType({room.FORCED.contract: room.FORCED for room in _ROOMS})


def nearest(check: Check, shown: Finding) -> str:
    """The id of a planted fault that gives the same wrong number on the same case, or ""."""
    if not math.isfinite(shown.got) or shown.format == "truth":
        return ""  # a truth value or a NaN points to no fault in particular
    for fault in FAULTS.values():
        if check.property.id not in fault.breaks or fault.implementation.contract != check.property.contract:
            continue
        twin = Check(
            property=check.property, implementation=fault.implementation, device=check.device, dtype=check.dtype
        )
        found, _ = twin.examine(shown.case, twin.context)
        if found is not None and found.severity > 1 and found.got == shown.got and found.label == shown.label:
            return fault.id
    return ""
