"""Builds checks and runs them: the only module that drives Hypothesis.

A check is property x implementation x device x dtype. It runs in **two passes with one seed**: the first measures every
case and judges none; if the worst is over its bound, the second raises at half that severity (in log space), so that
shrinking reports a simple case that is still telling - plain shrinking ends at the mildest failure there is.
"""

from __future__ import annotations

import builtins
import dataclasses
import math
import re
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded

from numerics.formats import FORMATS
from numerics.suite.contracts import CONTRACTS, BadResult, Raised, call
from numerics.suite.exact import exact_answer
from numerics.suite.implementation import Implementation
from numerics.suite.measure import Measurement, severities
from numerics.suite.properties import PROPERTIES
from numerics.suite.property import Context, Domain, NotProvided, Property

__all__ = ["STATUSES", "Check", "CheckFailure", "Finding", "Result", "check", "checks_for", "record_cases"]

#: never merged with each other
STATUSES = ("passed", "failed", "errored", "not applicable", "expected failure")

#: upper edges of the histogram of error / bound: within, up to 4x, up to 64x, up to 2^20x, beyond
EDGES = (1.0, 4.0, 64.0, 2.0**20, math.inf)


class CheckFailure(AssertionError):  # noqa: N818 - pytest and readers know it as a failure
    """A check failed or the implementation errored; the message is the whole report."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One element over its bound (or an error of the implementation), with the case that shows it.

    called: the case the element came from, where the rule derived it from ``case``.
    alone: whether the element's row is still over its bound when it is the only one; None when there is but one row.
    """

    case: Any
    severity: float
    label: str = ""
    row: int = -1
    got: float = math.nan
    exact: Any = math.nan
    allowed: float = math.nan
    format: str = "float32"
    bits: bool = False
    error: str = ""
    called: Any = None
    alone: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a check found. ``histogram`` counts elements by error / bound, see `EDGES`."""

    check: Check
    status: str
    reason: str = ""
    worst: Finding | None = None
    simplest: Finding | None = None
    examples: int = 0
    rows: int = 0
    elements: int = 0
    slack: float = 0.0
    histogram: tuple[int, ...] = (0,) * len(EDGES)
    seed: int = 0
    max_examples: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Neither failed nor errored."""
        return self.status not in ("failed", "errored")


class _Tally:
    """What the first pass sees."""

    def __init__(self) -> None:
        self.examples = self.rows = self.elements = 0
        self.slack = 0.0
        self.histogram = [0] * len(EDGES)
        self.worst: Finding | None = None

    def add(self, case: Any, found: Finding | None, values: Sequence[np.ndarray[Any, Any]]) -> None:
        self.examples += 1
        self.rows += case.size
        for array in values:
            self.elements += array.size
            for value in array[array > 0] if array.size else ():
                self.histogram[next(k for k, edge in enumerate(EDGES) if value <= edge)] += 1
            self.histogram[0] += int((array == 0).sum())
            inside = array[array <= 1]
            self.slack = max(self.slack, float(inside.max(initial=0.0)))
        if found is not None and (self.worst is None or found.severity > self.worst.severity):
            self.worst = found


@dataclass(frozen=True, kw_only=True)
class Check:
    """A property held against an implementation on one device in one dtype."""

    property: Property
    implementation: Implementation
    device: str
    dtype: str

    @builtins.property
    def id(self) -> str:
        """``LP-03_within_bound-reference-cpu-bfloat16``."""
        return f"{self.property.slug}-{self.implementation.name}-{self.device}-{self.dtype}"

    def __call__(self, **options: Any) -> Result:
        """`run`, raising `CheckFailure` with the full report if it failed or errored."""
        result = self.run(**options)
        if not result.ok:
            from numerics.suite.report import describe

            raise CheckFailure(describe(result))
        return result

    def run(self, *, max_examples: int | None = None, seed: int | None = None) -> Result:
        """Run the check. Without ``seed``: derived from the id under a derandomised profile, else fresh."""
        if max_examples is not None and max_examples < 1:
            raise ValueError(f"max_examples is {max_examples}; it must be at least 1")
        missing = sorted(self.property.requires - self.implementation.provides)
        if missing:
            return Result(check=self, status="not applicable", reason=f"does not declare {', '.join(missing)}")
        if self.device not in self.property.devices:
            return Result(
                check=self, status="not applicable", reason=f"is a rule of {', '.join(self.property.devices)}"
            )
        started = time.perf_counter()
        if seed is None:
            seed = self.derived_seed if _profile().derandomize else secrets.randbits(32)
        try:
            examples = max_examples or _profile().max_examples
            tally, simplest = self._two_passes(examples, seed)
        except NotProvided as missing_field:
            return Result(check=self, status="not applicable", reason=str(missing_field))
        worst = tally.worst if tally.worst is not None and tally.worst.severity > 1 else None
        if worst is not None and simplest is not None and simplest.severity > worst.severity:
            worst = simplest  # shrinking may meet a worse one than the first pass did
        status, reason = "passed", ""
        if worst is not None:
            shown = simplest or worst
            status, reason = ("errored", shown.error) if shown.error else ("failed", "")
        elif tally.elements == 0:
            status, reason = "errored", f"vacuous: {self.property.id} measured nothing in {tally.examples} examples"
        expected = self.implementation.expected_failures.get(self.property.id)
        if expected is not None:
            if status in ("failed", "errored"):
                status, reason = "expected failure", expected
            elif status == "passed":
                status, reason = "failed", f"was expected to fail ({expected}) but passed; remove the expectation"
        return Result(
            check=self,
            status=status,
            reason=reason,
            worst=worst,
            simplest=simplest,
            examples=tally.examples,
            rows=tally.rows,
            elements=tally.elements,
            slack=tally.slack,
            histogram=tuple(tally.histogram),
            seed=seed,
            max_examples=examples,
            seconds=time.perf_counter() - started,
        )

    @builtins.property
    def derived_seed(self) -> int:
        """The seed of a derandomised run: every implementation meets the same cases."""
        return zlib.crc32(f"{self.property.slug}-{self.dtype}".encode())

    @builtins.property
    def domain(self) -> Domain:
        """What cases may use."""
        return Domain.of(self.implementation, self.dtype)

    @builtins.property
    def context(self) -> Context:
        """What the property may ask."""
        return Context(
            implementation=self.implementation,
            device=self.device,
            dtype=self.dtype,
            exact=partial(exact_answer, contract=self.property.contract),
            fields=provided_fields(self.implementation, self.device),
        )

    def examine(self, case: Any, ctx: Context) -> tuple[Finding | None, list[np.ndarray[Any, Any]]]:
        """Measure one case: its worst element, and all severities."""
        try:
            measured = self.property.measure(case, ctx)
        except (Raised, BadResult) as error:
            return Finding(case=case, severity=math.inf, error=str(error)), []
        return worst_of(measured, case), [severities(m) for m in measured]

    def _two_passes(self, max_examples: int, seed: int) -> tuple[_Tally, Finding | None]:
        ctx, tally = self.context, _Tally()
        cases = record_cases(self.property, self.domain, max_examples=max_examples, seed=seed)
        for case in cases:
            tally.add(case, *self.examine(case, ctx))
        if tally.worst is None or tally.worst.severity <= 1:
            return tally, None
        severity = tally.worst.severity
        threshold = 2.0 ** (0.5 * math.log2(severity)) if math.isfinite(severity) else math.inf
        if self.property.id in self.implementation.expected_failures:
            return tally, None  # known: not worth shrinking
        simplest = self._shrink(ctx, threshold, max_examples, seed)
        if simplest is None:  # met only among the special cases: the first one that reaches the threshold
            found = (self.examine(case, ctx)[0] for case in cases)
            simplest = next((f for f in found if f is not None and f.severity >= threshold), None)
        return tally, self._alone(simplest, ctx, threshold) if simplest is not None else None

    def _shrink(self, ctx: Context, threshold: float, max_examples: int, seed: int) -> Finding | None:
        """The second pass: the simplest generated case at or above ``threshold``, None if it isn't met again."""
        simplest: list[Finding] = []

        def find(case: Any) -> None:
            found, _ = self.examine(case, ctx)
            if found is not None and found.severity >= threshold and found.severity > 1:
                simplest[:] = [found]
                raise CheckFailure("over the bound")

        try:
            _explore(self.property, self.domain, find, max_examples, seed, (Phase.generate, Phase.shrink))
        except CheckFailure:
            return simplest[0]  # Hypothesis replays the shrunk case last
        return None

    def _alone(self, found: Finding, ctx: Context, threshold: float) -> Finding:
        """The finding's row alone if that shows it too (a fault of the row), else the finding (of the batch)."""
        if found.error or found.case.size < 2 or found.row < 0:
            return found
        again, _ = self.examine(found.case.only(found.row), ctx)
        if again is not None and again.severity >= threshold and again.severity > 1:
            return dataclasses.replace(again, alone=True)
        return dataclasses.replace(found, alone=again is not None and again.severity > 1)


def _profile() -> settings:
    """The Hypothesis profile in force: the user's choice wins."""
    return settings.default or settings()


def _explore(
    prop: Property,
    domain: Domain,
    body: Callable[[Any], None],
    max_examples: int,
    seed: int,
    phases: tuple[Phase, ...],
) -> None:
    """Run ``body`` on generated cases. The settings sit on this function only, the global profile stays as it is."""

    def explored(case: Any) -> None:
        body(case)

    explored.__name__ = explored.__qualname__ = re.sub(r"\W", "_", f"{prop.slug}_{domain.dtype}")
    chosen = settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    seeded(seed)(chosen(given(case=prop.cases(domain))(explored)))()


@lru_cache(maxsize=1024)
def record_cases(prop: Property, domain: Domain, *, max_examples: int, seed: int) -> tuple[Any, ...]:
    """The cases of a first pass: the special ones, then those that this seed generates.

    They do not depend on the implementation, so with one seed every implementation meets the same cases, and they are
    drawn once for all of them.
    """
    cases = list(prop.special(domain))
    _explore(prop, domain, cases.append, max_examples, seed, (Phase.generate,))
    return tuple(cases)


def worst_of(measured: Sequence[Measurement], case: Any) -> Finding | None:
    """The element with the largest error / bound; the first one among equals."""
    best: Finding | None = None
    for m in measured:
        values = severities(m)
        if values.size == 0:
            continue
        i = int(values.argmax())
        if best is None or values[i] > best.severity:
            best = Finding(
                case=case,
                severity=float(values[i]),
                label=m.label(i),
                row=int(m.rows[i]),
                got=float(m.got[i]),
                exact=m.exact(i) if values[i] > 1 else float(m.want[i]),
                allowed=float(m.allowed[i]),
                format=m.format,
                bits=m.bits,
                called=m.case,
            )
    return best


def _smoke_call(implementation: Implementation, device: str) -> tuple[str, frozenset[str]]:
    contract = CONTRACTS[implementation.contract]
    case: Any = contract.smoke
    if "float32" not in implementation.dtypes:
        dtype = implementation.dtypes[0]
        names = ("rollout_dtype", "trainer_dtype") if hasattr(case, "rollout_dtype") else ("dtype",)
        case = case.replace(**dict.fromkeys(names, dtype))
    try:
        outcome = call(implementation, case, device)
    except Raised as error:
        return f"{contract.signature} raised {error} on {case!r}", frozenset()
    except BadResult as error:
        return f"{error}; the contract is {contract.signature} -> {contract.returns}", frozenset()
    if contract.name in ("mismatch", "divergence", "full_divergence") and not outcome.fields:
        return "the result has no fields", frozenset()
    return "", frozenset(outcome.fields)


#: (implementation, device) -> what the smoke call said; the implementation is kept, so that its id stays its own
_SMOKED: dict[tuple[int, str], tuple[Implementation, str, frozenset[str]]] = {}


def _smoked(implementation: Implementation, device: str) -> tuple[Implementation, str, frozenset[str]]:
    key = (id(implementation), device)
    if key not in _SMOKED:
        _SMOKED[key] = (implementation, *_smoke_call(implementation, device))
    return _SMOKED[key]


def smoke(implementation: Implementation, device: str) -> str:
    """What goes wrong in one plain call, or "": run before anything else, so that one fault gives one message."""
    return _smoked(implementation, device)[1]


def provided_fields(implementation: Implementation, device: str) -> frozenset[str]:
    """The fields that a mapping result has in the smoke call."""
    return _smoked(implementation, device)[2]


def devices_present() -> tuple[str, ...]:
    """The CPU, and CUDA where torch sees a device."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def checks_for(
    implementations: Iterable[Implementation],
    *,
    contract: str | None = None,
    dtypes: Sequence[str] | None = None,
    devices: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
) -> Iterator[Check]:
    """Every check of these implementations, property by property.

    only: property ids such as "LP-03" (or slugs); `ValueError` for one that does not exist.
    """
    if only:
        known = {p.id for p in PROPERTIES.values()} | {p.slug for p in PROPERTIES.values()}
        unknown = [name for name in only if name not in known]
        if unknown:
            raise ValueError(f"no property {unknown[0]!r}; `numerics list` shows all ({', '.join(sorted(PROPERTIES))})")
    for dtype in dtypes or ():
        if dtype not in FORMATS:
            raise ValueError(f"dtypes holds {dtype!r}; known: {', '.join(FORMATS)}")
    absent = [d for d in devices or () if d not in devices_present()]
    if absent:
        raise ValueError(f"devices holds {absent[0]!r}, but torch sees only {', '.join(devices_present())}")
    for implementation in implementations:
        if contract not in (None, implementation.contract):
            continue
        for device in devices or devices_present():
            if device not in implementation.devices:
                continue
            for prop in PROPERTIES.values():
                if prop.contract != implementation.contract or (only and not {prop.id, prop.slug} & set(only)):
                    continue
                for dtype in dtypes or implementation.dtypes:
                    if dtype in implementation.dtypes and dtype in prop.dtypes:
                        yield Check(property=prop, implementation=implementation, device=device, dtype=dtype)


def check(
    implementation: Implementation | Callable[..., Any] | str,
    *,
    contract: str | None = None,
    dtypes: Sequence[str] | None = None,
    devices: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    max_examples: int | None = None,
    seed: int | None = None,
    fail_fast: bool = False,
    progress: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Hold an implementation against every property of its contract; the results as data, nothing raised.

    implementation: an `Implementation`, a callable (say which ``contract`` it claims), or a name as for ``--impl``.
    dtypes, devices: default to what it declares and what is present. only: property ids. max_examples: per check,
    default the Hypothesis profile's. seed: one for all checks. fail_fast: stop at the first failure. progress: called
    with each result. A failing smoke call gives one errored result and no others.
    """
    from numerics.suite.implementation import resolve

    if isinstance(implementation, str):
        chosen = resolve(implementation, contract=contract)
    elif isinstance(implementation, Implementation):
        chosen = [implementation]
    else:
        if contract is None:
            raise ValueError("contract is None; a plain callable needs contract='token_logprobs' or another one")
        chosen = [Implementation(implementation, contract=contract)]
    results: list[Result] = []
    broken: set[tuple[int, str]] = set()
    for one in checks_for(chosen, contract=contract, dtypes=dtypes, devices=devices, only=only):
        key = (id(one.implementation), one.device)
        if key in broken:
            continue
        trouble = smoke(one.implementation, one.device)
        if trouble:
            broken.add(key)
            result = Result(check=one, status="errored", reason=f"smoke call failed: {trouble}")
        else:
            result = one.run(max_examples=max_examples, seed=seed)
        results.append(result)
        if progress is not None:
            progress(result)
        if fail_fast and not result.ok:
            break
    return results
