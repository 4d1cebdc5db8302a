"""Compare the rollout's and the trainer's log-probs of one dump: every figure of `Mismatch`, with hints.

`compare` reads and computes, `as_table` and `as_json` show; the command is in ``compare_cli.py``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from numerics.reference.mismatch import Mismatch, mismatch
from numerics.tools.arrays import NamedArray
from numerics.tools.compare_hints import hints
from numerics.tools.inputs import read_pair
from numerics.tools.show import histogram, plain, print_whole, ulp_labels

__all__ = ["SCHEMA", "Comparison", "Source", "as_json", "as_table", "compare"]

SCHEMA = "numerics.compare/1"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where an array came from. ``source`` is ``FILE:KEY``; ``origin`` names the framework if the key was found."""

    source: str
    shape: tuple[int, ...]
    dtype: str
    origin: str | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The mismatch of two arrays, what was read for it, and what a reader should know about it (``hints``)."""

    rollout: Source
    trainer: Source
    mask: Source | None
    lengths: Source | None
    mismatch: Mismatch
    hints: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 if tokens were compared and none differs, else 1."""
        return 0 if self.mismatch.valid == 1 and self.mismatch.logprobs_mismatch_count == 0 else 1

    @property
    def verdict(self) -> str:
        """``N of M tokens differ``, with what that means for the exit code."""
        found = self.mismatch
        meaning = "zero mismatch" if self.exit_code == 0 else "mismatch" if found.valid else "nothing was compared"
        return (
            f"{found.logprobs_mismatch_count} of {found.valid_count} tokens differ: {meaning} "
            f"(exit code {self.exit_code})"
        )


def compare(
    rollout: str,
    trainer: str,
    *,
    mask: str | None = None,
    lengths: str | None = None,
    compare_dtype: torch.dtype = torch.float32,
) -> Comparison:
    """Compare two arrays of log-probs; see `numerics.tools.inputs.read_pair` for how they, a mask or lengths are named.

    compare_dtype: torch.float32 or torch.float64.
    """
    pair = read_pair(rollout, trainer, mask=mask, lengths=lengths)
    q, p = pair.rollout, pair.trainer
    found = mismatch(q.tensor, p.tensor, pair.valid, compare_dtype=compare_dtype)
    return Comparison(
        rollout=_source(q),
        trainer=_source(p),
        mask=None if pair.mask is None else _source(pair.mask),
        lengths=None if pair.lengths is None else _source(pair.lengths),
        mismatch=found,
        hints=tuple(hints(q, p, pair.valid, found, selected=pair.selected)),
    )


def _source(array: NamedArray) -> Source:
    return Source(source=array.source, shape=array.shape, dtype=array.dtype, origin=array.origin)


_MEANINGS = {
    "valid": "1 if any token is valid",
    "valid_count": "tokens compared (M)",
    "nonfinite_count": "tokens with a NaN or infinity",
    "narrowed_count": "values the cast changed",
    "positive_count": "values above 0",
    "overflow_count": "finite values whose exp overflows",
    "logprobs_mismatch_count": "tokens that differ by value (N)",
    "bit_mismatch_count": "tokens that differ in bits",
    "logprobs_diff_max": "max |p - q|, nats",
    "logprobs_diff_mean": "mean |p - q|, nats",
    "logprobs_diff_std": "std of |p - q|, nats",
    "probs_diff_max": "max |exp p - exp q|",
    "probs_diff_mean": "mean |exp p - exp q|",
    "probs_diff_std": "std of |exp p - exp q|",
    "probs_pearson": "correlation of exp p, exp q",
    "logprobs_pearson": "correlation of p, q",
    "compare_dtype": "format of the cast and the ULPs",
}


def as_table(comparison: Comparison, console: Console) -> None:
    """Print the comparison; plain text where ``console`` is no terminal. Nothing is cut to the console's width."""
    sources = Table.grid(padding=(0, 2))
    for name in ("rollout", "trainer", "mask", "lengths"):
        source: Source | None = getattr(comparison, name)
        if source is not None:
            cells = [Text(cell) for cell in (name, source.source, source.dtype, str(list(source.shape)))]
            if source.origin is not None:  # an empty column would be measured one character too narrow
                cells.append(Text(f"found by name ({source.origin})"))
            sources.add_row(*cells)
    print_whole(sources, console)
    console.print()

    figures = Table(box=None, pad_edge=False, header_style="bold")
    figures.add_column("figure")
    figures.add_column("value", justify="right")
    figures.add_column("p trainer, q rollout", style="dim")
    for name, meaning in _MEANINGS.items():
        figures.add_row(name, str(getattr(comparison.mismatch, name)), meaning)
    print_whole(figures, console)
    console.print()

    print_whole(histogram(comparison.mismatch, "#" if console.options.ascii_only else "█"), console)
    console.print()
    for hint in comparison.hints:
        console.print(Text("hint: ", style="yellow").append(hint, style="default"), soft_wrap=True)
    style = "bold green" if comparison.exit_code == 0 else "bold red"
    console.print(Text(comparison.verdict, style=style), soft_wrap=True)


def as_json(comparison: Comparison) -> str:
    """The comparison as strict JSON: NaN and the infinities are the strings "nan", "inf", "-inf"."""
    found = comparison.mismatch
    fields: dict[str, Any] = {"schema": SCHEMA}
    for name in ("rollout", "trainer", "mask", "lengths"):
        source: Source | None = getattr(comparison, name)
        fields[name] = None if source is None else asdict(source)
    fields["mismatch"] = {name: plain(value) for name, value in found.as_dict().items()}
    fields["ulp_bins"] = ulp_labels(found)
    fields["hints"] = comparison.hints
    fields["verdict"] = comparison.verdict
    fields["exit_code"] = comparison.exit_code
    return json.dumps(fields, indent=2, allow_nan=False)
