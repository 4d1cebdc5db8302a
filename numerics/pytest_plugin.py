"""The pytest front end: `parametrize_with_checks`, the ``--numerics-*`` options, and a summary of what was measured.

Importing this module loads neither torch nor Hypothesis: a pytest run that uses none of it pays nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from numerics import Verdict
    from numerics.suite.implementation import Implementation
    from numerics.suite.runner import Check, Result
    from numerics.tools.guard import Report

__all__ = ["Runnable", "parametrize_with_checks", "runnable_checks"]

_RESULTS = pytest.StashKey[list["Result"]]()
#: (counts by status, throughput) of every xdist worker
_FROM_WORKERS = pytest.StashKey[list[tuple[dict[str, int], list[Any]]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--numerics-report``, ``--numerics-max-examples``, ``--numerics-seed``."""
    group = parser.getgroup("numerics")
    group.addoption("--numerics-report", metavar="FILE", help="write every result as one JSON line to FILE")
    group.addoption(
        "--numerics-max-examples", type=int, metavar="N", help="examples per check (default: the Hypothesis profile's)"
    )
    group.addoption(
        "--numerics-guard-record", action="store_true", help="record what numerics_guard checks, instead of checking it"
    )
    group.addoption("--numerics-guard-reason", metavar="TEXT", help="why guards that exist are recorded again")
    group.addoption(
        "--numerics-seed", type=int, metavar="S", help="one seed for all checks (default: --hypothesis-seed)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and empty the report file."""
    config.addinivalue_line("markers", "numerics: a check of the numerics suite")
    config.addinivalue_line("markers", "numerics_gate(allow=0, bits=False, ...): rules for the numerics_gate fixture")
    config.addinivalue_line("markers", "xdist_group(name): pytest-xdist's, known also where it is not installed")
    config.stash[_RESULTS] = []
    path = config.getoption("--numerics-report")
    if path and not hasattr(config, "workerinput"):
        Path(path).write_text("")


class Runnable:
    """A check as a test calls it: ``check()``. Fails with the whole report, skips what is not applicable."""

    def __init__(self, check: Check, config: pytest.Config | None = None) -> None:
        self.check = check
        self.config = config

    def __repr__(self) -> str:
        return self.check.id

    def __call__(self) -> None:
        """Run the check under this session's options."""
        __tracebackhide__ = True
        from numerics.suite.report import describe
        from numerics.suite.runner import CheckFailure, Result, smoke

        check = self.check
        trouble = smoke(check.implementation, check.device)
        if trouble:
            if check is not first_check(check):
                pytest.skip(f"not applicable: the smoke call of {check.implementation.name} failed")
            result = Result(check=check, status="errored", reason=f"smoke call failed: {trouble}")
        else:
            result = check.run(max_examples=self._option("--numerics-max-examples"), seed=self._seed())
        if self.config is not None:
            self.config.stash[_RESULTS].append(result)
            _write(self.config, result)
        if result.status == "not applicable":
            pytest.skip(f"not applicable: {check.implementation.name} {result.reason}")
        if result.status == "expected failure":
            pytest.xfail(result.reason)
        if not result.ok:
            raise CheckFailure(describe(result))

    def _option(self, name: str) -> Any:
        return self.config.getoption(name, None) if self.config is not None else None

    def _seed(self) -> int | None:
        own = self._option("--numerics-seed")
        given = own if own is not None else self._option("--hypothesis-seed")
        return int(given) if given not in (None, "random") else None


@pytest.fixture
def numerics_gate(request: pytest.FixtureRequest) -> Callable[..., Verdict]:
    """`numerics.assert_no_mismatch`, with the rules that ``@pytest.mark.numerics_gate(...)`` gives; a call's own win.

    ::

        @pytest.mark.numerics_gate(bits=True)
        def test_engine_agrees_with_trainer(numerics_gate):
            numerics_gate(rollout, trainer, mask)
    """
    rules: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("numerics_gate"))):  # the closest one last: it wins
        if marker.args:
            raise pytest.UsageError(f"numerics_gate takes keywords only, such as allow=0; it got {marker.args!r}")
        rules.update(marker.kwargs)

    def gate(*tensors: Any, **options: Any) -> Verdict:
        __tracebackhide__ = True
        from numerics import assert_no_mismatch

        return assert_no_mismatch(*tensors, **rules | options)

    return gate


@pytest.fixture
def numerics_guard(request: pytest.FixtureRequest) -> Callable[..., list[Report]]:
    """Compare an implementation with its guard file, ``guards/NAME.json`` beside the test file.

    Called with what ``numerics guard record`` takes, ``"pkg.mod:obj"`` or a built-in's name; contract: where that is a
    plain callable; name: of the file, by default the contract's; strict: an unrecorded key fails. Other bits fail with
    the whole report. ``--numerics-guard-record`` records instead, with ``--numerics-guard-reason TEXT`` if the file
    exists.

    ::

        def test_the_bits_are_those_we_know(numerics_guard):
            numerics_guard("mypkg.kernels:token_logprobs", contract="token_logprobs")
    """
    config = request.config

    def guard(
        spec: str, *, contract: str | None = None, name: str | None = None, device: str = "cpu", strict: bool = False
    ) -> list[Report]:
        __tracebackhide__ = True
        from numerics.suite.implementation import resolve
        from numerics.tools import guard as guards
        from numerics.tools.guard.report import as_text

        (implementation,) = resolve(spec, contract=contract)
        file = str(request.path.parent / "guards" / f"{name or implementation.contract}.json")
        if config.getoption("--numerics-guard-record"):
            reason = config.getoption("--numerics-guard-reason")
            guards.record(implementation, file, spec=spec, device=device, reason=reason)
        reports = guards.check(guards.read(file), implementation, device=device)
        if not all(report.ok and not (strict and report.status == "not recorded") for report in reports):
            pytest.fail(as_text(file, reports), pytrace=False)
        return reports

    return guard


#: the first check of each (implementation, device): the one that reports a failing smoke call
_FIRST: dict[tuple[int, str], Any] = {}


def first_check(check: Check) -> Check:
    """The check that speaks for the smoke call of its implementation and device."""
    found: Check = _FIRST.setdefault((id(check.implementation), check.device), check)
    return found


def runnable_checks(checks: Iterable[Check], config: pytest.Config | None = None) -> list[Any]:
    """The checks as pytest parameters, with readable ids."""
    return [
        pytest.param(
            Runnable(check, config),
            id=check.id,
            # under --dist loadgroup one worker gets all implementations of a rule: they share its cases
            marks=(pytest.mark.numerics, pytest.mark.xdist_group(f"{check.property.id}-{check.dtype}")),
        )
        for check in checks
    ]


def parametrize_with_checks(
    implementations: Sequence[Implementation],
    *,
    contract: str | None = None,
    dtypes: Sequence[str] | None = None,
    devices: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
) -> Callable[[Callable[..., Any]], Any]:
    """Decorator for a test with one argument ``check``: one case per property, implementation, device and dtype.

    ::

        @numerics.parametrize_with_checks([numerics.Implementation(my_kernel, contract="token_logprobs")])
        def test_my_kernel(check):
            check()
    """
    from numerics.suite.runner import checks_for

    if not implementations:
        raise ValueError("implementations is empty; give at least one numerics.Implementation")
    checks = checks_for(implementations, contract=contract, dtypes=dtypes, devices=devices, only=only)
    return pytest.mark.parametrize("check", runnable_checks(checks))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a check the session's options."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    check = params.get("check")
    if isinstance(check, Runnable) and check.config is None:
        check.config = item.config


def _write(config: pytest.Config, result: Result) -> None:
    path = config.getoption("--numerics-report")
    if not path:
        return
    from numerics.suite.report import as_record

    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(as_record(result), allow_nan=False) + "\n")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Under pytest-xdist, hand what this worker measured to the controller."""
    config, results = session.config, session.config.stash.get(_RESULTS, [])
    if results and hasattr(config, "workeroutput"):
        from numerics.suite.report import counts, throughput

        config.workeroutput["numerics"] = (dict(counts(results)), throughput(results))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what an xdist worker measured."""
    measured = getattr(node, "workeroutput", {}).get("numerics")
    if measured:
        node.config.stash.setdefault(_FROM_WORKERS, []).append(measured)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Counts by status and rows per second by contract, the oracle counted in."""
    results, measured_there = config.stash.get(_RESULTS, []), config.stash.get(_FROM_WORKERS, None)
    parts = list(measured_there or [])
    if not results and not parts:
        return
    from numerics.suite.report import counts, status_line, throughput

    parts.append((dict(counts(results)), throughput(results)))
    statuses: Counter[str] = Counter()
    totals: dict[str, list[float]] = {}
    for found, measured in parts:
        statuses.update(found)
        for contract, *numbers in measured:
            totals[contract] = [a + b for a, b in zip(totals.get(contract, [0, 0, 0.0]), numbers, strict=True)]
    terminalreporter.section("numerics")
    terminalreporter.write_line(status_line(statuses))
    for contract, (examples, rows, seconds) in totals.items():
        rate = f"{rows / seconds:,.0f} rows/s, {examples / seconds:,.0f} examples/s" if seconds else ""
        terminalreporter.write_line(
            f"{contract:16} {examples:>8,.0f} examples  {rows:>9,.0f} rows  {seconds:7.1f} s  {rate}"
        )
