"""The regression guard: silent where nothing changed, and a planted change is noticed and named where it can be."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guard_kernel
import jsonschema
import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from numerics.cli import main
from numerics.formats import FORMATS, next_up
from numerics.strategies.cases import Mixed
from numerics.suite.builtin import BUILTIN
from numerics.suite.implementation import Implementation
from numerics.suite.properties import PROPERTIES
from numerics.suite.property import Domain
from numerics.tools import guard
from numerics.tools.arrays import InputError
from numerics.tools.guard import cases as case_set
from numerics.tools.guard import checking
from numerics.tools.guard import observe as observing
from numerics.tools.guard.files import MAX_BYTES, SCHEMA_FILE, Guard, Recorded
from numerics.tools.guard.observe import Key, Line
from numerics.tools.guard.report import as_json, as_text

ROOT = Path(__file__).parent.parent
_WIDTHS = case_set._WIDTHS
RUN_TO_RUN = [i for found in BUILTIN.values() for i in found if "run_to_run" in i.provides]


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wide row of three chunks instead of 32,000 and 151,936 columns, whose exact values take a second each."""
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the current folder
    monkeypatch.setattr(case_set, "_WIDTHS", (9_001,))


def recorded(implementation: Implementation, file: Path, **options: Any) -> Guard:
    guard.record(implementation, str(file), spec="reference", **options)
    return guard.read(str(file))


# --- silent where nothing changed ---------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", RUN_TO_RUN, ids=lambda i: f"{i.name}-{i.contract}")
def test_a_check_after_the_record_is_silent(implementation: Implementation, tmp_path: Path) -> None:
    found = recorded(implementation, tmp_path / "g.json", dtypes=["float32"])
    (report,) = guard.check(found, implementation)
    assert (report.status, report.ok, report.changes) == ("identical", True, ())
    assert report.lines > 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_batch_invariant_kernel_is_silent_on_any_number_of_threads(threads: int, tmp_path: Path) -> None:
    for implementation in (guard_kernel.implementation(), BUILTIN["reference"][0], BUILTIN["reference"][1]):
        file = tmp_path / f"{implementation.name}-{implementation.contract}.json"
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            found = recorded(implementation, file, dtypes=["float32"])
            torch.set_num_threads(threads)
            assert [r.status for r in guard.check(found, implementation)] == ["identical"]
        finally:
            torch.set_num_threads(before)


_ELSEWHERE = """
import sys
import guard_kernel, torch
from numerics.tools import guard
from numerics.tools.guard import cases
cases._WIDTHS = (9_001,)
found = guard.read(sys.argv[1])
for report in guard.check(found, guard_kernel.implementation()):
    print(report.key.isa, report.status)
"""


@pytest.mark.parametrize("isa", ["default", "avx2"])  # torch's; NumPy is taken back to its baseline in both
def test_a_portable_kernel_is_silent_on_another_instruction_set(isa: str, tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    recorded(guard_kernel.implementation(), file)
    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, str(file)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ
        | {"ATEN_CPU_CAPABILITY": isa, "NPY_DISABLE_CPU_FEATURES": " ".join(simd["found"])}
        | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests", ROOT)))},
    )
    assert done.stdout.split("\n") == [f"{isa.upper()} identical"] * 2 + [""]


# --- planted changes ----------------------------------------------------------------------------------------

#: (what the kernel was, what became of it)
PLANTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({}, change) for name, change in guard_kernel.OTHERS.items() if not name.startswith("threads")),
    # the parts of a row that a thread adds up: float64 does not show it, float32 does
    *(({"merge": "float32", "chunk": 512}, {"threads": threads}) for threads in (2, 3)),
]


@pytest.mark.parametrize(("was", "change"), PLANTED, ids=lambda c: ",".join(f"{k}={v}" for k, v in c.items()) or "own")
def test_a_planted_change_is_noticed_and_named(was: dict[str, Any], change: dict[str, Any], tmp_path: Path) -> None:
    before, after = guard_kernel.implementation(**was), guard_kernel.implementation(**was | change)
    found = recorded(before, tmp_path / "g.json", dtypes=["float32"])
    (report,) = guard.check(found, after)
    assert not report.ok
    (name,) = change
    assert f"{name}={getattr(guard_kernel.Choices(**was), name)}" in report.named
    assert all(other.partition("=")[0] == name for other in report.named), report.named


def test_the_changes_are_many() -> None:
    assert len(PLANTED) >= 15
    assert len({tuple(change) for _, change in PLANTED}) >= 15


def test_a_change_that_no_choice_explains_is_shown_without_a_name(tmp_path: Path) -> None:
    found = recorded(guard_kernel.implementation(), tmp_path / "g.json", dtypes=["float32"])
    (report,) = guard.check(found, guard_kernel.implementation(lanes=8, degree=5))
    assert (report.status, report.named) == ("worse error", ())
    text = as_text("g.json", [report])
    assert "recorded bits come back" not in text
    assert re.search(r"g\.json  cpu float32 \S+ torch-\S+: worse error: \d+ of \d+ lines", text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it imports its compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
def test_a_compiled_kernel_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def eager(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(logits.float(), -1).gather(-1, token_ids[..., None])[..., 0]

    monkeypatch.setattr(case_set, "_WIDTHS", ())
    implementation = Implementation(eager, contract="token_logprobs")
    found = recorded(implementation, tmp_path / "g.json", dtypes=["float32"])
    only = {name for name in found.keys[next(iter(found.keys))].lines if "row" in name}
    inner = observing.observe
    monkeypatch.setattr(checking, "observe", lambda i, **options: inner(i, **options | {"only": only}))
    with monkeypatch.context() as patch:
        patch.setattr(torch._dynamo.config, "recompile_limit", 64)
        compiled = implementation.with_function(torch.compile(eager, dynamic=True))
        (report,) = guard.check(found, compiled)
    assert [c.line for c in report.changes if c.now is not None]


def test_worse_and_no_worse(tmp_path: Path) -> None:
    found = recorded(guard_kernel.implementation(), tmp_path / "g.json", dtypes=["float32"])
    (lanes,) = guard.check(found, guard_kernel.implementation(lanes=32))
    assert lanes.status == "other bits, same error"
    assert lanes.steps == 1
    (half,) = guard.check(found, guard_kernel.implementation(stored="bfloat16"))
    assert half.status == "worse error"
    (dropped,) = guard.check(found, guard_kernel.implementation(tail="dropped"))
    worst = max((c for c in dropped.changes if c.worse and c.now), key=lambda c: c.now.share if c.now else 0.0)
    assert worst.now is not None
    assert worst.now.ulps > 1000
    assert "Logits" in worst.case
    text = as_text("g.json", [dropped])
    assert "worse: " in text
    assert "the recorded bits come back with: tail=kept" in text
    record = json.loads(as_json({"g.json": [dropped]}), parse_constant=pytest.fail)
    assert record["files"]["g.json"][0]["named"] == ["tail=kept"]


# --- what a guard must see, and wrong guards ----------------------------------------------------------------


def _everything(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A good guard: silent on the same, loud on any other bit of any result, on a lost line; it keeps what it had."""
    monkeypatch.setattr(observing.Seen, "line", lambda seen: Line(bits=seen.bits, ulps=0.0, share=0.0))  # a second each
    implementation = guard_kernel.implementation().with_function(guard_kernel.token_logprobs)
    file = folder / "g.json"
    guard.record(implementation, str(file), spec="reference", dtypes=["float32", "bfloat16"])
    found = guard.read(str(file))
    assert [r.status for r in guard.check(found, implementation)] == ["identical", "identical"]

    for name, change in _CHANGED.items():
        reports = guard.check(found, implementation.with_function(_changed(change, everywhere=True)))
        assert not any(r.ok for r in reports), name
    key = next(k for k in found.keys if k.dtype == "float32")
    alone = Guard(implementation="x", contract="token_logprobs", keys={key: found.keys[key]}, history=found.history)
    for line in range(len(found.keys[key].lines)):
        changed = implementation.with_function(_changed(_CHANGED["the last number, one ULP up"], only=line + 1))
        (report,) = guard.check(alone, changed)
        assert len(report.changes) == 1, line

    lost = {k: Recorded(cases=v.cases, lines=dict(list(v.lines.items())[1:])) for k, v in found.keys.items()}
    fewer = Guard(implementation="x", contract="token_logprobs", keys=lost, history=found.history)
    assert not any(r.ok for r in guard.check(fewer, implementation))
    guard.record(implementation, str(file), spec="reference", dtypes=["float32"], reason="again")
    again = guard.read(str(file))
    assert [entry["reason"] for entry in again.history] == ["first record", "again"]
    assert again.keys == found.keys

    stranger = {Key(device="cpu", dtype=k.dtype, isa="SVE", torch=k.torch): v for k, v in found.keys.items()}
    moved = Guard(implementation="x", contract="token_logprobs", keys=stranger, history=found.history)
    assert [r.status for r in guard.check(moved, implementation)] == ["identical", "identical"]  # portable: any key
    other = guard_kernel.kernel(lanes=8)
    assert not any(r.ok for r in guard.check(moved, implementation.with_function(other)))
    native = Implementation(other, contract="token_logprobs", dtypes=("float32", "bfloat16"))
    assert [r.status for r in guard.check(moved, native)] == ["not recorded"] * 2


def _last_up(x: torch.Tensor) -> torch.Tensor:
    x[-1:] = next_up(x[-1:])
    return x


_CHANGED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the last number, one ULP up": _last_up,
    "the other zero": lambda x: torch.where(x == 0, -x, x),
    "every sign": torch.neg,
    "-inf for the lowest float": lambda x: x.clamp(min=torch.finfo(torch.float32).min),
}


def _changed(
    change: Callable[[torch.Tensor], torch.Tensor], *, everywhere: bool = False, only: int = 0
) -> Callable[..., torch.Tensor]:
    """The kernel with another result in every call, or in its ``only``-th (the first is the smoke call)."""
    calls = itertools.count()

    def fn(logits: torch.Tensor, token_ids: torch.Tensor, *, temperature: float | torch.Tensor = 1.0) -> torch.Tensor:
        result = guard_kernel.token_logprobs(logits, token_ids, temperature=temperature)
        return change(result) if everywhere or next(calls) == only else result

    return fn


def test_a_guard_sees_what_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _everything(tmp_path, monkeypatch)


def _rounds(value: float, name: str) -> str:
    return _BITS(FORMATS["bfloat16"].round(value) if name == "float32" else value, name)


_BITS, _ALL_BITS = observing._bits, observing._all_bits
_CHANGES, _KEY, _WITH = checking._changes, observing.key_here, Guard.with_observations


def _bits_of_first(measurements: Any) -> str:
    return _BITS(float(measurements[0].got[0]), measurements[0].format)


def _forgets(self: Guard, found: Any, **options: Any) -> Guard:
    empty = Guard(implementation=self.implementation, contract=self.contract, keys=self.keys, history=())
    return _WITH(empty, found, **options)


#: wrong guards, one idea each: (module or class, name, what stands there instead)
WRONG: dict[str, tuple[Any, str, Any]] = {
    "compares rounded values": (observing, "_bits", _rounds),
    "loses the sign of zero": (observing, "_bits", lambda value, name: _BITS(value + 0.0, name)),
    "loses every sign": (observing, "_bits", lambda value, name: _BITS(abs(value), name)),
    "records the first number": (observing, "_all_bits", _bits_of_first),
    "records the error alone": (observing, "_all_bits", lambda m: "0"),
    "excuses what is no worse": (checking, "_changes", lambda was, now: (c for c in _CHANGES(was, now) if c.worse)),
    "looks only at what both have": (
        checking,
        "_changes",
        lambda was, now: (c for c in _CHANGES(was, now) if c.was and c.now),
    ),
    "no key names the dtype": (
        observing,
        "key_here",
        lambda device, dtype: Key(**{**_KEY(device, dtype).__dict__, "dtype": "float32"}),
    ),
    "forgets its history": (Guard, "with_observations", _forgets),
    "forgets other keys": (
        Guard,
        "with_observations",
        lambda self, found, **options: _WITH(
            Guard(implementation=self.implementation, contract=self.contract, keys={}, history=self.history),
            found,
            **options,
        ),
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_guard_is_killed(wrong: tuple[Any, str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*wrong)
    with pytest.raises((AssertionError, InputError)):
        _everything(tmp_path, monkeypatch)


# --- the case set -------------------------------------------------------------------------------------------


def _digest(contract: str) -> str:
    """Of the names and cases of all rules of a contract, in all dtypes."""
    digest = hashlib.sha256()
    for id in case_set.ACCURACY[contract]:
        for dtype in FORMATS:
            forms = ("absent", "float") if contract in ("token_logprobs", "entropy") else ("absent",)
            for name, case in case_set.cases(PROPERTIES[id], Domain(dtype=dtype, temperature_forms=forms)):
                digest.update(f"{id} {dtype} {name} {case!r}\n".encode())
    return digest.hexdigest()[:16]


def test_case_set_1_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changing a special case changes this: raise CASE_SET, and record all guards again."""
    monkeypatch.setattr(case_set, "_WIDTHS", _WIDTHS)
    assert case_set.CASE_SET == 1
    assert {contract: _digest(contract) for contract in case_set.ACCURACY} == DIGESTS


DIGESTS = {
    "token_logprobs": "ffe20ee8406c5d8e",
    "entropy": "b86c027ddb9395ce",
    "mismatch": "23de24d9b7a8e8a7",
    "divergence": "7596a5894a64b6d2",
    "correction": "be26e23081fd0632",
    "full_divergence": "1ced644abe7ea4f6",
    "ulp_distance": "27b8244ac8bc6464",
}


def test_mixed_columns_are_those_of_splitmix64() -> None:
    """Against the generator in plain Python integers (Steele, Lea, Flood 2014)."""
    state, wanted = 41, []
    for _ in range(50):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        wanted.append(((z ^ (z >> 31)) >> 44) / 2**16 - 16)
    assert Mixed(50, seed=41).values().tolist() == wanted


# --- files --------------------------------------------------------------------------------------------------


def test_the_schema_is_of_these_files(tmp_path: Path) -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    recorded(guard_kernel.implementation(), tmp_path / "g.json")
    content = json.loads((tmp_path / "g.json").read_text())
    validator.validate(content)
    for committed in sorted((ROOT / "property_tests" / "guards").glob("*.json")):
        validator.validate(json.loads(committed.read_text()))
    assert schema["properties"]["contract"]["enum"] == list(case_set.ACCURACY)
    for spoiled in (
        content | {"extra": 1},
        content | {"case_set": 2},
        content | {"history": []},
        content | {"keys": {"cpu float8 AVX torch-2": next(iter(content["keys"].values()))}},
        content | {"keys": {next(iter(content["keys"])): {"cases_sha256": "0" * 64, "lines": {}}}},
    ):
        assert not validator.is_valid(spoiled)


def _spoil(change: Callable[[dict[str, Any]], Any]) -> Callable[[str], bytes]:
    def spoiled(text: str) -> bytes:
        content = json.loads(text)
        change(content)
        return json.dumps(content).encode()

    return spoiled


_HOSTILE: list[tuple[Callable[[str], bytes], str]] = [
    (lambda text: b"", "no JSON, or truncated"),
    (lambda text: text[: len(text) // 2].encode(), "no JSON, or truncated"),
    (lambda text: b"\xff" + text.encode(), "no JSON, or truncated"),
    (lambda text: b"[1]", "its schema is 'list'"),
    (lambda text: b"[" * 100_000, "no JSON, or truncated"),
    (lambda text: text.replace("numerics.guard/1", "numerics.guard/2").encode(), "its schema is 'numerics.guard/2'"),
    (lambda text: text.replace('"case_set": 1', '"case_set": NaN').encode(), "NaN is no JSON"),
    (lambda text: text.replace('"case_set": 1', '"case_set": 1, "case_set": 1').encode(), "a name stands twice"),
    (lambda text: b" " * (MAX_BYTES + 1), "bytes"),
    (_spoil(lambda c: c.update(case_set=0)), "was recorded on case set 0, this version has 1"),
    (_spoil(lambda c: c.pop("keys")), "is damaged: KeyError"),
    (_spoil(lambda c: c.update(keys=[])), "is damaged"),
    (_spoil(lambda c: c.update(history=[])), "history without a reason"),
    (_spoil(lambda c: c.update(contract="logprobs")), "contract 'logprobs'"),
    (_spoil(lambda c: c["keys"].update({"cpu": next(iter(c["keys"].values()))})), "'cpu' is no key"),
    (_spoil(lambda c: next(iter(c["keys"].values())).update(lines={})), "or no lines"),
    (_spoil(lambda c: next(iter(c["keys"].values())).update(lines={"LP-01 x": "3f800000"})), "is no line such as"),
    (_spoil(lambda c: next(iter(c["keys"].values())).update(cases_sha256="0" * 64)), "was recorded on other cases"),
    (_spoil(lambda c: c.update(implementation="referense")), "did you mean reference?"),
]


@pytest.mark.parametrize(("spoil", "message"), _HOSTILE, ids=range(len(_HOSTILE)))
def test_hostile_files_exit_with_2(spoil: Callable[[str], bytes], message: str, tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    reference = next(i for i in BUILTIN["reference"] if i.contract == "token_logprobs")
    recorded(reference, file, dtypes=["float32"])
    file.write_bytes(spoil(file.read_text()))
    found = numerics_command("guard", "check", str(file))
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in found.stderr
    assert len(found.stderr) < 600


# --- the command --------------------------------------------------------------------------------------------


def numerics_command(*arguments: str) -> Result:
    result = CliRunner().invoke(main, [*arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_record_check_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("guard", "record", "guard_kernel:implementation", "-o", "guards/lp.json", "--dtype", "float32")
    assert "no guards in guards or property_tests/guards" in numerics_command("guard", "check").stderr
    found = numerics_command(*asked)
    assert found.exit_code == 0
    assert re.fullmatch(r"guards/lp\.json  cpu float32 \S+ torch-\S+: recorded, \d+ lines\n", found.stdout)
    again = numerics_command(*asked)
    assert again.exit_code == 2
    assert "exists; say with --update --reason TEXT why" in again.stderr
    assert numerics_command(*asked, "--update").exit_code == 2
    assert numerics_command(*asked, "--reason", "x").exit_code == 2
    for names in ((), ("lp",), ("guards/lp.json",)):
        checked = numerics_command("guard", "check", *names)
        assert (checked.exit_code, checked.stdout.count("identical")) == (0, 1)
    monkeypatch.setattr(guard_kernel.Choices, "__init__", _with_lanes(8))
    changed = numerics_command("guard", "check")
    assert changed.exit_code == 1
    assert "other bits, same error" in changed.stdout
    record = json.loads(numerics_command("guard", "check", "--json").stdout)
    assert record["schema"] == "numerics.guard.check/1"
    assert record["files"]["guards/lp.json"][0]["status"] == "other bits, same error"
    update = numerics_command(*asked, "--update", "--reason", "eight lanes", "--json")
    assert update.exit_code == 0
    assert json.loads(update.stdout)["reason"] == "eight lanes"
    history = guard.read("guards/lp.json").history
    assert [entry["reason"] for entry in history] == ["first record", "eight lanes"]
    assert re.search(r"\d+ of \d+ lines changed", str(history[1]["keys"]))
    assert numerics_command("guard", "check").exit_code == 0


def _with_lanes(lanes: int) -> Callable[..., None]:
    init = guard_kernel.Choices.__init__
    return lambda self, **choices: init(self, **{"lanes": lanes, **choices})


def test_an_unseen_key_is_a_failure_only_if_strict(tmp_path: Path) -> None:
    file = tmp_path / "lp.json"
    recorded(BUILTIN["reference"][0], file, dtypes=["float32"])
    isa = observing.key_here("cpu", "float32").isa
    file.write_text(file.read_text().replace(isa, "SVE"))
    found = numerics_command("guard", "check", str(file))
    assert found.exit_code == 0
    assert "not recorded (record it with --update --reason)" in found.stdout
    assert numerics_command("guard", "check", str(file), "--strict").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("record", "reference", "-o", "g.json"), "reference has 7 implementations"),
        (("record", "referense", "-o", "g.json"), "did you mean reference?"),
        (("record", "reference", "--contract", "entropi", "-o", "g.json"), "no contract 'entropi'"),
        (("record", "reference", "--contract", "entropy", "-o", "/proc/g.json"), "/proc/g.json cannot be written"),
        (("record", "reference", "--contract", "entropy"), "Missing option '-o'"),
        (("record", "guard_kernel:implementation", "--dtype", "float64", "-o", "g.json"), "takes no float64"),
        (("record", "json:dumps", "--contract", "entropy", "-o", "g.json"), "does not run: "),
        (("check", "nowhere"), "no guard 'nowhere': neither a file, nor nowhere.json in guards or"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = numerics_command("guard", *arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in found.stderr
    assert not (tmp_path / "g.json").exists()


def test_a_file_of_another_implementation_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "lp.json"
    recorded(BUILTIN["reference"][0], file, dtypes=["float32"])
    with pytest.raises(InputError, match=r"guards reference \(token_logprobs\), not x \(token_logprobs\)"):
        guard.record(guard_kernel.implementation(), str(file), spec="x", reason="why not")


# --- pytest -------------------------------------------------------------------------------------------------


def test_the_fixture_records_and_checks(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "def test_bits(numerics_guard):\n"
        "    assert all(r.ok for r in numerics_guard('reference', contract='mismatch', name='h', strict=True))\n"
    )

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(tmp_path), *options]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path).stdout

    assert "cannot be read" in run()
    assert "1 passed" in run("--numerics-guard-record")
    assert "exists; say with" in run("--numerics-guard-record")
    assert "1 passed" in run("--numerics-guard-record", "--numerics-guard-reason", "again")
    file = tmp_path / "guards" / "h.json"
    text = file.read_text()
    assert '"reason": "again"' in text
    file.write_text(text.replace("of the bound: ", "of the bound: 7", 1))
    assert re.search(r"MM-01 special 000: (no )?worse", run())
