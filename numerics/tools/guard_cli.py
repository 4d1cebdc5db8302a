"""The commands ``numerics guard record`` and ``numerics guard check``. torch is imported when they run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from numerics.suite.implementation import Implementation
    from numerics.tools.guard import Report

__all__ = ["FOLDERS", "guard_command"]

#: where guards are looked for, from the folder one stands in
FOLDERS = ("guards", "property_tests/guards")
_DTYPES = ("float32", "bfloat16", "float16", "float64")


@click.group("guard")
def guard_command() -> None:
    """Record an implementation's bits and errors, and see later whether they changed."""


@guard_command.command("record")
@click.argument("implementation", metavar="IMPL")
@click.option("-o", "--output", "file", required=True, metavar="FILE", help="The guard file, such as guards/lp.json.")
@click.option("--contract", help="Which contract, where IMPL is a plain callable or has several.")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(_DTYPES), help="Only this dtype (repeatable).")
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True, help="Where it runs.")
@click.option("--update", is_flag=True, help="Record into a file that exists, keeping its history and other keys.")
@click.option("--reason", metavar="TEXT", help="Why it is recorded again; kept in the file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def record_command(context: click.Context, /, **options: Any) -> None:
    """Write what IMPL (a built-in, an entry point, or pkg.mod:obj) gives on this machine to FILE.

    \b
    Examples:
      numerics guard record mypkg.kernels:token_logprobs --contract token_logprobs -o guards/token_logprobs.json
      numerics guard record mypkg.kernels:token_logprobs -o guards/token_logprobs.json --contract token_logprobs \\
        --update --reason "the sum runs over 64 lanes now: 1 ULP on 3 % of the rows"

    Exit code: 0 if it is written, 2 for bad input.
    """  # noqa: D301  (click wants the control character)

    def run(progress: Callable[[str], None]) -> int:
        from numerics.tools.arrays import InputError
        from numerics.tools.guard import record

        if options["update"] != (options["reason"] is not None):
            raise InputError("--update and --reason TEXT go together: say why the file is recorded again")
        spec, file = options["implementation"], options["file"]
        guard = record(
            _resolved(spec, options["contract"], file),
            file,
            spec=spec,
            dtypes=options["dtypes"] or None,
            device=options["device"],
            reason=options["reason"],
            progress=progress,
        )
        entry = guard.history[-1]
        if options["as_json"]:
            click.echo(json.dumps({"schema": "numerics.guard.record/1", "file": file, **entry}, indent=2))
        else:
            for key, what in entry["keys"].items():
                click.echo(f"{file}  {key}: {what}, {len(_lines(guard, key))} lines")
        return 0

    context.exit(_guarded(run))


def _lines(guard: Any, key: str) -> Any:
    return next(recorded.lines for k, recorded in guard.keys.items() if str(k) == key)


@guard_command.command("check")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True, help="Where it runs.")
@click.option("--strict", is_flag=True, help="A key that is not recorded is a failure.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check_command(context: click.Context, names: tuple[str, ...], device: str, strict: bool, as_json: bool) -> None:
    """Compare what the guarded implementations give now with what is recorded.

    NAME is a guard file, or the name of one in guards/ or property_tests/guards/ (without .json); without NAME, all of
    them. Bits may depend on device, dtype, instruction set and torch version: a key that was never recorded is no
    failure, unless --strict.

    Exit code: 0 if no bit changed, 1 if some did (other bits with the same error, too), 2 for bad input.
    """

    def run(progress: Callable[[str], None]) -> int:
        from numerics.tools.guard import check, read
        from numerics.tools.guard.report import as_json as json_of
        from numerics.tools.guard.report import as_text

        files = [_found(name) for name in names] or _all()
        reports: dict[str, list[Report]] = {}
        for file in files:
            guard = read(file)
            implementation = _resolved(guard.implementation, guard.contract, file)
            progress(file)
            reports[file] = check(guard, implementation, device=device, progress=progress)
            if not as_json:
                _clear()
                click.echo(as_text(file, reports[file]))
        if as_json:
            _clear()
            click.echo(json_of(reports))
        everything = [r for found in reports.values() for r in found]
        return 0 if all(r.ok and not (strict and r.status == "not recorded") for r in everything) else 1

    context.exit(_guarded(run))


def _guarded(run: Callable[[Callable[[str], None]], int]) -> int:
    from numerics.tools.arrays import InputError

    sys.path.insert(0, "")  # pkg.mod:obj of the folder one stands in, as python -m does
    try:
        return run(_progress())
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        return 2
    finally:
        _clear()


def _progress() -> Callable[[str], None]:
    """A line that keeps moving on a terminal's standard error; silent elsewhere."""
    started = time.monotonic()

    def show(text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{time.monotonic() - started:5.1f} s  {text}"[:160])
            sys.stderr.flush()

    return show


def _clear() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")


def _resolved(spec: str, contract: str | None, file: str) -> Implementation:
    from numerics.suite.implementation import CONTRACT_NAMES, ResolveError, resolve
    from numerics.tools.arrays import InputError

    if contract is not None and contract not in CONTRACT_NAMES:
        raise InputError(f"no contract {contract!r}; known: {', '.join(CONTRACT_NAMES)}")
    try:
        found = resolve(spec, contract=contract)
    except ResolveError as error:
        raise InputError(f"{file}: {error}") from error
    if len(found) != 1:
        contracts = ", ".join(i.contract for i in found)
        raise InputError(f"{spec} has {len(found)} implementations ({contracts}): choose one with --contract")
    return found[0]


def _found(name: str) -> str:
    from numerics.tools.arrays import InputError

    for path in (Path(name), *(Path(folder) / f"{name}.json" for folder in FOLDERS)):
        if path.is_file():
            return str(path)
    raise InputError(f"no guard {name!r}: neither a file, nor {name}.json in {' or '.join(FOLDERS)}")


def _all() -> list[str]:
    from numerics.tools.arrays import InputError

    files = sorted(str(path) for folder in FOLDERS for path in Path(folder).glob("*.json"))
    if not files:
        raise InputError(f"no guards in {' or '.join(FOLDERS)}; record one with `numerics guard record IMPL -o FILE`")
    return files
