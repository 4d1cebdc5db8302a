"""The pages of the contracts are the generated ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from numerics.suite.contracts import CONTRACTS
from numerics.suite.pages import FAILURE, page
from numerics.suite.properties import PROPERTIES

PAGES = Path(__file__).parent.parent / "docs" / "contracts"


@pytest.mark.parametrize("contract", CONTRACTS)
def test_the_committed_page_is_the_generated_one(contract: str) -> None:
    """But for the failure, whose last digits belong to the machine that ran it."""
    committed = (PAGES / f"{contract}.md").read_text(encoding="utf-8")
    before, failure = committed.split(FAILURE)
    assert before.rstrip() + "\n" == page(contract, failure=False)
    assert "FAILED" in failure
    assert "worst error/bound" in failure


def test_every_property_is_on_a_page() -> None:
    text = "".join((PAGES / f"{contract}.md").read_text(encoding="utf-8") for contract in CONTRACTS)
    assert [p for p in PROPERTIES if f"**{p}**" not in text] == []


def test_a_failure_can_be_shown() -> None:
    assert "k3_as_written" in page("divergence")
