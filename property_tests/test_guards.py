"""Our own bits: the reference against what is recorded under ``guards/``.

Bits may depend on the instruction set and on torch's version; a key that was never recorded is skipped, and says so.
Record again, with the reason in the file: ``pytest property_tests/test_guards.py --numerics-guard-record
--numerics-guard-reason "..."``.
"""

from pathlib import Path

import pytest

GUARDS = sorted(path.stem for path in (Path(__file__).parent / "guards").glob("*.json"))


@pytest.mark.parametrize("contract", GUARDS)
def test_the_bits_are_those_we_know(contract, numerics_guard):
    reports = numerics_guard("reference", contract=contract)
    unknown = [str(report.key) for report in reports if report.status == "not recorded"]
    if unknown:
        pytest.skip(f"not recorded: {', '.join(unknown)}")
    assert reports
