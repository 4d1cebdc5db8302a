"""Imports run one way, rules hold no tolerance of their own, and every public name says what it is."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import numerics

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "numerics"
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imported(path: Path, *, deferred: bool = True) -> set[str]:
    """Modules that a file imports, ``from a import b`` as ``a.b``; deferred: also inside functions.

    Imports for type checkers only are left out: they load nothing.
    """
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not deferred:
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def inside(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def offences(room: str, *forbidden: str) -> list[str]:
    chosen = {name: path for name, path in FILES.items() if re.fullmatch(room, name)}
    assert chosen, f"no module is called {room}: this test guards nothing"
    return [f"{n} imports {m}" for n, path in chosen.items() for m in sorted(imported(path)) if inside(m, *forbidden)]


UPSTAIRS = tuple(f"numerics.{name}" for name in ("suite", "strategies", "kernels", "tools", "integrations", "cli"))
FRONT = (
    "numerics.cli",
    "numerics.pytest_plugin",
    "numerics.tools",
    "numerics.integrations",
    "pytest",
    "_pytest",
    "click",
)


@pytest.mark.parametrize(
    ("room", "forbidden"),
    [
        (r"numerics\.formats", (*UPSTAIRS, "numerics.reference", "numerics.functional", "hypothesis", "pytest")),
        (r"numerics\.reference(\..*)?", (*UPSTAIRS, "numerics.pytest_plugin", "hypothesis", "pytest")),
        (r"numerics\.strategies(\..*)?", ("numerics.suite", *FRONT)),
        (r"numerics\.kernels(\..*)?", ("numerics.suite", "numerics.strategies", "numerics.functional", *FRONT)),
        (r"numerics\.suite(\..*)?", (*FRONT, "rich")),
        (r"numerics\.tools(?!\.guard)(\..*)?", ("numerics.suite", "numerics.strategies", "hypothesis", "pytest")),
        # it measures by the suite's rules
        (r"numerics\.tools\.guard.*", ("hypothesis", "pytest", "numerics.suite.faults")),
        (r"numerics\.integrations(\..*)?", ("numerics.suite.runner", "numerics.tools", "hypothesis", "pytest")),
        # the judge shares no arithmetic with what it judges
        (r"numerics\.suite\.oracle.*|numerics\.suite\.bounds", ("torch", "numerics.reference", "numerics.functional")),
        (r"numerics\.suite\.properties(\..*)?", ("numerics.suite.runner", "numerics.suite.faults", "pytest")),
    ],
)
def test_imports_run_one_way(room, forbidden):
    # the first prints a table for the terminal, the second is a script of its own
    allowed = {"numerics.suite.faults.tables imports rich.table.Table", "numerics.suite.slack.__main__ imports click"}
    assert [o for o in offences(room, *forbidden) if o not in allowed] == []


def test_the_runner_alone_drives_hypothesis():
    drivers = [n for n, p in FILES.items() if {"hypothesis.given", "hypothesis.seed"} & imported(p)]
    assert drivers == ["numerics.suite.runner"]


def test_no_import_cycles():
    """Among imports at the top of a file; a package counts as its ``__init__`` alone."""
    graph = {
        name: {
            target if target in FILES else target.rpartition(".")[0]
            for target in imported(path, deferred=False)
            if inside(target, "numerics")
        }
        for name, path in FILES.items()
    }
    done: set[str] = set()

    def walk(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name in done:
            return
        for target in sorted(graph.get(name, ())):
            walk(target, (*above, name))
        done.add(name)

    for name in graph:
        walk(name, ())


@pytest.mark.parametrize(
    "path",
    [*sorted((PACKAGE / "suite" / "properties").glob("*.py")), *sorted((ROOT / "property_tests").glob("*.py"))],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_rules_hold_no_tolerance(path):
    """What is allowed is derived in numerics.suite.bounds."""
    found = re.findall(r"\b(\w*(?:atol|rtol|allclose|isclose|assert_close|approx)\w*)\b", path.read_text())
    assert found == []


def test_all_is_complete():
    assert dir(numerics) == sorted(numerics.__all__)
    for name in numerics.__all__:
        assert getattr(numerics, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'token_logprob'"):
        numerics.token_logprob  # noqa: B018


@pytest.mark.parametrize("name", [n for n in numerics.__all__ if n != "__version__"])
def test_public_names_have_docstrings(name):
    found = getattr(numerics, name)
    doc = inspect.getdoc(found) or ""
    assert len(doc.split()) >= 4
    assert not doc.startswith(f"{name}("), "the signature that a dataclass writes for itself"
    if inspect.isclass(found):
        members = [m for m in vars(found) if not m.startswith("_") and callable(getattr(found, m))]
        assert [m for m in members if not getattr(found, m).__doc__] == []


@pytest.mark.parametrize("name", FILES)
def test_modules_say_what_they_are(name):
    tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
