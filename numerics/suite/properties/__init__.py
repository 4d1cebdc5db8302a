"""All properties, by id."""

from collections.abc import Mapping
from types import MappingProxyType

from numerics.suite.properties import cuts, entropy, gradients, logprobs, mismatch, mismatch_invariance, ulp_distance
from numerics.suite.property import Property

__all__ = ["PROPERTIES"]

PROPERTIES: Mapping[str, Property] = MappingProxyType(
    {
        **logprobs.RULES,
        **gradients.RULES,
        **cuts.RULES,
        **entropy.RULES,
        **mismatch.RULES,
        **mismatch_invariance.RULES,
        **ulp_distance.RULES,
    }
)
