"""Our figures under the keys of other frameworks, and what each key means there.

The same quantity has eight names, and one name has several meanings. `to_keys` gives our figures under a framework's
keys where that key means the quantity, or what follows from it alone (minus it, 1 minus it), and refuses to print
another quantity under a known name.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from numerics.integrations.keys.table import EXACT, RELATIONS, Framework, Key

if TYPE_CHECKING:
    from numerics.reference.correction import Rule

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
    "tunix",
    "unsloth",
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
    """Every key of every framework that goes with one of our fields, or that `to_keys` gives this field's figure."""
    return [(f, k) for f in map(framework, FRAMEWORKS) for k in f.keys if field in (k.field, k.carries)]


def to_keys(
    name: str,
    metrics: Any,
    *,
    rule: Rule | Mapping[str, Any] | None = None,
    different: str = "omit",
) -> dict[str, Any]:
    """Our figures under a framework's keys.

    name: a framework of `FRAMEWORKS`. metrics: a `Mismatch`, `Divergence`, `Diagnostics` or `Correction` (the figures
    of a correction count as ``correction.FIELD``), a mapping of field names such as `MetricState.compute` gives, or
    several of these in a sequence, all of the same tokens. rule: the rule that made the figures of the correction, or
    its fields; a key means a figure of some rules only, so that without it none of a correction is given.

    A key that means the same quantity gets our figure; one that means minus it or 1 minus it gets that. What is another
    quantity there is never printed under its name: different="omit" leaves it out, "error" raises `ValueError` that
    says which and why. `KeyError` for a mapping with a field that we do not have, `ValueError` for figures of other
    tokens or of several corrections.
    """
    if different not in ("omit", "error"):
        raise ValueError(f"different is {different!r}; it must be 'omit' or 'error'")
    found = framework(name)
    fields = _fields(metrics)
    made_by = _made_by(rule)
    given: dict[str, Any] = {}
    refused: list[str] = []
    for key in found.keys:
        if not fields.keys() & {key.field, key.carries}:
            continue
        reason = _refusal(key, fields, made_by)
        if reason:
            refused.append(f"{key.name} ({reason})")
        else:
            given[key.name] = EXACT.get(key.relation, EXACT["same"])(fields[key.carries])
    if refused and different == "error":
        raise ValueError(f"{found.title} means another quantity by: {'; '.join(refused)}")
    return given


def _refusal(key: Key, fields: Mapping[str, Any], made_by: str) -> str:
    """Why none of our figures goes under this key; "" if one does."""
    if key.carries not in fields:
        return f"{key.relation}: {key.definition}"
    if key.rules and made_by not in key.rules:
        return f"only for rule {' or '.join(key.rules)}, and this is {made_by or 'not said: give rule='}"
    return "; ".join(
        f"only for {field} = {value}, and this is {fields.get(field)}"
        for field, value in key.needs
        if fields.get(field) != value
    )


def _made_by(rule: Rule | Mapping[str, Any] | None) -> str:
    """The rule as `Key.rules` names it, "" for none."""
    from numerics.reference.correction import Rule

    if rule is None:
        return ""
    if isinstance(rule, Mapping):
        rule = Rule(**rule)
    if not isinstance(rule, Rule):
        raise TypeError(f"rule must be a Rule or a mapping of its fields, got {type(rule).__name__}")
    return f"{rule.rule}/{rule.level}"


def known_fields() -> set[str]:
    """Every field that a key may name."""
    from numerics.reference.correction import Diagnostics
    from numerics.reference.divergence import Divergence
    from numerics.reference.mismatch import Mismatch

    plain = {f.name for cls in (Mismatch, Divergence) for f in dataclasses.fields(cls)}
    return plain | {f"correction.{f.name}" for f in dataclasses.fields(Diagnostics)}


def _fields(metrics: Any) -> dict[str, Any]:
    """Field names and figures of whatever `to_keys` takes."""
    from numerics.reference.correction import Correction, Diagnostics
    from numerics.reference.divergence import Divergence
    from numerics.reference.mismatch import Mismatch

    if isinstance(metrics, Mapping):
        return _of_mapping(metrics)
    if isinstance(metrics, Correction):
        metrics = metrics.diagnostics
    if isinstance(metrics, Diagnostics):
        return {f"correction.{field}": value for field, value in metrics.as_dict().items()}
    if isinstance(metrics, Mismatch | Divergence):
        return metrics.as_dict()
    if isinstance(metrics, Iterable) and not isinstance(metrics, str):
        out: dict[str, Any] = {}
        for part in metrics:
            new = _fields(part)
            for field in out.keys() & new.keys():
                if out[field] != new[field] and not (out[field] != out[field] and new[field] != new[field]):
                    raise ValueError(
                        f"{field} is {out[field]!r} in one part of metrics and {new[field]!r} in another; "
                        "they must be of the same tokens, and of one correction"
                    )
            out |= new
        return out
    raise TypeError(f"metrics must be a result of ours, a mapping or a sequence of them, got {type(metrics).__name__}")


def _of_mapping(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The same with ``correction/NAME/FIELD``, as `MetricState` writes it, as ``correction.FIELD``."""
    names = sorted({key.split("/")[1] for key in metrics if key.startswith("correction/") and key.count("/") == 2})
    if len(names) > 1:
        raise ValueError(f"metrics has the figures of several corrections ({', '.join(names)}); leave those of one")
    out = {key.replace(f"correction/{name}/", "correction."): metrics[key] for name in names for key in metrics}
    fields = out if names else dict(metrics)
    unknown = sorted(set(fields) - known_fields())
    if unknown:
        near = get_close_matches(unknown[0], sorted(known_fields()), n=2)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise KeyError(f"no field {unknown[0]!r}{hint}")
    return fields
