"""What a framework's metric key means, beside our field of the same or the nearest quantity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["RELATIONS", "Framework", "Key", "key"]

#: how a framework's figure relates to our field
RELATIONS: Mapping[str, str] = MappingProxyType(
    {
        "same": "the same quantity; `to_keys` gives our figure under their key",
        "negated": "minus ours; `to_keys` changes the sign",
        "post_clip": "taken after truncation, so that it cannot show what was truncated",
        "row_mean": "a mean over rows of row means, where ours weighs by tokens",
        "diluted": "padding takes part",
        "clamped": "a clamp of the log-ratio or of the result bounds it",
        "other": "another quantity under this name",
        "none": "we have no such field",
    }
)


@dataclass(frozen=True, kw_only=True)
class Key:
    """One metric key.

    field: our field (of `Mismatch`, `Divergence`, or ``correction.`` and a field of `Diagnostics`), "" for none.
    relation: a name in `RELATIONS`. definition: the formula in force there, in the notation of ``docs/semantics.md``.
    note: what to know besides, such as an arithmetic that loses digits.
    """

    name: str
    field: str
    relation: str
    definition: str
    note: str = ""

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise ValueError(f"relation is {self.relation!r}; it must be one of {', '.join(RELATIONS)}")
        if (self.relation == "none") != (not self.field):
            raise ValueError(f"key {self.name!r}: relation 'none' and an empty field go together")


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework's keys, read from its source.

    name: as `to_keys` takes it. title: as it writes itself. source: files and the commit they were read at.
    """

    name: str
    title: str
    source: str
    keys: tuple[Key, ...]

    def __post_init__(self) -> None:
        names = [k.name for k in self.keys]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"{self.name}: keys listed twice: {', '.join(twice)}")


def key(name: str, field: str, relation: str, definition: str, note: str = "") -> Key:
    """A `Key`, written in one line of a table."""
    return Key(name=name, field=field, relation=relation, definition=definition, note=note)
