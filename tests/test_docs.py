"""The documentation says what is there: every holder of a statement exists, nothing is left out, every example runs."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import re
from collections import Counter
from pathlib import Path

import pytest

from numerics import Divergence, Mismatch
from numerics.integrations.verl import KEYS
from numerics.suite.properties import PROPERTIES

ROOT = Path(__file__).parent.parent
SEMANTICS = ROOT / "docs" / "semantics.md"
BOUNDS = ROOT / "docs" / "bounds.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_PARAGRAPH = re.compile(r"^\*\*(S\d+\.\d+)\*\* (.*?)(?=\n\n|\n\*\*S|\Z)", re.DOTALL | re.MULTILINE)
_ROW = re.compile(r"^\| (S\d+\.\d+) \| (.*) \|$", re.MULTILINE)
_HOLDERS = re.compile(r"\[([^\[\]]+)\]\s*\Z")
_TEST = re.compile(r"(tests/\w+\.py)::(\w+)")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def statements(text: str) -> list[tuple[str, str]]:
    """(number, text) of every statement, in the order of the page."""
    text = without_code(text)
    found = [(m.start(), m[1], m[2]) for pattern in (_PARAGRAPH, _ROW) for m in pattern.finditer(text)]
    return [(number, body) for _, number, body in sorted(found)]


def holders(body: str) -> list[str]:
    """The property ids and tests that a statement ends with."""
    found = _HOLDERS.search(body)
    return re.split(r",\s*", found[1]) if found else []


def table(text: str, header: str) -> list[list[str]]:
    """The rows of the table whose first line starts with ``header``, as cells without backticks."""
    lines = text[text.index(f"\n{header}") + 1 :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def functions_in(file: Path) -> set[str]:
    return {n.name for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.FunctionDef)}


STATEMENTS = statements(SEMANTICS.read_text())


def test_the_parser_sees_every_statement() -> None:
    numbers = [number for number, _ in STATEMENTS]
    openings = re.findall(r"^(?:\*\*|\| )(S\d+\.\d+)\b", SEMANTICS.read_text(), re.MULTILINE)
    assert numbers == openings
    assert len(numbers) > 80


def test_the_parser_knows_a_statement_without_a_holder() -> None:
    page = "**S0.1** Holds. [LP-01,\nLP-02]\n\n**S0.2** Has none.\n\n| S0.3 | a | [MM-01] |\n| S0.4 | b |\n"
    assert [(n, holders(body)) for n, body in statements(page)] == [
        ("S0.1", ["LP-01", "LP-02"]),
        ("S0.2", []),
        ("S0.3", ["MM-01"]),
        ("S0.4", []),
    ]


def test_statement_numbers_are_unique_and_consecutive() -> None:
    sections: dict[int, list[int]] = {}
    for number, _ in STATEMENTS:
        section, place = map(int, number[1:].split("."))
        sections.setdefault(section, []).append(place)
    assert list(sections) == sorted(sections)
    for section, places in sections.items():
        assert places == list(range(1, len(places) + 1)), f"section {section}"


def test_statements_stand_in_the_section_of_their_number() -> None:
    section = None
    for line in without_code(SEMANTICS.read_text()).splitlines():
        if heading := re.match(r"## (\d+)\. ", line):
            section = heading[1]
        elif number := re.match(r"(?:\*\*|\| )S(\d+)\.\d+\b", line):
            assert number[1] == section, line


def test_statements_refer_to_statements() -> None:
    known = {number for number, _ in STATEMENTS}
    assert set(re.findall(r"\bS\d+\.\d+\b", SEMANTICS.read_text())) <= known


@pytest.mark.parametrize(("number", "body"), STATEMENTS, ids=[number for number, _ in STATEMENTS])
def test_every_statement_is_held_by_something_that_exists(number: str, body: str) -> None:
    held_by = holders(body)
    assert held_by, f"{number} does not end with its holders in square brackets"
    assert max(Counter(held_by).values()) == 1, f"{number} names a holder twice"
    for holder in held_by:
        if test := _TEST.fullmatch(holder):
            file = ROOT / test[1]
            assert file.is_file(), f"{number}: no file {test[1]}"
            assert test[2].startswith("test_"), f"{number}: {test[2]} is no test"
            assert test[2] in functions_in(file), f"{number}: no function {test[2]} in {test[1]}"
        else:
            assert holder in PROPERTIES, f"{number}: no property {holder}"


def test_every_property_holds_a_statement() -> None:
    cited = {holder for _, body in STATEMENTS for holder in holders(body)}
    assert sorted(set(PROPERTIES) - cited) == []


@pytest.mark.parametrize(("section", "result"), [(2, Mismatch), (3, Divergence)])
def test_the_field_tables_are_those_of_the_results(section: int, result: type) -> None:
    text = SEMANTICS.read_text()
    rows = table(text[text.index(f"\n## {section}. ") :], "| no. | field |")
    known = [f.name for f in dataclasses.fields(result)]
    assert [row[1] for row in rows] == [n for n in known if section == 2 or n not in ("epsilon", "compare_dtype")]


def test_the_key_table_is_that_of_the_adapter() -> None:
    rows = table(SEMANTICS.read_text(), "| field | key after")
    assert {field: f"training/rollout_{key}" for field, key in rows} == dict(KEYS)


@pytest.mark.parametrize("page", [SEMANTICS, BOUNDS], ids=lambda page: page.name)
def test_lines_are_at_most_120_long(page: Path) -> None:
    assert [n for n, line in enumerate(page.read_text().splitlines(), 1) if len(line) > 120] == []


# --- examples


def examples(text: str) -> tuple[str, list[int]]:
    """The page with everything blanked but the python blocks that hold a prompt, and the lines those blocks start on.

    Line numbers stay. `AssertionError` for a prompt that would never run: outside such a block, or told to be skipped.
    """
    kept: list[str] = []
    starts: list[int] = []
    block: list[str] | None = None
    tag = ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"\s*```(.*)$", line)
        if fence and block is None:
            block, tag = [], fence[1].strip()
        elif fence and block is not None:
            prompts = any(">>>" in inner for inner in block)
            assert not prompts or tag == "python", f"line {number}: a block with >>> is tagged {tag!r}, not python"
            kept += ["", *(block if prompts else [""] * len(block)), ""]
            if prompts:
                starts.append(number - len(block))
            block = None
        elif block is not None:
            assert "+SKIP" not in line, f"line {number}: an example that is skipped shows nothing"
            block.append(line)
        else:
            assert not line.lstrip().startswith(">>>"), f"line {number}: a prompt outside a block"
            kept.append("")
    assert block is None, "a block is not closed"
    return "\n".join(kept) + "\n", starts


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page: Path) -> None:
    text, starts = examples(page.read_text())
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    prompts = [n for n, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith(">>>")]
    assert [e.lineno + 1 for e in test.examples] == prompts
    assert all(any(start <= n for n in prompts) for start in starts)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    result = runner.run(test, out=said.append)
    assert result.failed == 0, "".join(said)
    assert result.attempted == len(prompts)


@pytest.mark.parametrize(
    "page",
    [
        "```\n>>> 1\n```\n",
        "```pycon\n>>> 1\n```\n",
        ">>> 1\n",
        "```python\n>>> 1  # doctest: +SKIP\n```\n",
        "```python\n",
    ],
)
def test_an_example_that_would_not_run_is_refused(page: str) -> None:
    with pytest.raises(AssertionError):
        examples(page)
