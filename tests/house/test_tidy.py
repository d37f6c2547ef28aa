"""The shape of the code, as a test: what reads in a sitting stays so, and dangerous habits do not come back."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "quiesce"
MODULES = sorted(SOURCE.rglob("*.py"))
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
CLASS_LINES_MAX = 300


def name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def nodes(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> Iterator[tuple[Path, ast.AST]]:
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, kind):
                yield path, node


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_opens_with_its_docstring_and_reads_in_a_sitting(path: Path) -> None:
    assert path.read_text().count("\n") <= MODULE_LINES_MAX
    assert ast.get_docstring(parsed(path))


def test_functions_and_classes_fit_on_a_screen_or_two() -> None:
    long: list[str] = []
    for path, node in nodes((ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > (CLASS_LINES_MAX if isinstance(node, ast.ClassDef) else FUNCTION_LINES_MAX):
            long.append(f"{name(path)}:{node.lineno} {node.name} {lines}")
    assert not long


def test_every_broad_handler_says_why_it_may_catch_everything() -> None:
    silent: list[str] = []
    for path, node in nodes(ast.ExceptHandler):
        assert isinstance(node, ast.ExceptHandler)
        caught = ast.unparse(node.type) if node.type is not None else "BaseException"
        if re.search(r"\b(Base)?Exception\b", caught) and not any(
            isinstance(n, ast.Raise) and n.exc is None for n in ast.walk(node)
        ):
            line = path.read_text().splitlines()[node.lineno - 1]
            if not re.search(r"(# noqa: BLE001[, S0-9]* -|#) \S+ \S+", line):
                silent.append(f"{name(path)}:{node.lineno} {line.strip()}")
    assert not silent


@pytest.mark.req("CC-37", "QA-10")
def test_time_and_randomness_come_from_the_few_modules_that_may_ask_for_them() -> None:
    allowed = {
        "adapters/clock_system.py",
        "adapters/entropy_system.py",
        "stores/postgres/patience.py",  # how long to go on trying, never what time it is
        "stores/sqlite/clock.py",
    }
    asked = re.compile(
        r"\b(time\.(time|time_ns|monotonic|monotonic_ns|clock_gettime_ns)|datetime\.now|os\.urandom|uuid[14]|secrets\.)\("
    )
    offenders = {
        name(path)
        for path in MODULES
        if asked.search(path.read_text())
        and name(path) not in allowed
        and not name(path).startswith(("testing/", "cli/", "cases/"))
    }
    assert not offenders


def test_nothing_is_left_for_later_in_the_source() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError(?!\(f?\")")
    assert not [name(path) for path in MODULES if marks.search(path.read_text())]
