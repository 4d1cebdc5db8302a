"""The page "which key means what, where": ``python -m numerics.integrations.keys.page > docs/keys.md``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from itertools import groupby

from numerics.integrations.keys import FRAMEWORKS, RELATIONS, Framework, Key, framework, keys_of
from numerics.integrations.keys.table import EXACT
from numerics.reference.correction import Diagnostics
from numerics.reference.divergence import Divergence
from numerics.reference.mismatch import Mismatch

__all__ = ["page"]

_HEAD = """# Which key means what, where

This page is generated (`python -m numerics.integrations.keys.page > docs/keys.md`) from the tables in
`numerics/integrations/keys/`. The tables were made by reading each framework's source at the commit that is named; they
say what the code did there, not what its documentation says. `numerics keys FRAMEWORK` prints one of them.

`numerics.to_keys("trl", numerics.divergence(rollout, trainer, mask))` gives our figures under a framework's keys: where
the key means the same quantity, or what follows from it alone. What is another quantity there is left out, or an error
with `different="error"`; it is never printed under that name. A figure of a correction means something only with its
rule: `to_keys("trl", c.diagnostics, rule={"rule": "truncate", "level": "token", "upper": 2.0})`. The notes name the
rules (RULE/LEVEL) for which a key holds.

"same" is said of the definition. What the arithmetic there loses, what a row without a token adds and how micro-batches
become one figure is noted beside it. Our figure under their key has none of these.

Notation as in `docs/semantics.md`: q rollout, p trainer, d = p - q, w = exp d, P = exp p, Q = exp q; x_r belongs to row
r, w_u to a token or a row. A part of a key in braces stands for several names.

## Relations

| relation | meaning |
|---|---|
"""

_ROW_HEAD = "| key | our field | relation | definition there | note |\n|---|---|---|---|---|\n"


def page() -> str:
    """The page as Markdown."""
    tables = [framework(name) for name in FRAMEWORKS]
    parts = [_HEAD + "\n".join(f"| {name} | {text} |" for name, text in RELATIONS.items())]
    parts.append("## One name, several quantities\n\n" + _clashes(tables))
    parts.append("## Names of ours that mean another quantity there\n\n" + _different(tables))
    parts.append("## By our field\n\n" + _by_field())
    parts += [_of_framework(table) for table in tables]
    return "\n\n".join(parts) + "\n"


def _of_framework(table: Framework) -> str:
    parts = [f'## {table.title}\n\n`to_keys("{table.name}", ...)`. Source: {table.source}. Logged: {table.logged}.']
    for where, keys in groupby(table.keys, key=lambda k: k.where):
        parts.append(f"`{where}`\n\n{_ROW_HEAD}" + "\n".join(map(_row, keys)))
    return "\n\n".join(parts)


def _row(key: Key) -> str:
    field = f"`{key.field}`" if key.field else ""
    conditions = [f"for {', '.join(key.rules)}"] if key.rules else []
    conditions += [f"for {name} = {value}" for name, value in key.needs]
    note = "; ".join([*conditions, *([key.note] if key.note else [])])
    return f"| `{key.name}` | {field} | {key.relation} | {key.definition} | {note} |"


def _by_field() -> str:
    plain = dict.fromkeys(f.name for cls in (Mismatch, Divergence) for f in dataclasses.fields(cls))
    fields = [*plain, *(f"correction.{f.name}" for f in dataclasses.fields(Diagnostics))]
    lines = []
    for field in fields:
        found = [f"{f.title} `{k.name}`" + _flag(k, field) for f, k in keys_of(field)]
        if found:
            lines.append((field, "; ".join(found)))
    return "| our field | keys (a flag where the quantity is not ours) |\n|---|---|\n" + "\n".join(
        f"| `{field}` | {keys} |" for field, keys in lines
    )


def _flag(key: Key, field: str) -> str:
    same = key.relation == "same" or (key.carries == field != key.field)
    return "" if same else f" **{key.relation}**"


def _different(tables: Iterable[Framework]) -> str:
    """Keys beside a field of ours that they are not, by relation."""
    lines = []
    found = [(f, k) for f in tables for k in f.keys]
    for relation in RELATIONS:
        if relation in ("same", "complement", "none"):
            continue
        keys = [f"{f.title} `{k.name}`" for f, k in found if k.relation == relation]
        lines.append(f"- **{relation}**" + (" (a sign)" if relation in EXACT else "") + f": {'; '.join(keys)}")
    return "\n".join(lines)


def _last(name: str) -> str:
    """The last part of a key, without a helper's prefix: what a reader compares."""
    return name.rpartition("/")[2].removeprefix("mis_").removeprefix("rollout_")


def _clashes(tables: Iterable[Framework]) -> str:
    """Keys whose last part is shared by frameworks that mean different things by it."""
    found: dict[str, list[tuple[Framework, Key]]] = {}
    for table in tables:
        for key in table.keys:
            found.setdefault(key.name, []).append((table, key))
            last = _last(key.name)
            if last not in ("mean", "min", "max", "std", "avg", key.name):
                found.setdefault(last, []).append((table, key))
    lines = []
    for name, pairs in sorted(found.items()):
        meanings = {(k.field, k.relation) for _, k in pairs}
        if len({f.name for f, _ in pairs}) > 1 and len(meanings) > 1:
            lines += [(name, f.title, k.name, k.field, k.relation, k.definition) for f, k in pairs]
    head = "| name | framework | key | our field | relation | definition there |\n|---|---|---|---|---|---|\n"
    return head + "\n".join(
        f"| `{a}` | {b} | `{c}` | {f'`{d}`' if d else ''} | {e} | {f} |" for a, b, c, d, e, f in lines
    )


if __name__ == "__main__":
    sys.stdout.write(page())
