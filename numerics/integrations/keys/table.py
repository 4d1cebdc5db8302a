"""What a framework's metric key means, beside our field of the same or the nearest quantity."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["EXACT", "RELATIONS", "Framework", "Key", "at", "key"]

#: how a framework's figure relates to our field
RELATIONS: Mapping[str, str] = MappingProxyType(
    {
        "same": "the same quantity; `to_keys` gives our figure under their key",
        "negated": "minus ours; `to_keys` changes the sign",
        "complement": "1 minus ours; `to_keys` subtracts",
        "post_clip": "taken after truncation, so that it cannot show what was truncated; where rules are listed it is "
        "our `correction.ratio_truncated_*`, and `to_keys` gives that",
        "row_mean": "a mean over rows of row figures, where ours weighs by tokens",
        "diluted": "padding takes part",
        "clamped": "a clamp of the log-ratio or of the result bounds it",
        "partial": "some valid tokens or rows do not take part",
        "other": "another quantity under this name",
        "none": "we have no such field",
    }
)

#: relations by which their figure follows from ours alone
EXACT: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {"same": lambda x: x, "negated": lambda x: -x, "complement": lambda x: 1 - x}
)


@dataclass(frozen=True, kw_only=True)
class Key:
    """One metric key.

    name: as it is logged; a part in braces stands for several names. field: our field (of `Mismatch` or `Divergence`,
    or ``correction.`` and a field of `Diagnostics`), "" for none. relation: a name in `RELATIONS`; where two apply, the
    one that matters more, and the definition says both. definition: the formula in force there, in the notation of
    ``docs/semantics.md``. note: what to know besides, such as an arithmetic that loses digits. rules: for a figure of a
    correction, the rules of ours ("RULE/LEVEL") for which the relation holds. needs: our fields that must have a value
    for the relation to hold. where: file and function.
    """

    name: str
    field: str
    relation: str
    definition: str
    note: str = ""
    rules: tuple[str, ...] = ()
    needs: tuple[tuple[str, float], ...] = ()
    where: str = ""

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise ValueError(f"relation is {self.relation!r}; it must be one of {', '.join(RELATIONS)}")
        if (self.relation == "none") != (not self.field):
            raise ValueError(f"key {self.name!r}: relation 'none' and an empty field go together")
        if self.carries and "{" in self.name:
            raise ValueError(f"key {self.name!r} stands for several names: it can be given no figure")
        if self.carries.startswith("correction.") != bool(self.rules):
            raise ValueError(
                f"key {self.name!r}: a figure of a correction names its rules, and only such a figure does"
            )

    @property
    def carries(self) -> str:
        """Our field whose figure `to_keys` puts under this key, "" if there is none."""
        if self.relation in EXACT:
            return self.field
        if self.relation == "post_clip" and self.rules:
            return "correction.ratio_truncated_" + self.field.rpartition("_")[2]
        return ""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework's keys, read from its source.

    name: as `to_keys` takes it. title: as it writes itself. repository, commit, date: what was read. logged: how the
    figures of micro-batches, ranks and steps become one, and what is put before a key's name.
    """

    name: str
    title: str
    repository: str
    commit: str
    date: str
    logged: str
    keys: tuple[Key, ...]

    def __post_init__(self) -> None:
        names = [k.name for k in self.keys]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"{self.name}: keys listed twice: {', '.join(twice)}")

    @property
    def source(self) -> str:
        """The repository with the commit that was read."""
        return f"{self.repository} at {self.commit} ({self.date})"


def key(
    name: str,
    field: str,
    relation: str,
    definition: str,
    note: str = "",
    *,
    rules: tuple[str, ...] = (),
    needs: tuple[tuple[str, float], ...] = (),
) -> Key:
    """A `Key`, written in one line of a table."""
    return Key(name=name, field=field, relation=relation, definition=definition, note=note, rules=rules, needs=needs)


def at(where: str, *keys: Key) -> tuple[Key, ...]:
    """These keys, computed in one place: FILE::FUNCTION."""
    return tuple(dataclasses.replace(k, where=where) for k in keys)
