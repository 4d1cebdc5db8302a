"""The ``numerics`` command: list, check, explain, compare, gate, guard, keys, faults.

Exit codes: 0 good, 1 found something, 2 bad input. Results go to standard output, progress to standard error, colour
only to a terminal.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from numerics import __version__
from numerics.tools.compare_cli import compare_command
from numerics.tools.gate_cli import gate_command
from numerics.tools.guard_cli import guard_command

__all__ = ["main"]

_CONTRACTS = ("token_logprobs", "entropy", "mismatch", "divergence", "correction", "full_divergence", "ulp_distance")
_DTYPES = ("float32", "bfloat16", "float16", "float64")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="numerics")
def main() -> None:
    """Reference, property suite and tools for train-rollout log-prob consistency."""


main.add_command(compare_command)
main.add_command(gate_command)
main.add_command(guard_command)


def _progress(total: int | None = None) -> Callable[[str], None]:
    """A line that keeps moving on a terminal's standard error; silent elsewhere."""
    if not sys.stderr.isatty():
        return lambda text: None
    started, done = time.monotonic(), [0]

    def show(text: str) -> None:
        done[0] += 1
        of = f"/{total}" if total else ""
        sys.stderr.write(f"\r\x1b[K{done[0]}{of}  {time.monotonic() - started:5.1f} s  {text}"[:160])
        sys.stderr.flush()

    return show


def _clear() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")


@main.command("list")
@click.option("--contract", type=click.Choice(_CONTRACTS), help="Only this contract.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(contract: str | None, as_json: bool) -> None:
    """List contracts, built-in implementations and properties."""
    from numerics.suite.builtin import BUILTIN
    from numerics.suite.contracts import CONTRACTS
    from numerics.suite.properties import PROPERTIES

    chosen = [p for p in PROPERTIES.values() if contract in (None, p.contract)]
    if as_json:
        record = {
            "implementations": {name: [i.contract for i in found] for name, found in BUILTIN.items()},
            "properties": [
                {
                    "id": p.id,
                    "name": p.name,
                    "contract": p.contract,
                    "statement": p.statement,
                    "requires": sorted(p.requires),
                }
                for p in chosen
            ],
        }
        click.echo(json.dumps(record, indent=2))
        return
    console = Console()
    for name, one in CONTRACTS.items():
        if contract not in (None, name):
            continue
        who = [n for n, found in BUILTIN.items() if any(i.contract == name for i in found)]
        console.print(f"[bold]{name}[/]  {one.summary}   (built in: {', '.join(who)})", highlight=False)
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for p in chosen:
            if p.contract == name:
                table.add_row(p.id, p.name, p.statement)
        console.print(table)


@main.command("keys")
@click.argument("name", metavar="[FRAMEWORK]", required=False)
@click.option("--field", metavar="FIELD", help="Every framework's keys of this field of ours, such as k1.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def keys_command(name: str | None, field: str | None, as_json: bool) -> None:
    """What the metric keys of an RL framework mean, beside our fields. Without FRAMEWORK: the frameworks."""
    from numerics.integrations.keys import FRAMEWORKS, framework, keys_of, known_fields

    if field is not None and field not in known_fields():
        near = difflib.get_close_matches(field, sorted(known_fields()), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise click.BadParameter(f"no field {field!r}{hint}", param_hint="--field")
    try:
        tables = [framework(name)] if name else [framework(f) for f in FRAMEWORKS]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="FRAMEWORK") from error
    pairs = keys_of(field) if field else [(f, k) for f in tables for k in f.keys]
    pairs = [(f, k) for f, k in pairs if f in tables]
    if as_json:
        records = [{"framework": f.name, "source": f.source, **dataclasses.asdict(k)} for f, k in pairs]
        click.echo(json.dumps(records, indent=2))
        return
    console = Console()
    if not name and not field:
        table = Table(box=None, show_header=False)
        for f in tables:
            table.add_row(f.name, f"{len(f.keys)} keys", f.source)
        console.print(table)
        return
    for f, k in pairs:
        console.print(f"[bold]{f.title}[/]  {k.name}", highlight=False, soft_wrap=True)
        ours = f"{k.field} ({k.relation})" if k.field else "no field of ours"
        note = f"; {k.note}" if k.note else ""
        console.print(f"    {ours}: {k.definition}{note}", highlight=False, soft_wrap=True, markup=False)


@main.command("check")
@click.argument("implementation")
@click.option("--contract", type=click.Choice(_CONTRACTS), help="Which contract (needed for a plain callable).")
@click.option("--only", multiple=True, metavar="ID", help="Only this property, such as LP-03 (repeatable).")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(_DTYPES), help="Only this dtype (repeatable).")
@click.option("--device", "devices", multiple=True, type=click.Choice(("cpu", "cuda")), help="Only this device.")
@click.option("--max-examples", type=click.IntRange(min=1), default=100, show_default=True, help="Examples per check.")
@click.option("--seed", type=int, help="One seed for every check (default: derived from each check's id).")
@click.option("-x", "--fail-fast", is_flag=True, help="Stop at the first failure.")
@click.option("--slack", is_flag=True, help="Also print the largest error / bound of every check.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per check.")
def check_command(
    implementation: str,
    contract: str | None,
    only: tuple[str, ...],
    dtypes: tuple[str, ...],
    devices: tuple[str, ...],
    max_examples: int,
    seed: int | None,
    fail_fast: bool,
    slack: bool,
    as_json: bool,
) -> None:
    """Hold IMPLEMENTATION (a built-in, an entry point, or pkg.mod:obj) against every property of its contract.

    Exit code 0 if nothing failed, 1 if something did, 2 for bad input. Ctrl-C prints what was found so far.
    """
    from numerics.suite.implementation import ResolveError, resolve
    from numerics.suite.report import as_record, describe, findings, headline, summary, throughput
    from numerics.suite.runner import Result, checks_for, smoke

    sys.path.insert(0, "")  # pkg.mod:obj of the folder one stands in, as python -m does
    try:
        chosen = resolve(implementation, contract=contract)
        checks = list(
            checks_for(chosen, contract=contract, dtypes=dtypes or None, devices=devices or None, only=only or None)
        )
    except (ResolveError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    if not checks:
        raise click.UsageError(f"nothing to check: {implementation} with these options has no property")
    show, results, broken = _progress(len(checks)), list[Result](), set[tuple[int, str]]()
    try:
        for check in checks:
            key = (id(check.implementation), check.device)
            if key in broken:
                continue
            show(check.id)
            trouble = smoke(check.implementation, check.device)
            if trouble:
                broken.add(key)
                result = Result(check=check, status="errored", reason=f"smoke call failed: {trouble}")
            else:
                result = check.run(max_examples=max_examples, seed=check.derived_seed if seed is None else seed)
            results.append(result)
            if as_json:
                click.echo(json.dumps(as_record(result), allow_nan=False))
            elif slack and result.elements:
                click.echo(f"{headline(result)}   slack {result.slack:.3g}")
            if fail_fast and not result.ok:
                break
    except KeyboardInterrupt:
        click.echo("interrupted; so far:", err=True)
    _clear()
    if not as_json:
        for group in findings(results).values():
            click.echo(describe(group[0]) + "\n")
        for contract_name, examples, rows, seconds in throughput(results):
            rate = f"{rows / seconds:,.0f} rows/s" if seconds else ""
            click.echo(f"{contract_name:16} {examples:>8,} examples  {rows:>9,} rows  {seconds:6.1f} s  {rate}")
        click.echo(f"{implementation}: {summary(results)}")
    sys.exit(1 if any(not r.ok for r in results) else 0)


@main.command("explain")
@click.argument("name", metavar="PROPERTY|CONTRACT|CAPABILITY")
def explain_command(name: str) -> None:
    """Explain a property (LP-03), a contract (mismatch) or a capability (batch_invariant)."""
    from numerics.suite.explain import explain

    try:
        click.echo(explain(name))
    except KeyError as error:
        raise click.UsageError(str(error.args[0])) from error


@main.command("faults")
@click.argument("ids", nargs=-1, metavar="[FAULT]...")
@click.option("--matrix", "full", is_flag=True, help="On the first seed, every fault against every property too.")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="How many seeds, from 0.")
@click.option(
    "--max-examples", type=click.IntRange(min=1), default=100, show_default=True, help="Examples per property."
)
@click.option("--markdown", is_flag=True, help="Print the table of docs/faults.md.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def faults_command(
    ids: tuple[str, ...], full: bool, seeds: int, max_examples: int, markdown: bool, as_json: bool
) -> None:
    """Show that the suite kills its planted faults, and spares the correct code they are made from.

    Exit code 0 if every fault is killed by what it names, controls by nothing, forced failures by everything.
    """
    from difflib import get_close_matches

    from numerics.suite.faults import FAULTS, tables
    from numerics.suite.faults.matrix import matrix

    for name in ids:
        if name not in FAULTS:
            near = get_close_matches(name, list(FAULTS), n=2)
            raise click.UsageError(f"no fault {name!r}{'; did you mean ' + ' or '.join(near) + '?' if near else ''}")
    chosen = [FAULTS[name] for name in ids] or list(FAULTS.values())
    kills = matrix(seeds=range(seeds), max_examples=max_examples, faults=chosen, full=full, progress=_progress())
    _clear()
    verdict = tables.verdict(kills, chosen)
    if as_json:
        record: dict[str, Any] = {"kills": [k.__dict__ for k in kills], "complaints": verdict}
        click.echo(json.dumps(record))
    elif markdown:
        click.echo(tables.markdown(kills, chosen, max_examples=max_examples))
    else:
        Console().print(tables.table(kills, chosen))
        for line in verdict:
            click.echo(line)
        click.echo(
            f"{len(chosen)} faults, {seeds} seed(s): "
            + ("every claim holds" if not verdict else f"{len(verdict)} do not hold")
        )
    sys.exit(1 if verdict else 0)


if __name__ == "__main__":
    main()
