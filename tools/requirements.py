"""Prints every requirement id of `docs/requirements.md` with the tests that cite it; ids without a test last.

Tests cite ids by `@pytest.mark.req("RR-05", "C64")` or `pytestmark = pytest.mark.req(...)`. An id that a test cites and the
document does not know is an error, so that neither can drift (exit status 1). Ids of cases (`C64`) and of design
resolutions (`G-36`) are listed too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ID = re.compile(r"^\| ((?:CC|RR|TR|ST|WV|NO|QA)-\d+) \| (.*) \|$", re.MULTILINE)
CASE = re.compile(r"C\d{2,3}|G-\d{2}")


def cited(path: Path) -> dict[str, list[str]]:
    """Return id → names of the tests of one file that cite it."""
    found: dict[str, list[str]] = defaultdict(list)
    module = ast.parse(path.read_text())
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                for name in _ids(decorator):
                    found[name].append(f"{path.relative_to(ROOT)}::{node.name}")
        elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets):
            for call in ast.walk(node.value):
                for name in _ids(call):
                    found[name].append(f"{path.relative_to(ROOT)}")
    return found


def _ids(node: ast.AST) -> list[str]:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "req"):
        return []
    return [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]


def main() -> int:
    """Print the table; return the exit status."""
    known = dict(ID.findall((ROOT / "docs" / "requirements.md").read_text()))
    tests: dict[str, list[str]] = defaultdict(list)
    files = [*sorted((ROOT / "tests").rglob("test_*.py")), *sorted((ROOT / "src/quiesce/testing").rglob("*.py"))]
    for path in files:
        for name, where in cited(path).items():
            tests[name].extend(where)
    for name in [*sorted(known), *sorted(n for n in tests if CASE.fullmatch(n))]:
        if tests.get(name):
            print(f"{name}  {known.get(name, '')}")
            for where in tests[name]:
                print(f"    {where}")
    without = [name for name in sorted(known) if not tests.get(name)]
    print(f"\n{len(known) - len(without)} of {len(known)} requirements have tests. Without:")
    print("  " + " ".join(without))
    unknown = sorted(name for name in tests if name not in known and not CASE.fullmatch(name))
    if unknown:
        print("cited by tests and not in docs/requirements.md: " + " ".join(unknown), file=sys.stderr)
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
