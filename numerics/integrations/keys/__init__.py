"""Our figures under the keys of fourteen frameworks, and what each key means there.

The same quantity has eight names, and one name has several meanings. `to_keys` gives our figures under a framework's
keys where that key means the quantity (or minus it), and refuses to print another quantity under a known name.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from numerics.integrations.keys.table import RELATIONS, Framework, Key

__all__ = ["FRAMEWORKS", "RELATIONS", "Framework", "Key", "framework", "keys_of", "to_keys"]

#: the frameworks, in the order of the documentation; each is a module here that holds its ``FRAMEWORK``
FRAMEWORKS = (
    "verl",
    "trl",
    "nemo_rl",
    "openrlhf",
    "slime",
    "miles",
    "areal",
    "prime_rl",
    "skyrl",
    "roll",
    "open_instruct",
    "tinker_cookbook",
    "ms_swift",
    "torchtitan_rl",
    "rllm",
)


def framework(name: str) -> Framework:
    """The table of a framework; `ValueError` with near names for one that has none."""
    if name not in FRAMEWORKS:
        near = get_close_matches(str(name).replace("-", "_").lower(), FRAMEWORKS, n=2)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"framework is {name!r}{hint} (known: {', '.join(FRAMEWORKS)})")
    found: Framework = importlib.import_module(f"numerics.integrations.keys.{name}").FRAMEWORK
    return found


def keys_of(field: str) -> list[tuple[Framework, Key]]:
    """Every key of every framework that goes with one of our fields."""
    return [(f, k) for f in map(framework, FRAMEWORKS) for k in f.keys if k.field == field]


def to_keys(name: str, metrics: Any, *, different: str = "omit") -> dict[str, Any]:
    """Our figures under a framework's keys.

    name: a framework of `FRAMEWORKS`. metrics: a `Mismatch`, `Divergence`, `Diagnostics` (its fields count as
    ``correction.FIELD``), a mapping of field names, or several of these in a sequence.

    A key that means the same quantity gets our figure, one that means minus it gets minus our figure. What is another
    quantity there is never printed under its name: different="omit" leaves it out, "error" raises `ValueError` that
    names it. `KeyError` for a mapping with a field that we do not have.
    """
    if different not in ("omit", "error"):
        raise ValueError(f"different is {different!r}; it must be 'omit' or 'error'")
    found = framework(name)
    fields = _fields(metrics)
    others = [k for k in found.keys if k.field in fields and k.relation not in ("same", "negated")]
    if others and different == "error":
        listed = "; ".join(f"{k.name} ({k.relation}: {k.definition})" for k in others)
        raise ValueError(f"{found.title} means another quantity by: {listed}")
    signs = {"same": 1, "negated": -1}
    return {
        k.name: fields[k.field] if k.relation == "same" else -fields[k.field]
        for k in found.keys
        if k.field in fields and k.relation in signs
    }


def known_fields() -> set[str]:
    """Every field that a key may name."""
    from numerics.reference.correction import Diagnostics
    from numerics.reference.divergence import Divergence
    from numerics.reference.mismatch import Mismatch

    plain = {f.name for cls in (Mismatch, Divergence) for f in dataclasses.fields(cls)}
    return plain | {f"correction.{f.name}" for f in dataclasses.fields(Diagnostics)}


def _fields(metrics: Any) -> dict[str, Any]:
    if isinstance(metrics, Mapping):
        unknown = sorted(set(metrics) - known_fields())
        if unknown:
            near = get_close_matches(unknown[0], sorted(known_fields()), n=2)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise KeyError(f"no field {unknown[0]!r}{hint}")
        return dict(metrics)
    if dataclasses.is_dataclass(metrics) and not isinstance(metrics, type):
        prefix = "correction." if type(metrics).__name__ == "Diagnostics" else ""
        return {prefix + f.name: getattr(metrics, f.name) for f in dataclasses.fields(metrics)}
    if isinstance(metrics, Iterable) and not isinstance(metrics, str):
        out: dict[str, Any] = {}
        for part in metrics:
            out |= _fields(part)
        return out
    raise TypeError(f"metrics must be a result of ours, a mapping or a sequence of them, got {type(metrics).__name__}")
