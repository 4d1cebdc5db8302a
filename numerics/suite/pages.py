"""One page per contract, from the code: ``python -m numerics.suite.pages docs/contracts`` writes them all."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from numerics.suite.builtin import BUILTIN
from numerics.suite.contracts import CONTRACTS
from numerics.suite.faults import FAULTS
from numerics.suite.implementation import CAPABILITIES
from numerics.suite.properties import PROPERTIES
from numerics.suite.property import Domain
from numerics.suite.report import describe
from numerics.suite.runner import Check

__all__ = ["page"]

#: contract -> the planted fault whose failure its page shows, and the property that finds it
_SAMPLES = {
    "token_logprobs": ("temperature_rounded_to_bf16", "LP-05"),
    "entropy": ("entropy_in_bits", "EN-01"),
    "mismatch": ("mean_of_row_means", "MM-02"),
    "divergence": ("k3_as_written", "DV-06"),
    "correction": ("overflow_to_zero_before_the_cap", "CR-07"),
    "full_divergence": ("jsd_towards_the_mixture", "FV-01"),
    "ulp_distance": ("", "UD-01"),
}
#: where the failure begins: its numbers may differ in the last digit on another machine
FAILURE = "## What a failure looks like"
_EDGES = 12
#: characters of a case that a page still shows
_READABLE = 600


def page(contract: str, *, failure: bool = True) -> str:
    """The page of a contract as Markdown; without its last section unless ``failure``."""
    one = CONTRACTS[contract]
    rules = [p for p in PROPERTIES.values() if p.contract == contract]
    faults = [f for f in FAULTS.values() if f.implementation.contract == contract]
    who = ", ".join(f"`{name}`" for name, found in BUILTIN.items() if any(i.contract == contract for i in found))
    parts = [
        f"# {contract}",
        f"Generated from the code by `python -m numerics.suite.pages docs/contracts`.\n\n{one.summary}.",
        f"```\n{one.signature}\n```",
        f"Returns {one.returns}.",
        f"Built in: {who}. {len(rules)} properties, {len(faults)} planted faults. What each number means: "
        "[semantics](../semantics.md). Where the tolerances come from: [bounds](../bounds.md).",
        "## Properties\n\n| id | rule | needs |\n|---|---|---|\n" + "\n".join(_rule_row(p) for p in rules),
        "## Why each is there\n\n" + "\n\n".join(f"**{p.id}** {p.name}. {_doc(p)}" for p in rules),
        _capabilities(rules),
        f"## Edge cases\n\nSome of the special cases that every run meets, in float32:\n\n```\n{_edges(rules)}\n```",
    ]
    if failure:
        parts.append(f"{FAILURE}\n\n{_failure(contract)}")
    return "\n\n".join(parts) + "\n"


def _rule_row(p: Any) -> str:
    statement = p.statement.replace("|", "\\|")
    return f"| {p.id} | {statement} | {', '.join(sorted(p.requires))} |"


def _doc(p: Any) -> str:
    return " ".join((p.body.__doc__ or "").split())


def _capabilities(rules: list[Any]) -> str:
    named = sorted({name for p in rules for name in p.requires if name in CAPABILITIES})
    lines = "\n".join(f"- `{name}`: {CAPABILITIES[name]}" for name in named)
    return f"## Capabilities that its rules ask for\n\n{lines}"


def _edges(rules: list[Any]) -> str:
    found: dict[str, None] = {}
    for p in rules:
        if "float32" in p.dtypes:
            found.update(dict.fromkeys(_short(case) for case in p.special(Domain(dtype="float32"))))
    cases = [text for text in found if len(text) <= _READABLE]
    return "\n".join(cases[:: max(1, len(cases) // _EDGES)][:_EDGES])


def _short(case: Any) -> str:
    """The repr without the fields that have their defaults."""
    shown = [
        f"{f.name}={getattr(case, f.name)!r}"
        for f in dataclasses.fields(case)
        if f.default is dataclasses.MISSING or getattr(case, f.name) != f.default
    ]
    return f"{type(case).__name__}({', '.join(shown)})"


def _failure(contract: str) -> str:
    name, rule = _SAMPLES[contract]
    fault = FAULTS[name] if name else next(f for f in FAULTS.values() if rule in f.breaks)
    check = Check(property=PROPERTIES[rule], implementation=fault.implementation, device="cpu", dtype=fault.dtype)
    result = check.run(max_examples=60, seed=1)
    return f"The planted fault `{fault.id}` ({' '.join(fault.idea.split())}):\n\n```\n{describe(result)}\n```"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for contract in CONTRACTS:
        (target / f"{contract}.md").write_text(page(contract), encoding="utf-8")
