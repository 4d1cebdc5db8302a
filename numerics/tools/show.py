"""What the tools print alike: tables at their full width, the histogram of distances, numbers that JSON lacks."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from numerics.reference.mismatch import Mismatch

__all__ = ["histogram", "plain", "print_whole", "ulp_labels"]

_BAR = 20  #: characters of the largest bin's bar


def ulp_labels(found: Mismatch) -> tuple[str, ...]:
    """The distances that each bin of ``ulp_histogram`` counts: 0, 1, 2-3, 4-7, ..., undefined."""
    ranges = [(1 << (k - 1), (1 << k) - 1) for k in range(1, len(found.ulp_histogram) - 1)]
    return ("0", *(f"{low}" if low == high else f"{low}-{high}" for low, high in ranges), "undefined")


def histogram(found: Mismatch, block: str) -> Table:
    """The bins that hold a token, with bars made of ``block``."""
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


def plain(value: Any) -> Any:
    """``value`` for strict JSON: NaN and the infinities are the strings "nan", "inf", "-inf"."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
