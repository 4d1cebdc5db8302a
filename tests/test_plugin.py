"""The installed pytest plugin, in projects of strangers; then this repository's own conftest."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

# pytester runs pytest in this process and forgets the modules that were first imported there; torch can load only once
import numerics.suite.faults
import numerics.suite.report
from numerics import pytest_plugin
from numerics.suite.implementation import Implementation

pytest_plugins = "pytester"

ROOT = Path(__file__).parent.parent
no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a CUDA device")

KERNELS = """
import numerics, torch

def good(logits, token_ids):
    return torch.log_softmax(logits.float(), -1).gather(-1, token_ids[..., None])[..., 0]

def unshifted(logits, token_ids):
    return logits.float().gather(-1, token_ids[..., None])[..., 0] - logits.float().exp().sum(-1).log()

def broken(logits, token_ids):
    raise RuntimeError("no kernel image")

def declare(fn, **more):
    return numerics.Implementation(fn, contract="token_logprobs", **more)
"""
THREE = """
KERNELS = [declare(good), declare(unshifted), declare(unshifted, name="known", expected_failures={"LP-01": "bug 7"})]

@numerics.parametrize_with_checks(KERNELS, only=["LP-01", "LP-02", "LP-03"], dtypes=["float32"], devices=["cpu"])
def test_kernels(check):
    check()
"""
EXPECTED = {"passed": 4, "failed": 1, "not applicable": 3, "expected failure": 1}
QUICK = ("-p", "no:cacheprovider", "--numerics-max-examples=5", "--numerics-seed=1")


@pytest.fixture
def project(pytester):
    """A stranger's project with one test file, and how to run it in this process."""

    def run(text: str, *options: str, quick: bool = True) -> pytest.RunResult:
        pytester.makepyfile(test_it=KERNELS + text)
        return pytester.runpytest_inprocess(*(QUICK if quick else QUICK[:2]), *options)

    return run


def test_every_outcome(project):
    result = project(THREE, "-rsx", "-v")
    result.assert_outcomes(passed=4, failed=1, skipped=3, xfailed=1)
    result.stdout.fnmatch_lines_random(
        [
            "*test_kernels[[]LP-01_within_bound-good-cpu-float32[]] PASSED*",
            "*test_kernels[[]LP-01_within_bound-unshifted-cpu-float32[]] FAILED*",
            "XFAIL *test_kernels[[]LP-01_within_bound-known-cpu-float32[]] - bug 7",
            "*test_kernels[[]LP-03_unit_temperature-good-cpu-float32[]] SKIPPED*",
            "*not applicable: good does not declare temperature*",
        ]
    )


def test_failure_prints_the_report(project):
    result = project(THREE, "-k", "unshifted and LP-01")
    result.stdout.fnmatch_lines(
        [
            "E*LP-01 within_bound   unshifted   cpu   float32   FAILED   worst error/bound = inf",
            "E*  rule      |lp - exact| <= bound*",
            "E*  simplest  LogitsCase(*",
            "E*  got  *",
            "E*  exact  *",
            "E*  repro     import torch*",
            "E*  again     numerics check * --only LP-01 --dtype float32 --device cpu --seed 1 *",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_plugin.py:*raise CheckFailure*")


def test_terminal_summary(project):
    result = project(THREE)
    result.stdout.fnmatch_lines(
        [
            "*= numerics =*",
            "4 passed, 1 failed, 3 not applicable, 1 expected failure",
            "token_logprobs * examples * rows * rows/s, * examples/s",
        ]
    )


def test_summary_is_silent_without_checks(project):
    project("def test_nothing(): pass").stdout.no_fnmatch_line("*= numerics =*")


def test_report_file(project, pytester):
    (pytester.path / "out.jsonl").write_text("left over from another run\n")
    project(THREE, "--numerics-report=out.jsonl")
    records = [json.loads(line) for line in (pytester.path / "out.jsonl").read_text().splitlines()]
    assert Counter(r["status"] for r in records) == EXPECTED
    assert {r["seed"] for r in records if r["status"] != "not applicable"} == {1}
    (failure,) = (r for r in records if r["status"] == "failed")
    assert failure["worst"]["severity"] == "inf"


@pytest.mark.parametrize(
    ("options", "seed"),
    [(["--numerics-seed=5"], 5), (["--hypothesis-seed=6"], 6), (["--hypothesis-seed=random"], None)],
)
def test_seed_and_examples(project, pytester, options, seed):
    one = "@numerics.parametrize_with_checks([declare(good)], only=['LP-02'], dtypes=['float32'])\n"
    project(
        f"{one}def test_it(check): check()",
        "--numerics-max-examples=3",
        "--numerics-report=r",
        *options,
        quick=False,
    ).assert_outcomes(passed=1)
    (record,) = map(json.loads, (pytester.path / "r").read_text().splitlines())
    assert record["examples"] == 3
    assert record["seed"] == seed or seed is None


def test_users_profile_decides_the_examples(project, pytester):
    pytester.makeconftest(
        "from hypothesis import settings\nsettings.register_profile('mine', max_examples=4, derandomize=True)\n"
    )
    one = "@numerics.parametrize_with_checks([declare(good)], only=['LP-02'], dtypes=['float32'])\n"
    project(f"{one}def test_it(check): check()", "--hypothesis-profile=mine", "--numerics-report=r", quick=False)
    (record,) = map(json.loads, (pytester.path / "r").read_text().splitlines())
    assert record["examples"] == 4


def test_failing_smoke_call_speaks_once(project):
    result = project(
        "@numerics.parametrize_with_checks([declare(broken)], dtypes=['float32'], devices=['cpu'])\n"
        "def test_it(check): check()"
    )
    counts = result.parseoutcomes()
    assert counts["failed"] == 1
    assert counts["skipped"] > 20
    assert "passed" not in counts
    result.stdout.fnmatch_lines(["*smoke call failed:*RuntimeError: no kernel image*"])


def test_parametrize_refuses_nothing():
    with pytest.raises(ValueError, match="implementations is empty"):
        pytest_plugin.parametrize_with_checks([])


def test_unknown_property_is_an_error_of_collection(project):
    result = project("@numerics.parametrize_with_checks([declare(good)], only=['LP-99'])\ndef test_it(check): check()")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no property 'LP-99'*"])


def test_checks_are_marked(project):
    project(THREE, "-m", "numerics and not numerics").assert_outcomes(deselected=9)
    project(THREE, "--markers").stdout.fnmatch_lines(["*numerics: a check of the numerics suite*"])


def test_a_runnable_needs_no_session():
    check = next(iter(numerics.suite.runner.checks_for([Implementation(lambda a: a, contract="entropy")])))
    runnable = pytest_plugin.Runnable(check)
    assert repr(runnable) == check.id
    with pytest.raises(AssertionError, match="smoke call failed"):
        runnable()


# --- processes of their own ---------------------------------------------------------------------------------


def test_loading_the_plugin_costs_nothing(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_modules():
            assert "numerics.pytest_plugin" in sys.modules
            assert not {"torch", "hypothesis", "mpmath", "numpy", "numerics.suite"} & set(sys.modules)
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_importing_numerics_costs_nothing():
    code = (
        "import sys, numerics; dir(numerics); numerics.__version__; "
        "print(sorted({'torch', 'hypothesis', 'pytest', 'numpy', 'mpmath', 'click'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_strangers_project_under_xdist(pytester):
    """The files that .ci/run takes out of the repository, on two workers."""
    for name in ("toy_kernels.py", "test_toy.py"):
        shutil.copy(ROOT / "tests" / "third_party" / name, pytester.path)
    options = ("-n2", "-k", "LP-01 or LP-02 or LP-03", "--numerics-report=out.jsonl", "-p", "no:benchmark")
    # as `python -m pytest` does, so that the module beside the test is found
    result = pytester.run(sys.executable, "-m", "pytest", *QUICK, *options)
    result.assert_outcomes(passed=6)
    records = [json.loads(line) for line in (pytester.path / "out.jsonl").read_text().splitlines()]
    assert Counter((r["dtype"], r["status"]) for r in records) == {("float32", "passed"): 3, ("bfloat16", "passed"): 3}


# --- this repository's conftest -----------------------------------------------------------------------------

RUNS = {
    "impl typo": ["--impl=refrence"],
    "impl module": ["--impl=no_such_package:fn"],
    "contract typo": ["--contract=mismatches"],
    "absent device": ["--device=cuda"],
    "required device": ["--require-device=cuda"],
    "unknown device": ["--device=gpu"],
    "selected": ["-k", "LP-02 and bfloat16", "-v"],
    "contract": [
        "--contract=ulp_distance",
        "--impl=reference",
        "-k",
        "UD-06",
        "-v",
        "--hypothesis-seed=3",
        "--durations=0",
    ],
    "impl": ["--impl=numerics.suite.builtin:torch_entropy", "--contract=entropy", "-k", "EN-01 and float32", "-v"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(exit code, output) of every run of ``pytest property_tests``, all in one process: torch loads slowly."""
    report = tmp_path_factory.mktemp("runs") / "report"
    common = [*QUICK[:2], "--numerics-max-examples=3", "property_tests"]
    code = (
        "import json, pytest\n"
        f"for name, options in json.loads({json.dumps(json.dumps(RUNS))}).items():\n"
        f"    print('@@@@@', name, flush=True)\n"
        f"    code = pytest.main([*{common!r}, f'--numerics-report={report}-' + name.replace(' ', '_'), *options])\n"
        "    print('@@@@ exit', int(code), flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    found = {}
    for part in done.stdout.split("@@@@@ ")[1:]:
        name, _, text = part.partition("\n")
        found[name] = (int(re.search(r"@@@@ exit (\d+)", text).group(1)), text)
    found["report"] = (0, (report.parent / "report-contract").read_text())
    return found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "impl typo",
            "--impl no implementation named 'refrence'; did you mean reference? known: cpu, reference, torch",
        ),
        ("impl module", "cannot import 'no_such_package'"),
        ("contract typo", "--contract mismatches: did you mean mismatch? known: token_logprobs, entropy"),
        pytest.param("absent device", "--device cuda: torch ", marks=no_cuda),
        pytest.param("required device", "--require-device cuda: torch ", marks=no_cuda),
        ("unknown device", "--device gpu: torch "),
    ],
)
def test_usage_errors(runs, name, message):
    code, text = runs[name]
    assert code == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {message}" in text or message in text
    assert "Traceback" not in text


def test_selection_by_words(runs):
    code, text = runs["selected"]
    assert code == 0
    ids = re.findall(r"test_token_logprobs\[(\S+)\] PASSED", text)
    assert ids == [
        f"LP-02_output_dtype-{name}-cpu-bfloat16" for name in ("reference", "cpu", "torch", "torch-logsumexp")
    ]


def test_header(runs):
    _, text = runs["selected"]
    assert "numerics: implementations reference, cpu, torch, torch-logsumexp; devices cpu" in text
    assert re.search(rf"numerics: torch {re.escape(torch.__version__)}, .* threads, .* examples a check", text)


def test_one_contract_and_one_seed(runs):
    code, text = runs["contract"]
    assert code == 0
    assert set(re.findall(r"::test_(\w+)\[.*\] PASSED", text)) == {"ulp_distance"}
    records = [json.loads(line) for line in runs["report"][1].splitlines()]
    assert {r["contract"] for r in records} == {"ulp_distance"}
    assert {r["seed"] for r in records} == {3}


def test_implementation_by_module_and_object(runs):
    code, text = runs["impl"]
    assert code == 0
    assert "test_entropy[EN-01_within_bound-numerics.suite.builtin:torch_entropy-cpu-float32] PASSED" in text
