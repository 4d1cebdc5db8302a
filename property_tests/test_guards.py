"""Our own bits: the reference and the kernels against what is recorded under ``guards/``.

Bits may depend on the instruction set and on torch's version; a key that was never recorded is skipped, and says so.
Record again, with the reason in the file: ``pytest property_tests/test_guards.py --numerics-guard-record
--numerics-guard-reason "..."``.
"""

import json
from pathlib import Path

import pytest

GUARDS = sorted((Path(__file__).parent / "guards").glob("*.json"))


@pytest.mark.parametrize("file", GUARDS, ids=lambda file: file.stem)
def test_the_bits_are_those_we_know(file, numerics_guard):
    held = json.loads(file.read_text())
    reports = numerics_guard(held["implementation"], contract=held["contract"], name=file.stem)
    unknown = [str(report.key) for report in reports if report.status == "not recorded"]
    if unknown:
        pytest.skip(f"not recorded: {', '.join(unknown)}")
    assert reports
