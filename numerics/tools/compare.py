"""Compare the rollout's and the trainer's log-probs of one dump: every figure of `Mismatch`, with hints.

`compare` reads and computes, `as_table` and `as_json` show; the command is in ``compare_cli.py``.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from numerics.reference.mismatch import Mismatch, mismatch
from numerics.tools.arrays import InputError, NamedArray, read_array
from numerics.tools.compare_hints import first_place, hints

__all__ = ["SCHEMA", "Comparison", "Source", "as_json", "as_table", "compare", "print_whole", "ulp_labels"]

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
    """Compare two arrays of log-probs (nats), each named as ``FILE:KEY``, or as ``FILE`` with a well-known key.

    mask: 0/1 of the same shape (bool, integer or floating). lengths: valid tokens of each row, shape
    ``rollout.shape[:-1]`` (for one row also ``[1]``), rows padded on the right: ``mask[i, j] = j < lengths[i]``. At
    most one of the two; without either all tokens are valid. compare_dtype: torch.float32 or torch.float64.
    `InputError` for whatever cannot be read or does not fit together.
    """
    if mask is not None and lengths is not None:
        raise InputError("both mask and lengths are given; give the one that marks the response tokens")
    q, p = read_array(rollout, "rollout"), read_array(trainer, "trainer")
    _check_shape(p, "trainer", q)
    selection = read_array(mask, "mask") if mask is not None else None
    counts = read_array(lengths, "lengths") if lengths is not None else None
    valid = _valid(selection, counts, q)
    found = mismatch(q.tensor, p.tensor, valid, compare_dtype=compare_dtype)
    return Comparison(
        rollout=_source(q),
        trainer=_source(p),
        mask=None if selection is None else _source(selection),
        lengths=None if counts is None else _source(counts),
        mismatch=found,
        hints=tuple(hints(q, p, valid, found, selected=selection is not None or counts is not None)),
    )


def _source(array: NamedArray) -> Source:
    return Source(source=array.source, shape=array.shape, dtype=array.dtype, origin=array.origin)


def _check_shape(array: NamedArray, role: str, rollout: NamedArray) -> None:
    if array.shape != rollout.shape:
        raise InputError(
            f"shapes are unequal: {role} {array.source} has {array.shape}, rollout {rollout.source} has "
            f"{rollout.shape}; nothing is broadcast or shifted: cut both to the same response tokens"
        )


def _valid(mask: NamedArray | None, lengths: NamedArray | None, rollout: NamedArray) -> torch.Tensor:
    """The valid places as bool, in the shape of ``rollout``."""
    if lengths is not None:
        return _valid_of_lengths(lengths, rollout)
    if mask is None:
        return torch.ones(rollout.shape, dtype=torch.bool)
    _check_shape(mask, "mask", rollout)
    wrong = ~((mask.tensor == 0) | (mask.tensor == 1))
    if wrong.any():
        place = first_place(wrong)
        raise InputError(
            f"mask {mask.source} holds {mask.tensor[place].item()!r} at {list(place)}; only 0 and 1 are allowed: it "
            "selects tokens, it does not weigh them"
        )
    return mask.tensor == 1


def _valid_of_lengths(lengths: NamedArray, rollout: NamedArray) -> torch.Tensor:
    shape = rollout.shape
    if not shape:
        raise InputError(f"lengths {lengths.source}: rollout {rollout.source} is a single number and has no rows")
    tensor = lengths.tensor.to(torch.int64)
    if len(shape) == 1 and tensor.shape == (1,):
        tensor = tensor[0]
    if tensor.shape != shape[:-1]:
        raise InputError(
            f"lengths {lengths.source} has shape {lengths.shape}, but rollout {rollout.source} has shape {shape}: one "
            f"length for each row, shape {shape[:-1] or (1,)}, is needed"
        )
    outside = (tensor < 0) | (tensor > shape[-1])
    if outside.any():
        place = first_place(outside)
        raise InputError(
            f"lengths {lengths.source} holds {int(tensor[place])} at {list(place)}, outside 0..{shape[-1]}, the width "
            f"of {rollout.source}; lengths count response tokens, without the prompt"
        )
    return torch.arange(shape[-1]) < tensor[..., None]


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
_BAR = 20  #: characters of the largest bin's bar


def ulp_labels(found: Mismatch) -> tuple[str, ...]:
    """The distances that each bin of ``ulp_histogram`` counts: 0, 1, 2-3, 4-7, ..., undefined."""
    ranges = [(1 << (k - 1), (1 << k) - 1) for k in range(1, len(found.ulp_histogram) - 1)]
    return ("0", *(f"{low}" if low == high else f"{low}-{high}" for low, high in ranges), "undefined")


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

    print_whole(_histogram(comparison.mismatch, "#" if console.options.ascii_only else "█"), console)
    console.print()
    for hint in comparison.hints:
        console.print(Text("hint: ", style="yellow").append(hint, style="default"), soft_wrap=True)
    style = "bold green" if comparison.exit_code == 0 else "bold red"
    console.print(Text(comparison.verdict, style=style), soft_wrap=True)


def _histogram(found: Mismatch, block: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("ULPs apart", "tokens", "share"):
        table.add_column(heading, justify="right")
    table.add_column("", style="cyan")
    largest = max(found.ulp_histogram)
    for label, count in zip(ulp_labels(found), found.ulp_histogram, strict=True):
        if count:
            share = count / found.valid_count
            percent = f"{share:.1%}" if share >= 0.001 else "< 0.1%"
            table.add_row(label, str(count), percent, block * max(1, round(_BAR * count / largest)))
    return table


def print_whole(table: Table, console: Console) -> None:
    """Print ``table`` at its natural width."""
    # rich would shorten cells to fit a narrow terminal or the 80 columns of a pipe: half a number is a wrong one
    table.width = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    console.print(table, crop=False)


def as_json(comparison: Comparison) -> str:
    """The comparison as strict JSON: NaN and the infinities are the strings "nan", "inf", "-inf"."""
    found = comparison.mismatch
    fields: dict[str, Any] = {"schema": SCHEMA}
    for name in ("rollout", "trainer", "mask", "lengths"):
        source: Source | None = getattr(comparison, name)
        fields[name] = None if source is None else asdict(source)
    fields["mismatch"] = {name: _plain(value) for name, value in found.as_dict().items()}
    fields["ulp_bins"] = ulp_labels(found)
    fields["hints"] = comparison.hints
    fields["verdict"] = comparison.verdict
    fields["exit_code"] = comparison.exit_code
    return json.dumps(fields, indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
