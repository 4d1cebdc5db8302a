"""What a check of guards found, as a person or a program reads it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from numerics.tools.guard.checking import Change, Report
from numerics.tools.show import plain

__all__ = ["SCHEMA", "as_json", "as_text"]

SCHEMA = "numerics.guard.check/1"
_SHOWN = 5  #: changed lines that the text shows of each key
_CASE = 160  #: characters of a case


def as_text(file: str, reports: Sequence[Report]) -> str:
    """One line for each key, and what changed below it."""
    return "\n".join(line for report in reports for line in _lines(file, report))


def _lines(file: str, report: Report) -> list[str]:
    against = f" against {report.against}" if report.against not in (None, report.key) else ""
    head = f"{file}  {report.key}{against}: {report.status}"
    if report.status == "not recorded":
        return [f"{head} (record it with --update --reason)"]
    if report.status == "identical":
        return [f"{head}, {report.lines} lines"]
    head += f": {len(report.changes)} of {report.lines} lines"
    head += f", up to {report.steps} ULPs from what was recorded" if report.steps is not None else ""
    out = [head]
    if report.named:
        out.append(f"  the recorded bits come back with: {' or '.join(report.named)}")
    changes = sorted(report.changes, key=lambda c: not c.worse)
    out += [text for change in changes[:_SHOWN] for text in _change(change)]
    rest = len(changes) - _SHOWN
    return [*out, f"  and {rest} more lines"] if rest > 0 else out


def _change(change: Change) -> list[str]:
    was, now = change.was, change.now
    if was is None or now is None:
        return [f"  {change.line}: {'new' if was is None else 'gone'}"]
    verdict = "worse" if change.worse else "no worse"
    out = [
        f"  {change.line}: {verdict}: {was.ulps:g} -> {now.ulps:g} ulps, "
        f"{was.share:g} -> {now.share:g} of the bound; {was.bits} -> {now.bits}"
    ]
    case = change.case if len(change.case) <= _CASE else f"{change.case[: _CASE - 3]}..."
    return [*out, f"    {case}"] if change.worse else out


def as_json(reports: Mapping[str, Sequence[Report]]) -> str:
    """Strict JSON of all files' reports."""
    return json.dumps(
        {"schema": SCHEMA, "files": {file: [_record(r) for r in found] for file, found in reports.items()}},
        indent=2,
        allow_nan=False,
    )


def _record(report: Report) -> dict[str, Any]:
    def line(change: Change) -> dict[str, Any]:
        sides = {
            name: None if side is None else {k: plain(v) for k, v in dataclasses.asdict(side).items()}
            for name, side in (("was", change.was), ("now", change.now))
        }
        return {"line": change.line, "worse": change.worse, **sides, "case": change.case}

    return {
        "key": str(report.key),
        "against": None if report.against is None else str(report.against),
        "status": report.status,
        "lines": report.lines,
        "named": list(report.named),
        "steps": report.steps,
        "changes": [line(c) for c in report.changes],
    }
