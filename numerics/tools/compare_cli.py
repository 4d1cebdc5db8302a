"""The command ``numerics compare``. torch is imported when it runs, not for ``--help``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

__all__ = ["compare_command"]


@click.command("compare")
@click.argument("rollout")
@click.argument("trainer", required=False)
@click.option(
    "--mask", metavar="FILE[:KEY]", help="0/1 array of the same shape (bool, integer or floating); 1 = valid."
)
@click.option(
    "--lengths",
    metavar="FILE[:KEY]",
    help="Number of valid tokens of each row; rows are padded on the right.",
)
@click.option(
    "--compare-dtype",
    type=click.Choice(["float32", "float64"]),
    default="float32",
    show_default=True,
    help="The format both sides are cast to once, before anything is computed; ULPs are steps of it.",
)
@click.option(
    "--json",
    "json_output",
    is_flag=True,
    help='Strict JSON (schema numerics.compare/1); NaN and infinities are the strings "nan", "inf", "-inf".',
)
@click.pass_context
def compare_command(
    context: click.Context,
    rollout: str,
    trainer: str | None,
    mask: str | None,
    lengths: str | None,
    compare_dtype: str,
    json_output: bool,
) -> None:
    """Compare the log-probs of the same tokens: ROLLOUT (the engine's) with TRAINER (recomputed).

    Each is FILE:KEY, an array of log-probs in nats in an .npz or .safetensors file; both may lie in one file. Without
    :KEY the one array with a well-known name is taken (verl, TRL, slime, NeMo-RL, SkyRL, prime-rl, OpenRLHF) and named
    in the output; several candidates are an error. Without TRAINER it is looked for in ROLLOUT's file. 'FILE:?' lists
    keys, shapes and dtypes. Nothing is ever unpickled.

    Without --mask or --lengths every token counts, padding too.

    \b
    Examples:
      numerics compare 'dump.npz:?'
      numerics compare dump.npz --mask dump.npz:response_mask
      numerics compare dump.npz:rollout_lp dump.npz:lp__bf16 --lengths dump.npz:rlen
      numerics compare engine.safetensors trainer.safetensors:old_log_probs --json

    Exit code: 0 if tokens were compared and none differs, 1 if any differs or none was compared, 2 for bad input.
    """  # noqa: D301  (click wants the control character)
    from numerics.tools.arrays import InputError

    try:
        code = _run(rollout, trainer, mask, lengths, compare_dtype, json_output)
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        code = 2
    context.exit(code)


def _run(
    rollout: str, trainer: str | None, mask: str | None, lengths: str | None, compare_dtype: str, json_output: bool
) -> int:
    import torch
    from rich.console import Console

    from numerics.tools.arrays import split_reference
    from numerics.tools.compare import as_json, as_table, compare

    asked = [reference for reference in (rollout, trainer, mask, lengths) if reference and reference.endswith(":?")]
    if asked:
        _list([reference.removesuffix(":?") for reference in asked], json_output)
        return 0
    found = compare(
        rollout,
        split_reference(rollout)[0] if trainer is None else trainer,
        mask=mask,
        lengths=lengths,
        compare_dtype=torch.float64 if compare_dtype == "float64" else torch.float32,
    )
    if json_output:
        click.echo(as_json(found))
    else:
        as_table(found, Console(file=sys.stdout, highlight=False))
    return found.exit_code


def _list(files: list[str], json_output: bool) -> None:
    """Keys, shapes and dtypes of ``files``."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from numerics.tools.arrays import list_arrays
    from numerics.tools.show import print_whole

    contents = {file: list_arrays(file) for file in dict.fromkeys(files)}
    if json_output:
        listed = [{"file": file, "arrays": [asdict(info) for info in infos]} for file, infos in contents.items()]
        click.echo(json.dumps({"schema": "numerics.arrays/1", "files": listed}, indent=2))
        return
    console = Console(file=sys.stdout, highlight=False)
    for file, infos in contents.items():
        console.print(Text(file, style="bold"), soft_wrap=True)
        table = Table(box=None, header_style="bold")
        for heading in ("key", "dtype", "shape"):
            table.add_column(heading)
        for info in infos:
            table.add_row(Text(info.key), Text(info.dtype), Text(str(list(info.shape))))
        print_whole(table, console)
