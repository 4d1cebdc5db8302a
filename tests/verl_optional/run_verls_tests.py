"""Run verl's own tests, as they are, against our drop-ins: a checkout of verl supplies the tests, the environment verl.

usage: run_verls_tests.py CHECKOUT [--parts PART ...] [--version VERSION]

Each test file runs in a process of its own, twice: against verl as it is installed, and with
`numerics.integrations.verl.install` done before the file is imported. Prints markdown: a line per file, then every test
that passes one way and not the other, with what is known about it (`EXPLAINED`). Exit status: 0; 1 if a test differs
that nobody explained; 2 without the tests. Nothing of verl is copied: the files are read where they are.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

#: verl's tests of what `install` replaces
FILES = (
    "tests/utils/debug/test_metrics.py",
    "tests/trainer/ppo/test_rollout_corr.py",
    "tests/trainer/ppo/test_rollout_corr_integration.py",
    "tests/trainer/ppo/test_metric_utils_on_cpu.py",
    "tests/trainer/ppo/v1/test_metrics_aggregator_on_cpu.py",
    "tests/utils/test_torch_functional.py",
    "tests/workers/test_engine_forward_step_detach_on_cpu.py",
    "tests/workers/test_engine_return_model_output_on_cpu.py",
    "tests/workers/test_megatron_distillation_only_on_cpu.py",
    "tests/workers/test_packed_pad_to_length_on_cpu.py",
)

_TP = (
    "the test has no tensor-parallel group and so replaces verl's log-probs in the engine's module; the raw ones are "
    "taken from their home, which needs that group (`check_megatron.py` has one)"
)
#: test -> why it differs under our drop-ins
EXPLAINED: dict[str, str] = {
    "test_rollout_probs_diff_valid_keeps_last": "ours is the maximum: whether any step had a token, of those that the "
    "figures beside it are of, in whatever order they came (S5.2)",
    "test_megatron_logits_processor_distillation_only_skips_log_probs": _TP,
    "test_megatron_logits_processor_without_topk_always_computes_log_probs": _TP,
}

_PLUGIN = """
import os
from numerics.integrations.verl import PARTS, install
def pytest_configure(config):
    parts = os.environ["NUMERICS_VERL_PARTS"].split(",")
    print("\\ninstalled:", *install(parts=parts, version=os.environ.get("NUMERICS_VERL_VERSION") or None))
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run of one file said: test -> passed, failed, error or skipped; and its last lines."""

    tests: dict[str, str]
    tail: str

    def count(self, status: str) -> int:
        """How many tests ended so."""
        return sum(found == status for found in self.tests.values())

    def __str__(self) -> str:
        if not self.tests:
            return f"did not run: {self.tail}"
        names = ("passed", "failed", "error", "skipped")
        return ", ".join(f"{self.count(name)} {name}" for name in names if self.count(name))


def run(checkout: Path, file: str, parts: Sequence[str], vouched: str) -> Outcome:
    """One file in a process of its own, without ``parts`` against verl alone."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        (Path(scratch) / "numerics_verl_plugin.py").write_text(_PLUGIN, encoding="utf-8")
        here = Path(__file__).resolve().parents[2]
        paths = [str(here), scratch, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(x for x in paths if x),
            "NUMERICS_VERL_PARTS": ",".join(parts),
            "NUMERICS_VERL_VERSION": vouched,
        }
        plugin = ["-p", "numerics_verl_plugin"] if parts else []
        command = [sys.executable, "-m", "pytest", *plugin, "-q", "-p", "no:cacheprovider", "-c", os.devnull]
        command += ["--import-mode=importlib", f"--rootdir={scratch}", f"--junitxml={report}", str(checkout / file)]
        done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, check=False)
        lines = (done.stdout + done.stderr).strip().splitlines()
        if not report.exists():
            return Outcome(tests={}, tail=lines[-1] if lines else "no output")
        tests = {}
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            status = next((x.tag for x in case if x.tag in ("failure", "error", "skipped")), "passed")
            tests[str(case.get("name"))] = {"failure": "failed"}.get(status, status)
        return Outcome(tests=tests, tail=lines[-1] if lines else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument(
        "--parts",
        nargs="+",
        default=["debug_metrics", "offpolicy_metrics", "rollout_correction", "aggregator", "reduce_metrics", "actor"],
    )
    parser.add_argument("--version", default="", help="vouch for this version of verl")
    options = parser.parse_args(arguments)
    files = [name for name in FILES if (options.checkout / name).is_file()]
    if not files:
        print(f"{options.checkout} has none of {', '.join(FILES)}", file=sys.stderr)
        return 2
    print(f"verl {version('verl')} (installed), parts: {', '.join(options.parts)}\n")
    print("| test file | verl alone | with the drop-ins |\n| --- | --- | --- |")
    different = []
    for name in files:
        alone = run(options.checkout, name, [], "")
        drop_ins = run(options.checkout, name, options.parts, options.version)
        print(f"| {name} | {alone} | {drop_ins} |", flush=True)
        for test in sorted(alone.tests.keys() | drop_ins.tests.keys()):
            pair = alone.tests.get(test, "missing"), drop_ins.tests.get(test, "missing")
            if pair[0] != pair[1]:
                different.append((test, *pair))
    print()
    for test, before, after in different:
        print(f"- `{test}`: {before} alone, {after} with the drop-ins: {explanation(test) or 'NOT EXPLAINED'}")
    return int(any(explanation(test) is None for test, _, _ in different))


def explanation(test: str) -> str | None:
    """What is known about a test, its parameters aside."""
    return EXPLAINED.get(re.sub(r"\[.*", "", test))


if __name__ == "__main__":
    sys.exit(main())
