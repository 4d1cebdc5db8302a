"""The page "which key means what, where": ``python -m numerics.integrations.keys.page > docs/keys.md``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable

from numerics.integrations.keys import FRAMEWORKS, RELATIONS, Framework, Key, framework, keys_of
from numerics.reference.correction import Diagnostics
from numerics.reference.divergence import Divergence
from numerics.reference.mismatch import Mismatch

__all__ = ["page"]

_HEAD = """# Which key means what, where

This page is generated (`python -m numerics.integrations.keys.page > docs/keys.md`) from the tables in
`numerics/integrations/keys/`. The tables were made by reading each framework's source at the commit that is named; they
say what the code did there, not what its documentation says. `numerics keys FRAMEWORK` prints one of them.

`numerics.to_keys("trl", numerics.divergence(rollout, trainer, mask))` gives our figures under a
framework's keys: where the key means the same quantity, or minus it. What is another quantity there is left out, or an
error with `different="error"`; it is never printed under that name.

Notation as in `docs/semantics.md`: q rollout, p trainer, d = p - q, w = exp d, P = exp p, Q = exp q.

## Relations

| relation | meaning |
|---|---|
"""


def page() -> str:
    """The page as Markdown."""
    tables = [framework(name) for name in FRAMEWORKS]
    parts = [_HEAD + "\n".join(f"| {name} | {text} |" for name, text in RELATIONS.items())]
    parts.append("## One name, several quantities\n\n" + _clashes(tables))
    parts.append("## By our field\n\n" + _by_field())
    for table in tables:
        rows = _rows((k.name, k.field, k.relation, k.definition, k.note) for k in table.keys)
        head = "| key | our field | relation | definition there | note |\n|---|---|---|---|---|\n"
        parts.append(f'## {table.title}\n\nSource: {table.source}. `to_keys("{table.name}", ...)`.\n\n{head}{rows}')
    return "\n\n".join(parts) + "\n"


def _by_field() -> str:
    plain = dict.fromkeys(f.name for cls in (Mismatch, Divergence) for f in dataclasses.fields(cls))
    fields = [*plain, *(f"correction.{f.name}" for f in dataclasses.fields(Diagnostics))]
    lines = []
    for field in fields:
        found = [f"{f.title} `{k.name}`" + _flag(k) for f, k in keys_of(field)]
        if found:
            lines.append((field, "; ".join(found)))
    return "| our field | keys (a flag where the quantity differs) |\n|---|---|\n" + "\n".join(
        f"| `{field}` | {keys} |" for field, keys in lines
    )


def _flag(key: Key) -> str:
    return "" if key.relation == "same" else f" **{key.relation}**"


def _clashes(tables: Iterable[Framework]) -> str:
    """Keys whose last part is shared by frameworks that mean different things by it."""
    found: dict[str, list[tuple[Framework, Key]]] = {}
    for table in tables:
        for key in table.keys:
            last = key.name.rpartition("/")[2]
            if last not in ("mean", "min", "max", "std"):
                found.setdefault(last, []).append((table, key))
    lines = []
    for name, pairs in sorted(found.items()):
        meanings = {(k.field, k.relation) for _, k in pairs}
        if len({f.name for f, _ in pairs}) > 1 and len(meanings) > 1:
            for table, key in pairs:
                lines.append((name, table.title, key.name, key.relation, key.definition))
    head = "| last part | framework | key | relation to our field | definition there |\n|---|---|---|---|---|\n"
    return head + "\n".join(f"| `{a}` | {b} | `{c}` | {d} | {e} |" for a, b, c, d, e in lines)


def _rows(rows: Iterable[tuple[str, str, str, str, str]]) -> str:
    return "\n".join(
        f"| `{name}` | {f'`{field}`' if field else ''} | {relation} | {definition} | {note} |"
        for name, field, relation, definition, note in rows
    )


if __name__ == "__main__":
    sys.stdout.write(page())
