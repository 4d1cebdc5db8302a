"""A verdict as a person, a program, or a pull request reads it."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from numerics.tools.gate.tokens import KEPT
from numerics.tools.gate.verdict import Reason, Token, Verdict
from numerics.tools.show import histogram, print_whole

__all__ = ["SCHEMA", "annotation", "as_github", "as_json", "as_text", "github_lines", "show"]

SCHEMA = "numerics.gate/1"


def show(verdict: Verdict, console: Console) -> None:
    """Print the verdict; plain text where ``console`` is no terminal."""
    console.print(Text(verdict.headline, style="bold green" if verdict.passed else "bold red"), soft_wrap=True)
    for reason in verdict.reasons:
        console.print(Text(f"  {reason.code}: ", style="red").append(reason.message, style="default"), soft_wrap=True)
    for pattern in verdict.patterns:
        text = Text(f"  hint, {pattern.name}: ", style="yellow").append(pattern.evidence, style="default")
        console.print(text, soft_wrap=True)
    for title, tokens in (("first", verdict.first), ("worst", verdict.worst)):
        if tokens and not (title == "worst" and len(tokens) < KEPT):  # then they are the first ones again
            console.print()
            console.print(Text(f"{title} tokens", style="bold"))
            print_whole(_table(tokens), console)
    if verdict.mismatch.valid and not verdict.passed:
        console.print()
        print_whole(histogram(verdict.mismatch, "#" if console.options.ascii_only else "█"), console)


def _table(tokens: tuple[Token, ...]) -> Table:
    table = Table(box=None, header_style="bold")
    ranked, numbered = any(t.rank is not None for t in tokens), any(t.token_id is not None for t in tokens)
    headings = [*(["rank", "micro-batch"] if ranked else []), "row", "position", *(["token"] if numbered else [])]
    for heading in (*headings, "rollout", "trainer", "ULPs", "rollout, hex", "trainer, hex"):
        table.add_column(heading, justify="right")
    for t in tokens:
        row = ",".join(map(str, t.row)) or "0"
        cells: list[Any] = [*([t.rank, t.micro_batch] if ranked else []), row, t.position]
        cells += [t.token_id] if numbered else []
        distance = "NaN" if t.ulps is None else t.ulps
        cells += [repr(t.rollout), repr(t.trainer), distance, t.rollout.hex(), t.trainer.hex()]
        table.add_row(*map(str, cells))
    return table


def as_text(verdict: Verdict) -> str:
    """What `show` prints, without colour."""
    stream = io.StringIO()
    show(verdict, Console(file=stream, highlight=False, width=10_000, color_system=None))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def as_json(verdict: Verdict, inputs: Mapping[str, Any] | None = None) -> str:
    """Strict JSON of `Verdict.as_dict`, and of what is known of the ``inputs``."""
    return json.dumps({"schema": SCHEMA, "inputs": inputs, **verdict.as_dict()}, indent=2, allow_nan=False)


def as_github(verdict: Verdict) -> str:
    """Workflow commands: an annotation for every reason, or a notice that the gate passed."""
    hints = "".join(f"\nhint, {p.name}: {p.evidence}" for p in verdict.patterns)
    return github_lines(verdict.headline, [replace(r, message=r.message + hints) for r in verdict.reasons])


def github_lines(headline: str, reasons: Sequence[Reason]) -> str:
    """An error for every reason, or the headline as a notice where there is none."""
    title = "numerics gate"
    if not reasons:
        return annotation("notice", title, headline)
    return "\n".join(annotation("error", f"{title}: {r.code}", r.message) for r in reasons)


def annotation(level: str, title: str, message: str) -> str:
    """One GitHub workflow command, such as ``::error title=...::...``."""
    # https://docs.github.com/actions/reference/workflow-commands: what ends a property or a message is percent-encoded
    data = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    label = title.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A").replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={label}::{data}"
