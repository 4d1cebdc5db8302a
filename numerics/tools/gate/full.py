"""Whole distributions: zero difference on the sampled tokens does not prove that any other token agrees."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from numerics.reference.full import CHUNK_BYTES, FullDivergence, full_divergence
from numerics.reference.inputs import check_floating
from numerics.tools.gate.vacuous import storage_reasons
from numerics.tools.gate.verdict import Reason, Rules
from numerics.tools.show import plain, print_whole

__all__ = ["FullVerdict", "as_json", "gate_full", "show"]

SCHEMA = "numerics.gate.full/1"


@dataclass(frozen=True, kw_only=True)
class FullVerdict:
    """The answer on two logits tensors: passed if there is no reason against it."""

    allow_rows: int
    temperature: float
    raw: FullDivergence  #: at temperature 1
    processed: FullDivergence | None  #: at ``temperature``; None where that is 1 and both are one
    places: int  #: rows, compared and masked
    first: tuple[tuple[int, ...], ...]  #: index of the first rows that differ in bits
    reasons: tuple[Reason, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.reasons

    @property
    def differing_rows(self) -> int:
        """Valid rows whose logits differ in a bit."""
        return self.raw.valid_count - self.raw.bit_equal_count

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        return (
            f"numerics gate --full: {'PASSED' if self.passed else 'FAILED'}: {self.differing_rows} of "
            f"{self.raw.valid_count} rows differ in bits, {self.allow_rows} allowed"
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values that strict JSON holds: NaN and the infinities are strings."""

        def figures(found: FullDivergence) -> dict[str, Any]:
            return {name: plain(value) for name, value in found.as_dict().items()}

        return {
            "passed": self.passed,
            "differing_rows": self.differing_rows,
            "allow_rows": self.allow_rows,
            "places": self.places,
            "temperature": self.temperature,
            "reasons": [dataclasses.asdict(r) for r in self.reasons],
            "first": [list(row) for row in self.first],
            "raw": figures(self.raw),
            "processed": None if self.processed is None else figures(self.processed),
        }


def gate_full(
    rollout_logits: torch.Tensor,
    trainer_logits: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    allow_rows: int = 0,
    strict_dtype: bool = False,
    overlap_k: int = 10,
    chunk_bytes: int = CHUNK_BYTES,
) -> FullVerdict:
    """Whether every valid row of two logits tensors has the same bits, with how far apart the distributions are.

    rollout_logits, trainer_logits: [..., V]; mask: [...], 0/1; temperature, overlap_k, chunk_bytes: as of
    `numerics.full_divergence`, whose errors these are too. allow_rows: rows that may differ. Logits that differ by an
    offset have one distribution and other bits: such a row differs, and its figures say that the distributions agree.
    Cuts (top-p, top-k, min-p): give the logits after them, -inf where a token is removed.
    """
    if isinstance(allow_rows, bool) or not isinstance(allow_rows, int) or allow_rows < 0:
        raise ValueError(f"allow_rows is {allow_rows!r}; it must be a number of rows: an int of at least 0")
    check_floating("rollout_logits", rollout_logits)
    options: dict[str, Any] = {"overlap_k": overlap_k, "chunk_bytes": chunk_bytes}
    raw = full_divergence(rollout_logits, trainer_logits, mask, **options)
    processed = None
    if temperature != 1:
        processed = full_divergence(rollout_logits, trainer_logits, mask, temperature=temperature, **options)
    valid = torch.ones(rollout_logits.shape[:-1], dtype=torch.bool) if mask is None else mask.cpu() == 1
    differs = (valid & ~raw.rows["bit_equal"].cpu()).nonzero()
    reasons = []
    if len(differs) > allow_rows:
        where = (
            f"the largest gap of a log-prob is {raw.logprob_gap_max!r} nats, token {raw.logprob_gap_token} of row "
            f"{raw.logprob_gap_row}"
            if raw.logprob_gap_row >= 0
            else f"{raw.nonfinite_count} rows are no distribution"
        )
        reasons.append(
            Reason(
                code="mismatch",
                message=f"{len(differs)} of {raw.valid_count} rows differ in bits, {allow_rows} allowed; {where}",
            )
        )
    if raw.nonfinite_count:
        reasons.append(
            Reason(
                code="nonfinite",
                message=f"{raw.nonfinite_count} valid rows are no distribution: NaN, +inf, or every token removed",
            )
        )
    if valid.numel() == 0:
        reasons.append(Reason(code="nothing_compared", message="there is no row to compare: both sides are empty"))
    elif raw.valid == 0:
        reasons.append(Reason(code="all_masked", message=f"no row is valid, of {valid.numel()}; check the mask"))
    reasons += storage_reasons(rollout_logits, trainer_logits, Rules(strict_dtype=strict_dtype))
    return FullVerdict(
        allow_rows=allow_rows,
        temperature=float(temperature),
        raw=raw,
        processed=processed,
        places=valid.numel(),
        first=tuple(tuple(int(i) for i in row) for row in differs[:8]),
        reasons=tuple(reasons),
    )


_MEANINGS = {
    "bit_equal_count": "rows whose logits have the same bits",
    "nonfinite_count": "rows that are no distribution",
    "argmax_agree_fraction": "share of rows with one arg-max",
    "top_k_overlap_mean": "share of the most likely tokens in common",
    "tv_max": "total variation",
    "tv_mean": "",
    "kl_rollout_trainer_max": "KL(rollout || trainer), nats",
    "kl_rollout_trainer_mean": "",
    "kl_trainer_rollout_max": "KL(trainer || rollout), nats",
    "kl_trainer_rollout_mean": "",
    "jsd_max": "Jensen-Shannon divergence, nats",
    "logprob_gap_max": "largest gap of a log-prob, nats",
    "logprob_gap_row": "the row that has it",
    "logprob_gap_token": "and the token",
}


def show(verdict: FullVerdict, console: Console) -> None:
    """Print the verdict; plain text where ``console`` is no terminal."""
    console.print(Text(verdict.headline, style="bold green" if verdict.passed else "bold red"), soft_wrap=True)
    for reason in verdict.reasons:
        console.print(Text(f"  {reason.code}: ", style="red").append(reason.message, style="default"), soft_wrap=True)
    if verdict.first:
        rows = ", ".join(str(list(row)) for row in verdict.first)
        console.print(Text(f"  first rows that differ: {rows}"), soft_wrap=True)
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("figure")
    table.add_column("raw", justify="right")
    if verdict.processed is not None:
        table.add_column(f"temperature {verdict.temperature:g}", justify="right")
    table.add_column("", style="dim")
    for name, meaning in _MEANINGS.items():
        sides = [verdict.raw] if verdict.processed is None else [verdict.raw, verdict.processed]
        table.add_row(name, *(str(getattr(side, name)) for side in sides), meaning)
    print_whole(table, console)


def as_json(verdict: FullVerdict) -> str:
    """Strict JSON of `FullVerdict.as_dict`."""
    return json.dumps({"schema": SCHEMA, **verdict.as_dict()}, indent=2, allow_nan=False)
