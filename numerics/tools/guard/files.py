"""A guard file: JSON that a reviewer can read and diff, one line for each rule and case."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerics.suite.implementation import CONTRACT_NAMES
from numerics.tools.arrays import InputError
from numerics.tools.guard.cases import CASE_SET
from numerics.tools.guard.observe import Key, Line, Observation

__all__ = ["MAX_BYTES", "SCHEMA", "SCHEMA_FILE", "Guard", "Recorded", "read", "write"]

SCHEMA = "numerics.guard/1"
#: the published JSON schema of a guard file
SCHEMA_FILE = Path(__file__).with_name("guard.schema.json")
#: a contract and key takes about 2 to 20 kB; nothing beyond this is read
MAX_BYTES = 1 << 24
_LINE = re.compile(r"([^ ]+) ulps, ([^ ]+) of the bound: (.*)")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What was observed under one key: a digest of the cases, and a line for each."""

    cases: str
    lines: dict[str, Line]


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The content of a file."""

    implementation: str  #: what `resolve` takes: a built-in's name or pkg.mod:obj
    contract: str
    keys: dict[Key, Recorded]
    history: tuple[dict[str, Any], ...]  #: what was recorded when: numerics' version, a reason, the keys

    def with_observations(self, found: list[Observation], *, reason: str, version: str) -> Guard:
        """A guard that also holds ``found``, in place of what it had under the same keys."""
        new = {o.key: Recorded(cases=o.cases, lines={n: x.line() for n, x in o.seen.items()}) for o in found}
        changes = {}
        for key, recorded in new.items():
            before = self.keys.get(key)
            lines = recorded.lines.items()
            changes[str(key)] = (
                "recorded"
                if before is None
                else f"{sum(line != before.lines.get(name) for name, line in lines)} of {len(lines)} lines changed"
            )
        entry = {"numerics": version, "reason": reason, "keys": changes}
        return Guard(
            implementation=self.implementation,
            contract=self.contract,
            keys={**self.keys, **new},
            history=(*self.history, entry),
        )


def write(guard: Guard, file: str) -> None:
    """Write the file; `InputError` if it cannot be written."""
    content = {
        "schema": SCHEMA,
        "implementation": guard.implementation,
        "contract": guard.contract,
        "case_set": CASE_SET,
        "history": list(guard.history),
        "keys": {
            str(key): {
                "cases_sha256": recorded.cases,
                "lines": {
                    name: f"{line.ulps!r} ulps, {line.share!r} of the bound: {line.bits}"
                    for name, line in recorded.lines.items()
                },
            }
            for key, recorded in sorted(guard.keys.items())
        },
    }
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}") from error


def read(file: str) -> Guard:
    """The guard in ``file``; `InputError` for a file that holds none, however it is damaged."""
    try:
        with Path(file).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{file} is no guard: it has more than {MAX_BYTES} bytes")
    try:
        content = json.loads(data.decode("utf-8"), object_pairs_hook=_no_name_twice, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is no guard: no JSON, or truncated ({error})") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise InputError(f"{file} is no guard of schema {SCHEMA!r}: its schema is {str(found)[:80]!r}")
    try:
        if content["case_set"] != CASE_SET:
            raise InputError(
                f"{file} was recorded on case set {content['case_set']!r}, this version has {CASE_SET}: record it "
                "again with --update --reason"
            )
        return _guard(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file} is damaged: {type(error).__name__}: {str(error)[:200]}") from error


def _guard(content: dict[str, Any]) -> Guard:
    contract, implementation = content["contract"], content["implementation"]
    if contract not in CONTRACT_NAMES or not isinstance(implementation, str):
        raise ValueError(f"contract {contract!r}, implementation {implementation!r}")
    history = content["history"]
    if not history or not all(isinstance(entry["reason"], str) and entry["reason"] for entry in history):
        raise ValueError("history without a reason")
    keys = {}
    for text, recorded in content["keys"].items():
        lines = {name: _line(line) for name, line in recorded["lines"].items()}
        if not re.fullmatch("[0-9a-f]{64}", recorded["cases_sha256"]) or not lines:
            raise ValueError(f"{text}: no digest of the cases, or no lines")
        keys[Key.of(text)] = Recorded(cases=recorded["cases_sha256"], lines=lines)
    return Guard(implementation=implementation, contract=contract, keys=keys, history=tuple(history))


def _line(text: str) -> Line:
    found = _LINE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:80]!r} is no line such as '0.5 ulps, 0.3 of the bound: 3f800000'")
    return Line(ulps=float(found[1]), share=float(found[2]), bits=found[3])


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name stands twice")
    return content


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
