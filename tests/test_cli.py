"""The ``numerics`` command: what it prints, and its exit codes 0 good, 1 found something, 2 bad input."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import numerics
from numerics.cli import main
from numerics.suite import explain as explain_module
from numerics.suite.builtin import BUILTIN
from numerics.suite.contracts import CONTRACTS
from numerics.suite.explain import explain
from numerics.suite.faults import FAULTS
from numerics.suite.implementation import CAPABILITIES
from numerics.suite.properties import PROPERTIES
from numerics.suite.runner import STATUSES, Check

THIRD_PARTY = Path(__file__).parent / "third_party"
COMMANDS = ("list", "check", "explain", "compare", "gate", "guard", "keys", "faults")
WRONG = ("numerics.suite.faults.logprobs:no_max_shift", "--contract", "token_logprobs")


@pytest.fixture(autouse=True)
def _path_stays(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # `check` adds the current folder


def numerics_command(*arguments: str) -> Result:
    result = CliRunner().invoke(main, [*arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def check(*arguments: str) -> Result:
    return numerics_command("check", *arguments, "--max-examples", "5")


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def records(result: Result) -> list[dict[str, Any]]:
    return [strict(line) for line in result.stdout.splitlines()]


# --- the command itself -------------------------------------------------------------------------------------


def test_version():
    result = numerics_command("--version")
    assert (result.exit_code, result.stdout) == (0, f"numerics, version {numerics.__version__}\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=lambda c: " ".join(c) or "numerics")
def test_help(command, flag):
    result = numerics_command(*command, flag)
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    assert all(name in result.stdout for name in (COMMANDS if not command else ("--help",)))


@pytest.mark.parametrize("command", [("chek",), ("list", "--contract", "mismatches"), ("check",), ("list", "--wat")])
def test_bad_usage(command):
    result = numerics_command(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr


# --- list ---------------------------------------------------------------------------------------------------


def test_list_names_everything():
    result = numerics_command("list")
    assert result.exit_code == 0
    for name in (*CONTRACTS, *BUILTIN, *(p.id for p in PROPERTIES.values())):
        assert name in result.stdout


@pytest.mark.parametrize("contract", CONTRACTS)
def test_list_one_contract(contract):
    text = numerics_command("list", "--contract", contract).stdout
    assert all((p.id in text) == (p.contract == contract) for p in PROPERTIES.values())


def test_list_json():
    record = strict(numerics_command("list", "--json").stdout)
    assert [p["id"] for p in record["properties"]] == list(PROPERTIES)
    assert set(record["implementations"]) == set(BUILTIN)
    only = strict(numerics_command("list", "--json", "--contract", "entropy").stdout)
    assert {p["contract"] for p in only["properties"]} == {"entropy"}


# --- check --------------------------------------------------------------------------------------------------


def test_check_that_passes():
    result = check("torch", "--contract", "token_logprobs", "--only", "LP-01", "--only", "LP-02", "--dtype", "float32")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "torch: 2 passed"
    assert "rows/s" in result.stdout
    assert result.stderr == ""


def test_check_that_fails():
    result = check(*WRONG, "--only", "LP-01", "--dtype", "float32", "--seed", "4")
    assert result.exit_code == 1
    assert result.stdout.startswith("LP-01 within_bound")
    assert "--seed 4" in result.stdout
    assert result.stdout.splitlines()[-1].endswith(": 1 failed")


def test_expected_failure_is_exit_0():
    result = check("torch-logsumexp", "--only", "LP-21", "--dtype", "float32")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "torch-logsumexp: 1 expected failure")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["refrence"], "did you mean reference"),
        (["reference", "--only", "LP-99"], "no property 'LP-99'"),
        (["reference", "--dtype", "bf16"], "'bf16' is not one of"),
        (["reference", "--contract", "logprobs"], "'logprobs' is not one of"),
        (["no_such_package:fn", "--contract", "entropy"], "cannot import 'no_such_package'"),
        (["numerics.suite.builtin:torch_entrop", "--contract", "entropy"], "did you mean torch_entropy"),
        (["numerics.suite.builtin:torch_entropy"], "say which contract it claims"),
        (["torch-logsumexp", "--only", "EN-01"], "nothing to check"),
        (["reference", "--max-examples", "0"], "--max-examples"),
        pytest.param(
            ["reference", "--device", "cuda"],
            "torch sees only cpu",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
)
def test_check_refuses(arguments, message):
    result = numerics_command("check", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in " ".join(result.stderr.split())


def test_check_json_lines():
    options = ("--only", "LP-01", "--only", "LP-02", "--only", "LP-05", "--dtype", "float32", "--dtype", "bfloat16")
    found = records(check(*WRONG, *options, "--seed", "3", "--json"))
    assert [(r["property"], r["dtype"]) for r in found] == [
        ("LP-01", "float32"),
        ("LP-01", "bfloat16"),
        ("LP-02", "float32"),
        ("LP-02", "bfloat16"),
        ("LP-05", "bfloat16"),
    ]
    assert {r["status"] for r in found} <= set(STATUSES)
    assert {r["seed"] for r in found} == {3}
    assert found[0]["worst"]["severity"] == "inf"


def test_check_seed_is_derived_by_default():
    """Two runs are alike, and a run of one property finds what the run of all found."""
    runs = [records(check("torch", "--only", "LP-02", "--dtype", "float16", "--json")) for _ in range(2)]
    torch_lp = BUILTIN["torch"][0]
    one = Check(property=PROPERTIES["LP-02"], implementation=torch_lp, device="cpu", dtype="float16")
    assert [r[0]["seed"] for r in runs] == [one.derived_seed] * 2


def test_fail_fast():
    options = ("--only", "LP-01", "--only", "LP-02", "--dtype", "float32", "--json")
    assert len(records(check(*WRONG, *options))) == 2
    assert [r["status"] for r in records(check(*WRONG, *options, "-x"))] == ["failed"]


def test_failing_smoke_call_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "kernels_that_raise.py").write_text("def fn(logits, token_ids):\n    raise RuntimeError('no image')\n")
    monkeypatch.chdir(tmp_path)
    result = check("kernels_that_raise:fn", "--contract", "token_logprobs")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "kernels_that_raise:fn: 1 errored"
    assert "smoke call failed: " in result.stdout
    assert "RuntimeError: no image" in result.stdout


def test_slack():
    result = check("torch", "--only", "LP-01", "--dtype", "float32", "--slack")
    assert "LP-01 within_bound   torch   cpu   float32   passed   slack 0." in result.stdout


def test_interrupt_prints_what_was_found(monkeypatch):
    run, done = Check.run, []

    def then_interrupt(self, **options):
        if done:
            raise KeyboardInterrupt
        done.append(self)
        return run(self, **options)

    monkeypatch.setattr(Check, "run", then_interrupt)
    result = check("torch", "--only", "LP-02")
    assert "interrupted; so far:" in result.stderr
    assert result.stdout.splitlines()[-1] == "torch: 1 passed"


@pytest.mark.parametrize(("kernel", "code"), [("log_probs", 0), ("log_probs_without_shift", 1)])
def test_process_in_a_strangers_folder(kernel, code):
    """``pkg.mod:obj`` is looked for in the current folder; the exit code is the process's."""
    command = [sys.executable, "-m", "numerics.cli", "check", f"toy_kernels:{kernel}", "--contract", "token_logprobs"]
    options = ["--only", "LP-01", "--dtype", "float32", "--max-examples", "5"]
    done = subprocess.run([*command, *options], cwd=THIRD_PARTY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.splitlines()[-1] == f"toy_kernels:{kernel}: 1 {'failed' if code else 'passed'}"


def test_help_loads_no_torch():
    code = (
        "import sys\nfrom numerics.cli import main\n"
        "try:\n    main(['check', '--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules or 'hypothesis' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


# --- explain ------------------------------------------------------------------------------------------------


@pytest.fixture
def _without_the_example(monkeypatch):
    """The example of a failure costs a run of its fault; one test keeps it."""
    monkeypatch.setattr(explain_module, "describe", lambda result: "(an example)")
    monkeypatch.setattr(Check, "run", lambda self, **options: None)


@pytest.mark.parametrize(
    "name",
    [
        *PROPERTIES,
        *CONTRACTS,
        *CAPABILITIES,
    ],
)
@pytest.mark.usefixtures("_without_the_example")
def test_explain_everything(name):
    text = explain(name)
    assert name in text.splitlines()[0]
    if name in PROPERTIES:
        prop = PROPERTIES[name]
        assert prop.statement in text
        assert inspect.cleandoc(prop.doc).splitlines()[0] in text
        assert explain(prop.slug) == text
    elif name in CONTRACTS:
        assert CONTRACTS[name].signature in text
        assert all(p.id in text for p in PROPERTIES.values() if p.contract == name)
    else:
        assert CAPABILITIES[name] in text


def test_explain_shows_a_failure():
    result = numerics_command("explain", "UD-02")
    assert result.exit_code == 0
    assert "a failure looks like this:" in result.stdout
    assert "FAILED" in result.stdout


@pytest.mark.parametrize(
    ("name", "near"), [("within_boud", "within_bound"), ("mismatc", "mismatch"), ("autgrad", "autograd")]
)
def test_explain_refuses(name, near):
    result = numerics_command("explain", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"nothing called '{name}'; did you mean " in " ".join(result.stderr.split())
    assert near in result.stderr


# --- faults -------------------------------------------------------------------------------------------------


def test_one_fault():
    result = numerics_command("faults", "ulps_two_zeros", "--max-examples", "20")
    assert "ulps_two_zeros" in result.stdout
    assert "UD-01" in result.stdout
    assert result.stdout.splitlines()[-1] == "1 faults, 1 seed(s): every claim holds"
    assert result.exit_code == 0


def test_one_fault_as_json():
    record = strict(numerics_command("faults", "ulps_two_zeros", "--max-examples", "20", "--json").stdout)
    kills = {(k["subject"], k["property"]): k["examples"] for k in record["kills"]}
    assert record["complaints"] == []
    assert kills["ulps_two_zeros", "UD-01"] >= 1


def test_unknown_fault():
    result = numerics_command("faults", "no_max_shif")
    assert result.exit_code == 2
    assert "did you mean no_max_shift" in result.stderr


def test_every_fault_has_an_idea_and_a_source():
    assert [f.id for f in FAULTS.values() if not (f.idea and f.source and f.breaks)] == []
