"""The planted faults on one seed: killed by what they name, the control by nothing, a forced failure by everything."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from numerics.suite.faults import CONTROLS, FAULTS, FORCED, nearest, tables
from numerics.suite.faults.matrix import caught_by_assert_close, kill, matrix, median_examples
from numerics.suite.properties import PROPERTIES
from numerics.suite.runner import Check

PAGE = Path(__file__).parent.parent / "docs" / "faults.md"


@pytest.fixture(scope="module")
def kills():
    return matrix(seeds=[0], max_examples=60, full=False)


@pytest.mark.xdist_group("kills")  # one worker makes the matrix, not each
def test_every_claim_holds_on_one_seed(kills):
    assert tables.verdict(kills, FAULTS.values()) == []


@pytest.mark.xdist_group("kills")
def test_controls_and_forced_failures_meet_every_property(kills):
    cells = median_examples(kills)
    for name in ("control", "forced"):
        assert {p for s, p in cells if s == name} == set(PROPERTIES)


@pytest.mark.parametrize("property_id", PROPERTIES)
def test_every_property_is_named_by_a_fault(property_id):
    by = [f.id for f in FAULTS.values() if property_id in f.breaks]
    assert by or property_id in tables.NOT_ALONE


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda f: f.id)
def test_a_fault_says_what_it_is(fault):
    assert fault.idea
    assert fault.source
    assert fault.breaks
    assert set(fault.breaks) <= set(PROPERTIES)
    contracts = {PROPERTIES[p].contract for p in fault.breaks}
    assert contracts == {fault.implementation.contract}


@pytest.mark.xdist_group("kills")
def test_a_fault_that_is_none_is_reported(kills):
    """The verdict can fail: the control, planted as a fault, survives what it claims to break."""
    from dataclasses import replace

    fake = replace(FAULTS["log_of_softmax"], id="fake", implementation=CONTROLS["token_logprobs"])
    own = matrix(seeds=[0], max_examples=10, faults=[fake], full=False)
    assert "fake survives LP-01 on 1 of 1 seeds" in tables.verdict(own, [fake])


def test_forced_failure_reported_as_control_is_a_false_alarm():
    examples = kill(FORCED["mismatch"], "MM-01", "float32", seed=0, max_examples=5)
    assert examples == 1


def test_the_usual_unit_test_misses_most_faults():
    """A lower bound on what derived bounds add; the exact figure stands in docs/faults.md."""
    caught = sum(caught_by_assert_close(fault) for fault in FAULTS.values())
    assert 0 < caught < len(FAULTS) / 2


def test_nearest_names_a_fault_by_its_numbers():
    fault = FAULTS["base_two"]
    check = Check(property=PROPERTIES["LP-01"], implementation=fault.implementation, device="cpu", dtype="float32")
    result = check.run(max_examples=20, seed=1)
    assert result.simplest is not None
    assert nearest(check, result.simplest) == "base_two"


def test_the_committed_table_is_of_this_suite():
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", text)) == set(FAULTS)
    assert "NO REASON GIVEN" not in text
    assert "0 alarms" in text


def test_not_alone_names_properties():
    assert isinstance(tables.NOT_ALONE, Mapping)
    assert set(tables.NOT_ALONE) <= set(PROPERTIES)
