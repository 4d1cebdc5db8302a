"""Recording an implementation into a guard file, with the history kept."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from numerics import __version__
from numerics.suite.implementation import Implementation
from numerics.tools.arrays import InputError
from numerics.tools.guard.checking import Progress, observations
from numerics.tools.guard.files import Guard, read, write

__all__ = ["record"]


def record(
    implementation: Implementation,
    file: str,
    *,
    spec: str,
    dtypes: Iterable[str] | None = None,
    device: str = "cpu",
    reason: str | None = None,
    progress: Progress = lambda text: None,
) -> Guard:
    """Write what ``implementation`` gives here to ``file``, beside what it holds of other keys.

    spec: how `resolve` finds the implementation again. reason: why; needed where the file exists, whose history is
    kept. `InputError` for a file of another implementation or contract, or one that is damaged.
    """
    if Path(file).exists():
        if not reason or not reason.strip():
            raise InputError(f"{file} exists; say with --update --reason TEXT why it is recorded again")
        guard = read(file)
        held, given = (guard.implementation, guard.contract), (spec, implementation.contract)
        if held != given:
            raise InputError(f"{file} guards {held[0]} ({held[1]}), not {given[0]} ({given[1]}): use another file")
    else:
        guard = Guard(implementation=spec, contract=implementation.contract, keys={}, history=())
    found = observations(implementation, dtypes=dtypes, device=device, progress=progress)
    if not found:
        raise InputError(f"{implementation.name} gives nothing that a guard records")
    guard = guard.with_observations(found, reason=reason or "first record", version=__version__)
    write(guard, file)
    return guard
