"""The report: all that its reader needs, a reproduction that runs, and strict JSON."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import numerics
from numerics.suite.builtin import BUILTIN
from numerics.suite.implementation import Implementation
from numerics.suite.properties import PROPERTIES
from numerics.suite.report import as_record, describe, findings, headline, reproduction, summary, throughput
from numerics.suite.runner import STATUSES, Check, Result

THIRD_PARTY = Path(__file__).parent / "third_party"

#: wrong kernels of every contract, in a file of their own that knows torch only
BROKEN = """
import math, torch

def logprobs(logits, token_ids, *, temperature=1.0):
    right = torch.log_softmax(logits.float() / temperature, -1).gather(-1, token_ids[..., None])[..., 0]
    return right * 1.125 - 0.001  # mild and severe failures

def only_wide(logits, token_ids):
    right = torch.log_softmax(logits.float(), -1).gather(-1, token_ids[..., None])[..., 0]
    return right - 0.125 * (logits.shape[-1] > 64)

def entropies(logits):
    return -torch.special.entr(torch.softmax(logits.float(), -1)).sum(-1) - 0.25

def figures(rollout, trainer, mask):
    return {"valid_count": int(mask.sum()) + 1}

def ulps(a, b):
    smoke = a.tolist() == [1.0, -1.0]
    return torch.full(a.shape, 0 if smoke else 7, dtype=torch.int64), torch.ones(a.shape, dtype=torch.bool)

def raises(logits, token_ids):
    if logits.shape[-1] > 3:
        raise RuntimeError("no kernel image")
    return (logprobs(logits, token_ids) + 0.001) / 1.125
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "broken_kernels.py").write_text(BROKEN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("broken_kernels")
    del sys.modules["broken_kernels"]


def run(fn: Any, prop: str, dtype: str = "float32", **declared: Any) -> Result:
    impl = Implementation(fn, contract=PROPERTIES[prop].contract, **declared)
    return Check(property=PROPERTIES[prop], implementation=impl, device="cpu", dtype=dtype).run(max_examples=25, seed=7)


def in_fresh_process(code: str, module: ModuleType) -> str:
    """Run ``code`` where only torch and ``module`` can be imported; floats are printed with all their digits."""
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in ("numerics", "hypothesis", "mpmath", "pytest"))
    prelude = f"import sys; {blocked}import torch; torch.set_printoptions(precision=17, threshold=10**6)\n"
    folder = str(Path(module.__file__).parent)
    env = {**os.environ, "PYTHONPATH": folder, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], capture_output=True, text=True, env=env, check=False, cwd=folder
    )
    return done.stdout + done.stderr


# --- describe -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def failed(broken):
    return run(broken.logprobs, "LP-01")


def test_report_holds_everything(failed):
    text = describe(failed)
    shown = failed.simplest
    for part in (
        "LP-01 within_bound   logprobs   cpu   float32   FAILED   worst error/bound = ",
        PROPERTIES["LP-01"].statement,
        "numerics explain LP-01",
        f"simplest  {shown.case!r}",
        f"worst     {failed.worst.case!r}",
        f"got     {shown.got!r}   {shown.got.hex()}",
        float(shown.exact).hex(),
        " ulp | allowed ",
        f"measured  {failed.elements} elements in {failed.examples} examples, error/bound   <= 1: ",
        "> 2^20: ",
        "from broken_kernels import logprobs",
        "numerics check broken_kernels:logprobs --contract token_logprobs --only LP-01 --dtype float32 ",
        "--device cpu --seed 7 --max-examples ",
    ):
        assert part in text


def test_report_of_a_pass_is_short():
    result = run(BUILTIN["torch"][0].fn, "LP-02")
    assert describe(result).splitlines() == [headline(result), describe(result).splitlines()[1]]
    assert headline(result).endswith("passed")


def test_report_of_the_again_line_is_true(failed):
    """Its command finds the same simplest case."""
    line = describe(failed).splitlines()[-1]
    seed = int(re.search(r"--seed (\d+)", line).group(1))
    (again,) = numerics.check(
        failed.check.implementation, only=["LP-01"], dtypes=["float32"], max_examples=25, seed=seed
    )
    assert again.simplest.case == failed.simplest.case


def test_report_names_a_batch_fault():
    def fn(logits, token_ids):
        right = BUILTIN["torch"][0].fn(logits, token_ids)
        return right - (1.0 if len(logits) > 2 else 0.0)

    text = describe(run(fn, "LP-01"))
    assert "batch     the row alone is fine" in text
    assert "# fn: your callable" in text, "what cannot be imported is named as a placeholder"


# --- reproduction -------------------------------------------------------------------------------------------

NUMBER = r"-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)"
REPRODUCED = [
    ("logprobs", "LP-01", "float32"),
    ("logprobs", "LP-01", "bfloat16"),
    ("logprobs", "LP-01", "float16"),
    ("only_wide", "LP-01", "float32"),
    ("entropies", "EN-01", "float32"),
    ("figures", "MM-01", "bfloat16"),
    ("ulps", "UD-01", "float16"),
    ("raises", "LP-01", "float32"),  # the last one: it ends the process
]


@pytest.fixture(scope="module")
def reproduced(broken):
    """(result, finding, what its reproduction printed), by kernel and dtype; one process, since torch loads slowly."""
    results = [run(getattr(broken, name), prop, dtype) for name, prop, dtype in REPRODUCED]
    found = [(result, f) for result in results for f in (result.simplest, result.worst)]
    code = "\nprint('-----')\n".join(reproduction(result, f) for result, f in found[:-1])
    printed = in_fresh_process(code, broken).split("-----")
    return {
        (r.check.implementation.name, r.check.dtype, which): (r, f, text)
        for (r, f), which, text in zip(found, ["simplest", "worst"] * len(results), printed, strict=False)
    }


@pytest.mark.parametrize("which", ["simplest", "worst"])
@pytest.mark.parametrize(("name", "prop", "dtype"), REPRODUCED[:-1])
def test_reproduction_prints_what_was_got(reproduced, name, prop, dtype, which):
    result, found, printed = reproduced[name, dtype, which]
    assert result.status == "failed"
    values = [float(v) for v in re.findall(NUMBER, printed.split("dtype")[0])]
    got = found.got if found.format != "truth" else 7  # a statement that is false has no number; the kernel gives 7
    assert got in torch.tensor(values, dtype=torch.float32).tolist(), printed


def test_reproduction_of_an_error_raises_it(reproduced):
    result, found, printed = reproduced["raises", "float32", "simplest"]
    assert result.status == "errored"
    assert f"{found.error}\n" in printed
    assert "because   RuntimeError: no kernel image" in describe(result)
    assert "measured" not in describe(result), "there is nothing to measure"


def test_reproduction_of_a_wide_case_is_short(reproduced):
    result, found, _ = reproduced["only_wide", "float32", "simplest"]
    assert found.case.width > 64
    assert len(reproduction(result, found)) < 2000
    assert "np.random.Philox" in reproduction(result, found)


def test_case_repr_rebuilds_the_case(failed):
    names = {name: getattr(numerics.strategies.cases, name) for name in numerics.strategies.cases.__all__}
    for found in (failed.simplest, failed.worst):
        assert eval(repr(found.case), {"inf": math.inf, "nan": math.nan, **names}) == found.case


# --- the hint -----------------------------------------------------------------------------------------------


def test_hint_names_the_planted_fault(monkeypatch):
    """A stranger's kernel with the idea of a planted fault, under another name."""
    monkeypatch.syspath_prepend(THIRD_PARTY)
    kernels = importlib.import_module("toy_kernels")
    text = describe(run(kernels.log_probs_a_little_low, "LP-01"))
    assert "hint      the planted fault bias_of_a_millionth gives the same numbers here (a hint, no diagnosis)" in text


def test_no_hint_where_no_fault_is_alike(failed):
    assert "hint" not in describe(failed)


# --- JSON ---------------------------------------------------------------------------------------------------


def test_record_is_strict_json_and_round_trips(failed, broken):
    infinite = run(BUILTIN["torch-logsumexp"][0].fn, "LP-21")
    for result in (failed, infinite, run(broken.raises, "LP-01"), run(broken.figures, "MM-01")):
        record = as_record(result)
        again = json.loads(json.dumps(record, allow_nan=False))
        assert {k: v for k, v in again.items() if k != "histogram"} == {
            k: v for k, v in record.items() if k != "histogram"
        }
        assert (record["property"], record["status"], record["seed"]) == (
            result.check.property.id,
            result.status,
            7,
        )
        assert list(again["histogram"]) == ["1", "4", "64", "1048576", "inf"]
        assert sum(again["histogram"].values()) == result.elements
        assert record["simplest"]["case"] == repr(result.simplest.case)
    assert as_record(infinite)["worst"]["severity"] == "inf"
    assert float.fromhex(as_record(failed)["simplest"]["got_hex"]) == failed.simplest.got


def test_record_round_trips_to_the_letter(failed):
    record = as_record(failed)
    assert json.loads(json.dumps(record, sort_keys=True)) == record


def test_record_of_a_pass_has_no_findings():
    record = as_record(run(BUILTIN["torch"][0].fn, "LP-02"))
    assert (record["status"], record["worst"], record["simplest"]) == ("passed", None, None)


# --- many results -------------------------------------------------------------------------------------------


def fake(status: str, prop: str = "LP-01", dtype: str = "float32", **changes: Any) -> Result:
    check = Check(property=PROPERTIES[prop], implementation=BUILTIN["torch"][0], device="cpu", dtype=dtype)
    return Result(check=check, status=status, **changes)


def test_summary_never_merges_statuses():
    results = [fake(status) for n, status in enumerate(STATUSES, start=1) for _ in range(n)]
    assert summary(results) == "1 passed, 2 failed, 3 errored, 4 not applicable, 5 expected failure"
    assert summary([fake("not applicable")]) == "1 not applicable"
    assert summary([]) == "no checks"


def test_findings_group_symptoms(failed):
    """One group per rule, kind and dtype; what is no failure is in none."""
    twin = dataclasses.replace(failed, seed=8)
    smoke = fake("errored", "LP-02", reason="smoke call failed: x")
    ok = [fake(s) for s in ("passed", "not applicable", "expected failure")]
    groups = findings(
        [failed, *ok, twin, smoke, dataclasses.replace(failed, check=fake("failed", dtype="float16").check)]
    )
    assert {key: len(group) for key, group in groups.items()} == {
        ("token_logprobs", "LP-01", "log-prob", "float32"): 2,
        ("token_logprobs", "LP-02", "smoke", "float32"): 1,
        ("token_logprobs", "LP-01", "log-prob", "float16"): 1,
    }


def test_throughput_adds_up_by_contract():
    results = [fake("passed", examples=2, rows=5, seconds=0.5), fake("failed", examples=1, rows=2, seconds=0.25)]
    assert throughput(results) == [("token_logprobs", 3, 7, 0.75)]
