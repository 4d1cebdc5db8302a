"""All properties, by id."""

from collections.abc import Mapping
from types import MappingProxyType

from numerics.suite.properties import (
    correction,
    correction_invariance,
    cuts,
    divergence,
    divergence_invariance,
    entropy,
    full,
    gradients,
    logprobs,
    mismatch,
    mismatch_invariance,
    rows,
    ulp_distance,
)
from numerics.suite.property import Property

__all__ = ["PROPERTIES"]

_ROOMS = (
    logprobs,
    rows,
    gradients,
    cuts,
    entropy,
    mismatch,
    mismatch_invariance,
    divergence,
    divergence_invariance,
    correction,
    correction_invariance,
    full,
    ulp_distance,
)

PROPERTIES: Mapping[str, Property] = MappingProxyType(
    {
        id: room.RULES[id]
        for id, room in sorted(((id, room) for room in _ROOMS for id in room.RULES), key=lambda pair: pair[0])
    }
)
