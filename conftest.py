"""Pytest options of this repository: what ``property_tests`` holds to the suite, and where."""

from __future__ import annotations

import difflib

import pytest

from numerics.suite.implementation import CONTRACT_NAMES, Implementation, ResolveError, resolve

DEFAULT_IMPLEMENTATIONS = ("reference", "cpu", "torch", "torch-logsumexp")
_CHOSEN = pytest.StashKey[list[Implementation]]()
_DEVICES = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("numerics (this repository)")
    group.addoption(
        "--impl",
        action="append",
        metavar="NAME",
        help="implementation under test: a built-in, an entry point of numerics.implementations, or pkg.mod:obj "
        f"(repeatable; default: {', '.join(DEFAULT_IMPLEMENTATIONS)})",
    )
    group.addoption("--contract", metavar="C", help=f"only this contract: {', '.join(CONTRACT_NAMES)}")
    group.addoption("--device", action="append", metavar="D", help="only this device: cpu or cuda (repeatable)")
    group.addoption(
        "--require-device", metavar="D", help="fail if this device is absent, instead of running without it"
    )


def pytest_configure(config: pytest.Config) -> None:
    import torch
    from hypothesis import settings

    settings.register_profile("numerics-dev", max_examples=25, deadline=None)
    settings.register_profile("numerics-deep", max_examples=2000, deadline=None)
    contract = config.getoption("--contract")
    if contract is not None and contract not in CONTRACT_NAMES:
        near = difflib.get_close_matches(contract, CONTRACT_NAMES, n=1)
        raise pytest.UsageError(f"--contract {contract}: {_hint(near)}known: {', '.join(CONTRACT_NAMES)}")
    present = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    required = config.getoption("--require-device")
    if required is not None and required not in present:
        raise pytest.UsageError(
            f"--require-device {required}: torch {torch.__version__} sees only {', '.join(present)}"
        )
    wanted = config.getoption("--device") or present
    absent = [d for d in wanted if d not in present]
    if absent:
        raise pytest.UsageError(f"--device {absent[0]}: torch {torch.__version__} sees only {', '.join(present)}")
    try:
        named = config.getoption("--impl")
        chosen = [
            impl
            for name in named or DEFAULT_IMPLEMENTATIONS
            for impl in resolve(name, contract=contract if named else None)
        ]
    except ResolveError as error:
        raise pytest.UsageError(f"--impl {error}") from error
    config.stash[_CHOSEN] = chosen
    config.stash[_DEVICES] = wanted


def _hint(near: list[str]) -> str:
    return f"did you mean {near[0]}? " if near else ""


def pytest_report_header(config: pytest.Config) -> list[str]:
    import platform

    import torch
    from hypothesis import settings

    names = dict.fromkeys(impl.name for impl in config.stash[_CHOSEN])
    profile = settings.default
    seeds = "derandomised" if profile.derandomize else "fresh seeds (printed with a failure)"
    threads = torch.get_num_threads()
    lines = [
        f"numerics: implementations {', '.join(names)}; devices {', '.join(config.stash[_DEVICES])}",
        f"numerics: torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {threads} threads, "
        f"{platform.machine()}; {profile.max_examples} examples a check, {seeds}",
    ]
    if "cuda" in config.stash[_DEVICES]:
        tf32 = torch.backends.cuda.matmul.allow_tf32
        lines.append(f"numerics: {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, TF32 {tf32}")
    return lines


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "check" not in metafunc.fixturenames or metafunc.definition.get_closest_marker("parametrize"):
        return
    from numerics.pytest_plugin import runnable_checks
    from numerics.suite.runner import checks_for

    config = metafunc.config
    contract = metafunc.function.__name__.removeprefix("test_")
    wanted = config.getoption("--contract")
    checks = (
        []
        if wanted not in (None, contract)
        else checks_for(config.stash[_CHOSEN], contract=contract, devices=config.stash[_DEVICES])
    )
    metafunc.parametrize("check", runnable_checks(checks, config))
