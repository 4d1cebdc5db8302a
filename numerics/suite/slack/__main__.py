"""``python -m numerics.suite.slack``: the table of error / bound."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable

import click

from numerics.formats import FORMATS
from numerics.suite.builtin import BUILTIN
from numerics.suite.slack import CONTRACTS, Slack, measure_figures, measure_rows

_CONTRACTS = ("token_logprobs", "entropy", *CONTRACTS)
_COLUMNS = ("contract", "implementation", "dtype", "rows", "max err/bound", "median", "over", "float64", "extended")
_HEADER = (*_COLUMNS, "mpmath", "undecided", "seconds", "rows/s")


def _cells(s: Slack) -> tuple[str, ...]:
    numbers = (f"{s.largest:.4f}", f"{s.median:.4f}", s.over, s.float64, s.extended, s.exact, s.undecided)
    rate = s.rows / s.seconds if s.seconds else 0.0
    return (s.contract, s.implementation, s.dtype, str(s.rows), *map(str, numbers), f"{s.seconds:.1f}", f"{rate:.0f}")


def _table(found: Iterable[Slack]) -> str:
    lines = [_HEADER, *map(_cells, found)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(_HEADER))]
    return "\n".join(
        "  ".join(x.ljust(w) if k < 3 else x.rjust(w) for k, (x, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )


def _by_figure(found: Iterable[Slack]) -> str:
    return "\n".join(
        f"{s.contract} {s.implementation} {s.dtype}: " + ", ".join(f"{name} {x:.3f}" for name, x in s.figures.items())
        for s in found
        if s.figures
    )


def _watched(steps: Iterable[Slack], name: str, total: int) -> Slack:
    """The last of ``steps``; a moving line on a terminal's standard error."""
    shown, last, moving = 0.0, None, sys.stderr.isatty()
    for last in steps:
        if moving and time.monotonic() - shown > 0.2:
            shown = time.monotonic()
            sys.stderr.write(f"\r\x1b[K{name}: {last.rows}/{total}, largest error/bound {last.largest:.3f}")
            sys.stderr.flush()
    if moving:
        sys.stderr.write("\r\x1b[K")
    assert last is not None
    return last


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--rows", type=click.IntRange(1), default=100_000, show_default=True, help="Rows per line of the table.")
@click.option(
    "--batches", type=click.IntRange(0), default=2000, show_default=True, help="Batches per line: ~50 tokens each."
)
@click.option(
    "--contract", "contracts", multiple=True, type=click.Choice(_CONTRACTS), help="Only this one (repeatable)."
)
@click.option("--impl", "names", multiple=True, type=click.Choice(list(BUILTIN)), help="Only this one (repeatable).")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(list(FORMATS)), help="Only this one (repeatable).")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Other rows.")
@click.option(
    "--exact-rows",
    type=click.IntRange(0),
    default=20_000,
    show_default=True,
    help="At most so many rows by mpmath for each line; further ones are counted as undecided.",
)
@click.option("--figures", "by_figure", is_flag=True, help="Also the largest error / bound of every figure.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    rows: int,
    batches: int,
    contracts: tuple[str, ...],
    names: tuple[str, ...],
    dtypes: tuple[str, ...],
    seed: int,
    exact_rows: int,
    by_figure: bool,
    as_json: bool,
) -> None:
    """Largest and median error / bound of the built-in implementations, over many seeded rows and batches.

    Exits with 0 if every row holds, 1 if one is over its bound, 2 for bad input.
    """
    found: list[Slack] = []
    try:
        for implementation in (x for name in names or BUILTIN for x in BUILTIN[name]):
            for dtype in (name for name in implementation.dtypes if not dtypes or name in dtypes):
                if contracts and implementation.contract not in contracts:
                    continue
                title = f"{implementation.contract} {implementation.name} {dtype}"
                if implementation.contract in ("token_logprobs", "entropy"):
                    options: dict[str, int] = {"rows": rows, "seed": seed, "exact_rows": exact_rows}
                    found.append(_watched(measure_rows(implementation, dtype, **options), title, rows))
                elif implementation.contract in CONTRACTS and batches:
                    steps = measure_figures(implementation, dtype, count=batches, seed=seed)
                    found.append(_watched(steps, title, batches))
    except KeyboardInterrupt:
        click.echo("interrupted; so far:", err=True)
    click.echo(json.dumps([s.as_dict() for s in found], indent=1) if as_json else _table(found))
    if by_figure and not as_json:
        click.echo("\n" + _by_figure(found))
    for s in found:
        if s.over:
            click.echo(
                f"{s.contract} {s.implementation} {s.dtype}: {s.over} over the bound, the worst {s.worst}", err=True
            )
    sys.exit(1 if any(s.over for s in found) else 0)


if __name__ == "__main__":
    main()
