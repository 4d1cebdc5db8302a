"""Comparing what an implementation gives now with what is recorded, and naming what changed where it can be named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from numerics.suite.implementation import Implementation
from numerics.suite.runner import smoke
from numerics.tools.arrays import InputError
from numerics.tools.guard.files import Guard, Recorded
from numerics.tools.guard.observe import Key, Line, Observation, observe

__all__ = ["STATUSES", "Change", "Report", "check", "observations"]

STATUSES = ("identical", "other bits, same error", "worse error", "not recorded")

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One rule and case whose bits are others. ``case``: the code that rebuilds the input."""

    line: str
    was: Line | None
    now: Line | None
    case: str
    worse: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """What became of one key. ``against``: the recorded key that was compared, None where there is none.

    named: variants of the implementation that give the recorded bits again; what differs between it and them is what
    changed. steps: of the numbers that lines show, the largest distance in ULPs between then and now, None if unknown.
    """

    key: Key
    against: Key | None
    status: str
    lines: int
    changes: tuple[Change, ...] = ()
    named: tuple[str, ...] = ()
    steps: int | None = None

    @property
    def ok(self) -> bool:
        """Whether no bit changed."""
        return self.status in ("identical", "not recorded")


def observations(
    implementation: Implementation, *, dtypes: Iterable[str] | None, device: str, progress: Progress
) -> list[Observation]:
    """What the implementation gives on ``device`` in each dtype that it takes. `InputError` if it gives nothing."""
    trouble = smoke(implementation, device)
    if trouble:
        raise InputError(f"{implementation.name} does not run: {trouble}")
    chosen = list(implementation.dtypes if dtypes is None else dtypes)
    unknown = [name for name in chosen if name not in implementation.dtypes]
    if unknown:
        raise InputError(f"{implementation.name} takes no {unknown[0]}; it declares {', '.join(implementation.dtypes)}")
    found = [observe(implementation, device=device, dtype=name, progress=progress) for name in chosen]
    return [o for o in found if o.seen]


def check(
    guard: Guard,
    implementation: Implementation,
    *,
    device: str = "cpu",
    progress: Progress = lambda text: None,
) -> list[Report]:
    """One report for each dtype and recorded key that must agree.

    An implementation is compared with its own key (device, dtype, instruction set, torch version); one that declares
    ``portable_bits`` with every recorded key of the dtype. `InputError` if the recorded cases are others than this
    version's.
    """
    recorded = {key.dtype for key in guard.keys}
    dtypes = [name for name in implementation.dtypes if name in recorded]
    reports = []
    for now in observations(implementation, dtypes=dtypes, device=device, progress=progress):
        portable = "portable_bits" in implementation.provides
        keys = [k for k in guard.keys if k == now.key or (portable and k.dtype == now.key.dtype)]
        if not keys:
            reports.append(Report(key=now.key, against=None, status="not recorded", lines=len(now.seen)))
        reports += [_compared(key, guard.keys[key], now, implementation, device) for key in keys]
    return reports


def _compared(key: Key, was: Recorded, now: Observation, implementation: Implementation, device: str) -> Report:
    if was.cases != now.cases:
        raise InputError(
            f"{key} was recorded on other cases than this version's: record it again with --update --reason"
        )
    changes = tuple(_changes(was, now))
    if not changes:
        return Report(key=now.key, against=key, status="identical", lines=len(now.seen))
    return Report(
        key=now.key,
        against=key,
        status="worse error" if any(c.worse for c in changes) else "other bits, same error",
        lines=len(now.seen),
        changes=changes,
        named=tuple(_named(was, [c.line for c in changes], implementation, device, now.key.dtype)),
        steps=max((s for c in changes if (s := _steps(c)) is not None), default=None),
    )


def _changes(was: Recorded, now: Observation) -> Iterator[Change]:
    """Lines with other bits; worse: further off than any line of the rule was, in shares of the bound."""
    largest: dict[str, float] = {}
    for name, line in was.lines.items():
        rule = name.split()[0]
        if math.isfinite(line.share):
            largest[rule] = max(largest.get(rule, 0.0), line.share)
    for name in {**was.lines, **now.seen}:
        before, seen = was.lines.get(name), now.seen.get(name)
        if before is None or seen is None or before.bits != seen.bits:
            after = None if seen is None else seen.line()
            limit = max(largest.get(name.split()[0], 0.0), before.share if before is not None else 0.0)
            worse = after is None or after.share > limit
            case = "" if seen is None else repr(seen.case)
            yield Change(line=name, was=before, now=after, case=case, worse=worse)


def _named(was: Recorded, lines: list[str], implementation: Implementation, device: str, dtype: str) -> Iterator[str]:
    """The variants with which every line has its recorded bits again."""
    for name, fn in implementation.variants.items():
        variant = implementation.with_function(fn)
        # first the few that tell: most variants end there
        for some in (lines[:3], None):
            found = observe(variant, device=device, dtype=dtype, only=some).seen
            wanted = was.lines if some is None else {line: was.lines.get(line) for line in some}
            if {n: x.bits for n, x in found.items()} != {n: x.bits for n, x in wanted.items() if x is not None}:
                break
        else:
            yield name


def _steps(change: Change) -> int | None:
    """The largest distance on the ordered line between the numbers then and now; None where a line shows none."""
    sides = [line.bits.split() if line is not None else [] for line in (change.was, change.now)]
    pairs = list(zip(*sides, strict=False))
    if not pairs or len(sides[0]) != len(sides[1]) or not all(_is_number(w) for pair in pairs for w in pair):
        return None
    return max(abs(_ordinal(a) - _ordinal(b)) for a, b in pairs if "nan" not in (a, b)) if pairs else None


def _is_number(word: str) -> bool:
    return word == "nan" or (len(word) in (8, 16) and all(c in "0123456789abcdef" for c in word))


def _ordinal(word: str) -> int:
    bits, width = int(word, 16), 4 * len(word)
    magnitude = bits & ((1 << (width - 1)) - 1)
    return -magnitude if bits >> (width - 1) else magnitude
